"""Measurements of links, trainings and mail, as the `Observation` that a mechanism decides from.

The coordinator does not trust reported times. Receivers report the seconds of each link. Together
these must fill the time that the coordinator measured between the order and the report, and cannot
exceed it; `coordinator.message_check` refuses reports that are far beyond it. The duration of a
training is the time that the coordinator measured between the reports `mixed` and `trained`. One
measurement changes an estimate by at most a factor of `MAX_FACTOR`. The world provides the initial
estimates.

Times named `at_s` are seconds of the run by the coordinator's clock. Estimates are emulated
seconds, that is, real seconds divided by `time_scale`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dystop.sparse import Bools, Floats, Ints
from dystop.testbed.params import TestbedParams
from dystop.testbed.protocol.messages import Execute, Mail, Pull, RejectCode, Rejected, Report
from dystop.types import Budgets, Fleet, Mailbox, Observation
from dystop.world import WorldState

MAX_FACTOR = 20.0  # most that one report can change an estimate, in either direction
SHORTEST_S, LONGEST_S = 1e-9, 1e9  # bounds of every estimate
GAIN = 0.3  # weight of the newest measurement
SLACK_S = 0.25  # part of an exchange for mixing, saving and messages, which no link explains
MIN_EXPLAINED = 0.8  # fraction of an exchange that the reported times must explain
LATE_FACTOR = 3.0  # a round or a training that takes this many times its estimate is late
LEAST_S = 1e-6  # remaining time of a training whose end was not reported
MAX_EXCLUSION_S = 300.0
_SLOW: tuple[RejectCode, ...] = ("timeout", "busy")
_ALL = slice(None)

_ARRAYS = ("step_s", "began_s", "training_steps", "ended_s", "training_s", "loss")


def bounded_average(old: float, new: float) -> float:
    """Return the exponential average, with `new` clipped to [1/MAX_FACTOR, MAX_FACTOR] * old.

    >>> [round(bounded_average(1.0, new), 3) for new in (2.0, 1e9, 0.0)]
    [1.3, 6.7, 0.715]
    """
    clipped = min(max(new, old / MAX_FACTOR), old * MAX_FACTOR)
    return min(max((1.0 - GAIN) * old + GAIN * clipped, SHORTEST_S), LONGEST_S)


@dataclass
class LinkExclusion:
    """A failed link is excluded for some time; each failure doubles that time."""

    until_s: float
    length_s: float


@dataclass(frozen=True)
class RunningTrainings:
    """The trainings that run now, in emulated seconds; 0 where a worker does not train, [N]."""

    estimate_s: Floats  # of the whole training
    elapsed_s: Floats

    @property
    def remaining_s(self) -> Floats:
        """Seconds until the estimated end; 0 for a training that is overdue."""
        return np.maximum(self.estimate_s - self.elapsed_s, 0.0)

    @property
    def latest_s(self) -> Floats:
        """Seconds until the training is late; 0 for one that is."""
        return np.maximum(LATE_FACTOR * self.estimate_s - self.elapsed_s, 0.0)


class Observations:
    """All measurements so far. Owned by the coordinator machine."""

    def __init__(self, fleet: Fleet, steps: Ints, params: TestbedParams) -> None:
        n = fleet.workers
        self._fleet, self._steps, self._params = fleet, steps, params
        self.step_s = np.full(n, np.nan)  # estimates; NaN: never measured
        self.began_s = np.full(n, np.nan)  # when the running training started; NaN: unknown
        self.training_steps = np.zeros(n, np.int64)  # mini-batches of the newest training
        self.ended_s = np.full(n, np.inf)  # when the last training ended; inf: one is running
        self.training_s = np.full(n, np.nan)  # duration of the last training
        self.loss = np.full(n, np.nan)
        self._keys = np.zeros(0, np.int64)
        self.links: dict[int, float] = {}  # dst * nodes + src -> seconds per model
        self.mail: dict[tuple[int, int], Mail] = {}  # (dst, src) -> newest message
        self.awaited: dict[tuple[int, int], int] = {}  # (dst, src) -> round of a slow message
        self.excluded: dict[tuple[int, int], LinkExclusion] = {}
        self.unserved: dict[int, set[int]] = {}  # sender -> who got no model since it served one

    # Persistence --------------------------------------------------------------------------------

    def to_tree(self) -> dict[str, Any]:
        """Return all measurements as a tree of arrays and lists, for the ledger."""
        return {
            "arrays": {name: getattr(self, name).copy() for name in _ARRAYS},
            "links": self._link_keys(),
            "seconds": np.fromiter(self.links.values(), float, len(self.links)),
            "mail": [[*pair, m.number, m.round] for pair, m in self.mail.items()],
            "awaited": [[*pair, t] for pair, t in self.awaited.items()],
            "excluded": [[*pair, e.until_s, e.length_s] for pair, e in self.excluded.items()],
        }

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Continue from measurements that the ledger holds."""
        for name in _ARRAYS:
            setattr(self, name, tree["arrays"][name].copy())
        self.links = dict(zip(tree["links"].tolist(), tree["seconds"].tolist(), strict=True))
        self._keys = tree["links"].copy()
        self.mail = {(i, j): Mail(j, number, t) for i, j, number, t in tree["mail"]}
        self.awaited = {(i, j): t for i, j, t in tree["awaited"]}
        self.excluded = {(i, j): LinkExclusion(u, n) for i, j, u, n in tree["excluded"]}

    # Trainings ----------------------------------------------------------------------------------

    def training_started(self, node: int, steps: int, at_s: float) -> None:
        """Register that a worker started a training."""
        if node < self._fleet.workers:
            self.began_s[node], self.training_steps[node] = at_s, steps
            self.ended_s[node] = np.inf

    def postpone(self, before_s: float, seconds: float, absent: Collection[int]) -> None:
        """Move what was measured before a time: the ends of trainings, and the starts of absent."""
        self.ended_s[self.ended_s <= before_s] += seconds
        began_s = self.began_s
        for node in absent:
            if node < len(began_s) and began_s[node] <= before_s:
                began_s[node] += seconds

    def became_idle(self, node: int, at_s: float) -> None:
        """Register that a worker does not train."""
        if node < self._fleet.workers and not np.isfinite(self.ended_s[node]):
            self.began_s[node], self.ended_s[node] = np.nan, at_s

    def training_finished(
        self, node: int, report: Report, estimate_s: Floats, at_s: float
    ) -> float | None:
        """Register the end of a training; return its measured duration in emulated seconds.

        Args:
            node: The worker.
            report: Its report.
            estimate_s: The world's seconds per mini-batch of each worker, [N].
            at_s: When the report arrived.

        Returns:
            None if the start of the training is unknown.
        """
        steps, began_s = int(self.training_steps[node]), float(self.began_s[node])
        took_s = None
        if np.isfinite(began_s):
            took_s = (at_s - began_s) / self._params.time_scale
            self.training_s[node] = took_s
            if steps > 0 and took_s > 0:
                old = self._seconds_per_step(estimate_s, node)
                self.step_s[node] = bounded_average(float(old), took_s / steps)
        self.began_s[node], self.ended_s[node] = np.nan, at_s
        if report.loss is not None:
            self.loss[node] = report.loss
        return took_s

    def _seconds_per_step(self, estimate_s: Floats, of: int | slice = _ALL) -> Any:
        """Return seconds per mini-batch; a device is never faster than its emulation."""
        estimate, measured = estimate_s[of], self.step_s[of]
        known = np.where(np.isnan(measured), estimate, measured)
        return known if self._params.devices == "free" else np.maximum(known, estimate)

    def remaining_s(self, step_s: Floats, at_s: float) -> Floats:
        """Return the remaining time of each running training (eq:h_comp).

        A training that is overdue by x seconds is expected to need another x seconds. A worker that
        never finishes therefore becomes less and less attractive.
        """
        running = self._running(step_s, at_s)
        left = np.maximum(np.abs(running.estimate_s - running.elapsed_s), LEAST_S)
        return np.where(np.isfinite(self.began_s), left, 0.0)  # 0 only after a reported end

    def running(self, world: WorldState, at_s: float) -> RunningTrainings:
        """Return the running trainings with their estimates."""
        return self._running(self._seconds_per_step(world.step_s), at_s)

    def _running(self, step_s: Floats, at_s: float) -> RunningTrainings:
        is_running = np.isfinite(self.began_s)
        elapsed = (at_s - self.began_s) / self._params.time_scale
        estimate = step_s * self.training_steps
        return RunningTrainings(
            np.where(is_running, estimate, 0.0), np.where(is_running, elapsed, 0.0)
        )

    # Links --------------------------------------------------------------------------------------

    def exchange_reported(
        self,
        node: int,
        order: Execute,
        report: Report,
        observed_s: float | None,
        idle: Collection[int] = (),
        most_s: float | None = None,
    ) -> None:
        """Measure the links of an exchange.

        Args:
            node: The receiver.
            order: Its order.
            report: Its report.
            observed_s: Seconds of the exchange by the coordinator's clock; None: it did not see the
                start, so the report measures nothing. They count from the last sign of the member.
            idle: Nodes whose training had ended when the order was issued. In the first stage, an
                exact pull from another node may wait for its sender, so that it measures no link.
            most_s: Seconds that the exchange can have lasted; None: `observed_s`.
        """
        for used in report.used:
            self.excluded.pop((node, used.node), None)
            self.unserved.pop(used.node, None)
        if observed_s is None:
            return
        corrected_s = _time_correction(report, observed_s, observed_s if most_s is None else most_s)
        pulls = pulls_by_stage_and_sender(order)
        measures = {
            key for key, p in pulls.items() if not p.exact or (key[0] == 0 and p.node in idle)
        }
        for used in report.used:
            if (used.stage, used.node) in measures:
                fraction = used.bytes / self._fleet.model_bytes
                if used.bytes > 0:  # a model that arrived had at least the ordered part
                    fraction = max(fraction, _ordered_fraction(pulls[used.stage, used.node]))
                self._link_measured(node, used.node, corrected_s(used.seconds), fraction)
        for lost in report.rejected:
            if (lost.stage, lost.node) in measures and lost.code == "timeout":
                self._link_timed_out(node, lost, corrected_s(lost.seconds))

    def _link_timed_out(self, dst: int, lost: Rejected, seconds: float) -> None:
        """Measure a link from the part of a model that arrived before the timeout.

        Otherwise the next pull over this link would get the same, too short time again.
        """
        fraction, old = lost.bytes / self._fleet.model_bytes, self.link_s(dst, lost.node)
        if fraction <= 0:
            return
        if old is None or seconds / fraction / self._params.time_scale > old:
            self._link_measured(dst, lost.node, seconds, fraction)

    def _link_measured(self, dst: int, src: int, seconds: float, fraction: float) -> None:
        if seconds <= 0 or fraction <= 0:
            return
        new, key = seconds / fraction / self._params.time_scale, dst * self._fleet.nodes + src
        old = self.links.get(key)
        self.links[key] = new if old is None else bounded_average(old, new)

    def link_s(self, dst: int, src: int) -> float | None:
        """Return the estimate of a link; None if it was never used."""
        return self.links.get(dst * self._fleet.nodes + src)

    def assume_link_times(self, world: WorldState, dst: Ints, src: Ints) -> None:
        """Take the world's estimate for links that were never used.

        The first measurement of a link is then bounded like every later one.
        """
        at = world.reach.find(dst, src)
        found = at >= 0
        keys = (dst * self._fleet.nodes + src)[found].tolist()
        for key, seconds in zip(keys, world.link_s[at[found]].tolist(), strict=True):
            self.links.setdefault(key, seconds)

    def pull_failed(self, dst: int, src: int, code: RejectCode, at_s: float) -> None:
        """Exclude a link after a failed pull, for longer each time.

        If the sender was unreachable, the reverse link is excluded as well. If it keeps several
        receivers waiting and serves nobody meanwhile, it has failed all others too: not every
        receiver must learn it alone.
        """
        for pair in ((dst, src), (src, dst))[: 2 if code == "unreachable" else 1]:
            self._exclude(pair, at_s)
        if code not in _SLOW:
            return
        waited = self.unserved.setdefault(src, set())
        waited.add(dst)
        if len(waited) < self._params.guards.reporters:
            return
        for other in set(range(self._fleet.workers)) - {src, dst}:
            known = self.excluded.get((other, src))
            if known is None or known.until_s <= at_s:
                self._exclude((other, src), at_s)

    def _exclude(self, pair: tuple[int, int], at_s: float) -> None:
        known = self.excluded.get(pair)
        first_s = self._params.timeouts.exclude_s
        length_s = first_s if known is None else min(2.0 * known.length_s, MAX_EXCLUSION_S)
        self.excluded[pair] = LinkExclusion(at_s + length_s, length_s)

    def clear_exclusions(self, node: int) -> None:
        """Allow all links from a node again."""
        self.excluded = {pair: e for pair, e in self.excluded.items() if pair[1] != node}
        self.unserved.pop(node, None)

    # Mail ---------------------------------------------------------------------------------------

    def order_issued(self, node: int, order: Execute) -> None:
        """Register the background messages of an order; any later report may contain them."""
        for stage in order.stages:
            for pull in stage.pulls:
                if pull.background and pull.into == "mail":
                    self.awaited[node, pull.node] = order.round

    def mail_reported(self, node: int, order: Execute, report: Report) -> None:
        """Register the messages of a report; an activation consumes the earlier ones."""
        if order.train and report.kind == "mixed" and not order.keep_mail:
            old = [p for p, m in self.mail.items() if p[0] == node and m.round < order.round]
            for pair in old:
                del self.mail[pair]
        pulls = pulls_by_stage_and_sender(order)
        for used in report.used:
            pull = pulls.get((used.stage, used.node))
            if pull is None or pull.background:
                sent = self.awaited.pop((node, used.node), None)
            else:
                sent = order.round if pull.into == "mail" else None
            if sent is not None and used.number <= order.round:  # none can be newer
                self.mail[node, used.node] = Mail(used.node, used.number, sent)

    def mailbox_reported(self, node: int, mail: Iterable[Mail], t: int) -> None:
        """Replace the known mailbox of a worker by the one in its join, in round t."""
        self.mail = {pair: m for pair, m in self.mail.items() if pair[0] != node}
        self.mail |= {(node, m.node): m for m in mail}
        self.drop_impossible_mail(t)

    def drop_impossible_mail(self, t: int) -> None:
        """Plan without messages that this coordinator cannot have ordered before round t.

        A member has some after the ledger was restored from a backup, or if a peer lied to it.
        """
        nodes = self._fleet.nodes
        self.mail = {
            (i, j): m
            for (i, j), m in self.mail.items()
            if i != j and j < nodes and m.number <= t and m.round <= t
        }

    def mailbox(self) -> Mailbox:
        """Return all waiting messages, sorted by (dst, src)."""
        rows = [(i, j, m.number + 1, m.round) for (i, j), m in sorted(self.mail.items())]
        return Mailbox(*np.array(rows, np.int64).reshape(-1, 4).T.copy())

    # The observation ----------------------------------------------------------------------------

    def observe(self, world: WorldState, present: Bools, at_s: float) -> Observation:
        """Return what the mechanism sees. `present` marks the nodes that take part, [nodes]."""
        reach, n = world.reach, self._fleet.workers
        usable = present[reach.dst] & present[reach.src]
        # Links of the server stay: every worker needs it, and a failure repeats or means absence.
        excluded = [p for p, e in self.excluded.items() if e.until_s > at_s and max(p) < n]
        if excluded:
            dst, src = np.array(excluded, np.int64).T.copy()
            at = reach.find(dst, src)
            usable[at[at >= 0]] = False
        link_s = self._link_estimates(world)
        step_s = self._seconds_per_step(world.step_s)
        return Observation(
            alive=present[:n],
            reach=reach.keep(usable),
            distance_m=world.distance_m[usable],
            link_s=link_s[usable],
            step_s=step_s,
            remaining_s=self.remaining_s(step_s, at_s),
            budget_of=Budgets(world.budget_of(np.arange(self._fleet.nodes))),
            mailbox=self.mailbox(),
        )

    def _link_estimates(self, world: WorldState) -> Floats:
        """Return the estimated seconds of every link in reach."""
        link_s, size = world.link_s.copy(), len(self.links)
        dst, src = np.divmod(self._link_keys(), self._fleet.nodes)
        at = world.reach.find(dst, src)
        link_s[at[at >= 0]] = np.fromiter(self.links.values(), float, size)[at >= 0]
        return link_s

    def _link_keys(self) -> Ints:
        """Return the keys of `links`; links are never removed, so the count shows new ones."""
        if len(self._keys) != len(self.links):
            self._keys = np.fromiter(self.links, np.int64, len(self.links))
        return self._keys


