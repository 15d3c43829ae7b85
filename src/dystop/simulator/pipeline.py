"""The simulator's loop with the work of many rounds side by side.

Decisions depend on the timing of earlier rounds and not on their models. The pipeline therefore
decides and mixes one round after another, and lets their trainings wait for each other (`waves`).
On a GPU the host goes on while the device trains (ADR 0019). Records leave in the order of the
rounds and are those of `loop.simulate` to the byte: without this module only time is lost. The
models of a run that ends because they diverged may be those of a later round.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dystop.control.round import advance, build_view, decide, record_of
from dystop.control.stopping import ends_early, is_over
from dystop.plan import Plan
from dystop.record import RoundRecord
from dystop.simulator.compressed_links import realise
from dystop.simulator.evaluation import (
    PendingScore,
    is_last,
    request_score,
    schedule_evaluation,
    score_of,
    scored,
)
from dystop.simulator.loop import observe, open_round, with_failed_trainings, with_map
from dystop.simulator.mixing.deferred import MAX_MAIL_BYTES, MAX_STAGES
from dystop.simulator.model_stack import Models, index, newest_published
from dystop.simulator.state import Components, State
from dystop.simulator.transfers import PendingOutcome, execute
from dystop.simulator.waves import TrainingQueue, WaveStatistics, queued
from dystop.types import ControlState, View, updated
from dystop.world import WorldState
from dystop.world.energy import RoundEnergy, simulated_energy, with_energy

NeedsModels = Callable[[int], bool]
"""Says whether the models of a round are needed, so that the next one must not change them yet."""

MAX_ROUNDS = 256  # decided ahead of the oldest record that has not left
MAX_COPY_BYTES = 2**28  # of models that evaluations copy while trainings wait; then a wave ends


def waiting_bytes(stack_bytes: int, workers: int) -> int:
    """Return the most bytes that wait with trainings: copies, shifts of rows, and mail to be mixed.

    The trainings themselves take no more than a round in which everybody trains.

    Args:
        stack_bytes: Bytes of the models of all workers.
        workers: Number of workers N.
    """
    copies = min(MAX_COPY_BYTES // stack_bytes, MAX_ROUNDS) * stack_bytes
    mail = 2 * min(MAX_MAIL_BYTES, MAX_STAGES * stack_bytes // workers)  # snapshots, as one stack
    return copies + MAX_ROUNDS * stack_bytes // workers + mail


@dataclass(frozen=True)
class RunningRound:
    """A round that is decided, timed and mixed; its trainings may wait."""

    view: View
    plan: Plan
    control: ControlState  # after the decision
    world_state: WorldState
    outcome: PendingOutcome
    wave: int  # number of the wave that trains it
    state: State  # after the round; only the losses of its outcome are missing
    energy: RoundEnergy | None = None  # None: not counted
    score: PendingScore | None = None


def simulate_ahead(
    components: Components,
    state: State,
    needs_models: NeedsModels,
    statistics: WaveStatistics | None = None,
) -> Iterator[tuple[RoundRecord, State]]:
    """Run rounds until a stop rule holds; yield each record with the state after it.

    Args:
        components: What the simulation is made of.
        state: Where it stands.
        needs_models: Asked for every round before the next one starts. Where it answers False, the
            models of the yielded state may already be those of a later round.
        statistics: Where the waves are counted.
    """
    plain = state.models
    models = queued(plain, components.trainer, statistics)
    state, queue = updated(state, models=models), models.queue
    running: deque[RunningRound] = deque()
    while True:
        started = _start(components, state, queue)
        if started is None:
            break
        running.append(_request_due_score(components, started, queue))
        state = running[-1].state
        if _needs_result(components, running[-1]) or needs_models(started.view.t):
            queue.run("models or losses are needed")
            waits = 0
        else:
            waits = _unfinished(components, running, queue)
        while len(running) > waits:
            record, after = _finish(components, running.popleft(), plain)
            yield record, after
            if ends_early(components.stop, record):
                queue.run("the run ends")
                return
            state = updated(state, control=after.control) if not running else state
    queue.run("the run ends")
    while running:
        record, after = _finish(components, running.popleft(), plain)
        yield record, after
        if ends_early(components.stop, record):
            return


def _start(components: Components, state: State, queue: TrainingQueue) -> RunningRound | None:
    """Open, decide, time and mix the next round; None where the run is over."""
    if _is_over(components, state):
        return None
    world_state, state = open_round(components, state)
    if _is_over(components, state):
        return None
    view = build_view(components.fleet, state.control, observe(world_state, state.progress))
    plan, control = decide(
        components.mechanism,
        state.control,
        view,
        components.staleness_weighting,
        components.budgets_bind,
    )
    realised, state = realise(components, state, view, plan)
    pending, state = execute(components, state, view, plan, realised)
    after = advance(components.mechanism, control, view, plan, pending.known)
    wave = queue.trained - queue.is_empty
    energy = simulated_energy(components.power, view, plan, realised)
    return RunningRound(
        view, plan, control, world_state, pending, wave, updated(state, control=after), energy
    )


def _is_over(components: Components, state: State) -> bool:
    return is_over(components.stop, state.control.t, state.control.clock_s)


def _needs_result(components: Components, running: RunningRound) -> bool:
    """Return whether the next round depends on the losses or the score of this one."""
    stop = components.stop
    may_end = running.score is not None and (stop.loss > 0 or stop.accuracy > 0)
    return may_end or "loss" in components.capabilities.needs


def _unfinished(components: Components, running: deque[RunningRound], queue: TrainingQueue) -> int:
    """Return how many rounds must stay because their trainings wait or still run.

    A device that works beside the host may still train the newest wave.
    """
    if len(running) >= MAX_ROUNDS:
        queue.run("enough rounds are decided")
        return 0
    over = queue.trained - components.trainer.returns_early
    if running[0].wave >= over:  # waves are trained in their order
        return len(running)
    return len(running) - bisect_left(running, over, key=lambda r: r.wave)


def _request_due_score(
    components: Components, running: RunningRound, queue: TrainingQueue
) -> RunningRound:
    """Ask for an evaluation if one is due, before the next round changes the models."""
    due, state = schedule_evaluation(components, running.view.t, running.state)
    if not due:
        return running
    return updated(running, state=state, score=_requested_score(components, state, queue))


def _requested_score(components: Components, state: State, queue: TrainingQueue) -> PendingScore:
    """Evaluate now, or copy the models and evaluate them after the trainings that wait."""
    models, n, done = state.models, components.fleet.workers, state.done
    size = models.latest[:n].nbytes
    is_known = components.evaluate.model == "aggregated"  # before the trainings that wait
    if is_known or queue.is_empty or queue.copied_bytes + size > MAX_COPY_BYTES:
        return request_score(components, state)
    queue.copied_bytes += size
    queue.run_mixes()
    copy, counters = newest_published(models, done)[:n].clone(), models.counters[:n].clone()
    waiting = queue.waiting_nodes(n)
    counts = waiting if models.finished is None else waiting[done[waiting]]
    trained, counted = index(waiting, copy), index(counts, copy)
    scores: list[PendingScore] = []

    def evaluate() -> None:
        copy[counted], counters[trained] = models.latest[counted], models.counters[trained]
        scores.append(score_of(components, copy, counters))

    queue.afterwards(evaluate)
    return lambda: scores[0]()


def _finish(
    components: Components, running: RunningRound, models: Models
) -> tuple[RoundRecord, State]:
    """Wait for the device; return the record of the round, and the state after it.

    The state gets `models`, which are those of the round without a queue.
    """
    outcome = running.outcome.result()
    control = updated(running.state.control, last=outcome)
    state = updated(running.state, control=control, models=models)
    record = record_of(running.control, control, running.view, running.plan, outcome)
    record = with_map(components, record, running.plan, outcome.lost, running.world_state)
    record = with_failed_trainings(components, record, running.plan, outcome)
    record = with_energy(record, components.power, running.energy)
    score = running.score
    if score is None and is_last(components, record):
        score = request_score(components, state)
    return (scored(components, record, score(), state) if score else record), state
