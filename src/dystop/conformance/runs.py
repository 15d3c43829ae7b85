"""Short simulated runs of a mechanism, with arithmetic instead of training.

Workers leave and return, move, and lose links and transfers. Under every law and publish
rule, a run must reach its end and must resume from a checkpoint without a difference. The law
`testbed` has one publish rule, that of real workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn

from dystop.carried import Places
from dystop.conformance.checks import CheckContext, ConformanceError
from dystop.conformance.views import same
from dystop.control.stopping import Evaluate, Stop
from dystop.record import RoundRecord
from dystop.recorders.topology import TopologyRecorder
from dystop.rng import stream
from dystop.simulator.checkpoint import load_newest, save
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin, simulate
from dystop.simulator.state import Components, State
from dystop.sparse import Ints
from dystop.training.carried_vectors import CarriedVectors
from dystop.training.evaluate import Evaluation
from dystop.training.flat import Layout, Slot
from dystop.training.problem import Job, Trained
from dystop.training.tasks.task import CLASSIFICATION, Task
from dystop.training.trainer import Trainer
from dystop.types import Capabilities, Fleet, Mechanism, Memory
from dystop.world import Churn, Compute, Mobility, Outages, World, WorldParams

UNSTABLE_WORLD = WorldParams(
    range_m=60.0,
    compute=Compute(batch_s=1.0),
    churn=Churn(enabled=True, mean_up_s=20.0, mean_down_s=10.0),
    mobility=Mobility(enabled=True, speed_mps=(1.0, 3.0)),
    outages=Outages(drop=0.1, loss=0.1),
)
STABLE_WORLD = WorldParams(range_m=60.0, compute=Compute(batch_s=1.0))
ENGINES = (
    EngineParams("paper", "eager"),
    EngineParams("paper", "on_completion"),
    EngineParams("overlap", "eager"),
    EngineParams("overlap", "on_completion"),
    EngineParams("testbed", "on_completion"),  # what real workers do
)
WORKERS = 9
ROUNDS = 30
_CPU = torch.device("cpu")
_ROUNDING = 1e-4  # of sums of single-precision weights


@dataclass
class AddingTrainer:
    """A trainer that adds `worker + 1` to the only weight of a model."""

    mechanism: Mechanism
    device: torch.device = _CPU
    added: float = 0.0  # sum over all trainings
    returns_early: ClassVar[bool] = False
    task: ClassVar[Task] = CLASSIFICATION

    @cached_property
    def vectors(self) -> CarriedVectors:
        """A model of one weight, one counter, and what the mechanism carries."""
        weight, count = Slot("weight", (1,), torch.float32), Slot("count", (1,), torch.int64)
        return CarriedVectors(Layout((weight,), (), (count,)), self.mechanism)

    @property
    def places(self) -> Places:
        """Where carried vectors lie."""
        return self.vectors.places

    def initial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first vector and the counters of a worker."""
        return self.vectors.initial(_OneWeight())

    def train(
        self, models: Any, counters: Any, workers: Ints, versions: Ints, steps: Ints, rates: Any = 1
    ) -> Trained:
        """Add `worker + 1` to each model, less the mechanism's correction."""
        rates = np.ones(len(workers)) if rates is None else np.broadcast_to(rates, len(workers))
        gain = (workers + 1.0) * rates
        self.added += float(gain.sum())
        job = Job(models, counters, workers, versions, steps, rates)
        job, before = self.vectors.split(job)
        after = job.models + torch.from_numpy(gain).float()[:, None]
        if job.correction is not None:
            after = after - job.correction
        loss = 1.0 / (1.0 + versions.astype(float))
        trained = Trained(after, job.counters + 1, loss, int(steps.sum()))
        return self.vectors.joined(job, before, trained, steps, rates)

    def evaluate(
        self, models: Any, counters: Any, samples: Any = None, recalibrate_on: Any = None
    ) -> Evaluation:
        """Return scores that depend on the weight alone."""
        mean = models[:, 0].double().numpy()
        return Evaluation(np.clip(mean, 0.0, 1.0), -mean)


class _OneWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))


def check_runs(
    mechanism: Mechanism,
    seed: int = 0,
    smallest: int = 1,
    *,
    engines: Sequence[EngineParams] = ENGINES,
) -> None:
    """Run a mechanism to the end: nine workers under all engines, then the smallest fleets.

    Raises:
        ConformanceError: With the engine, the number of workers and the seed of the failing run.
    """
    for engine in engines:
        check_run(mechanism, WORKERS, engine, seed)
    for n in (n for n in (1, 2, 3) if n >= smallest):
        check_run(mechanism, n, ENGINES[n % len(ENGINES)], seed, rounds=12)
    check_mean(mechanism, seed)