def _time_correction(report: Report, observed_s: float, most_s: float) -> Callable[[float], float]:
    """Return a function that corrects the reported seconds of a link.

    The slowest transfers of all stages together must fill the observed time of the exchange, except
    for mixing and messages. If they do not, all times are stretched until they fill it completely.
    A receiver that reports too little therefore ends with longer times than an honest one. If they
    last longer than the exchange can have lasted, all times are scaled down to that.
    """
    slowest: dict[int, float] = {}
    reported = [(u.stage, u.seconds) for u in report.used]
    reported += [(r.stage, r.seconds) for r in report.rejected]
    for stage, seconds in reported:
        slowest[stage] = max(slowest.get(stage, 0.0), seconds)
    reported_s = sum(slowest.values())
    if reported_s > most_s:
        return lambda seconds: seconds * most_s / reported_s
    if reported_s >= MIN_EXPLAINED * (observed_s - SLACK_S):
        return lambda seconds: seconds
    if reported_s <= 0:
        return lambda seconds: observed_s
    return lambda seconds: seconds * observed_s / reported_s


def _ordered_fraction(pull: Pull) -> float:
    """Return the fraction of a model that a pull brings."""
    return 1.0 if pull.mask is None else pull.mask[1]


def pulls_by_stage_and_sender(order: Execute) -> dict[tuple[int, int], Pull]:
    """Return the pulls of an order by (stage, sender)."""
    return {(k, p.node): p for k, stage in enumerate(order.stages) for p in stage.pulls}
