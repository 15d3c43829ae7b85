"""The simulator: the paper's rounds in virtual time, one `RoundRecord` after another."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from dystop.control.aggregation import global_weights
from dystop.control.round import (
    advance,
    build_view,
    decide,
    initial_state,
    mean_loss,
    record_of,
    with_topology,
)
from dystop.control.stopping import is_over, reached
from dystop.record import RoundRecord
from dystop.simulator.mailbox import nothing_in_flight
from dystop.simulator.mixing import first_models, index, published, published_row, write_rows
from dystop.simulator.replay import as_recorded
from dystop.simulator.state import Components, State
from dystop.simulator.transfers import (
    PendingOutcome,
    ScheduledRound,
    execute,
    forget_unused,
    schedule_transfers,
)
from dystop.sparse import Ints, ints
from dystop.training.batch_norm import EVERYBODY
from dystop.training.device import upload
from dystop.training.evaluate import Evaluated
from dystop.types import Observation, Outcome, Score
from dystop.units import are
from dystop.world import WorldState


def begin(parts: Components) -> State:
    """Time 0: equal models everywhere, and under a warm start everyone begins to train."""
    fleet, trainer = parts.fleet, parts.trainer
    vector, counters = trainer.initial()
    models = first_models(
        vector,
        counters,
        fleet.nodes,
        late=parts.laws.publish == "on_completion",
        deltas=parts.keeps_starts,
    )
    books = initial_state(fleet, parts.mechanism)
    training = np.zeros(fleet.nodes)
    if parts.mechanism.capabilities().warm_start:
        everyone = np.arange(fleet.workers)
        at = index(everyone, models.latest)
        trained = trainer.train(
            models.latest[at], models.counters[at], everyone, books.version, parts.steps
        )
        models.latest[at], models.counters[at] = trained.models, trained.counters
        books = replace(books, samples=trained.samples)
        training[: fleet.workers] = parts.world.observe(1, 0.0).step_s * parts.steps
    return State(
        books=books,
        started_s=np.zeros(fleet.nodes),
        training_s=training,
        post=nothing_in_flight(),
        models=models,
        next_evaluation_s=parts.evaluate.every_s,
        snapshots_made=0,
    )


@dataclass(frozen=True)
class PlannedRound:
    """A round that is decided and timed, before any model has moved."""

    state: State  # with the books after the decision
    around: WorldState
    turn: ScheduledRound

    def after(self, state: State) -> "PlannedRound":
        """The same opening, decided early, with what has come out of the round before."""
        books = replace(self.state.books, last=state.books.last)
        due = state.next_evaluation_s
        return replace(self, state=replace(self.state, books=books, next_evaluation_s=due))


Asked = Callable[[], Score]  # waits for a test that a device was asked for


@dataclass(frozen=True)
class RunningRound:
    """A round whose work is with the trainer; its losses may still be on their way."""

    opening: PlannedRound
    flight: PendingOutcome
    state: State  # after the round, but for its losses
    test: Asked | None = None

    def after(self, state: State) -> "RunningRound":
        """The same round, launched early, with what has come out of the round before."""
        due = state.next_evaluation_s
        moved = replace(self.state, next_evaluation_s=due)
        return replace(self, opening=self.opening.after(state), state=moved)


Keeps = Callable[[int], bool]


def every_round(t: int) -> bool:
    """Keep the state of each round."""
    return True


def no_round(t: int) -> bool:
    """Only the records are of interest."""
    return False


def simulate(
    parts: Components, state: State, keeps: Keeps = every_round
) -> Iterator[tuple[RoundRecord, State]]:
    """Run rounds until a stop rule holds; yields each record with the state after it.

    Decisions are pure, so the next round is decided while a device still trains this one, unless
    it depends on what comes out. It is also launched then, so that the device need not wait, if
    nobody wants the models of this round.

    Args:
        parts: What the simulation is made of.
        state: Where it stands.
        keeps: Asked for a round before the next one is launched early. Where it answers no, the
            models of the state that comes with that round's record may have moved on.
    """
    early: RunningRound | None = None
    ahead: PlannedRound | None = None
    while True:
        now = early.after(state) if early else _next(parts, state, ahead)
        if now is None:
            return
        now = _tested(parts, now)
        ahead, early = _look_ahead(parts, now.state), None
        if ahead and _may_launch(parts, now, keeps):
            early = _take_off(parts, ahead)
            ahead = None
        record, state = _arrive(parts, now)
        yield record, state
        if reached(parts.stop, record):
            return


def _next(parts: Components, state: State, ahead: PlannedRound | None) -> RunningRound | None:
    """Launch the next round, decided early or now; nothing where the run is over."""
    if _spent(parts, state):
        return None
    opening = ahead.after(state) if ahead else _open(parts, state)
    return None if opening is None else _take_off(parts, opening)


def _take_off(parts: Components, opening: PlannedRound) -> RunningRound:
    """Launch a round; does not wait for a device."""
    turn, books = opening.turn, opening.state.books
    flight, state = execute(parts, opening.state, turn)
    after = advance(parts.mechanism, books, turn.view, turn.plan, flight.known)
    return RunningRound(opening, flight, replace(state, books=after))


def _tested(parts: Components, now: RunningRound) -> RunningRound:
    """The same round, with its test asked for if the chosen interval ends with it."""
    state, every_s = now.state, parts.evaluate.every_s
    clock = state.books.clock_s
    if not _is_due(parts, state, now.opening.state.books.t, clock):
        return now
    if every_s > 0:
        state = replace(state, next_evaluation_s=(np.floor(clock / every_s) + 1.0) * every_s)
    return replace(now, state=state, test=ask_score(parts, state, clock))


def _may_launch(parts: Components, now: RunningRound, keeps: Keeps) -> bool:
    """Whether the models of a round that is not the last may move on before it has landed."""
    decides = parts.stop.loss > 0 or (now.test is not None and parts.stop.accuracy > 0)
    return parts.trainer.returns_early and not decides and not keeps(now.opening.state.books.t)


def _arrive(parts: Components, now: RunningRound) -> tuple[RoundRecord, State]:
    """Wait for what comes out of a round, and write its record."""
    turn, before = now.opening.turn, now.opening.state.books
    outcome = now.flight.land()
    after = replace(now.state.books, last=outcome)
    test = now.test
    if test is None and _is_last(parts, before.t, after.clock_s, outcome):
        test = ask_score(parts, now.state, after.clock_s)
    score = test() if test else None
    record = record_of(before, after, turn.view, turn.plan, outcome, score)
    return _illustrated(parts, record, now.opening, outcome), replace(now.state, books=after)


def _open(parts: Components, state: State) -> PlannedRound | None:
    """Decide a round; nothing where the planned seconds are over before anybody is there."""
    state, around = _gather(parts, state)
    if _spent(parts, state):
        return None
    view = build_view(parts.fleet, state.books, _observe(state, around))
    plan, books = decide(parts.mechanism, state.books, view, parts.remedy)
    state = replace(state, books=books)
    return PlannedRound(state, around, schedule_transfers(parts, state, view, plan))


def _look_ahead(parts: Components, state: State) -> PlannedRound | None:
    """Decide the next round early, where that changes no model and needs no loss."""
    waits = "loss" in parts.mechanism.capabilities().needs or len(state.post.dst) > 0
    return None if waits or _spent(parts, state) else _open(parts, state)


def _illustrated(
    parts: Components, record: RoundRecord, opening: PlannedRound, outcome: Outcome
) -> RoundRecord:
    """The record with links and positions, where they are kept."""
    if parts.topology:
        record = with_topology(record, opening.turn.plan, outcome.lost)
    if parts.moving:
        position = np.round(opening.around.position, 2).tolist()
        record = replace(record, positions=position)
    return record


def _spent(parts: Components, state: State) -> bool:
    return is_over(parts.stop, state.books.t, state.books.clock_s)


def stop_reason(parts: Components, record: RoundRecord) -> str:
    """Why a run ended with this record, in words."""
    target = reached(parts.stop, record)
    if target:
        return f"target {target} reached"
    if record.round >= parts.stop.rounds:
        return f"{are(record.round, 'round')} over"
    return f"{parts.stop.seconds:g} simulated seconds are over"


def _gather(parts: Components, state: State) -> tuple[State, WorldState]:
    """Open a round: wait until somebody is there, then hand out the mail that has arrived."""
    around = parts.world.observe(state.books.t, state.books.clock_s)
    while not around.alive.any():
        clock = parts.world.next_return_s(state.books.clock_s)
        state = replace(state, books=replace(state.books, clock_s=clock))
        if _spent(parts, state):
            break
        around = parts.world.observe(state.books.t, clock)
    return _deliver(as_recorded(state, around)), around


def _deliver(state: State) -> State:
    """Mix in the background messages that have arrived; keep the newest mail per sender."""
    now = state.books.clock_s
    post = state.post
    due = post.take(post.due(now))
    for k in np.argsort(due.arrival_s, kind="stable"):
        _mix_on_arrival(state, int(due.dst[k]), int(due.snapshot[k]), float(due.weight[k]))
    post = post.take(~post.due(now)).newest(now)
    forget_unused(state.models, post)
    return replace(state, post=post)


def _mix_on_arrival(state: State, dst: int, snapshot: int, weight: float) -> None:
    done = state.done
    own = published_row(state.models, done, dst)
    row = (1.0 - weight) * own + weight * state.models.snapshots[snapshot]
    write_rows(state.models, ints([dst]), row[None], np.ones(1, bool), ~done[[dst]])


def _observe(state: State, around: WorldState) -> Observation:
    return Observation(
        alive=around.alive,
        reach=around.reach,
        distance_m=around.distance_m,
        link_s=around.link_s,
        step_s=around.step_s,
        remaining_s=state.remaining_s[: len(around.alive)],
        budget=around.budget,
        mailbox=state.post.mailbox(state.books.clock_s),
    )


def _is_last(parts: Components, t: int, clock_s: float, outcome: Outcome) -> bool:
    """Whether a run ends with a round, which is then tested whatever the interval."""
    loss = mean_loss(outcome)
    if parts.stop.loss > 0 and loss is not None and loss <= parts.stop.loss:
        return True
    return t >= parts.stop.rounds or (parts.stop.seconds > 0 and _over(parts, t, clock_s))


def _is_due(parts: Components, state: State, t: int, clock_s: float) -> bool:
    """Whether the chosen interval between two tests ends with a round."""
    if parts.evaluate.every_s > 0:
        return clock_s >= state.next_evaluation_s
    return t % parts.evaluate.every_rounds == 0


def _over(parts: Components, t: int, clock_s: float) -> bool:
    """Whether no further round can open before the planned seconds are over."""
    limit = parts.stop.seconds
    if clock_s >= limit:
        return True
    gone = not parts.world.observe(t + 1, clock_s).alive.any()
    return gone and parts.world.next_return_s(clock_s) >= limit


def ask_score(parts: Components, state: State, clock_s: float) -> Asked:
    """Test every worker's own model and the data-weighted global one; a device takes its time."""
    now = evaluation_models(parts, state, clock_s)
    samples, test = parts.evaluate.samples or None, parts.trainer.evaluate
    each = test(now.models, now.counters, samples, whose(parts, np.arange(len(now.models))))
    whole = test(now.whole[None], now.counters[:1], samples, whose(parts, ints([EVERYBODY])))
    return lambda: _score(each, whole)


