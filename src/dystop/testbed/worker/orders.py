"""What a worker does: orders, training, publishing (alg:device). Part of `WorkerMachine`.

A worker has at most one order that it carries out (`errand`) and one that waits for the training in
flight to end (`queued`). Rounds follow one another, so an order of a later round means that the
earlier one was closed without us.
"""

from dataclasses import replace

from dystop.testbed.events import (
    Abandon,
    Fetched,
    FetchFailed,
    Say,
    TrainingDone,
    TrainingFailed,
    WorkerAction,
)
from dystop.testbed.protocol.messages import (
    Cancel,
    Execute,
    ExecuteAck,
    Phase,
    Rejected,
    Report,
    Used,
)
from dystop.testbed.worker.durable_state import DurableState, Training
from dystop.testbed.worker.exchange import ActiveExchange, Fetches, Wanted, blended, judged
from dystop.testbed.worker.state import TrainingInFlight, mixed_while_training, training_started

GRACE_S = 0.5  # the shell gives up a fetch first, and knows more about it


class Orders:
    """Orders and trainings of one worker."""

    def __init__(self, keeper: DurableState, fetches: Fetches) -> None:
        """Nothing to do yet."""
        self.keeper, self.fetches = keeper, fetches
        self.training = Training(keeper)
        self.errand: ActiveExchange | None = None
        self.queued: tuple[Execute, float] | None = None
        self.seen_round = keeper.state.last_round  # also of orders that were cancelled
        self._late: list[tuple[Wanted, Fetched]] = []  # background models that wait for the errand
        self._late_used: list[tuple[int, Used]] = []  # with the round that they belong to
        self._late_rejected: list[tuple[int, Rejected]] = []

    @property
    def phase(self) -> Phase:
        """What the worker is busy with."""
        if self.keeper.state.flight is not None:
            return "training"
        return "pulling" if self.errand else "idle"

    def expects(self, round_: int) -> bool:
        """Whether a snapshot of that round may still come."""
        at_hand = self.errand is not None and self.errand.order.round == round_
        waits = self.queued is not None and self.queued[0].round == round_
        return round_ > self.seen_round or at_hand or waits

    def training_over(self, event: TrainingDone | TrainingFailed) -> list[WorkerAction]:
        """Publish the result, then take up the order that waited for it."""
        report = self.training.ended(event)
        return [] if report is None else self._landed(report)

    def _landed(self, report: Report) -> list[WorkerAction]:
        actions = self.keeper.save(*self._report(report))
        if self.queued is None:
            return actions
        (order, accepted_s), self.queued = self.queued, None
        return actions + self._take_up(order, accepted_s)

    def _report(self, report: Report) -> list[Say]:
        """Say it, with what came of its round in the background since the last time.

        What came after the last report of its round is not told any more.
        """
        used = [line for round_, line in self._late_used if round_ == report.round]
        rejected = [line for round_, line in self._late_rejected if round_ == report.round]
        self._late_used, self._late_rejected = [], []
        both = (*report.used, *used), (*report.rejected, *rejected)
        return self.keeper.report(replace(report, used=both[0], rejected=both[1]))

    # Orders ------------------------------------------------------------------------------------

    def execute(self, order: Execute) -> list[WorkerAction]:
        """Take an order, once; the round number says whether it is new."""
        keeper = self.keeper
        if order.round <= self.seen_round:
            known = keeper.session.again(keeper.ready_reports, order.round)
            return [Say(ExecuteAck(order.round, "duplicate")), *known]
        actions = self._drop()
        self.seen_round = order.round
        if order.train and keeper.state.flight is not None:
            self.queued = (order, keeper.now_s)
            return [*actions, Say(ExecuteAck(order.round, "queued"))]
        accepted = Say(ExecuteAck(order.round, "accepted"))
        return [*actions, accepted, *self._take_up(order, keeper.now_s)]

    def cancel(self, message: Cancel) -> list[WorkerAction]:
        """The round was closed without us: keep the own model. Too late if it is mixed already."""
        ours = [self.errand.order.round] if self.errand else []
        ours += [self.queued[0].round] if self.queued else []
        self.seen_round = max(self.seen_round, message.round)
        dropped = self._drop() if ours and max(ours) <= message.round else []
        return [*dropped, *self.keeper.slot.close(message.round)]

    def _drop(self) -> list[WorkerAction]:
        """Forget the order at hand and the one that waits; their rounds are over."""
        actions: list[WorkerAction] = []
        if self.errand:
            actions += self.fetches.abandon(self.errand)
            actions += self.keeper.slot.close(self.errand.order.round)
        if self.queued:
            actions += self.keeper.slot.close(self.queued[0].round)
        self.errand = self.queued = None
        return actions + self._deliver()

    def undone(self, text: str) -> list[WorkerAction]:
        """The last order could not be written down; it counts as failed and is not tried again."""
        keeper, round_ = self.keeper, self.seen_round
        if round_ <= keeper.state.last_round:
            return []
        keeper.state = replace(keeper.state, last_round=round_)
        said = self._report(Report(round_, "failed", text=f"the disk refused: {text}"))
        return [*keeper.slot.close(round_), *said]

    def _take_up(self, order: Execute, accepted_s: float) -> list[WorkerAction]:
        keeper, state = self.keeper, self.keeper.state
        base = state.start
        if state.start is not None and state.mixed is not None:
            base = state.mixed if state.shift is None else state.mixed + state.shift
        self.errand = ActiveExchange(
            order=order,
            own=state.published,
            base=base,
            start=state.start,
            letters=dict(state.letters),
            accepted_s=accepted_s,
            began_s=keeper.now_s,
            deadline_s=keeper.now_s + (order.budget_s or keeper.setup.timeouts.pull_s),
        )
        actions: list[WorkerAction] = [*keeper.slot.open(order.round)]
        actions += keeper.slot.remember(0, keeper.slot.entries[-1], last=not order.stages)
        return actions + self._go_on(begin=True)

    def _go_on(self, *, begin: bool = False) -> list[WorkerAction]:
        """Through the stages as far as what has arrived allows; report when all lie behind."""
        errand, actions = self.errand, list[WorkerAction]()
        while errand and not errand.is_over:
            if begin:
                run, now_s = self.keeper.state.run, self.keeper.now_s
                actions += self.fetches.begin_stage(errand, run, now_s)
            if errand.waiting:
                return actions
            actions += self._mix(errand)
            begin = True
        return actions + (self._done(errand) if errand else [])

    def _mix(self, errand: ActiveExchange) -> list[WorkerAction]:
        """Mix a stage and keep a snapshot of what came of it, for those who wait for it."""
        keeper = self.keeper
        before = keeper.slot.snapshots[errand.stage]
        changed = errand.mix(keeper.setup.node, keeper.setup.guards, keeper.guard.radius)
        after = before
        if changed:
            after = keeper.entry(errand.model, keeper.mint(), errand.order.round, errand.start)
        return [*keeper.slot.remember(errand.stage, after, last=errand.is_over)]

    def _done(self, errand: ActiveExchange) -> list[WorkerAction]:
        """All stages lie behind: write it down, then report and, if active, train."""
        keeper, before, order = self.keeper, self.keeper.state, errand.order
        self.errand = None
        if order.train:
            self._depart(errand)
        else:
            self._settle(errand)
        said = self._report(
            Report(
                order.round,
                "mixed",
                used=tuple(errand.used),
                rejected=tuple(errand.rejected),
                waited_s=max(errand.began_s - errand.accepted_s, 0.0),
                seconds=max(keeper.now_s - errand.began_s, 0.0),
            )
        )
        flight = keeper.state.flight
        training = [self.training.action(flight)] if order.train and flight else []
        return keeper.save(*said, *training, undo=before) + self._deliver()

    def _depart(self, errand: ActiveExchange) -> None:
        """Consume the mail that was there, unless kept, and begin to train the mixed model."""
        state, order = self.keeper.state, errand.order
        read = {} if order.keep_mail else errand.letters
        rest = {k: m for k, m in state.letters.items() if read.get(k) is not m}
        flight = TrainingInFlight(
            state.number + 1, order.round, order.steps, order.rate, len(order.stages)
        )
        state = replace(state, letters=rest | errand.mailed)
        self.keeper.state = training_started(state, errand.model, flight)

    def _settle(self, errand: ActiveExchange) -> None:
        """A passive order changes the published model, and leaves the training alone."""
        keeper, round_ = self.keeper, errand.order.round
        letters = {**keeper.state.letters, **errand.mailed}
        keeper.state = replace(keeper.state, letters=letters, last_round=round_)
        if errand.model is not errand.own:
            model, version = errand.model, keeper.slot.snapshots[errand.stage].publication.version
            if keeper.state.published is not errand.own:  # a training has ended meanwhile
                model, version = keeper.state.published + (model - errand.own), keeper.mint()
            keeper.state = mixed_while_training(keeper.state, model, version)
            keeper.publish(version, round_)

    # Models that come --------------------------------------------------------------------------

    def fetched(self, event: Fetched) -> list[WorkerAction]:
        """A model has come: for the order at hand, or in the background."""
        errand = self.errand
        if errand and event.key in errand.waiting:
            wanted = errand.waiting.pop(event.key)
            errand.take(wanted, event, judged(self.keeper.guard, wanted, event, errand.model))
            return self._go_on()
        late = self.fetches.background.pop(event.key, None)
        if late is not None:
            self._late.append((late, event))
        return [] if errand else self._deliver()

    def fetch_failed(self, event: FetchFailed) -> list[WorkerAction]:
        """A model will not come."""
        errand = self.errand
        if errand and event.key in errand.waiting:
            errand.miss(errand.waiting.pop(event.key), event.code, event)
            return self._go_on()
        late = self.fetches.background.pop(event.key, None)
        if late is not None:
            self._late_rejected.append((late.round, late.rejected(event.code, event)))
        return []

    def _deliver(self) -> list[WorkerAction]:
        """Take in what came in the background; it waits while an order is carried out."""
        if not self._late:
            return []
        for wanted, event in self._late:
            verdict = judged(self.keeper.guard, wanted, event, self.keeper.state.published)
            if verdict.code is not None:
                self._late_rejected.append((wanted.round, wanted.rejected(verdict.code, event)))
                continue
            self._late_used.append((wanted.round, wanted.used(event, verdict.distance)))
            self._take_in(wanted, event)
        self._late = []
        return self.keeper.save()

    def _take_in(self, wanted: Wanted, event: Fetched) -> None:
        keeper, state, sender = self.keeper, self.keeper.state, wanted.pull.node
        if wanted.weight is None:
            letters = {**state.letters, sender: wanted.letter(event)}
            keeper.state = replace(state, letters=letters)
            return
        version = keeper.mint()
        mixed = blended(state.published, event.vector, wanted.weight)
        keeper.state = mixed_while_training(state, mixed, version)
        keeper.publish(version, wanted.round)

    def expire(self) -> list[WorkerAction]:
        """Go on without what has not come in time."""
        errand = self.errand
        if errand is None or self.keeper.now_s < errand.deadline_s + GRACE_S:
            return []
        actions: list[WorkerAction] = [Abandon(key) for key in errand.waiting]
        for wanted in errand.waiting.values():
            errand.miss(wanted, "timeout")
        errand.waiting.clear()
        return actions + self._go_on()

    def roster_changed(self) -> list[WorkerAction]:
        """Give up fetches from those who no longer take part."""
        actions = self.fetches.abandon_strangers(self.errand)
        if self.errand and not self.errand.waiting and actions:
            return actions + self._go_on()
        return actions
