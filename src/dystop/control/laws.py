"""Laws of time: how long a round lasts, and when each worker starts its new training.

A law is a class in `LAWS`; `timetable` and `spare_s` ask it. The rest of the module is what the
laws share: remaining training and exchange times.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dystop.acceleration import accelerated
from dystop.plan import Plan
from dystop.registry import Registry
from dystop.sparse import Bools, Floats, Graph, Ints


def remaining_compute_s(full_s: Floats, elapsed_s: Floats) -> Floats:
    """Return the seconds of local training that remain when the round opens (eq:h_comp).

    `elapsed_s` is the sum of the durations H_k since the training started. It is negative for a
    worker whose exchange is not over.
    """
    return np.maximum(full_s - elapsed_s, 0.0)


@accelerated("dystop.kernels.topology:expected_exchange_s")
def expected_exchange_s(reach: Graph, link_s: Floats, rank: int) -> Floats:
    """Return the link time that a worker expects before its neighbours are chosen (ADR 0001).

    It is the `rank`-th smallest link time among the worker's candidates, or the largest where there
    are fewer. It is 0 where there are none, because such a worker trains alone.
    """
    expected, some = np.zeros(reach.n), reach.degree > 0
    ascending = link_s[np.lexsort((link_s, reach.dst))]
    at = reach.indptr[:-1] + np.minimum(rank, reach.degree) - 1
    expected[some] = ascending[at[some]]
    return expected


def exchange_s(plan: Plan, link_s: Floats, nodes: int) -> Floats:
    """Return the exchange seconds of each node: per mix stage, the slowest link charged to it.

    A pull is charged to its receiver, a push to its sender, a background link to no node. With one
    stage of pulls this is the second term of eq:costtime.
    """
    total, links = np.zeros(nodes), plan.links
    if np.count_nonzero(links.background):
        blocking = ~links.background
        links, link_s = links.take(blocking), link_s[blocking]
    for stage in links.stages:
        here, slowest = links.at_stage(stage), np.zeros(nodes)
        np.maximum.at(slowest, links.payer[here], link_s[here])
        total += slowest
    return total


def cost_s(remaining_s: Floats, comm_s: Floats) -> Floats:
    """Return remaining training plus exchange of each worker, H_t^i (eq:costtime)."""
    return remaining_s + comm_s


def round_duration_s(cost: Floats) -> float:
    """Return the duration of a round, H_t: the cost of its slowest active worker (eq:duration)."""
    return float(cost.max(initial=0.0))


@dataclass(frozen=True)
class Timetable:
    """The events of a round, in seconds after it opens."""

    duration_s: float
    comm_s: Floats  # [A], exchange time of each active worker
    begin_s: Floats  # [A], when each active worker starts its new training
    link_begin_s: Floats  # [L], when each transfer starts to send the model
    link_end_s: Floats  # [L], when each transfer ends


class Law(ABC):
    """A law of time. Fields hold its parameters, as `dystop.param` declares them.

    Whether trainings start alone, and whether a round ends with its exchanges, says what counts as
    idle time and how a recorded run is replayed.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    starts_alone: ClassVar[bool] = True
    """A worker starts its new training when its own exchange is over; else at the close."""
    ends_with_exchanges: ClassVar[bool] = True
    """A round lasts until its last exchange is over; else exchanges go on in later rounds."""
    has_kernel: ClassVar[bool] = False
    """`dystop.kernels.times` knows the law, by the two class variables above."""

    @abstractmethod
    def table(self, plan: Plan, link_s: Floats, remaining_s: Floats) -> Timetable:
        """Return the events of a round whose end waits for no new training.

        Args:
            plan: The decision for this round.
            link_s: Realised seconds of each link of the plan, [L].
            remaining_s: Remaining training of every node, 0 for a server, [nodes].
        """


