"""Rounds from planning to closing (alg:dystop).

A round makes the same calls in the same order as the simulator's loop:

1. `build_view` turns the measurements into what the mechanism may see (`Rounds.open_next`).
2. `decide` returns the plan. Each node gets its part of the plan as an order (`_issue_orders`).
3. The nodes execute their orders and report (`apply_report`).
4. `advance` updates staleness and queues (eq:staleness, eq:queue; `close`).
5. Recorders measure, and `record_of` makes the record (`Records.add`).

A report that arrives after its round was closed is applied with `apply_late_report`.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dystop.control.round import (
    advance,
    apply_late_report,
    build_view,
    decide,
    seconds_apart,
)
from dystop.plan import Plan
from dystop.recorders.recorder import FinishedRound
from dystop.sparse import Ints
from dystop.testbed.coordinator.conduct.accusations import Accusation
from dystop.testbed.coordinator.observations import pulls_by_stage_and_sender
from dystop.testbed.coordinator.open_round import (
    OpenRound,
    has_left,
    is_complete,
    node_failed,
    register_failures,
    restored_round,
)
from dystop.testbed.coordinator.orders import (
    order_lines,
    orders_from_plan,
    round_limits,
    stored_order,
)
from dystop.testbed.coordinator.round_reports import (
    RoundReports,
    emulated_seconds,
    round_outcome,
    spent_by_workers,
    trace_outcome,
    traced_view,
    without_fleet_data,
    without_links,
)
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.ledger.tables import (
    KeptLine,
    LateLine,
    OrderLine,
    ReportLine,
    Restored,
    RoundLine,
    text_of,
    write_blob,
)
from dystop.testbed.protocol.messages import Cancel, Execute, Report
from dystop.types import ControlState, Outcome, View
from dystop.world import WorldState

# What a report does: "new" and "late" change the state; "known" was applied before; "early" cannot
# be applied yet (the worker repeats it); "strange" belongs to no order.
ReportEffect = Literal["new", "late", "known", "early", "strange"]


@dataclass(frozen=True)
class ClosedRound:
    """The results of a closed round."""

    before: ControlState  # when it was decided
    after: ControlState
    done: FinishedRound
    trace_outcome: dict[str, Any]  # second half of its line of the trace


class Rounds:
    """Plans rounds, applies reports, closes rounds."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self.current: OpenRound | None = None
        self.unconfirmed: dict[tuple[int, int], OrderLine] = {}  # failed orders, (round, node)
        self.traced_view: View | None = None  # first half of the newest line of the trace
        self.most_pulls = 0  # of one order so far
        self._world: WorldState | None = None  # newest state of the emulated world
        self._late_trainings: dict[int, float] = {}  # node -> start of a training that was late
        self._opened_s: dict[int, float] = {}  # of rounds that this coordinator has opened
        self._reported: set[int] = set()  # nodes with an exchange that this coordinator has seen

    # Opening ------------------------------------------------------------------------------------

    def open_next(self) -> bool:
        """Plan a round and issue its orders; return False if no worker is present."""
        state, setup = self.state, self.state.setup
        if state.zero_s is None:
            state.zero_s = state.at_s
        clock_s = max(state.control.clock_s, state.clock_s(state.at_s))
        self._world = world = setup.world.observe(state.control.t, clock_s)
        self._exclude_late_trainings(world)
        present = state.present()
        if not present[: setup.fleet.workers].any():
            return False
        control = replace(state.control, clock_s=clock_s)
        observation = state.observations.observe(world, present, state.at_s)
        view = build_view(setup.fleet, control, observation)
        plan, state.control = decide(setup.mechanism, control, view)
        self._issue_orders(plan, view, world)
        return True

    def _exclude_late_trainings(self, world: WorldState) -> None:
        """Exclude workers whose training lasts much longer than promised, once per training."""
        state, timeouts = self.state, self.state.params.timeouts
        began_s = state.observations.began_s
        running = state.observations.running(world, state.at_s)
        late = (running.elapsed_s > 0) & (running.latest_s == 0)
        late &= state.at_s - began_s >= timeouts.round_s
        for node in np.flatnonzero(late).tolist():
            member = state.members.of_node(node)
            is_here = member is not None and member.state == "JOINED"
            if is_here and self._late_trainings.get(node) != began_s[node]:
                self._late_trainings[node] = began_s[node]
                lasts_s = state.at_s - began_s[node]
                node_failed(
                    state, node, "hung", f"its training has been running for {lasts_s:.0f} s"
                )

    def _issue_orders(self, plan: Plan, view: View, world: WorldState) -> None:
        """Write the plan and its orders to the ledger, and send them after the commit."""
        state, steps = self.state, self._steps(plan)
        running = state.observations.running(world, state.at_s)
        limits = round_limits(state.setup, plan, view, steps, running, state.recent_s)
        mechanism = state.setup.mechanism
        apart_s = seconds_apart(state.control, plan.active)
        orders = orders_from_plan(plan, view, mechanism, steps, limits, apart_s, state.epoch)
        for node, order in orders.items():
            if state.failures.is_on_trial(node, state.at_s):
                orders[node] = replace(order, budget_s=float(limits.trial_pull_s[node]))
        kept_view = without_links(view)
        kept = {"plan": plan, "view": without_fleet_data(kept_view), "limit_s": limits.deadline_s}
        blob = write_blob(kept)
        line = RoundLine(view.t, state.epoch, state.at_s, blob)
        self._opened_s[view.t] = state.at_s
        lines = order_lines(view.t, plan, orders)
        deadline_s, trial_deadline_s = state.at_s + limits.deadline_s, state.at_s + limits.trial_s
        self.current = OpenRound(plan, kept_view, line, orders, lines, deadline_s, trial_deadline_s)
        self.current.training = set(plan.active.tolist()) if plan.join else set()
        self.current.failed = {node for node in orders if self._started_round(node) >= view.t}
        state.observations.assume_link_times(world, plan.links.dst, plan.links.src)
        for node, order in orders.items():
            state.exchange_from_s[node] = state.at_s
            state.observations.order_issued(node, order)
            pulls_of_order = sum(len(stage.pulls) for stage in order.stages)
            self.most_pulls = max(self.most_pulls, pulls_of_order)
        trained = {node: order.steps for node, order in orders.items() if order.train}
        state.count_trainings(trained)  # a worker may train without a report that arrives
        self.traced_view = traced_view(view)
        seen = KeptLine(f"seen:{view.t}", write_blob(self.traced_view))
        state.write(line, *lines.values(), seen)
        state.write_state()
        for node in orders:
            if self.current.awaits(node):
                self._send_order(node)

    def _started_round(self, node: int) -> int:
        """Return the last round that a node had started when it joined; it starts none twice.

        It can be later than the coordinator's round only after a restore from a backup.
        """
        member = self.state.members.of_node(node)
        return 0 if member is None else member.last_round

    def _send_order(self, node: int) -> None:
        """Send a node its order after the commit."""
        state, member = self.state, self.state.members.of_node(node)
        if self.current is not None and member is not None and member.session:
            order, text = self.current.orders[node], self.current.lines[node].execute or ""
            if order.epoch != state.epoch:
                order, text = replace(order, epoch=state.epoch), ""
            state.send_after_commit(member.name, order, text.encode())

    def resend(self, node: int) -> None:
        """Send the unanswered order again to a node that joined again."""
        if self.current is None or not self.current.awaits(node):
            return
        if self._started_round(node) > self.current.t:
            self.current.failed.add(node)
        else:
            self._send_order(node)

    def _steps(self, plan: Plan) -> Ints:
        return self.state.setup.steps[plan.active] if plan.steps is None else plan.steps

    # Reports ------------------------------------------------------------------------------------

    def apply_report(self, node: int, report: Report) -> tuple[ReportEffect, list[Accusation]]:
        """Apply a report once; return its effect, and the refused models that it names."""
        if report.kind == "trained":
            return self._training_finished(node, report), []
        current = self.current
        if current is not None and report.round == current.t and node in current.orders:
            if not current.awaits(node):
                return "known", []
            if report.kind == "failed":
                current.failed.add(node)
                node_failed(self.state, node, "failed", f"round {report.round}: {report.text}")
                return "new", []
            current.mixed[node] = report
            return "new", self._exchange_finished(node, current.orders[node], report)
        line = self.unconfirmed.get((report.round, node))
        if line is not None and report.kind == "mixed" and line.execute:
            return "late", self._apply_late(node, line, report)
        return ("known" if report.round < self.state.control.t else "strange"), []

    def order_of(self, node: int, round_: int) -> Execute | None:
        """Return the order that a report of this round answers, if it may still have an effect.

        After a restart, the first report of a node may answer an order of the same number that the
        ledger has lost: None.
        """
        if self.state.epoch > 1 and node not in self._reported:
            return None
        current = self.current
        if current is not None and round_ == current.t:
            return current.orders.get(node)
        line = self.unconfirmed.get((round_, node))
        return None if line is None or not line.execute else stored_order(line)

    def seconds_since_order(self, node: int, order: Execute) -> float | None:
        """Return the seconds that the exchange of an order can have lasted until now.

        An active worker ends its training first. The clock of the run stands still while no
        coordinator runs, so nothing is known about an order of an earlier coordinator: None.
        """
        state, opened_s = self.state, self._opened_s.get(order.round)
        if opened_s is None:
            return None
        if order.train:
            ended_s = float(state.observations.ended_s[node])
            opened_s = max(opened_s, ended_s) if math.isfinite(ended_s) else opened_s
        return state.at_s - opened_s

    def since_opened_s(self, round_: int) -> float | None:
        """Return the seconds since a round was opened; None: by an earlier coordinator."""
        opened_s = self._opened_s.get(round_)
        return None if opened_s is None else self.state.at_s - opened_s

    def mark_answered(self, node: int, report: Report) -> None:
        """Mark a node of the open round as answered, after a restart.

        The restored measurements already include this report.
        """
        current = self.current
        if current is None or report.round != current.t or node not in current.orders:
            return
        if report.kind == "mixed":
            current.mixed[node] = report
        elif report.kind == "failed":
            current.failed.add(node)
        else:
            current.training.discard(node)

    def _exchange_finished(self, node: int, order: Execute, report: Report) -> list[Accusation]:
        """Measure a finished exchange; return the refused models."""
        state, current = self.state, self.current
        self._reported.add(node)
        idle = current.idle if current is not None and current.t == order.round else []
        most_s = self.seconds_since_order(node, order)
        observed_s = state.at_s - state.exchange_from_s.get(node, state.at_s)
        state.observations.exchange_reported(
            node, order, report, None if most_s is None else observed_s, idle, most_s
        )
        state.observations.mail_reported(node, order, report)
        if order.train:
            state.training_started(node, order)
        return self._register_refusals(node, order, report)

    def _register_refusals(self, node: int, order: Execute, report: Report) -> list[Accusation]:
        """Add strikes for refused models; only models that the order names can be refused."""
        state, accusations = self.state, list[Accusation]()
        rejected = {(r.stage, r.node): r for r in report.rejected}
        pulls = pulls_by_stage_and_sender(order) if rejected else {}
        for key, refused in rejected.items():
            if key not in pulls:
                continue
            sender, code = refused.node, refused.code
            state.observations.pull_failed(node, sender, code, state.at_s)
            consequence = state.strikes.model_refused(node, sender, code, state.at_s)
            if consequence:
                is_suspicion = consequence == "suspicion"
                ordered_s = self._opened_s.get(order.round)
                found = Accusation(node, order.round, pulls[key], refused, is_suspicion, ordered_s)
                accusations.append(found)
        return accusations

    def _apply_late(self, node: int, line: OrderLine, report: Report) -> list[Accusation]:
        """Apply the report of an order whose round is closed; it counts from now on."""
        state, order = self.state, stored_order(line)
        del self.unconfirmed[line.round, node]
        state.failures.reported(node, state.at_s)
        pulls = {(stage, src) for stage, src in json.loads(line.pulls)}
        src = [u.node for u in report.used if (u.stage, u.node) in pulls]
        size = sum(u.bytes for u in report.used)
        state.control = apply_late_report(
            state.control, node, np.array(src, np.int64), size, bool(line.train)
        )
        accusations = self._exchange_finished(node, order, report)
        confirmed = replace(line, outcome="LATE", execute=None)
        late = LateLine(state.seq + 1, line.round, node, write_blob(state.control))
        state.write(confirmed, late)
        state.write_state()
        return accusations

    def _training_finished(self, node: int, report: Report) -> ReportEffect:
        state, observations = self.state, self.state.observations
        if node >= state.setup.fleet.workers:
            return "known"
        if report.round > state.training_round[node]:
            return "early"  # the report of its exchange is missing
        if report.round <= state.trained_round[node]:
            return "known"
        state.trained_round[node] = report.round
        state.failures.reported(node, state.at_s)
        steps = int(observations.training_steps[node])
        state.samples += min(report.samples, steps * state.setup.fleet.batch)
        if self._world is None:
            self._world = state.setup.world.observe(state.control.t, state.control.clock_s)
        took_s = observations.training_finished(node, report, self._world.step_s, state.at_s)
        if took_s is not None:
            state.trainings.append((node, report.round, steps, took_s))
        state.exchange_from_s[node] = state.at_s
        if self.current is not None and report.round == self.current.t:
            self.current.training.discard(node)
        return "new"

    def report_line(self, node: int, report: Report, effect: ReportEffect) -> ReportLine:
        """Return the ledger line of a report, with the next sequence number."""
        state = self.state
        state.seq += 1
        if report.kind == "trained":  # nobody reads its background pulls
            report = replace(report, used=(), rejected=())
        text = text_of(report)
        is_late = int(effect == "late")
        return ReportLine(state.seq, report.round, node, report.kind, state.at_s, is_late, text)

    # Closing ------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether the open round has nothing left to wait for."""
        return self.current is not None and is_complete(self.state, self.current)

    def postpone_deadline(self, seconds: float) -> None:
        """Wait longer for the open round, because the coordinator was stopped meanwhile."""
        if self.current is not None:
            self.current.deadline_s += seconds
            self.current.trial_deadline_s += seconds

    @property
    def awaits_return(self) -> bool:
        """Whether the open round needs a member that took part and has not joined again."""
        current = self.current
        members = map(self.state.members.of_node, current.unfinished if current else ())
        return any(m is not None and m.state == "SUSPECT" and not m.session for m in members)

    def close(self) -> ClosedRound:
        """Settle the open round (eq:staleness, eq:queue) and write it to the ledger."""
        state, current = self.state, self.current
        assert current is not None
        plan, view = current.plan, current.view
        reports = self._collect_reports(current)
        outcome = round_outcome(plan, view, reports)
        frozen = ~view.alive if state.params.away == "freeze" else None
        decided, mechanism = state.control, state.setup.mechanism
        state.control = advance(mechanism, decided, view, plan, outcome, frozen)
        done = self._finished(plan, view, reports, outcome)
        traced = trace_outcome(plan, view, reports, outcome, current.orders)
        register_failures(state, current)
        order_lines = list(self._end_orders(current))
        state.recent_s.append(state.at_s - current.line.opened_s)
        books = write_blob(state.control)
        closed = replace(current.line, closed_s=state.at_s, closed_seq=state.seq, books=books)
        self.current = None
        if not any(line.outcome != "DONE" for line in order_lines):
            self._opened_s.pop(current.t, None)  # no report of this round can follow
        state.write(closed, *order_lines)
        state.write_state()
        return ClosedRound(decided, state.control, done, traced)

    def _finished(
        self, plan: Plan, view: View, reports: RoundReports, outcome: Outcome
    ) -> FinishedRound:
        """Return what recorders may know of a round."""
        world = self._world or self.state.setup.world.observe(view.t, view.now_s)
        return FinishedRound(
            view=view,
            plan=plan,
            outcome=outcome,
            steps=self._steps(plan),
            spent=spent_by_workers(plan, view, reports, outcome.link_s),
            position=world.position,
            tested=False,  # `Records` knows
        )

    def _collect_reports(self, current: OpenRound) -> RoundReports:
        state, observations = self.state, self.state.observations
        samples, state.samples = state.samples, 0
        trainings, state.trainings = state.trainings, []
        return RoundReports(
            reports=current.mixed,
            duration_s=state.clock_s(state.at_s) - current.view.now_s,
            time_scale=state.params.time_scale,
            loss=observations.loss,
            ended_s=(observations.ended_s - (state.zero_s or 0.0)) / state.params.time_scale,
            samples=samples,
            trainings=trainings,
            emulated_s=emulated_seconds(trainings, self._world, state.params.devices),
            distances="distance" in state.setup.mechanism.capabilities().needs,
        )

    def _end_orders(self, current: OpenRound) -> Iterator[OrderLine]:
        """Return the outcome of each order; cancel the orders that were not answered."""
        for node, line in current.lines.items():
            if node in current.mixed:
                yield replace(line, outcome="DONE", execute=None)
                continue
            ended = replace(line, outcome="CANCELLED" if has_left(self.state, node) else "FAILED")
            self.unconfirmed[current.t, node] = ended
            member = self.state.members.of_node(node)
            if member is not None and member.session and node not in current.failed:
                self.state.send_after_commit(member.name, Cancel(self.state.epoch, current.t))
            yield ended

    # Restart ------------------------------------------------------------------------------------

    def restore(self, restored: Restored) -> None:
        """Restore the open round and the unconfirmed orders from the ledger."""
        for line in restored.orders:
            self.most_pulls = max(self.most_pulls, (line.execute or "").count('"node":'))
            if line.outcome is not None:
                self.unconfirmed[line.round, line.node] = line
        self.current = restored_round(self.state, restored)
