"""Turn a plan into orders: what each node pulls and mixes, stage by stage.

The receiver of a link realises it as a pull. This holds for a pushed link, too: its sender pays for
the time in the control state only. A model that no row of its stage uses goes to the receiver's
mailbox. A collective row (a ring) is realised by pulling from every source directly.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from dystop.control.laws import PaperLaw, timetable
from dystop.control.plan_check import source_kind
from dystop.plan import Mix, Plan
from dystop.sparse import Floats, Ints
from dystop.testbed.coordinator.observations import LATE_FACTOR, RunningTrainings
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.ledger.tables import OrderLine
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.codec import decode, encode
from dystop.testbed.protocol.messages import CarryingRow, Execute, Pull, Row, Stage
from dystop.types import Mechanism, View

TRIAL_FACTOR = 2.0  # a round waits this many times its estimate for a worker on trial ...
TRIAL_MARGIN_S = 1.0  # ... and this much longer, for messages and for saving
MEDIAN_FACTOR = 10.0  # no round waits longer than this many times the median of recent rounds ...
FEW_ROUNDS = 5  # ... once there are so many


@dataclass(frozen=True)
class RoundLimits:
    """How long a round, its pulls and each of its links may take."""

    deadline_s: float  # seconds until the round closes without the missing reports
    trial_s: float  # the same for workers on trial
    pull_s: Floats  # seconds for all pulls of the order of each node, [nodes]
    trial_pull_s: Floats  # the same for workers on trial
    rates: Floats  # bytes per second that each link is paced to, 0: not paced, [L]


def longest_wait_s(timeouts: Timeouts, recent_s: Collection[float]) -> float:
    """Return the longest time that a round may wait, whatever its members have reported.

    >>> limits = Timeouts(round_s=10.0, round_cap_s=60.0)
    >>> [longest_wait_s(limits, [s] * 20) for s in (0.1, 2.0, 100.0)], longest_wait_s(limits, [0.1])
    ([11.0, 30.0, 60.0], 60.0)
    """
    if len(recent_s) < FEW_ROUNDS:
        return timeouts.round_cap_s
    usual_s = MEDIAN_FACTOR * float(np.median(list(recent_s)))
    return min(timeouts.round_cap_s, usual_s + timeouts.round_s)


def round_limits(
    setup: CoordinatorSetup,
    plan: Plan,
    view: View,
    steps: Ints,
    running: RunningTrainings,
    recent_s: Collection[float] = (),
) -> RoundLimits:
    """Compute the limits of a round from the expected times of its links and trainings.

    The pulls of a worker are limited by its own links, and by what its senders must do before they
    can send an exact model. So a false estimate of a link gives nobody else more time.

    Args:
        setup: The coordinator's setup.
        plan: The plan of the round.
        view: The view that the plan was decided from.
        steps: Mini-batches of each active worker, [A].
        running: The running trainings. A training that is late does not extend the limits.
        recent_s: Real seconds of the last rounds.
    """
    link_s, rates = _link_times(setup, plan, view)
    link_s = link_s * setup.longest_message  # a receiver that lacks much needs a whole model
    timeouts, scale = setup.params.timeouts, setup.params.time_scale
    training_s = view.step_s[plan.active] * steps
    no_training = np.zeros(view.fleet.nodes - view.fleet.workers)

    def duration_s(busy_s: Floats) -> float:
        return timetable(PaperLaw(), plan, link_s, busy_s, training_s).duration_s * scale

    busy = np.append(running.remaining_s, no_training)
    latest = np.append(running.latest_s, no_training) / LATE_FACTOR
    deadline_s = max(timeouts.round_s, LATE_FACTOR * duration_s(latest))
    deadline_s = min(longest_wait_s(timeouts, recent_s), deadline_s)
    trial_s = min(deadline_s, TRIAL_FACTOR * duration_s(busy) + TRIAL_MARGIN_S)
    expected_s = 2.0 * scale * pull_times(plan, link_s, latest)
    most_s = max(deadline_s - 1.0, deadline_s / 2.0)
    pull_s = np.minimum(np.maximum(timeouts.pull_s, expected_s), most_s)
    trial_pull_s = np.minimum(pull_s, expected_s + TRIAL_MARGIN_S / 2.0)
    return RoundLimits(deadline_s, trial_s, pull_s, trial_pull_s, rates)


def pull_times(plan: Plan, link_s: Floats, busy_s: Floats) -> Floats:
    """Return the expected seconds from the start of each node's order to its last model, [nodes].

    A node may start at once: its own training can end earlier than expected. Its senders may not.

    Args:
        plan: The plan of a round.
        link_s: Expected seconds of each link, [L].
        busy_s: Seconds until the training of each node has ended, [nodes].
    """
    links, pulled_s = plan.links, np.zeros(len(busy_s))
    ready_s = pulled_s.copy()  # to send an exact model
    ready_s[plan.active] = busy_s[plan.active]  # a passive node pulls while it trains
    for stage in range(stage_count(plan)):
        here = (links.stage == stage) & ~links.background
        dst, src = links.dst[here], links.src[here]
        exact = np.isin(src, list(exact_senders(plan, stage)))
        exact |= links.pushed[here] & np.isin(src, plan.active)
        sent_s = np.where(exact, ready_s[src], 0.0)
        before_s = ready_s
        ready_s, pulled_s = (
            _after_stage(done_s, dst, sent_s, link_s[here]) for done_s in (ready_s, pulled_s)
        )
        if stage < len(plan.mixes) and plan.mixes[stage].collective:  # each pulls from all others
            members = plan.mixes[stage].receiver
            last_s = before_s[members].max(initial=0.0) + link_s[here].max(initial=0.0)
            ready_s[members] = pulled_s[members] = last_s
    return pulled_s


def _after_stage(done_s: Floats, dst: Ints, sent_s: Floats, link_s: Floats) -> Floats:
    """Return when each node has the models of a stage, if it begins it at `done_s`, [nodes]."""
    after_s = done_s.copy()
    np.maximum.at(after_s, dst, np.maximum(done_s[dst], sent_s) + link_s)
    return after_s


def exact_senders(plan: Plan, stage: int) -> set[int]:
    """Return the senders whose model at this point of the round is needed.

    These are the active workers in a synchronous exchange or in a later stage. In a later stage
    they also include every node that mixed in an earlier stage.
    """
    exact: set[int] = set(plan.active.tolist()) if plan.synchronous or stage > 0 else set()
    for earlier in plan.mixes[:stage]:
        exact |= set(earlier.receiver.tolist())
    return exact


def _link_times(setup: CoordinatorSetup, plan: Plan, view: View) -> tuple[Floats, Floats]:
    """Return the expected emulated seconds of each link, and the rate that paces it (0: none)."""
    links = plan.links
    edge = view.reach.find(links.dst, links.src)
    expected = np.where(edge >= 0, view.link_s[edge] if len(view.link_s) else 0.0, 0.0)
    expected = expected * links.fraction
    if setup.params.links == "free" or not len(links):
        return expected, np.zeros(len(links))
    moved = setup.world.transfer(view.t, view.now_s, links.dst, links.src, links.fraction)
    size = transferred_fraction(plan) * setup.fleet.model_bytes
    real_s = moved.seconds * setup.params.time_scale
    rates = np.divide(size, real_s, out=np.zeros(len(links)), where=real_s > 0)
    return np.maximum(expected, moved.seconds), rates


def transferred_fraction(plan: Plan) -> Floats:
    """Return the fraction of a model that each link transfers; a ring transfers whole models."""
    fraction = np.array(plan.links.fraction, float)
    for stage, mix in enumerate(plan.mixes):
        if mix.collective:
            fraction[plan.links.stage == stage] = 1.0
    return fraction


def _pulls_by_node(plan: Plan) -> dict[int, list[list[int]]]:
    """Return [stage, src] of all links that are not pushed, by receiver."""
    links, found = plan.links, defaultdict[int, list[list[int]]](list)
    pulled = ~links.pushed
    columns = links.dst[pulled].tolist(), links.stage[pulled].tolist(), links.src[pulled].tolist()
    for dst, stage, src in zip(*columns, strict=True):
        found[dst].append([stage, src])
    return found


def order_lines(t: int, plan: Plan, orders: Mapping[int, Execute]) -> dict[int, OrderLine]:
    """Return the ledger's line of each order of round t; a line holds the bytes that are sent."""
    pulls = _pulls_by_node(plan)
    return {
        node: OrderLine(
            t, node, int(order.train), None, json.dumps(pulls[node]), encode(order).decode()
        )
        for node, order in orders.items()
    }


