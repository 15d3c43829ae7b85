"""The workers whose training loss is not finite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dystop.record import Added
from dystop.recorders.recorder import FinishedRound, Recorder, Setting


@dataclass(frozen=True)
class FailedTrainings(Added):
    """The trainings of a round that have diverged."""

    not_finite: Sequence[int]  # workers whose training loss is not finite


@dataclass(frozen=True)
class FailedTrainingsRecorder(Recorder):
    """Adds the workers that trained, but whose training loss is not finite."""

    group: ClassVar[type[Added]] = FailedTrainings

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """Return the recorder, where models are trained and a round ends with its trainings.

        In a testbed the losses of a round are those of earlier trainings.
        """
        return cls() if setting.config.engine.train and not setting.testbed else None

    def record(self, memory: Any, done: FinishedRound) -> tuple[FailedTrainings | None, Any]:
        """Return the workers whose training has failed, if there are any."""
        outcome = done.outcome
        if len(outcome.loss) == 1 and math.isfinite(outcome.loss[0]):
            return None, memory
        has_trained = (done.steps > 0) & (done.view.fleet.data_size[outcome.active] > 0)
        if len(outcome.failed):
            has_trained &= ~outcome.failed
        bad = outcome.active[has_trained & ~np.isfinite(outcome.loss)]
        return (FailedTrainings(bad.tolist()) if len(bad) else None), memory