class PaperLaw(Law):
    """The paper's law (eq:duration)."""

    name = "paper"
    summary = (
        "a round lasts until its slowest active worker has pulled, and nothing else begins before: "
        "new trainings start when it closes"
    )
    starts_alone = False
    has_kernel = True

    def table(self, plan: Plan, link_s: Floats, remaining_s: Floats) -> Timetable:
        """Return the events of a round."""
        comm = exchange_s(plan, link_s, len(remaining_s))[plan.active]
        duration = round_duration_s(cost_s(remaining_s[plan.active], comm))
        begin = _stage_begins(plan, link_s, remaining_s)
        return Timetable(duration, comm, np.full(len(plan.active), duration), begin, begin + link_s)


class OverlapLaw(Law):
    """Transfers that go on while the next rounds run (ADR 0006)."""

    name = "overlap"
    summary = (
        "a round lasts until its last active worker has finished its training; transfers continue "
        "during the next rounds, and each worker starts to train when its own models have arrived"
    )
    ends_with_exchanges = False
    has_kernel = True

    def table(self, plan: Plan, link_s: Floats, remaining_s: Floats) -> Timetable:
        """Return the events, stage by stage; `ready` is when a node may start the next stage."""
        links, active = plan.links, plan.active
        ready = np.zeros(len(remaining_s))
        ready[active] = remaining_s[active]
        begin = np.zeros(len(links))
        for stage in np.unique(links.stage):
            here = np.flatnonzero(links.stage == stage)
            dst, src, pushed = links.dst[here], links.src[here], links.pushed[here]
            payer_ready = np.where(pushed, ready[src], ready[dst])
            both = plan.synchronous or stage > 0
            begin[here] = np.maximum(ready[dst], ready[src]) if both else payer_ready
            end = begin[here] + link_s[here]
            waits = ~links.background[here]
            after = ready.copy()
            np.maximum.at(after, np.where(pushed, src, dst)[waits], end[waits])
            fed = waits & _feeds_a_row(plan, int(stage), dst, src)
            np.maximum.at(after, dst[fed], end[fed])
            ready = after
        duration = round_duration_s(remaining_s[active])
        comm = ready[active] - remaining_s[active]
        return Timetable(duration, comm, ready[active], begin, begin + link_s)


class TestbedLaw(Law):
    """What real workers do (ADR 0006).

    The receiver of a link pulls the model, also of a pushed one, and its sender does not wait.
    The receiver waits for the sender where it needs the model of this round: in a synchronous
    exchange, in a later stage, and if the link is pushed.
    """

    __test__ = False  # pytest must not collect this class

    name = "testbed"
    summary = (
        "a round lasts until its last exchange is over, and each worker starts to train when its "
        "own models have arrived, as real workers do"
    )

    def table(self, plan: Plan, link_s: Floats, remaining_s: Floats) -> Timetable:
        """Return the events of the orders that a coordinator makes of the plan."""
        links, active = plan.links, plan.active
        ready = np.zeros(len(remaining_s))  # an inactive worker obeys immediately, while it trains
        ready[active] = remaining_s[active]
        begin = np.zeros(len(links))
        for stage in np.unique(links.stage):
            here = np.flatnonzero(links.stage == stage)
            dst, src = links.dst[here], links.src[here]
            waits = links.pushed[here] | plan.synchronous | (stage > 0)
            begin[here] = np.maximum(ready[dst], np.where(waits, ready[src], 0.0))
            end, blocks = begin[here] + link_s[here], ~links.background[here]
            ready = ready.copy()
            np.maximum.at(ready, dst[blocks], end[blocks])
        comm = ready[active] - remaining_s[active]
        return Timetable(round_duration_s(ready), comm, ready[active], begin, begin + link_s)


LAWS: Registry[Law] = Registry("timing law", Law, "dystop.laws", (PaperLaw, OverlapLaw, TestbedLaw))


def compared(law: Law, plan: Plan) -> float:
    """Return how many links or workers a kernel compares one by one, for `accelerated`."""
    return max(len(plan.links.dst), len(plan.active)) if law.has_kernel else math.inf