def check_run(
    mechanism: Mechanism, workers: int, engine: EngineParams, seed: int, rounds: int = ROUNDS
) -> list[RoundRecord]:
    """Run to the end in an unstable world, and once more from a checkpoint in the middle."""
    where = f"{engine.law.name} law, publish {engine.publish}, seed {seed}"
    context = CheckContext(mechanism, f"in a run of {workers} workers ({where})")
    components = components_for(mechanism, workers, engine, seed, rounds)
    try:
        with TemporaryDirectory() as folder:
            records, state = _play(components, begin(components), Path(folder))
            again = _resumed(components, Path(folder))
    except ConformanceError:
        raise
    except Exception as error:  # user code may raise anything
        context.fail(f"the run stopped with {type(error).__name__}: {error}", error)
    context.require(
        len(records) == rounds, f"the run ended after {len(records)} of {rounds} rounds"
    )
    finite = bool(torch.isfinite(state.models.latest).all())
    context.require(finite, "models are not finite at the end of the run")
    tail = records[len(records) - len(again) :]
    context.require(same(tail, again), "a run resumed from a checkpoint has different records")
    return records


def check_mean(mechanism: Mechanism, seed: int = 0) -> None:
    """Require that only training moves the mean model, where `doubly_stochastic` is declared."""
    able = mechanism.capabilities()
    if not able.doubly_stochastic or able.deltas or able.server:
        return
    components = components_for(mechanism, WORKERS, ENGINES[0], seed, 20, STABLE_WORLD)
    _, state = _play(components, begin(components))
    total, added = (
        float(state.models.latest[:, 0].sum()),
        cast(AddingTrainer, components.trainer).added,
    )
    CheckContext(mechanism, f"in a stable run of {WORKERS} workers (seed {seed})").require(
        abs(total - added) <= _ROUNDING * added,
        f"declared doubly stochastic, but mixing moved the sum of all models from {added:g} to"
        f" {total:g}",
    )


def components_for(
    mechanism: Mechanism,
    workers: int,
    engine: EngineParams,
    seed: int,
    rounds: int,
    world: WorldParams = UNSTABLE_WORLD,
) -> Components:
    """Return a small fleet with uneven data at random positions."""
    counts = stream(seed, "conformance", workers).integers(1, 9, (workers, 3))
    able = mechanism.capabilities()
    server, world = able.server, _bearable(world, able)
    fleet = Fleet(counts.sum(axis=1), counts, 8, 40_000, rounds, seed, server)
    return Components(
        fleet=fleet,
        mechanism=mechanism,
        world=World(world, workers, fleet.model_bytes, seed, server),
        trainer=cast(Trainer, AddingTrainer(mechanism)),
        engine=engine,
        stop=Stop(rounds=rounds),
        evaluate=Evaluate(every_rounds=rounds),
        steps=fleet.epoch_steps,
        recorders=(TopologyRecorder(),),
    )


def through_checkpoint(memory: Memory, folder: Path) -> Memory:
    """Save memory in a checkpoint and return it as read back."""
    components = components_for(Mechanism(), 1, ENGINES[0], 0, 1)
    state = begin(components)
    save(folder, state._replace(control=replace(state.control, memory=memory)))
    found = load_newest(folder, _CPU)
    if found is None:
        raise ValueError("the checkpoint cannot be read back")
    return found.state.control.memory


def _play(
    components: Components, state: State, folder: Path | None = None
) -> tuple[list[RoundRecord], State]:
    """Return all records and the last state; save the state after two thirds of the rounds."""
    records = []
    for record, after in simulate(components, state):
        records.append(record)
        state = after
        if folder is not None and record.round == components.stop.rounds * 2 // 3:
            save(folder, state)
    return records, state


def _resumed(components: Components, folder: Path) -> list[RoundRecord]:
    found = load_newest(folder, _CPU)
    if found is None:
        raise ValueError("the checkpoint cannot be read back")
    return _play(components, found.state)[0]


def _bearable(world: WorldParams, able: Capabilities) -> WorldParams:
    """Return the world without lost transfers, if shares of a carried vector would be lost."""
    if all(one.rows != "own" for one in able.carries):
        return world
    return replace(world, outages=replace(world.outages, loss=0.0))
