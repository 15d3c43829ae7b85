"""The simulator's rounds side by side: `start_round` runs ahead of `finish_round`.

Decisions depend on the clock of earlier rounds and not on their models. The pipeline therefore
starts one round after another, and lets their trainings wait for each other (`waves`). On a GPU the
host goes on while the device trains (ADR 0038). Records leave in the order of the rounds and are
those of `round.simulate` to the byte: without this module only time is lost. The models of a run
that ends because they diverged may be those of a later round.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from dystop.control.stopping import ends_early
from dystop.record import RoundRecord
from dystop.recorders.recorder import Memories
from dystop.simulator.mixing.deferred import MAX_MAIL_BYTES, MAX_STAGES
from dystop.simulator.model_stack import Models
from dystop.simulator.round import StartedRound, finish_round, start_round
from dystop.simulator.state import Components, State
from dystop.simulator.waves import MAX_COPY_BYTES, TrainingQueue, WaveStatistics, queue_of

NeedsModels = Callable[[int], bool]
"""Says whether the models of a round are needed, so that the next one must not change them yet."""

MAX_ROUNDS = 256  # decided ahead of the oldest record that has not left


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
    plain, memories = state.models, state.memories
    queue = queue_of(plain, components.trainer, statistics)
    state = state._replace(models=replace(plain, trainings=queue))
    running: deque[tuple[StartedRound, int]] = deque()  # and the number of the wave that trains it
    while (started := start_round(components, state)) is not None:
        state = started.state
        running.append((started, queue.trained - queue.is_empty))
        if _needs_result(components, started) or needs_models(started.view.t):
            queue.run("models or losses are needed")
            waits = 0
        else:
            waits = _unfinished(components, running, queue)
        while len(running) > waits:
            record, after = _finish(components, running, plain, memories)
            memories = after.memories
            yield record, after
            if ends_early(components.stop, record):
                queue.run("the run ends")
                return
    queue.run("the run ends")
    while running:
        record, after = _finish(components, running, plain, memories)
        memories = after.memories
        yield record, after
        if ends_early(components.stop, record):
            return


def _needs_result(components: Components, started: StartedRound) -> bool:
    """Return whether the next round depends on the losses or the score of this one."""
    stop = components.stop
    may_end = started.score is not None and (stop.loss > 0 or stop.accuracy > 0)
    return may_end or "loss" in components.capabilities.needs


def _unfinished(
    components: Components, running: deque[tuple[StartedRound, int]], queue: TrainingQueue
) -> int:
    """Return how many rounds must stay because their trainings wait or still run.

    A device that works beside the host may still train the newest wave.
    """
    if len(running) >= MAX_ROUNDS:
        queue.run("enough rounds are decided")
        return 0
    over = queue.trained - components.trainer.returns_early
    return len(running) - bisect_left(running, over, key=lambda one: one[1])  # waves keep order


def _finish(
    components: Components,
    running: deque[tuple[StartedRound, int]],
    models: Models,
    memories: Memories,
) -> tuple[RoundRecord, State]:
    """Finish the oldest round; its state gets `models`, which have no queue, and `memories`."""
    started, _ = running.popleft()
    state = started.state._replace(models=models, memories=memories)
    return finish_round(components, started, state)
