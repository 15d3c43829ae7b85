"""What a simulation is made of (`Parts`, fixed) and where it stands (`State`, between rounds)."""

from dataclasses import dataclass, field

from dystop.control.remedy import Remedy
from dystop.control.timing import remaining_compute_s
from dystop.engine.models import Models
from dystop.engine.params import Evaluate, Laws, Stop
from dystop.engine.post import Post
from dystop.sparse import Bools, Floats, Ints
from dystop.trainer.trainer import Trainer
from dystop.types import Books, Fleet, Mechanism
from dystop.world import World

SAME_S = 1e-9  # moments closer than this are one moment


@dataclass(frozen=True)
class Parts:
    """All that a simulation needs, built once."""

    fleet: Fleet
    mechanism: Mechanism
    world: World
    trainer: Trainer
    laws: Laws
    stop: Stop
    evaluate: Evaluate
    steps: Ints  # mini-batches of one local training, [N]
    topology: bool = True  # write active workers and links into the records
    moving: bool = False  # write positions into the records
    remedy: Remedy = field(default_factory=Remedy)  # what is done about stale models

    @property
    def keeps_starts(self) -> bool:
        """Whether updates are sent or compensated, so that trainings' starts must be kept."""
        return self.mechanism.deltas or self.remedy.rule == "compensate"


@dataclass(frozen=True)
class State:
    """Where a simulation stands between two rounds. Everything needed to go on exactly."""

    books: Books
    started_s: Floats  # when the training in flight of each node began (or will begin), [nodes]
    training_s: Floats  # its length, 0 for a server, [nodes]
    post: Post
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
