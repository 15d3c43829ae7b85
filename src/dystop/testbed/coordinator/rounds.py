"""Rounds from planning to closing (alg:dystop): part of the coordinator machine."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dystop.control.round import (
    apply_late_report,
    build_view,
    decide,
    settle,
    with_topology,
)
from dystop.control.timing import timetable
from dystop.plan import Plan
from dystop.record import RoundRecord
from dystop.sparse import Floats
from dystop.testbed.coordinator.core import Core
from dystop.testbed.coordinator.observations import MeasuredState, pulls_of
from dystop.testbed.coordinator.orders import (
    OpenRound,
    execute_of,
    nameless,
    orders_of,
    payload,
    pulls_by_node,
    slim,
)
from dystop.testbed.coordinator.round_reports import (
    RoundReports,
    outcome_of,
    trace_observation,
    trace_outcome,
)
from dystop.testbed.ledger.tables import (
    KeptLine,
    LateLine,
    OrderLine,
    ReportLine,
    Restored,
    RoundLine,
    read_blob,
    text_of,
    write_blob,
)
from dystop.testbed.protocol.codec import encode
from dystop.testbed.protocol.messages import Cancel, Execute, Report
from dystop.types import Outcome, View

Effect = str  # "new", "late", "known" (no second effect), "early" (not yet), "strange"


@dataclass(frozen=True)
class ClosedRound:
    """A round that is history."""

    record: RoundRecord
    came: dict[str, Any]  # second half of its line of the trace


class Rounds:
    """Plans rounds, takes in reports, closes rounds."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.open: OpenRound | None = None
        self.unsettled: dict[tuple[int, int], OrderLine] = {}  # orders that failed, (round, node)
        self.seen: View | None = None  # first half of the newest line of the trace
        self._around: MeasuredState | None = None  # newest look at the world

    # Opening ------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Plan a round and order it; nothing where nobody is there."""
        core, setup = self.core, self.core.setup
        if core.zero_s is None:
            core.zero_s = core.at_s
        clock_s = max(core.books.clock_s, core.clock_s(core.at_s))
        self._around = around = setup.world.observe(core.books.t, clock_s)
        present = core.present()
        if not present[: setup.fleet.workers].any():
            return False
        books = replace(core.books, clock_s=clock_s)
        view = build_view(setup.fleet, books, core.probe.observe(around, present, core.at_s))
        plan, core.books = decide(setup.mechanism, books, view, setup.remedy)
        self._commit(plan, view, around)
        return True

    def _commit(self, plan: Plan, view: View, around: MeasuredState) -> None:
        core = self.core
        link_s, rates = self._links(plan, view)
        deadline_s, budget_s = self._limits(plan, view, link_s)
        orders = orders_of(
            plan, view, core.setup.mechanism, self._steps(plan), rates, budget_s, core.epoch
        )
        rest = slim(view)
        blob = write_blob({"plan": plan, "view": nameless(rest)})
        line = RoundLine(view.t, core.epoch, core.at_s, blob)
        pulls = pulls_by_node(plan)
        lines = {  # what is written down is also what is sent
            node: OrderLine(
                view.t, node, int(o.train), None, json.dumps(pulls[node]), encode(o).decode()
            )
            for node, o in orders.items()
        }
        self.open = OpenRound(plan, rest, line, orders, lines, core.at_s + deadline_s)
        self.open.training = set(plan.active.tolist()) if plan.join else set()
        self.open.failed = {node for node in orders if self._taken_up(node) >= view.t}
        core.probe.guess(around, plan.links.dst, plan.links.src)
        for node, order in orders.items():
            core.since_s[node] = core.at_s
            core.probe.ordered(node, order)
        self.seen = trace_observation(view)
        core.keep(line, *lines.values(), KeptLine(f"seen:{view.t}", write_blob(self.seen)))
        core.keep_state()
        for node in orders:
            if self.open.awaits(node):
                self._send(node)

    def _taken_up(self, node: int) -> int:
        """The last round that a node had taken up when it joined; it takes up none twice.

        It can be beyond ours only if our ledger was restored from a backup.
        """
        member = self.core.members.of_node(node)
        return 0 if member is None else member.last_round

    def _send(self, node: int) -> None:
        """Give a node its order, once it is on the disk."""
        member = self.core.members.of_node(node)
        if self.open is not None and member is not None and member.session:
            order, text = self.open.orders[node], self.open.lines[node].execute or ""
            if order.epoch != self.core.epoch:
                order, text = replace(order, epoch=self.core.epoch), ""
            self.core.tell_then(member.name, order, text.encode())

    def resend(self, node: int) -> None:
        """A node has come back: what it has not answered, it is told again."""
        if self.open is None or not self.open.awaits(node):
            return
        if self._taken_up(node) > self.open.t:
            self.open.failed.add(node)
        else:
            self._send(node)

    def _steps(self, plan: Plan) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self.core.setup.steps[plan.active] if plan.steps is None else plan.steps

    def _links(self, plan: Plan, view: View) -> tuple[Floats, Floats]:
        """Expected emulated seconds of each link, and the rate that it is paced to (0: none)."""
        setup, links = self.core.setup, plan.links
        edge = view.reach.find(links.dst, links.src)
        expected = np.where(edge >= 0, view.link_s[edge] if len(view.link_s) else 0.0, 0.0)
        expected = expected * links.fraction
        if self.core.params.links == "free" or not len(links):
            return expected, np.zeros(len(links))
        moved = setup.world.transfer(view.t, view.now_s, links.dst, links.src, links.fraction)
        size = payload(plan) * setup.fleet.model_bytes
        real_s = moved.seconds * self.core.params.time_scale
        rates = np.divide(size, real_s, out=np.zeros(len(links)), where=real_s > 0)
        return np.maximum(expected, moved.seconds), rates

    def _limits(self, plan: Plan, view: View, link_s: Floats) -> tuple[float, float]:
        """Seconds until the round closes without the rest, and for the pulls of an order."""
        core, limits = self.core, self.core.params.timeouts
        scale, n = core.params.time_scale, view.fleet.workers
        busy = np.append(view.remaining_s, np.zeros(view.fleet.nodes - n))
        training = view.step_s[plan.active] * self._steps(plan)
        duration_s = timetable("paper", plan, link_s, busy, training).duration_s * scale
        deadline_s = min(limits.round_cap_s, max(limits.round_s, 3.0 * duration_s))
        stages = np.unique(plan.links.stage)
        slowest = sum(link_s[plan.links.stage == k].max(initial=0.0) for k in stages)
        waits = busy[plan.active].max(initial=0.0)  # an exact pull waits for somebody's training
        budget_s = max(limits.pull_s, 2.0 * float(slowest + waits) * scale)
        return deadline_s, min(budget_s, max(deadline_s - 1.0, deadline_s / 2.0))

    # Reports ------------------------------------------------------------------------------------

    def absorb(self, node: int, report: Report) -> tuple[Effect, list[int]]:
        """Take in a report, once; answers what it did, and who is to be quarantined for it."""
        if report.kind == "trained":
            return self._trained(node, report), []
        now = self.open
        if now is not None and report.round == now.t and node in now.orders:
            if not now.awaits(node):
                return "known", []
            if report.kind == "failed":
                now.failed.add(node)
                return "new", []
            now.mixed[node] = report
            return "new", self._mixed(node, now.orders[node], report)
        line = self.unsettled.get((report.round, node))
        if line is not None and report.kind == "mixed" and line.execute:
            return "late", self._late(node, line, report)
        return ("known" if report.round < self.core.books.t else "strange"), []

    def _mixed(self, node: int, order: Execute, report: Report) -> list[int]:
        """An exchange is over: measure it, and let the training begin."""
        core = self.core
        observed_s = core.at_s - core.since_s.get(node, core.at_s)
        core.probe.exchanged(node, order, report, observed_s)
        core.probe.mailed(node, order, report)
        if order.train:
            core.began(node, order)
        return self._refusals(node, order, report)

    def _refusals(self, node: int, order: Execute, report: Report) -> list[int]:
        """Strikes for models that were refused; only what the order named can be refused."""
        bad = []
        told = {(r.stage, r.node): r.code for r in report.rejected}
        pulls = pulls_of(order) if told else {}
        for (stage, sender), code in told.items():
            if (stage, sender) not in pulls:
                continue
            self.core.probe.failed(node, sender, code, self.core.at_s)
            verdict = self.core.trust.refused(node, sender, code, self.core.at_s)
            if verdict == "quarantine":
                bad.append(sender)
        return bad

    def _late(self, node: int, line: OrderLine, report: Report) -> list[int]:
        """The round is closed, but the worker has carried out its order: it counts from now on."""
        core, order = self.core, execute_of(line)
        del self.unsettled[line.round, node]
        pulls = {(stage, src) for stage, src in json.loads(line.pulls)}
        src = [u.node for u in report.used if (u.stage, u.node) in pulls]
        size = sum(u.bytes for u in report.used)
        core.books = apply_late_report(
            core.books, node, np.array(src, np.int64), size, bool(line.train)
        )
        bad = self._mixed(node, order, report)
        done = replace(line, outcome="LATE", execute=None)
        books = LateLine(core.seq + 1, line.round, node, write_blob(core.books))
        core.keep(done, books)
        core.keep_state()
        return bad

    def _trained(self, node: int, report: Report) -> Effect:
        core = self.core
        if node >= core.setup.fleet.workers:
            return "known"
        if report.round > core.training_round[node]:
            return "early"  # what it began with is not known yet; it will be said again
        if report.round <= core.trained_round[node]:
            return "known"
        core.trained_round[node] = report.round
        most = int(core.probe.flight_steps[node]) * core.setup.fleet.batch
        core.samples += min(report.samples, most)
        if self._around is None:
            self._around = core.setup.world.observe(core.books.t, core.books.clock_s)
        steps = int(core.probe.flight_steps[node])
        took_s = core.probe.trained(node, report, self._around.step_s, core.at_s)
        if took_s is not None:
            core.trained.append((node, report.round, steps, took_s))
        core.since_s[node] = core.at_s
        if self.open is not None and report.round == self.open.t:
            self.open.training.discard(node)
        return "new"

    def line_of(self, node: int, report: Report, effect: Effect) -> ReportLine:
        """The report as the ledger keeps it."""
        core = self.core
        core.seq += 1
        text = text_of(report)
        is_late = int(effect == "late")
        return ReportLine(core.seq, report.round, node, report.kind, core.at_s, is_late, text)

    # Closing ------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the open round has nothing more to wait for."""
        now = self.open
        if now is None:
            return False
        if self.core.at_s >= now.deadline_s:
            return True
        missing = now.missing
        if missing:
            return all(self._is_away(node) for node in missing)
        return not any(i in now.mixed and not self._is_away(i) for i in now.training)

    def _is_away(self, node: int) -> bool:
        """Gone for good: nobody waits for them."""
        member = self.core.members.of_node(node)
        return member is None or member.state in ("LEFT", "QUARANTINED")

    def close(self) -> ClosedRound:
        """Settle the open round (eq:staleness, eq:queue) and write it down."""
        core, now = self.core, self.open
        assert now is not None
        tally = self._tally(now)
        outcome = outcome_of(now.plan, now.view, tally)
        record = self._settle(now, outcome)
        came = trace_outcome(now.plan, now.view, tally, outcome, now.orders)
        endings = list(self._endings(now))
        closed = replace(
            now.line, closed_s=core.at_s, closed_seq=core.seq, books=write_blob(core.books)
        )
        self.open = None
        core.keep(closed, *endings)
        core.keep_state()
        return ClosedRound(record, came)

    def _tally(self, now: OpenRound) -> RoundReports:
        core = self.core
        ended = core.probe.ended_s
        samples, core.samples = core.samples, 0
        trained, core.trained = core.trained, []
        return RoundReports(
            reports=now.mixed,
            duration_s=core.clock_s(core.at_s) - now.view.now_s,
            time_scale=core.params.time_scale,
            loss=core.probe.loss,
            ended_s=(ended - (core.zero_s or 0.0)) / core.params.time_scale,
            samples=samples,
            trained=trained,
            distances="distance" in core.setup.mechanism.capabilities().needs,
        )

    def _settle(self, now: OpenRound, outcome: Outcome) -> RoundRecord:
        core, mechanism = self.core, self.core.setup.mechanism
        frozen = ~now.view.alive if core.params.away == "freeze" else None
        record, core.books = settle(mechanism, core.books, now.view, now.plan, outcome, frozen)
        return with_topology(record, now.plan, outcome.lost) if core.setup.topology else record

    def _endings(self, now: OpenRound) -> Iterator[OrderLine]:
        """How each order ended; who did not answer is told that the round is over."""
        for node, line in now.lines.items():
            if node in now.mixed:
                yield replace(line, outcome="DONE", execute=None)
                continue
            ending = "CANCELLED" if self._is_away(node) else "FAILED"
            ended = replace(line, outcome=ending)
            self.unsettled[now.t, node] = ended
            member = self.core.members.of_node(node)
            if member is not None and member.session and node not in now.failed:
                self.core.tell_then(member.name, Cancel(self.core.epoch, now.t))
            yield ended

    # After a restart ----------------------------------------------------------------------------

    def recount(self, node: int, report: Report) -> None:
        """Answer to the open round that the state has measured already."""
        now = self.open
        if now is None or report.round != now.t or node not in now.orders:
            return
        if report.kind == "mixed":
            now.mixed[node] = report
        elif report.kind == "failed":
            now.failed.add(node)
        else:
            now.training.discard(node)

    def recall(self, restored: Restored) -> None:
        """The open round and unconfirmed orders, as the ledger holds them."""
        for line in restored.orders:
            if line.outcome is not None:
                self.unsettled[line.round, line.node] = line
        if restored.open is None:
            return
        kept = read_blob(restored.open.plan)
        view: View = replace(kept["view"], fleet=self.core.setup.fleet)
        lines = {o.node: o for o in restored.orders if o.outcome is None}
        orders = {node: execute_of(line) for node, line in lines.items()}
        limits = self.core.params.timeouts  # members may have to come back first
        until_s = self.core.at_s + max(limits.round_s, limits.gather_s)
        self.open = OpenRound(kept["plan"], view, restored.open, orders, lines, until_s)
        self.open.training = set(self.open.plan.active.tolist()) if self.open.plan.join else set()
