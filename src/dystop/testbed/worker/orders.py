"""Execute the coordinator's orders: pull, mix, report, train (alg:dystop).

A worker executes at most one order (`exchange`). A second one may wait for the running training
to end (`queued`). Rounds follow one another: an order of a later round means that the earlier round
was closed without this worker. `order_problem` says which orders are refused before anything
changes.
"""

from dataclasses import replace

from dystop.testbed.events import (
    CancelPull,
    PullFailed,
    PullFinished,
    SendToCoordinator,
    TrainingFailed,
    TrainingFinished,
    WorkerAction,
)
from dystop.testbed.protocol.messages import (
    Cancel,
    CarryingRow,
    Execute,
    ExecuteAck,
    Phase,
    Rejected,
    Report,
    Row,
    Stage,
    Used,
)
from dystop.testbed.worker.durable_state import DurableState
from dystop.testbed.worker.exchange import ActiveExchange, PendingPull, PullTracker, mixed_with
from dystop.testbed.worker.mixer import Mixer
from dystop.testbed.worker.state import RunningTraining, mixed_passively, training_started

MAX_WEIGHT = 1e3
MAX_RATE = 1e6
MAX_STEPS = 10**9
MAX_ROUND = 10**12  # no run has more; the rounds behind a checkpoint stay far from overflow
GRACE_S = 0.5  # the process ends a pull at its deadline and knows the cause; wait for it


