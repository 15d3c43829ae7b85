"""The trace of a testbed run: what was observed and what happened, round by round.

`trace.jsonl` lies in the run folder and holds one JSON object per line, one line per round, in
order from round 1. All seconds are emulated seconds (real seconds / `testbed.time_scale`), by the
coordinator's clock. Pairs are (dst, src): *dst receives from src*. Numbers are written in full, so
that a replay decides exactly as the run did. `null` stands for an unknown number, and in `budget`
for no limit. A missing key of the first group has the value of the line before.

What was observed when the round opened (as in `types.Observation`):

    alive        [N] true or false
    reach        {"dst": [E], "src": [E]}, sorted by (dst, src)
    distance_m   [E]
    link_s       [E] expected seconds for one full model
    step_s       [N] seconds per mini-batch
    budget       [nodes]

    round        number of the round, from 1
    opened_s     when it opened
    remaining_s  [N] expected seconds of training still to run. 0 exactly where the last training
                 is known to have ended: one that overruns its estimate has a small positive number
    mailbox      {"dst", "src", "version", "sent"}: [M] each, sorted by (dst, src), as in
                 `types.Mailbox`: version is `Mail.number` + 1, the trainings that were finished

What was decided and what happened (as in `types.Outcome`):

    duration_s   how long the round was open
    active       [A] in the order of the decision
    links        {"dst", "src", "stage", "seconds", "bytes", "lost", "stale", "waits"}: [L] each,
                 in the order of the plan. seconds: measured by the receiver. bytes: on the wire.
                 lost: the model did not arrive, or was refused. stale: the sender handed out an
                 older model than that of the newest training it had begun when the round opened
                 (`Used.number` below `ControlState.version` of the sender). waits: the receiver may
                 have waited for the sender, and that time is part of the seconds
    orders       {"node", "train", "waited_s", "exchange_s", "failed"}: [O] each, one per node that
                 had an order, in id order. waited_s: from the order to the end of the running
                 training (0 for a passive node). exchange_s: pulling and mixing. failed: no `mixed`
                 report came before the round closed
    trained      {"node", "round", "steps", "seconds"}: [K] each, the trainings whose end was
                 reported since the line before; round: whose order began it, 0: the warm start

Further keys are allowed and ignored. `observed_part` is known when a round opens, `outcome_part`
when it closes, and `trace_line` is both; `dystop.world.trace_file` reads the file back.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dystop.plan import Plan
from dystop.sparse import Bools, Floats, Graph, Ints
from dystop.types import Mailbox, Outcome, View

TRACE = "trace.jsonl"
REPEATED = ("alive", "reach", "distance_m", "link_s", "step_s", "budget")
MAIL = ("dst", "src", "version", "sent")
LINKS = ("dst", "src", "stage", "seconds", "bytes", "lost", "stale", "waits")
ORDERS = ("node", "train", "waited_s", "exchange_s", "failed")
TRAINED = ("node", "round", "steps", "seconds")


@dataclass(frozen=True)
class Orders:
    """What happened to the orders of a round, one per node that had one, in id order."""

    node: Ints
    train: Bools  # active, as opposed to passive
    waited_s: Floats  # from the order to the end of the running training; NaN: unknown
    exchange_s: Floats  # pulling and mixing; NaN: unknown
    failed: Bools  # no `mixed` report came before the round closed


@dataclass(frozen=True)
class Trainings:
    """Trainings whose end was reported, with the round whose order began them."""

    node: Ints
    round: Ints  # 0: the start of the run
    steps: Ints  # mini-batches
    seconds: Floats


def no_trainings() -> Trainings:
    """Return an empty table of trainings."""
    none = np.zeros(0, np.int64)
    return Trainings(none, none, none, np.zeros(0))


@dataclass(frozen=True)
class TracedLinks:
    """What happened on the links of a plan, in its order."""

    dst: Ints
    src: Ints
    stage: Ints
    seconds: Floats  # NaN: unknown
    bytes: Ints
    lost: Bools
    stale: Bools
    waits: Bools  # the seconds include a wait for the sender


@dataclass(frozen=True)
class TracedRound:
    """One line of a trace."""

    round: int
    opened_s: float
    duration_s: float
    alive: Bools
    reach: Graph
    distance_m: Floats
    link_s: Floats
    step_s: Floats
    remaining_s: Floats
    budget: Floats
    mailbox: Mailbox
    active: Ints
    links: TracedLinks
    orders: Orders
    trained: Trainings = field(default_factory=no_trainings)

    @property
    def waited(self) -> Bools:
        """Which links may have waited for their sender, [L].

        `links.waits` marks the links that have to. One of the first stage does not wait if its
        sender had finished its training before the order came.
        """
        finished = self.orders.node[self.orders.train & (self.orders.waited_s == 0.0)]
        ready = (self.links.stage == 0) & np.isin(self.links.src, finished)
        waited: Bools = self.links.waits & ~ready
        return waited


@dataclass(frozen=True)
class Trace:
    """A recorded run: `rounds[t - 1]` is round t."""

    path: Path
    rounds: tuple[TracedRound, ...]

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.rounds[0].alive)

    @cached_property
    def train_s(self) -> Floats:
        """Seconds of the training that each round began at each worker, [rounds + 1, N].

        Row 0 is the warm start. NaN where no training began, or where its end was not reported.
        """
        out = np.full((len(self.rounds) + 1, self.workers), np.nan)
        for line in self.rounds:
            out[line.trained.round, line.trained.node] = line.trained.seconds
        return out

    @property
    def nodes(self) -> int:
        """Workers, plus one where there was a server."""
        return len(self.rounds[0].budget)


def observed_part(view: View) -> dict[str, Any]:
    """Return the part of a line that is known when the round opens, as JSON values."""
    return {
        "round": view.t,
        "opened_s": float(view.now_s),
        "alive": _plain(view.alive),
        "reach": {"dst": _plain(view.reach.dst), "src": _plain(view.reach.src)},
        **{name: _plain(getattr(view, name)) for name in _NUMBERS},
        "mailbox": _table(view.mailbox, MAIL),
    }


def outcome_part(
    plan: Plan, outcome: Outcome, stale: Bools, orders: Orders, trained: Trainings | None = None
) -> dict[str, Any]:
    """Return the part of a line that is known when the round closes, as JSON values.

    Args:
        plan: What was decided.
        outcome: What happened; its link arrays follow `plan.links`.
        stale: Which links brought an older model than the sender's newest training, [L].
        orders: What happened to the orders.
        trained: Trainings that ended since the line before.
    """
    links = plan.links
    sent = links.stage, outcome.link_s, outcome.link_bytes, outcome.lost
    traced = TracedLinks(links.dst, links.src, *sent, stale, _waits(plan))
    return {
        "duration_s": float(outcome.duration_s),
        "active": _plain(plan.active),
        "links": _table(traced, LINKS),
        "orders": _table(orders, ORDERS),
        "trained": _table(trained or no_trainings(), TRAINED),
    }


def _waits(plan: Plan) -> Bools:
    """Return the links whose receiver has to wait for the sender, [L]."""
    links = plan.links
    meets = np.isin(links.src, plan.active) & (links.pushed | plan.synchronous)
    waits: Bools = meets | (links.stage > 0)
    return waits


def trace_line(
    view: View,
    plan: Plan,
    outcome: Outcome,
    stale: Bools,
    orders: Orders,
    trained: Trainings | None = None,
) -> dict[str, Any]:
    """Return one whole line: `observed_part` and `outcome_part`."""
    return {**observed_part(view), **outcome_part(plan, outcome, stale, orders, trained)}


_NUMBERS = ("distance_m", "link_s", "step_s", "remaining_s", "budget")


def without_repeats(line: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the line without what has not changed since the whole line before it.

    >>> without_repeats({"round": 2, "alive": [True]}, {"round": 1, "alive": [True]})
    {'round': 2}
    """
    if before is None:
        return dict(line)
    return {k: v for k, v in line.items() if k not in REPEATED or before.get(k) != v}


def _plain(values: Any) -> list[Any]:
    """Return a list of numbers; what is not finite becomes None."""
    values = np.asarray(values)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return list(values.tolist())
    return [x if math.isfinite(x) else None for x in values.tolist()]


def _table(columns: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: _plain(getattr(columns, name)) for name in names}
