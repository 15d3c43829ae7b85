"""What a simulation is made of (`Components`) and where it stands between rounds (`State`)."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from dystop.control.stopping import Evaluate, Stop
from dystop.exchange import Exchange
from dystop.exchange.codecs import PublicVersions
from dystop.plan import Plan
from dystop.recorders.recorder import Memories, Recorders
from dystop.simulator.model_stack import Models
from dystop.simulator.params import EngineParams
from dystop.sparse import Bools, Ints
from dystop.training.trainer import Trainer
from dystop.types import Capabilities, ControlState, Fleet, Mechanism
from dystop.world import Progress, World


@dataclass(frozen=True)
class Components:
    """All that a simulation needs, built once."""

    fleet: Fleet
    mechanism: Mechanism
    world: World
    trainer: Trainer
    engine: EngineParams
    stop: Stop
    evaluate: Evaluate
    steps: Ints  # mini-batches of one local training, [N]
    exchange: Exchange = field(default_factory=Exchange)
    recorders: Recorders = ()

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the mechanism needs and guarantees; every round asks."""
        return self.mechanism.capabilities()

    def steps_of(self, plan: Plan) -> Ints:
        """Return the mini-batches of each active worker's new training, [A]."""
        return self.steps[plan.active] if plan.steps is None else plan.steps

    @property
    def keeps_starts(self) -> bool:
        """Whether the starts of trainings must be kept."""
        return self.capabilities.deltas or self.capabilities.compensates


class State(NamedTuple):
    """Where a simulation stands between two rounds: everything that it needs to continue.

    A tuple is changed in a third of the time of a frozen dataclass, ten times in a round.
    """

    control: ControlState
    progress: Progress
    models: Models
    next_evaluation_s: float
    snapshots_made: int  # numbers the snapshots of pushed models
    versions: PublicVersions | None = None  # of public copies, where differences are sent
    memories: Memories = ()  # of the recorders

    @property
    def done(self) -> Bools:
        """Which nodes have finished their newest training, [nodes]."""
        return self.progress.done_by(self.control.clock_s)