class OrderExecution:
    """The orders of one worker, and the results of its pulls and trainings."""

    def __init__(self, durable: DurableState, pulls: PullTracker) -> None:
        self.durable, self.pulls = durable, pulls
        setup = durable.setup
        self._mixer = Mixer(setup.exchange, setup.params.guards.weight_cap, setup.own_losses)
        self.exchange: ActiveExchange | None = None
        self.queued: tuple[Execute, float] | None = None  # with the time of acceptance
        self.newest_round = durable.state.last_round  # including cancelled orders
        # Results of background pulls. Models wait for the end of the exchange, the other entries,
        # each with its round, for the next report of that round.
        self._background_models: list[tuple[PendingPull, PullFinished]] = []
        self._background_used: list[tuple[int, Used]] = []
        self._background_rejected: list[tuple[int, Rejected]] = []

    @property
    def phase(self) -> Phase:
        """What the worker currently does."""
        if self.durable.state.training is not None:
            return "training"
        return "pulling" if self.exchange else "idle"

    def expects_snapshot(self, round_: int) -> bool:
        """Return whether a snapshot of that round may still be added."""
        is_active = self.exchange is not None and self.exchange.order.round == round_
        is_queued = self.queued is not None and self.queued[0].round == round_
        return round_ > self.newest_round or is_active or is_queued

    # Orders ------------------------------------------------------------------------------------

    def execute(self, order: Execute) -> list[WorkerAction]:
        """Accept an order; one of a known round is a duplicate."""
        durable = self.durable
        if order.round <= self.newest_round:
            reports = durable.session.reports_of_round(durable.sendable_reports, order.round)
            return [SendToCoordinator(ExecuteAck(order.round, "duplicate")), *reports]
        actions = self._drop_orders()
        self.newest_round = order.round
        if order.train and durable.state.training is not None:
            self.queued = (order, durable.now_s)
            return [*actions, SendToCoordinator(ExecuteAck(order.round, "queued"))]
        accepted = SendToCoordinator(ExecuteAck(order.round, "accepted"))
        return [*actions, accepted, *self._start_exchange(order, durable.now_s)]

    def cancel(self, message: Cancel) -> list[WorkerAction]:
        """Drop the orders of a closed round, unless the model is mixed already."""
        rounds = [self.exchange.order.round] if self.exchange else []
        rounds += [self.queued[0].round] if self.queued else []
        self.newest_round = max(self.newest_round, message.round)
        dropped = self._drop_orders() if rounds and max(rounds) <= message.round else []
        return [*dropped, *self.durable.published.close_round(message.round)]

    def _drop_orders(self) -> list[WorkerAction]:
        """Drop the active and the queued order; their rounds are over."""
        actions: list[WorkerAction] = []
        if self.exchange:
            actions += [CancelPull(key) for key in self.exchange.pending]
            actions += self.durable.published.close_round(self.exchange.order.round)
        if self.queued:
            actions += self.durable.published.close_round(self.queued[0].round)
        self.exchange = self.queued = None
        return actions + self._apply_background_models()

    def save_failed(self, text: str) -> list[WorkerAction]:
        """Report that the newest order failed because it could not be saved."""
        durable, round_ = self.durable, self.newest_round
        if round_ <= durable.state.last_round:
            return []
        durable.state = replace(durable.state, last_round=round_)
        report = Report(round_, "failed", text=f"the disk refused: {text}")
        return [*durable.published.close_round(round_), *self._add_report(report)]

    # The exchange ------------------------------------------------------------------------------

    def _start_exchange(self, order: Execute, accepted_s: float) -> list[WorkerAction]:
        durable, state, published = self.durable, self.durable.state, self.durable.published
        self.exchange = ActiveExchange(
            order=order,
            own=state.published,
            counters=state.models.counters,
            base=state.models.start,
            start=state.models.published_start,
            mailbox=dict(state.mailbox),
            accepted_s=accepted_s,
            began_s=durable.now_s,
            deadline_s=durable.now_s + (order.budget_s or durable.setup.params.timeouts.pull_s),
        )
        actions: list[WorkerAction] = [*published.open_round(order.round)]
        actions += published.add_snapshot(0, published.models[-1], last=not order.stages)
        return actions + self._continue_exchange(start_stage=True)

    def _continue_exchange(self, *, start_stage: bool = False) -> list[WorkerAction]:
        """Mix all stages whose models have arrived; finish the exchange after the last one."""
        exchange, actions = self.exchange, list[WorkerAction]()
        while exchange and not exchange.is_over:
            if start_stage:
                run, now_s = self.durable.state.run, self.durable.now_s
                actions += self.pulls.start_stage(exchange, run, now_s)
            if exchange.pending:
                return actions
            actions += self._mix_stage(exchange)
            start_stage = True
        return actions + (self._finish_exchange(exchange) if exchange else [])

    def _mix_stage(self, exchange: ActiveExchange) -> list[WorkerAction]:
        """Mix a stage and add a snapshot of the result for exact pulls."""
        durable = self.durable
        snapshot = durable.published.snapshots[exchange.stage]
        usual = durable.guard.usual_distance
        changed = exchange.mix(durable.setup, self._mixer, usual, snapshot.publication)
        if changed:
            version, round_ = durable.next_version(), exchange.order.round
            snapshot = durable.publishable(exchange.model, version, round_, exchange.start)
        last = exchange.is_over
        return [*durable.published.add_snapshot(exchange.stage, snapshot, last=last)]

    def _finish_exchange(self, exchange: ActiveExchange) -> list[WorkerAction]:
        """Save the result of the exchange, then report it and, if active, start to train."""
        durable, before, order = self.durable, self.durable.state, exchange.order
        self.exchange = None
        if order.train:
            self._finish_active(exchange)
        else:
            self._finish_passive(exchange)
        reports = self._add_report(
            Report(
                order.round,
                "mixed",
                used=tuple(exchange.used),
                rejected=tuple(exchange.rejected),
                waited_s=max(exchange.began_s - exchange.accepted_s, 0.0),
                seconds=max(durable.now_s - exchange.began_s, 0.0),
            )
        )
        training = durable.state.training
        start = [durable.start_training(training)] if order.train and training else []
        return durable.save(*reports, *start, undo=before) + self._apply_background_models()

    def _finish_active(self, exchange: ActiveExchange) -> None:
        """Consume the mail, unless the order keeps it, and train the mixed model."""
        state, order = self.durable.state, exchange.order
        consumed = {} if order.keep_mail else exchange.mailbox
        rest = {k: m for k, m in state.mailbox.items() if consumed.get(k) is not m}
        training = RunningTraining(
            state.number + 1, order.round, order.steps, order.rate, len(order.stages)
        )
        state = replace(state, mailbox=rest | exchange.mailed)
        model, counters = exchange.result(self.durable.setup)
        self.durable.state = training_started(state, model, counters, training)

    def _finish_passive(self, exchange: ActiveExchange) -> None:
        """Change the published model; a running training continues."""
        durable, round_ = self.durable, exchange.order.round
        mailbox = {**durable.state.mailbox, **exchange.mailed}
        durable.state = replace(durable.state, mailbox=mailbox, last_round=round_)
        if exchange.model is exchange.own:
            return
        snapshot = durable.published.snapshots[exchange.stage]
        model, version = exchange.model, snapshot.publication.version
        if durable.state.published is not exchange.own:  # a training has ended meanwhile
            model = durable.state.published + (model - exchange.own)
            version = durable.next_version()
        durable.state = mixed_passively(durable.state, model, version)
        durable.publish(version, round_)

    # Trainings and reports ---------------------------------------------------------------------

    def training_ended(self, event: TrainingFinished | TrainingFailed) -> list[WorkerAction]:
        """Publish the result of a training, then start the order that waited for it."""
        report = self.durable.end_training(event)
        if report is None:
            return []
        actions = self.durable.save(*self._add_report(report))
        if self.queued is None:
            return actions
        (order, accepted_s), self.queued = self.queued, None
        return actions + self._start_exchange(order, accepted_s)

    def _add_report(self, report: Report) -> list[SendToCoordinator]:
        """Add a report, with the background pulls of its round since the last report.

        Background pulls that end after the last report of their round are not reported.
        """
        used = [entry for round_, entry in self._background_used if round_ == report.round]
        rejected = [e for round_, e in self._background_rejected if round_ == report.round]
        self._background_used, self._background_rejected = [], []
        report = replace(report, used=(*report.used, *used), rejected=(*report.rejected, *rejected))
        return self.durable.add_report(report)

    # Pulls -------------------------------------------------------------------------------------

    def pull_finished(self, event: PullFinished) -> list[WorkerAction]:
        """Use a model for the active exchange, or as the result of a background pull."""
        exchange = self.exchange
        if exchange and event.key in exchange.pending:
            pending = exchange.pending.pop(event.key)
            verdict = pending.judge(self.durable.guard, event, exchange.model)
            exchange.pull_finished(pending, event, verdict)
            return self._continue_exchange()
        background = self.pulls.background.pop(event.key, None)
        if background is not None:
            self._background_models.append((background, event))
        return [] if exchange else self._apply_background_models()

    def pull_failed(self, event: PullFailed) -> list[WorkerAction]:
        """Continue without a model that did not arrive."""
        exchange = self.exchange
        if exchange and event.key in exchange.pending:
            exchange.pull_failed(exchange.pending.pop(event.key), event.code, event)
            return self._continue_exchange()
        background = self.pulls.background.pop(event.key, None)
        if background is not None:
            rejected = background.rejected(event.code, event)
            self._background_rejected.append((background.round, rejected))
        return []

    def _apply_background_models(self) -> list[WorkerAction]:
        """Mix or store the models of background pulls; only called between exchanges."""
        if not self._background_models:
            return []
        for pending, event in self._background_models:
            verdict = pending.judge(self.durable.guard, event, self.durable.state.published)
            if verdict.code is not None:
                rejected = pending.rejected(verdict.code, event)
                self._background_rejected.append((pending.round, rejected))
                continue
            used = pending.used(event, verdict.distance)
            self._background_used.append((pending.round, used))
            self._apply_background_model(pending, event)
        self._background_models = []
        return self.durable.save()

    def _apply_background_model(self, pending: PendingPull, event: PullFinished) -> None:
        durable, state = self.durable, self.durable.state
        if pending.weight is None:
            mailbox = {**state.mailbox, pending.pull.node: pending.mailbox_entry(event)}
            durable.state = replace(state, mailbox=mailbox)
            return
        version = durable.next_version()
        mixed = mixed_with(state.published, event.vector, pending.weight)
        durable.state = mixed_passively(state, mixed, version)
        durable.publish(version, pending.round)

    def expire(self) -> list[WorkerAction]:
        """Continue without the models that have not arrived before the deadline."""
        exchange = self.exchange
        if exchange is None or self.durable.now_s < exchange.deadline_s + GRACE_S:
            return []
        actions: list[WorkerAction] = [CancelPull(key) for key in exchange.pending]
        for pending in exchange.pending.values():
            exchange.pull_failed(pending, "timeout")
        exchange.pending.clear()
        return actions + self._continue_exchange()

    def peers_changed(self) -> list[WorkerAction]:
        """Continue without the models of nodes that are no longer peers."""
        actions = self.pulls.cancel_unknown(self.exchange)
        if self.exchange and not self.exchange.pending and actions:
            return actions + self._continue_exchange()
        return actions