def stored_order(line: OrderLine) -> Execute:
    """Decode the order that a line of the ledger holds."""
    order = decode((line.execute or "").encode(), "worker")
    assert isinstance(order, Execute)
    return order


def orders_from_plan(
    plan: Plan,
    view: View,
    mechanism: Mechanism,
    steps: Ints,
    limits: RoundLimits,
    dt: Floats,
    epoch: int = 0,
) -> dict[int, Execute]:
    """Return the order of every node that is active, mixes or receives a model in this round.

    Args:
        plan: The plan of the round.
        view: The view that the plan was decided from.
        mechanism: The mechanism that decided it.
        steps: Mini-batches of each active worker, [A].
        limits: Of the round.
        dt: Seconds since the last round of each active worker opened, [A].
        epoch: The coordinator's epoch.
    """
    found = (_StageOrders(plan, view, mechanism, limits.rates, k) for k in range(stage_count(plan)))
    stages = [stage.by_node() for stage in found]
    place = {int(i): k for k, i in enumerate(plan.active)}
    return {
        node: Execute(
            epoch=epoch,
            round=view.t,
            train=node in place,
            stages=tuple(stage.get(node, Stage()) for stage in stages),
            steps=int(steps[place[node]]) if node in place else 0,
            rate=_rate(plan, place.get(node)),
            budget_s=float(limits.pull_s[node]),
            keep_mail=plan.keep_mail,
            dt=float(dt[place[node]]) if node in place else 0.0,
        )
        for node in sorted(set(place).union(*stages))
    }


