"""Who was active in a round, and which links were used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dystop.record import Added
from dystop.recorders.recorder import FinishedRound, Recorder, Setting

SMALL = 1000
"""With more workers, `output.topology = "auto"` leaves links out."""


@dataclass(frozen=True)
class Topology(Added):
    """The active workers and the transfers that arrived."""

    active_ids: Sequence[int]
    link_pairs: Sequence[Sequence[int]]  # [dst, src]


@dataclass(frozen=True)
class TopologyRecorder(Recorder):
    """Adds active workers and links; large fleets leave them out."""

    group: ClassVar[type[Added]] = Topology

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """Return the recorder, where `output.topology` asks for links."""
        return cls() if keeps_topology(setting) else None

    def record(self, memory: Any, done: FinishedRound) -> tuple[Topology, Any]:
        """Return who was active and which links were used."""
        links, lost = done.plan.links, done.outcome.lost
        dst, src = links.dst, links.src
        if np.count_nonzero(lost):
            dst, src = dst[~lost], src[~lost]
        pairs = [list(pair) for pair in zip(dst.tolist(), src.tolist(), strict=True)]
        return Topology(done.plan.active.tolist(), pairs), memory


def keeps_topology(setting: Setting) -> bool:
    """Return whether records hold every link, instead of counts only."""
    asked = setting.config.output.topology
    return bool(asked == "full" or (asked == "auto" and setting.fleet.workers <= SMALL))