@accelerated("dystop.kernels.times:timetable", size=lambda law, plan, *_: compared(law, plan))
def timetable(
    law: Law, plan: Plan, link_s: Floats, remaining_s: Floats, training_s: Floats
) -> Timetable:
    """Compute the timetable of one round under a timing law.

    Args:
        law: How long the round lasts.
        plan: the decision for this round.
        link_s: realised seconds of each link of the plan, [L].
        remaining_s: remaining training of every node, 0 for a server, [nodes].
        training_s: length of the new training of each active worker, [A].
    """
    table = law.table(plan, link_s, remaining_s)
    if not plan.join:
        return table
    end = max(table.duration_s, round_duration_s(table.begin_s + training_s))
    return Timetable(end, table.comm_s, table.begin_s, table.link_begin_s, table.link_end_s)


def _stage_begins(plan: Plan, link_s: Floats, remaining_s: Floats) -> Floats:
    """Return when each transfer starts: its payer is ready and its sender has the model.

    This determines arrival times only; the duration of the round is eq:duration.
    """
    links = plan.links
    ready = np.zeros(len(remaining_s))  # an inactive worker serves its model immediately
    ready[plan.active] = remaining_s[plan.active]
    begin = np.zeros(len(links))
    for stage in links.stages:
        here = links.at_stage(stage)
        begin[here] = ready[links.payer[here]]
        if stage > 0:
            begin[here] = np.maximum(begin[here], ready[links.src[here]])
        if stage == links.stages[-1]:
            break  # nothing begins later
        waits = np.flatnonzero((links.stage == stage) & ~links.background)
        after = ready.copy()
        np.maximum.at(after, links.payer[waits], (begin + link_s)[waits])
        ready = after
    return begin


def _feeds_a_row(plan: Plan, stage: int, dst: Ints, src: Ints) -> Bools:
    """Return which links bring a source of a row of this stage."""
    if stage >= len(plan.mixes):
        return np.zeros(len(dst), bool)
    rows = plan.mixes[stage]
    base = int(max(rows.source.max(initial=0), src.max(initial=0))) + 1
    feeds: Bools = np.isin(dst * base + src, rows.dst * base + rows.source)
    return feeds


def idle_s(
    law: Law,
    table: Timetable,
    plan: Plan,
    link_s: Floats,
    remaining_s: Floats,
    training_s: Floats,
) -> float:
    """Return the seconds, summed over workers, in which a worker neither trains nor exchanges.

    An inactive worker idles from the end of its training to the close of the round. So does an
    active worker from the end of its exchange, where trainings start at the close. Where a worker
    starts alone, it idles while its exchange waits for others, and, if the round ends with its
    exchanges, from the end of its new training to the close. The new training that a round waits
    for (`join`) is not idle time.
    """
    return float(spare_s(law, table, plan, link_s, remaining_s, training_s).sum())


def spare_s(
    law: Law,
    table: Timetable,
    plan: Plan,
    link_s: Floats,
    remaining_s: Floats,
    training_s: Floats,
) -> Floats:
    """Return the idle seconds of every worker; see `idle_s`, [N]."""
    workers, active = len(remaining_s), plan.active
    spare: Floats = np.maximum(table.duration_s - remaining_s, 0.0)
    if not law.starts_alone:
        joined = training_s if plan.join else np.zeros(len(active))
        spare[active] = np.maximum(spare[active] - table.comm_s - joined, 0.0)
        return spare
    ends = max(plan.links.dst.max(initial=0), plan.links.src.max(initial=0), workers - 1)
    own = exchange_s(plan, link_s, int(ends) + 1)  # a server is beyond the workers
    spare[active] = np.maximum(table.comm_s - own[active], 0.0)
    if plan.join or law.ends_with_exchanges:  # it stays until the round closes
        spare[active] += np.maximum(table.duration_s - table.begin_s - training_s, 0.0)
    return spare