def stage_count(plan: Plan) -> int:
    """Return the number of stages of a plan, counting mixes and transfers."""
    return max(len(plan.mixes), int(plan.links.stage.max(initial=-1)) + 1)


def _rate(plan: Plan, place: int | None) -> float:
    return 1.0 if plan.rate is None or place is None else float(plan.rate[place])


@dataclass(frozen=True)
class _StageOrders:
    """The part of all orders that belongs to one stage of a plan."""

    plan: Plan
    view: View
    mechanism: Mechanism
    rates: Floats  # [L]
    stage: int

    def by_node(self) -> dict[int, Stage]:
        """Return what each node does in this stage."""
        rows, pulls = self._rows(), self._pulls()
        return {
            node: Stage(tuple(pulls.get(node, ())), rows.get(node))
            for node in rows.keys() | pulls.keys()
        }

    @property
    def mix(self) -> Mix | None:
        """The mix of this stage, if it has one."""
        return self.plan.mixes[self.stage] if self.stage < len(self.plan.mixes) else None

    def _rows(self) -> dict[int, Row]:
        if (mix := self.mix) is None:
            return {}
        _, mailed = source_kind(self.plan, self.view, self.stage)
        keep_mean = self.mechanism.capabilities().doubly_stochastic
        rows = {}
        for k, node in enumerate(mix.receiver.tolist()):
            part = slice(int(mix.indptr[k]), int(mix.indptr[k + 1]))
            row = Row(
                sources=tuple(mix.source[part].tolist()),
                weights=tuple(mix.weight[part].tolist()),
                kind=mix.kind,
                mask=_mask(mix),
                mailed=tuple(mix.source[part][mailed[part]].tolist()),
                to_self=keep_mean,
            )
            if mix.carried is not None:
                row = CarryingRow(**vars(row), carried=tuple(mix.carried[part].tolist()))
            rows[node] = row
        return rows

    def _pulls(self) -> dict[int, list[Pull]]:
        """Return the pulls of this stage by receiver, including those that realise a ring."""
        links, used = self.plan.links, self._used_links()
        exact = exact_senders(self.plan, self.stage)
        active, mask = self._active, _mask(self.mix)
        pulls: dict[int, list[Pull]] = defaultdict(list)
        here = links.stage == self.stage
        columns = links.pushed, links.delta, self.rates, links.background
        table = (values[here].tolist() for values in (links.dst, links.src, *columns))
        for dst, src, pushed, delta, rate, background in zip(*table, strict=True):
            is_used = (dst, src) in used
            pulls[dst].append(
                Pull(
                    node=src,
                    exact=src in exact or (pushed and src in active),
                    delta=delta,
                    mask=mask if is_used else None,
                    into="row" if is_used else "mail",
                    bytes_per_s=float(rate),
                    background=background,
                )
            )
        self._add_ring(pulls, used, exact)
        return pulls

    def _add_ring(
        self, pulls: dict[int, list[Pull]], used: set[tuple[int, int]], exact: set[int]
    ) -> None:
        """Add direct pulls for the members of a ring that have no link, at the slowest rate."""
        if self.mix is None or not self.mix.collective:
            return
        slowest = {i: min(p.bytes_per_s for p in planned) for i, planned in pulls.items()}
        linked = {(i, p.node) for i, planned in pulls.items() for p in planned}
        for dst, src in sorted(used - linked):
            rate = slowest.get(dst, 0.0)
            pulls[dst].append(Pull(src, exact=src in exact, bytes_per_s=rate))

    def _used_links(self) -> set[tuple[int, int]]:
        """Return the pairs (dst, src) of the links whose model a row of this stage uses."""
        if (mix := self.mix) is None:
            return set()
        linked, mailed = source_kind(self.plan, self.view, self.stage)
        used = (~mailed & (mix.dst != mix.source)) if mix.collective else linked
        return set(zip(mix.dst[used].tolist(), mix.source[used].tolist(), strict=True))

    @property
    def _active(self) -> set[int]:
        return set(self.plan.active.tolist())


def _mask(mix: Mix | None) -> tuple[int, float] | None:
    return None if mix is None or mix.mask is None else (int(mix.mask[0]), float(mix.mask[1]))
