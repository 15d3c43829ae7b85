"""What the workers did with their time, as sums (`dystop.control.time_spent`)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dystop.record import Added
from dystop.recorders.recorder import FinishedRound, Recorder


@dataclass(frozen=True)
class WorkerSeconds(Added):
    """Seconds of a round, summed over the present workers: parts of alive * duration_s."""

    compute_s: float  # local training
    transfer_s: float  # moving models
    wait_others_s: float  # active workers that wait for a slower one


@dataclass(frozen=True)
class TimeSpentRecorder(Recorder):
    """Adds what the workers did with their time."""

    group: ClassVar[type[Added]] = WorkerSeconds

    def record(self, memory: Any, done: FinishedRound) -> tuple[WorkerSeconds, Any]:
        """Return the seconds of a round."""
        out = done.outcome
        return WorkerSeconds(out.compute_s, out.transfer_s, out.wait_others_s), memory
