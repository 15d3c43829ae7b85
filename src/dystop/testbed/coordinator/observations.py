"""Measurements as an `Observation`: what links and trainings take, who is excluded, what waits.

Nothing is taken at its word. Seconds of a link come from the receiver, but together they must fill
the time that the coordinator has seen pass between the order and the report; the length of a
training is what the coordinator sees pass between `mixed` and `trained`. An estimate moves by at
most a factor of `JUMP` in one step. First guesses come from the world.

Times named `at_s` are seconds of the run by the coordinator's clock; estimates are emulated seconds
(the world's), that is, divided by `time_scale`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dystop.sparse import Bools, Floats, Graph, Ints
from dystop.testbed.params import TestbedParams
from dystop.testbed.protocol.messages import Execute, Mail, Pull, RejectCode, Rejected, Report
from dystop.types import Fleet, Mailbox, Observation

JUMP = 20.0  # most that one report can change an estimate, as a factor either way
GAIN = 0.3  # weight of the newest measurement
SLACK_S = 0.25  # of an exchange that nobody need account for: mixing, saving, the way of a message
CREDIT = 0.8  # share of an exchange that a receiver must account for
LEAST_S = 1e-6  # left of a training whose end was not reported
LONGEST_S = 300.0  # most that a failed peer is excluded for
_ALL = slice(None)


class MeasuredState(Protocol):
    """What may be known of the world when a round opens (`world.Surroundings`)."""

    @property
    def reach(self) -> Graph:
        """Usable directed links."""
        ...

    @property
    def distance_m(self) -> Floats:
        """Of each link."""
        ...

    @property
    def link_s(self) -> Floats:
        """First guess for each link."""
        ...

    @property
    def step_s(self) -> Floats:
        """First guess for each worker."""
        ...

    @property
    def budget(self) -> Floats:
        """Models that a node may send and receive."""
        ...


def blend(old: float, new: float) -> float:
    """Exponential average whose newest value is held within [1/JUMP, JUMP] of the old one.

    >>> [round(blend(1.0, new), 3) for new in (2.0, 1e9, 0.0)]
    [1.3, 6.7, 0.715]
    """
    held = min(max(new, old / JUMP), old * JUMP)
    return (1.0 - GAIN) * old + GAIN * held


@dataclass
class Exclusion:
    """A link that failed is not used for a while; each failure doubles the time."""

    until_s: float
    length_s: float


class Observations:
    """What has been measured so far. Owned by the coordinator machine."""

    def __init__(self, fleet: Fleet, steps: Ints, params: TestbedParams) -> None:
        n = fleet.workers
        self._fleet, self._steps, self._params = fleet, steps, params
        self.step_s = np.full(n, np.nan)  # estimates; NaN: never measured
        self.began_s = np.full(n, np.nan)  # when the training in flight began; NaN: not known
        self.flight_steps = np.zeros(n, np.int64)
        self.ended_s = np.full(n, np.inf)  # when the last training ended; inf: one is in flight
        self.training_s = np.full(n, np.nan)  # how long the last one took
        self.loss = np.full(n, np.nan)
        self._keys = np.zeros(0, np.int64)
        self.links: dict[int, float] = {}  # dst * nodes + src -> seconds per model
        self.mail: dict[tuple[int, int], Mail] = {}  # (dst, src) -> newest message
        self.awaited: dict[tuple[int, int], int] = {}  # (dst, src) -> round of a slow message
        self.excluded: dict[tuple[int, int], Exclusion] = {}

    # What the ledger keeps ----------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All of it as a tree of arrays and lists."""
        return {
            "arrays": {k: getattr(self, k).copy() for k in _ARRAYS},
            "links": self._known_links(),
            "seconds": np.fromiter(self.links.values(), float, len(self.links)),
            "mail": [[*pair, m.number, m.round] for pair, m in self.mail.items()],
            "awaited": [[*pair, t] for pair, t in self.awaited.items()],
            "excluded": [[*pair, e.until_s, e.length_s] for pair, e in self.excluded.items()],
        }

    def recall(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that the ledger has kept."""
        for name in _ARRAYS:
            setattr(self, name, state["arrays"][name].copy())
        self.links = dict(zip(state["links"].tolist(), state["seconds"].tolist(), strict=True))
        self._keys = state["links"].copy()
        self.mail = {(i, j): Mail(j, number, t) for i, j, number, t in state["mail"]}
        self.awaited = {(i, j): t for i, j, t in state["awaited"]}
        self.excluded = {(i, j): Exclusion(u, n) for i, j, u, n in state["excluded"]}

    # Trainings ----------------------------------------------------------------------------------

    def began(self, node: int, steps: int, at_s: float) -> None:
        """A worker has begun to train."""
        if node < self._fleet.workers:
            self.began_s[node], self.flight_steps[node] = at_s, steps
            self.ended_s[node] = np.inf

    def idle(self, node: int, at_s: float) -> None:
        """A worker is known not to train."""
        if node < self._fleet.workers and not np.isfinite(self.ended_s[node]):
            self.began_s[node], self.ended_s[node] = np.nan, at_s

    def trained(self, node: int, report: Report, guess_s: Floats, at_s: float) -> float | None:
        """A training is over; how long it took is what the coordinator has seen pass.

        Answers those (emulated) seconds; None where its beginning is not known.
        """
        steps, began = int(self.flight_steps[node]), float(self.began_s[node])
        took_s = None
        if np.isfinite(began):
            took_s = (at_s - began) / self._params.time_scale
            self.training_s[node] = took_s
            if steps > 0 and took_s > 0:
                old = self._step_s(guess_s, node)
                self.step_s[node] = blend(float(old), took_s / steps)
        self.began_s[node], self.ended_s[node] = np.nan, at_s
        if report.loss is not None:
            self.loss[node] = report.loss
        return took_s

    def _step_s(self, guess_s: Floats, of: int | slice = _ALL) -> Any:
        """Seconds per mini-batch; an emulated device is never faster than its emulation."""
        guess, measured = guess_s[of], self.step_s[of]
        known = np.where(np.isnan(measured), guess, measured)
        return known if self._params.devices == "free" else np.maximum(known, guess)

    def remaining_s(self, step_s: Floats, at_s: float) -> Floats:
        """Training still to run (eq:h_comp).

        A training that is overdue is expected to take as long again as it is overdue already, so
        that nobody stays attractive by never finishing.
        """
        full = step_s * self.flight_steps
        elapsed = (at_s - self.began_s) / self._params.time_scale
        left = np.maximum(np.abs(full - elapsed), LEAST_S)  # 0 only when it is known to be over
        return np.where(np.isfinite(self.began_s), left, 0.0)

    # Links --------------------------------------------------------------------------------------

    def exchanged(self, node: int, order: Execute, report: Report, observed_s: float) -> None:
        """A node has reported its exchange; `observed_s` have passed on our own clock meanwhile."""
        real_s, pulls = _honest_seconds(report, observed_s), pulls_of(order)
        for used in report.used:
            self.excluded.pop((node, used.node), None)
            pull = pulls.get((used.stage, used.node))
            if pull is not None and not pull.exact:  # an exact one has waited for its sender
                share = used.bytes / self._fleet.model_bytes
                self._measured(node, used.node, real_s(used.seconds), share)
        for lost in report.rejected:
            pull = pulls.get((lost.stage, lost.node))
            if pull is not None and not pull.exact and lost.code == "timeout":
                self._too_slow(node, lost)

    def _too_slow(self, dst: int, lost: Rejected) -> None:
        """A pull that was not over in time: the part that came tells how slow the link has become.

        Else the link would be given the same time again as soon as it is no longer excluded.
        """
        share, old = lost.bytes / self._fleet.model_bytes, self.link_s(dst, lost.node)
        if share > 0 and (old is None or lost.seconds / share / self._params.time_scale > old):
            self._measured(dst, lost.node, lost.seconds, share)

    def _measured(self, dst: int, src: int, seconds: float, share: float) -> None:
        if seconds <= 0 or share <= 0:
            return
        new, key = seconds / share / self._params.time_scale, dst * self._fleet.nodes + src
        old = self.links.get(key)
        self.links[key] = new if old is None else blend(old, new)

    def link_s(self, dst: int, src: int) -> float | None:
        """Estimate of a link; None where it was never used."""
        return self.links.get(dst * self._fleet.nodes + src)

    def guess(self, around: MeasuredState, dst: Ints, src: Ints) -> None:
        """Begin with the world's guess where a link was never used, so that steps are bounded."""
        at = around.reach.find(dst, src)
        fine = at >= 0
        keys = (dst * self._fleet.nodes + src)[fine].tolist()
        for key, seconds in zip(keys, around.link_s[at[fine]].tolist(), strict=True):
            self.links.setdefault(key, seconds)

    def failed(self, dst: int, src: int, code: RejectCode, at_s: float) -> None:
        """A pull failed: the link is not used for a while, longer each time.

        Somebody who cannot be reached is not asked to fetch from there either.
        """
        if code == "busy":
            return
        for pair in ((dst, src), (src, dst))[: 2 if code == "unreachable" else 1]:
            known = self.excluded.get(pair)
            first_s = self._params.timeouts.exclude_s
            length_s = first_s if known is None else min(2.0 * known.length_s, LONGEST_S)
            self.excluded[pair] = Exclusion(at_s + length_s, length_s)

    # Mail ---------------------------------------------------------------------------------------

    def ordered(self, node: int, order: Execute) -> None:
        """An order goes out; messages that nobody waits for may be told of in any later report."""
        for stage in order.stages:
            for pull in stage.pulls:
                if pull.background and pull.into == "mail":
                    self.awaited[node, pull.node] = order.round

    def mailed(self, node: int, order: Execute, report: Report) -> None:
        """Messages that came with a report; an activation uses up what was there."""
        if order.train and report.kind == "mixed" and not order.keep_mail:
            old = [p for p, m in self.mail.items() if p[0] == node and m.round < order.round]
            for pair in old:
                del self.mail[pair]
        pulls = pulls_of(order)
        for used in report.used:
            pull = pulls.get((used.stage, used.node))
            if pull is None or pull.background:
                sent = self.awaited.pop((node, used.node), None)
            else:
                sent = order.round if pull.into == "mail" else None
            if sent is not None:
                self.mail[node, used.node] = Mail(used.node, used.number, sent)

    def holds(self, node: int, mail: Iterable[Mail]) -> None:
        """What a worker says when it joins about its mailbox."""
        self.mail = {pair: m for pair, m in self.mail.items() if pair[0] != node}
        self.mail |= {(node, m.node): m for m in mail}

    def mailbox(self) -> Mailbox:
        """All that waits, sorted by (dst, src)."""
        rows = [(i, j, m.number + 1, m.round) for (i, j), m in sorted(self.mail.items())]
        return Mailbox(*np.array(rows, np.int64).reshape(-1, 4).T.copy())

    def forgive(self, node: int) -> None:
        """Nobody has to keep away from this node any more."""
        self.excluded = {pair: e for pair, e in self.excluded.items() if pair[1] != node}

    # All together -------------------------------------------------------------------------------

    def observe(self, around: MeasuredState, present: Bools, at_s: float) -> Observation:
        """What the mechanism is told. `present` says which nodes take part, [nodes]."""
        reach, n = around.reach, self._fleet.workers
        keep = present[reach.dst] & present[reach.src]
        # Everybody needs the server: who fails to reach it fails again, or is not there.
        shut = [p for p, e in self.excluded.items() if e.until_s > at_s and max(p) < n]
        if shut:
            dst, src = np.array(shut, np.int64).T.copy()
            at = reach.find(dst, src)
            keep[at[at >= 0]] = False
        link_s = self._estimates(around)
        step_s = self._step_s(around.step_s)
        return Observation(
            alive=present[:n],
            reach=reach.keep(keep),
            distance_m=around.distance_m[keep],
            link_s=link_s[keep],
            step_s=step_s,
            remaining_s=self.remaining_s(step_s, at_s),
            budget=around.budget,
            mailbox=self.mailbox(),
        )

    def _estimates(self, around: MeasuredState) -> Floats:
        """Seconds of every link in reach."""
        link_s, size = around.link_s.copy(), len(self.links)
        dst, src = np.divmod(self._known_links(), self._fleet.nodes)
        at = around.reach.find(dst, src)
        link_s[at[at >= 0]] = np.fromiter(self.links.values(), float, size)[at >= 0]
        return link_s

    def _known_links(self) -> Ints:
        """Keys of `links`; none is ever forgotten, so their number tells whether some are new."""
        if len(self._keys) != len(self.links):
            self._keys = np.fromiter(self.links, np.int64, len(self.links))
        return self._keys


_ARRAYS = ("step_s", "began_s", "flight_steps", "ended_s", "training_s", "loss")


def _honest_seconds(report: Report, observed_s: float) -> Callable[[float], float]:
    """What a link really took, by what its receiver says and what we have seen pass.

    All stages together, each as slow as its slowest transfer, must fill the time of the exchange,
    but for what mixing and messages take. Where they do not, they are stretched until they fill all
    of it: who claims too little ends up with more than who is honest.
    """
    slowest: dict[int, float] = {}
    told = [(u.stage, u.seconds) for u in report.used]
    told += [(r.stage, r.seconds) for r in report.rejected]
    for stage, seconds in told:
        slowest[stage] = max(slowest.get(stage, 0.0), seconds)
    claimed_s = sum(slowest.values())
    if claimed_s >= CREDIT * (observed_s - SLACK_S):
        return lambda seconds: seconds
    if claimed_s <= 0:
        return lambda seconds: observed_s
    return lambda seconds: seconds * observed_s / claimed_s


def pulls_of(order: Execute) -> dict[tuple[int, int], Pull]:
    """Pulls of an order by stage and sender."""
    return {(k, p.node): p for k, stage in enumerate(order.stages) for p in stage.pulls}
