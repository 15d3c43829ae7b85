"""Short simulated runs of a mechanism, with arithmetic in place of training.

Workers leave and come back, walk about, lose links and transfers; under both laws of time and both
rules of publishing the run must reach its end, and go on from a checkpoint as if nothing had been.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast

import numpy as np
import torch

from dystop.conformance.checks import ConformanceError, Place
from dystop.conformance.views import same
from dystop.control.stopping import Evaluate, Stop
from dystop.record import RoundRecord
from dystop.rng import stream
from dystop.simulator.checkpoint import load_newest, save
from dystop.simulator.loop import begin, simulate
from dystop.simulator.params import EngineParams
from dystop.simulator.state import Components, State
from dystop.sparse import Ints
from dystop.training.evaluate import Evaluation
from dystop.training.problem import Trained
from dystop.training.trainer import Trainer
from dystop.types import Fleet, Mechanism, Memory
from dystop.world import Churn, Compute, Mobility, Outages, World, WorldParams

RESTLESS = WorldParams(
    range_m=60.0,
    compute=Compute(batch_s=1.0),
    churn=Churn(enabled=True, mean_up_s=20.0, mean_down_s=10.0),
    mobility=Mobility(enabled=True, speed_mps=(1.0, 3.0)),
    outages=Outages(drop=0.1, loss=0.1),
)
CALM = WorldParams(range_m=60.0, compute=Compute(batch_s=1.0))
LAWS = (
    EngineParams("paper", "eager"),
    EngineParams("paper", "on_completion"),
    EngineParams("overlap", "eager"),
    EngineParams("overlap", "on_completion"),
)
WORKERS = 9
ROUNDS = 30
_CPU = torch.device("cpu")
_ROUNDING = 1e-4  # of sums of single-precision weights


@dataclass
class Adder:
    """Stands in for a trainer: training adds `worker + 1` to the only weight of a model."""

    device: torch.device = _CPU
    added: float = 0.0  # by all trainings together
    returns_early: ClassVar[bool] = False

    def initial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A model of one weight, and no counters worth the name."""
        return torch.zeros(1), torch.zeros(1, dtype=torch.int64)

    def train(
        self, models: Any, counters: Any, workers: Ints, versions: Ints, steps: Ints, rates: Any = 1
    ) -> Trained:
        """Add a known number to each model."""
        gain = (workers + 1.0) * (1.0 if rates is None else rates)
        self.added += float(gain.sum())
        after = models + torch.from_numpy(gain).float()[:, None]
        loss = 1.0 / (1.0 + versions.astype(float))
        return Trained(after, counters + 1, loss, int(steps.sum()))

    def evaluate(
        self, models: Any, counters: Any, samples: Any = None, recalibrate_on: Any = None
    ) -> Evaluation:
        """Scores of no meaning."""
        mean = models.mean(dim=1).double().numpy()
        return Evaluation(np.clip(mean, 0.0, 1.0), -mean)


def check_runs(
    mechanism: Mechanism, seed: int = 0, smallest: int = 1, *, laws: Sequence[EngineParams] = LAWS
) -> None:
    """Run a mechanism to the end: a fleet of nine under all laws, the smallest fleets, the mean.

    Raises:
        ConformanceError: With the laws, the number of workers and the seed of the failing run.
    """
    for law in laws:
        check_run(mechanism, WORKERS, law, seed)
    for n in (n for n in (1, 2, 3) if n >= smallest):
        check_run(mechanism, n, LAWS[n % len(LAWS)], seed, rounds=12)
    check_mean(mechanism, seed)


def check_run(
    mechanism: Mechanism, workers: int, laws: EngineParams, seed: int, rounds: int = ROUNDS
) -> list[RoundRecord]:
    """One restless run to the end, and once more from a checkpoint in its middle."""
    where = f"{laws.timing} timing, publish {laws.publish}, seed {seed}"
    place = Place(mechanism, f"in a run of {workers} workers ({where})")
    parts = parts_for(mechanism, workers, laws, seed, rounds)
    try:
        with TemporaryDirectory() as folder:
            records, state = _play(parts, begin(parts), Path(folder))
            again = _resumed(parts, Path(folder))
    except ConformanceError:
        raise
    except Exception as error:  # a stranger's code may raise anything
        place.fail(f"the run stopped with {type(error).__name__}: {error}", error)
    place.require(len(records) == rounds, f"the run ended after {len(records)} of {rounds} rounds")
    finite = bool(torch.isfinite(state.models.latest).all())
    place.require(finite, "models are not finite at the end of the run")
    tail = records[len(records) - len(again) :]
    place.require(same(tail, again), "a run that is resumed from a checkpoint goes another way")
    return records


def check_mean(mechanism: Mechanism, seed: int = 0) -> None:
    """Where rows are declared doubly stochastic, only training moves the mean model of a run."""
    able = mechanism.capabilities()
    if not able.doubly_stochastic or able.deltas or able.server:
        return
    parts = parts_for(mechanism, WORKERS, LAWS[0], seed, 20, CALM)
    _, state = _play(parts, begin(parts))
    total, added = float(state.models.latest.sum()), cast(Adder, parts.trainer).added
    Place(mechanism, f"in a calm run of {WORKERS} workers (seed {seed})").require(
        abs(total - added) <= _ROUNDING * added,
        f"declared doubly stochastic, but mixing moved the sum of all models from {added:g} to"
        f" {total:g}",
    )


def parts_for(
    mechanism: Mechanism,
    workers: int,
    laws: EngineParams,
    seed: int,
    rounds: int,
    world: WorldParams = RESTLESS,
) -> Components:
    """A small fleet with uneven data on a random field."""
    counts = stream(seed, "conformance", workers).integers(1, 9, (workers, 3))
    server = mechanism.capabilities().server
    fleet = Fleet(counts.sum(axis=1), counts, 8, 40_000, rounds, seed, server)
    return Components(
        fleet=fleet,
        mechanism=mechanism,
        world=World(world, workers, fleet.model_bytes, seed, server),
        trainer=cast(Trainer, Adder()),
        engine=laws,
        stop=Stop(rounds=rounds),
        evaluate=Evaluate(every_rounds=rounds),
        steps=fleet.epoch_steps,
    )


def through_checkpoint(memory: Memory, folder: Path) -> Memory:
    """Memory as it comes back from a checkpoint."""
    parts = parts_for(Mechanism(), 1, LAWS[0], 0, 1)
    state = begin(parts)
    save(folder, replace(state, control=replace(state.control, memory=memory)))
    found = load_newest(folder, _CPU)
    if found is None:
        raise ValueError("the checkpoint cannot be read back")
    return found[1].control.memory


def _play(
    parts: Components, state: State, folder: Path | None = None
) -> tuple[list[RoundRecord], State]:
    """All records and the last state; the state after two thirds of the rounds is saved."""
    records = []
    for record, after in simulate(parts, state):
        records.append(record)
        state = after
        if folder is not None and record.round == parts.stop.rounds * 2 // 3:
            save(folder, state)
    return records, state


def _resumed(parts: Components, folder: Path) -> list[RoundRecord]:
    found = load_newest(folder, _CPU)
    if found is None:
        raise ValueError("the checkpoint cannot be read back")
    return _play(parts, found[1])[0]
