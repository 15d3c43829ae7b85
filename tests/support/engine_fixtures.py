"""A stable world, a trainer with simple arithmetic and scripted mechanisms, for simulator tests."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from dystop.control.stopping import Evaluate, Stop
from dystop.plan import Plan
from dystop.recorders.failed_trainings import FailedTrainingsRecorder
from dystop.recorders.time_spent import TimeSpentRecorder
from dystop.recorders.topology import TopologyRecorder
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin, simulate
from dystop.simulator.state import Components
from dystop.training.evaluate import Evaluation
from dystop.training.problem import Trained
from dystop.training.tasks.task import CLASSIFICATION, Task
from dystop.types import Capabilities, Fleet, Mechanism
from dystop.world import Budget, Channel, Compute, World, WorldParams

STEP_S = 1.0
STABLE_WORLD = WorldParams(
    range_m=1000.0,
    channel=Channel(fading=False, power_fluctuation=0.0, power_dbm=(20.0, 20.0)),
    compute=Compute(batch_s=STEP_S, spread=0.0),
    budget=Budget(enabled=False),
)


@dataclass
class AddingTrainer:
    """A trainer that adds `gain * (worker + 1)` to every weight; models start at zero."""

    width: int = 1
    gain: float = 1.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    log: list[tuple[int, int, int]] = field(default_factory=list)
    returns_early: bool = False
    rows_independent: bool = True
    task: Task = CLASSIFICATION

    def initial(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(self.width), torch.zeros(1, dtype=torch.int64)

    def train(
        self, models: Any, counters: Any, workers: Any, versions: Any, steps: Any, rates: Any = None
    ) -> Trained:
        self.log += list(zip(workers.tolist(), versions.tolist(), steps.tolist(), strict=True))
        factor = 1.0 if rates is None else rates
        gain = torch.from_numpy(self.gain * (np.asarray(workers) + 1.0) * factor).float()
        loss = np.ones(len(workers))
        return Trained(models + gain[:, None], counters + 1, loss, int(np.sum(steps)))

    def samples_seen(self, workers: Any, steps: Any) -> int:
        return int(np.sum(steps))

    def evaluate(
        self, models: Any, counters: Any, samples: Any = None, recalibrate_on: Any = None
    ) -> Evaluation:
        mean = models.mean(dim=1).double().numpy()
        return Evaluation(np.clip(mean / 100, 0, 1), -mean)


@dataclass(frozen=True)
class Script(Mechanism):
    """A mechanism that returns given plans, one per round, and then repeats the last one."""

    name: ClassVar[str] = "script"
    provenance: ClassVar[str] = "test"
    summary: ClassVar[str] = "given plans"
    declared: ClassVar[Capabilities] = Capabilities(mode="async")

    plans: tuple[Plan, ...] = ()

    def capabilities(self) -> Capabilities:
        return self.declared

    def plan(self, memory: Any, view: Any) -> tuple[Plan, Any]:
        return self.plans[min(view.t, len(self.plans)) - 1], memory


@dataclass(frozen=True)
class DeltaScript(Script):
    """A script whose links may carry updates."""

    declared: ClassVar[Capabilities] = Capabilities(mode="async", deltas=True)


@dataclass(frozen=True)
class ColdScript(Script):
    """A script whose workers do not train before the first round."""

    declared: ClassVar[Capabilities] = Capabilities(mode="async", warm_start=False)


@dataclass(frozen=True)
class FeedbackScript(Script):
    """A script that needs model distances and losses."""

    declared: ClassVar[Capabilities] = Capabilities(
        mode="async", needs=frozenset({"distance", "loss"})
    )


def line(n: int, gap_m: float = 10.0) -> np.ndarray:
    """Return positions on a straight line, [n, 2]."""
    return np.stack([np.arange(n) * gap_m, np.zeros(n)], axis=1)


def components_for(mechanism: Mechanism, n: int, **changes: Any) -> Components:
    """Return components with one mini-batch of one second per local epoch, unless changed."""
    params = changes.pop("params", STABLE_WORLD)
    seed = changes.pop("seed", 0)
    horizon = changes.get("stop", Stop(rounds=3)).rounds
    counts = np.full((n, 2), 4)
    fleet = Fleet(
        counts.sum(axis=1), counts, 8, 40_000, horizon, seed, mechanism.capabilities().server
    )
    position = changes.pop("position", line(n))
    components = Components(
        fleet=fleet,
        mechanism=mechanism,
        world=World(params, n, fleet.model_bytes, seed, mechanism.capabilities().server, position),
        trainer=AddingTrainer(),
        engine=EngineParams(),
        stop=Stop(rounds=3),
        evaluate=Evaluate(every_rounds=100),
        steps=fleet.epoch_steps,
        recorders=(TimeSpentRecorder(), TopologyRecorder(), FailedTrainingsRecorder()),
    )
    return replace(components, **changes)


def run_to_end(components: Components) -> tuple[list[Any], Any]:
    """Run a simulation to its end; return all records and the last state."""
    state = begin(components)
    records = []
    for record, after in simulate(components, state):
        records.append(record)
        state = after
    return records, state


def weights(state: Any) -> list[float]:
    """Return the first weight of every node, rounded to five decimals."""
    return [round(float(v), 5) for v in state.models.latest[:, 0]]
