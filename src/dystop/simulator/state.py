"""What a simulation is made of (`Components`) and where it stands between rounds (`State`)."""

from dataclasses import dataclass, field

from dystop.control.staleness_weighting import StalenessWeighting
from dystop.control.timing import remaining_compute_s
from dystop.simulator.mailbox import InFlight
from dystop.simulator.mixing import Models
from dystop.simulator.params import EngineParams, Evaluate, Stop
from dystop.sparse import Bools, Floats, Ints
from dystop.training.trainer import Trainer
from dystop.types import ControlState, Fleet, Mechanism
from dystop.world import World

SAME_S = 1e-9  # moments closer than this are one moment


@dataclass(frozen=True)
class Components:
    """All that a simulation needs, built once."""

    fleet: Fleet
    mechanism: Mechanism
    world: World
    trainer: Trainer
    laws: EngineParams
    stop: Stop
    evaluate: Evaluate
    steps: Ints  # mini-batches of one local training, [N]
    topology: bool = True  # write active workers and links into the records
    moving: bool = False  # write positions into the records
    remedy: StalenessWeighting = field(
        default_factory=StalenessWeighting
    )  # what is done about stale models

    @property
    def keeps_starts(self) -> bool:
        """Whether updates are sent or compensated, so that trainings' starts must be kept."""
        return self.mechanism.capabilities().deltas or self.remedy.rule == "compensate"


@dataclass(frozen=True)
class State:
    """Where a simulation stands between two rounds. Everything needed to go on exactly."""

    books: ControlState
    started_s: Floats  # when the training in flight of each node began (or will begin), [nodes]
    training_s: Floats  # its length, 0 for a server, [nodes]
    post: InFlight
    models: Models
    next_evaluation_s: float
    snapshots_made: int  # numbers the snapshots of pushed models

    @property
    def finish_s(self) -> Floats:
        """When the training in flight of each node ends."""
        return self.started_s + self.training_s

    @property
    def remaining_s(self) -> Floats:
        """Seconds of training still to run now (eq:h_comp), [nodes]."""
        return remaining_compute_s(self.training_s, self.books.clock_s - self.started_s)

    @property
    def done(self) -> Bools:
        """Which nodes have finished their training in flight."""
        return self.done_by(self.books.clock_s)

    def done_by(self, clock_s: float | Floats) -> Bools:
        """Which trainings have ended by a time; the last digit of a sum must not decide."""
        return self.finish_s <= clock_s + SAME_S
