"""Waves: local trainings of several rounds that run as one stack.

A decision needs no model, and a mix reads only the models of its sources. A training can therefore
wait until somebody reads its result, and by then other trainings wait with it. Mixes run in the
order of the rounds; only trainings are gathered. What changes a row that waits (the shift of a
passive worker), or copies it (an evaluation), is done after its training, in the order of the
rounds.

Records and models are those of one round after another wherever the result of a training does not
depend on its stack (`Trainer.rows_independent`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dystop.plan import Mix
from dystop.simulator.mixing.deferred import WaitingMixes
from dystop.simulator.mixing.stage import Sources
from dystop.simulator.model_stack import (
    Models,
    PendingScore,
    ScoreOf,
    Trainings,
    index,
    newest_published,
)
from dystop.sparse import Bools, Floats, Ints
from dystop.training.problem import Trained
from dystop.training.trainer import Trainer

Call = Callable[[], None]

MAX_COPY_BYTES = 2**28  # of models that evaluations copy while trainings wait; then a wave ends

_NONE = torch.empty(0)  # the models of a training that waits are not known


def _ones(count: int) -> Floats:
    return np.ones(count)


@dataclass
class WaveStatistics:
    """How many trainings the waves held, and why they ended."""

    trainings: int = 0
    rounds: int = 0
    ended_by: dict[str, int] = field(default_factory=dict)

    @property
    def waves(self) -> int:
        """Number of waves."""
        return sum(self.ended_by.values())

    @property
    def width(self) -> float:
        """Mean number of rounds in a wave."""
        return self.rounds / max(self.waves, 1)


@dataclass
class _Wave:
    """The losses of a wave; None until it was trained."""

    losses: Floats | Callable[[], Floats] | None = None

    def part(self, rows: slice) -> Floats:
        """Return the losses of some rows; wait for the device."""
        if callable(self.losses):
            self.losses = self.losses()
        assert self.losses is not None, "a wave is trained before its losses are read"
        return self.losses[rows]


class TrainingQueue(Trainings):
    """Trainings that wait for each other, and what has to be done after them.

    `latest` and `counters` of a waiting node hold the start of its training. A node waits for at
    most one training.
    """

    def __init__(self, trainer: Trainer, models: Models, *, gathers: bool) -> None:
        """Queue the trainings of these models.

        Args:
            trainer: Trains the rows of a wave as one job.
            models: Whose rows are trained in place.
            gathers: Whether trainings may wait; if not, each round is trained at once.
        """
        self.statistics = WaveStatistics()
        self._trainer, self._models, self._gathers = trainer, models, gathers
        self._is_waiting: Bools = np.zeros(len(models.latest), bool)
        self._count = 0  # trainings that wait
        self._nodes: list[Ints] = []
        self._versions: list[Ints] = []
        self._steps: list[Ints] = []
        self._rates: list[Floats] = []
        self._afterwards: list[Call] = []
        self._mixes = WaitingMixes(models)
        self._wave = _Wave()
        self.trained = 0  # waves that were given to the device
        self._copied_bytes = 0  # by evaluations that wait

    @property
    def is_empty(self) -> bool:
        """Whether no training waits."""
        return not self._nodes

    def train(
        self,
        models: Models,
        trainer: Trainer,
        nodes: Ints,
        versions: Ints,
        steps: Ints,
        rates: Floats | None,
    ) -> Trained:
        """Queue the trainings of a round.

        The rows of the nodes hold their starts, or will after the mixes that wait.
        """
        self._train_if_one_waits(nodes)
        wave, first = self._wave, self._count
        rows = slice(first, first + len(nodes))
        self._count += len(nodes)
        self._nodes.append(nodes)
        self._versions.append(versions)
        self._steps.append(steps)
        self._rates.append(_ones(len(nodes)) if rates is None else rates)
        self._is_waiting[nodes] = True
        if not self._gathers:
            self.run("trainings are not gathered")
        elif self._trainer.returns_early and len(nodes) ** 2 >= len(self._is_waiting):
            # The next round reads one of so many results anyway. It is decided meanwhile.
            self.run("a round of many")
        samples = trainer.samples_seen(nodes, steps)
        return Trained(_NONE, _NONE, lambda: wave.part(rows), samples)

    def finish(self, nodes: Ints) -> None:
        """Mix and train what waits if one of these nodes does."""
        self._train_if_one_waits(nodes)
        if self._mixes.write(nodes):
            self._mixes.run()

    def _train_if_one_waits(self, nodes: Ints) -> None:
        if self._nodes and np.count_nonzero(self._is_waiting[nodes]):
            self.run("a result is read")

    def mix_later(self, stage: Mix, sources: Sources) -> bool:
        """Let a mix wait and return True, if it is simple enough."""
        if not self._mixes.accepts(stage, sources):
            return False
        self._train_if_one_waits(stage.source[sources.fresh])
        self._train_if_one_waits(stage.receiver)
        self._mixes.add(stage, sources)
        return True

    def run_mixes(self) -> None:
        """Run the mixes that wait."""
        self._mixes.run()

    def evaluate(self, models: Models, done: Bools, workers: int, score: ScoreOf) -> PendingScore:
        """Evaluate now, or copy the models and evaluate them after the trainings that wait."""
        size = models.latest[:workers].nbytes
        if self.is_empty or self._copied_bytes + size > MAX_COPY_BYTES:
            return super().evaluate(models, done, workers, score)
        self._copied_bytes += size
        self.run_mixes()
        copy = newest_published(models, done)[:workers].clone()
        counters = models.counters[:workers].clone()
        waiting = np.flatnonzero(self._is_waiting[:workers])
        counts = waiting if models.finished is None else waiting[done[waiting]]
        trained, counted = index(waiting, copy), index(counts, copy)
        scores: list[PendingScore] = []

        def evaluate() -> None:
            copy[counted], counters[trained] = models.latest[counted], models.counters[trained]
            scores.append(score(copy, counters))

        self.afterwards(evaluate)
        return lambda: scores[0]()

    def afterwards(self, call: Call) -> None:
        """Call a function after the trainings that wait now, or at once if there are none."""
        if self.is_empty:
            call()
        else:
            self._afterwards.append(call)

    def shift(self, models: Models, nodes: Ints, rows: Tensor) -> None:
        """Add rows to the latest models of some nodes, after the trainings of those that wait."""
        latest, waits = models.latest, self._is_waiting[nodes]
        if not np.count_nonzero(waits):
            latest[index(nodes, latest)] += rows
            return
        now, later = index(np.flatnonzero(~waits), latest), index(np.flatnonzero(waits), latest)
        latest[index(nodes[~waits], latest)] += rows[now]
        at, change = index(nodes[waits], latest), rows[later]

        def add() -> None:
            latest[at] += change

        self.afterwards(add)

    def run(self, reason: str) -> None:
        """Mix and train everything that waits, then do what was to be done afterwards."""
        self.run_mixes()
        if self.is_empty:
            return
        models, wave = self._models, self._wave
        nodes = np.concatenate(self._nodes)
        self._note(len(nodes), reason)
        at = index(nodes, models.latest)
        trained = self._trainer.train(
            models.latest[at],
            models.counters[at],
            nodes,
            np.concatenate(self._versions),
            np.concatenate(self._steps),
            np.concatenate(self._rates),
        )
        models.latest[at], models.counters[at] = trained.models, trained.counters
        wave.losses = trained.losses
        calls, self._afterwards = self._afterwards, []
        self._nodes, self._versions, self._steps, self._rates = [], [], [], []
        self._count = 0
        self._is_waiting[nodes] = False
        self._wave, self.trained, self._copied_bytes = _Wave(), self.trained + 1, 0
        for call in calls:
            call()

    def _note(self, trainings: int, reason: str) -> None:
        statistics = self.statistics
        statistics.trainings += trainings
        statistics.rounds += len(self._nodes)
        statistics.ended_by[reason] = statistics.ended_by.get(reason, 0) + 1


def queue_of(
    models: Models, trainer: Trainer, statistics: WaveStatistics | None = None
) -> TrainingQueue:
    """Return a queue for the trainings of models; it gathers where that changes no result."""
    queue = TrainingQueue(trainer, models, gathers=trainer.rows_independent)
    queue.statistics = statistics or queue.statistics
    return queue