def order_problem(order: Execute, *, deltas: bool) -> str:
    """Return why an order cannot be executed; empty: it can.

    Args:
        order: The order.
        deltas: Whether the worker keeps the starts of trainings, which rows of updates need.
    """
    if order.round > MAX_ROUND:
        return f"a round above {MAX_ROUND}"
    if not 0 <= order.rate <= MAX_RATE or order.steps > MAX_STEPS:
        return f"rate {order.rate} or {order.steps} steps"
    problems = (_stage_problem(stage, deltas=deltas) for stage in order.stages)
    return next(filter(None, problems), "")


def _stage_problem(stage: Stage, *, deltas: bool) -> str:
    nodes, row = [pull.node for pull in stage.pulls], stage.row
    if len(set(nodes)) < len(nodes):
        return "a stage pulls twice from one node"
    mask = row.mask if row is not None and row.kind == "masked" else None
    for pull in stage.pulls:
        if pull.mask is not None and (pull.mask != mask or pull.into == "mail" or pull.background):
            return "a pull has another mask than its row"
    return "" if row is None else _row_problem(row, deltas=deltas)


def _row_problem(row: Row, *, deltas: bool) -> str:
    if len(row.sources) != len(row.weights) or len(set(row.sources)) < len(row.sources):
        return "sources and weights of a row do not match"
    carried = row.carried if isinstance(row, CarryingRow) else row.weights
    if len(carried) != len(row.sources) or any(abs(weight) > MAX_WEIGHT for weight in carried):
        return "weights of carried vectors that do not match a row, or are too large"
    if any(abs(weight) > MAX_WEIGHT for weight in row.weights):
        return f"a weight above {MAX_WEIGHT:g}"
    return "a row of updates, but none are kept" if row.kind == "delta" and not deltas else ""
