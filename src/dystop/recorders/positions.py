"""Where the workers are, if they move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dystop.record import Added
from dystop.recorders.recorder import FinishedRound, Recorder, Setting
from dystop.recorders.topology import keeps_topology


@dataclass(frozen=True)
class Positions(Added):
    """Where the nodes were when the round opened."""

    positions: Sequence[Sequence[float]]  # metres


@dataclass(frozen=True)
class PositionsRecorder(Recorder):
    """Adds positions rounded to a centimetre."""

    group: ClassVar[type[Added]] = Positions

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """Return the recorder, where workers move and `output.topology` asks for links."""
        moves = setting.config.world.mobility.enabled
        return cls() if moves and keeps_topology(setting) else None

    def record(self, memory: Any, done: FinishedRound) -> tuple[Positions, Any]:
        """Return where the nodes were."""
        return Positions(np.round(done.position, 2).tolist()), memory
