"""How long trainings of a testbed took, and how long its emulated devices would take for them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dystop.record import Added, RoundRecord
from dystop.recorders.recorder import FinishedRound, Recorder, Setting


@dataclass(frozen=True)
class EmulatedTrainings(Added):
    """The trainings that ended in a round of a testbed whose devices are emulated."""

    trained_s: float  # as measured
    emulated_s: float  # of the emulated devices


@dataclass(frozen=True)
class EmulatedTrainingsRecorder(Recorder):
    """Adds the seconds of trainings, where some have ended."""

    group: ClassVar[type[Added]] = EmulatedTrainings

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """Return the recorder of a testbed."""
        return cls() if setting.testbed else None

    def record(self, memory: Any, done: FinishedRound) -> tuple[EmulatedTrainings | None, Any]:
        """Return the seconds of the trainings that ended."""
        trained_s, emulated_s = done.outcome.trained_s, done.outcome.emulated_s
        if trained_s is None or emulated_s is None:
            return None, memory
        return EmulatedTrainings(trained_s, emulated_s), memory


TOO_SLOW = 1.2
"""A machine is too slow for its devices if trainings take this many times as long as theirs."""


def training_slowdown(records: Iterable[RoundRecord]) -> float | None:
    """Return how many times as long the trainings of a testbed took as on its emulated devices."""
    found = [r.group(EmulatedTrainings) for r in records]
    known = [each for each in found if each and each.trained_s and each.emulated_s]
    emulated_s = sum(each.emulated_s for each in known)
    return sum(each.trained_s for each in known) / emulated_s if emulated_s else None