def whose(parts: Components, workers: Ints) -> Ints | None:
    """On whose samples batch norm's statistics are computed anew for a test; None: on nobody's."""
    return workers if parts.evaluate.statistics == "recomputed" else None


@dataclass(frozen=True)
class EvaluationModels:
    """The models that count at some time: those that the workers would hand out then."""

    models: Tensor  # [N, W]
    counters: Tensor  # [N, C]
    whole: Tensor  # [W], the global model (eq:weightedmodel)


def evaluation_models(parts: Components, state: State, clock_s: float) -> EvaluationModels:
    """What a test at this time looks at."""
    n = parts.fleet.workers
    models = published(state.models, state.done_by(clock_s))[:n]
    share = upload(global_weights(parts.fleet.data_size), models.device).to(models.dtype)
    return EvaluationModels(models, state.models.counters[:n], share @ models)


def _score(each: Evaluated, whole: Evaluated) -> Score:
    finite = np.isfinite(each.loss)
    return Score(
        accuracy=float(each.accuracy.mean()),
        accuracy_std=float(each.accuracy.std()),
        accuracy_global=float(whole.accuracy[0]),
        loss=float(each.loss[finite].mean()) if finite.any() else math.nan,
        loss_global=float(whole.loss[0]),
        diverged=int((~finite).sum()),
    )
