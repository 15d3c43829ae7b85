"""What the parties of a testbed need of data and models: every worker its own shard and no more."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dystop.data import Dataset, describe_partition, label_chart, label_counts
from dystop.experiments.build import (
    check_remedy,
    load_data,
    make_trainer,
    measured,
    split_data,
)
from dystop.experiments.fleets import fleet_of, steps_of
from dystop.experiments.spec import Experiment
from dystop.experiments.testbed import (
    Enrolled,
    Enrolment,
    check_testbed,
    new_run_id,
    node_names,
    step_seconds,
    world_of,
)
from dystop.runtime.events import Counters, Train, TrainingDone, Vector
from dystop.runtime.local_trainer import local_trainer
from dystop.runtime.payload import Schema, schema_of
from dystop.sparse import Ints
from dystop.trainer.memory import available_bytes, ensure_fits
from dystop.trainer.trainer import Trainer
from dystop.types import Fleet
from dystop.world.describe import describe

_GIGABYTE = 10**9


@dataclass(frozen=True)
class Prepared:
    """A run before its first process: resolved settings, enrolment, and what is worth telling."""

    experiment: Experiment
    enrolment: Enrolment
    physics: dict[str, str]
    partition: list[str]
    memory: str
    fleet: dict[str, Any]  # what `fleet.json` holds


def prepare(experiment: Experiment, run: str | None = None) -> Prepared:
    """Split the data, look at the model, and work out who is enrolled with what."""
    check_testbed(experiment)
    check_remedy(experiment)
    data = load_data(experiment)
    shards = split_data(experiment, data)
    trainer = make_trainer(_alone(experiment), data, shards)
    experiment = measured(experiment, trainer)
    counts = label_counts(data.y_train, shards, data.classes)
    fleet = fleet_of(experiment, counts, 4 * trainer.width)
    enrolment = Enrolment(
        run or new_run_id(),
        schema_of(trainer.layout).hash,
        fleet.model_bytes,
        _enrolled(experiment, counts),
    )
    physics = describe(world_of(experiment, fleet))
    return Prepared(
        experiment=experiment,
        enrolment=enrolment,
        physics=physics,
        partition=[*describe_partition(counts).rows(), *label_chart(counts, data.class_names)],
        memory=_ensure_memory(experiment, trainer),
        fleet=_fleet_json(experiment, data, fleet, trainer, physics),
    )


def _alone(experiment: Experiment) -> Experiment:
    """One training at a time: every worker is a process of its own."""
    return replace(experiment, training=replace(experiment.training, lanes=1))


def _enrolled(experiment: Experiment, counts: Ints) -> tuple[Enrolled, ...]:
    names = node_names(experiment)
    return tuple(
        Enrolled(name, int(row.sum()), tuple(row.tolist()))
        for name, row in zip(names, counts, strict=False)
    )


def _ensure_memory(experiment: Experiment, trainer: Trainer) -> str:
    """Refuse a fleet of processes that cannot fit into this machine."""
    if experiment.testbed.transport == "mpi":
        return ""
    limit = int(experiment.training.memory_limit_gb * _GIGABYTE) or None
    estimate = trainer.estimate(experiment.fleet.workers, stacks=6.0)  # what a worker holds
    ensure_fits(estimate, available_bytes(trainer.device), limit)
    return ""


def _fleet_json(
    experiment: Experiment,
    data: Dataset,
    fleet: Fleet,
    trainer: Trainer,
    physics: dict[str, str],
) -> dict[str, Any]:
    position = world_of(experiment, fleet).observe(1, 0.0).position
    return {
        "data_size": fleet.data_size.tolist(),
        "label_counts": fleet.label_counts.tolist(),
        "class_names": list(data.class_names),
        "positions": np.round(position, 2).tolist(),
        "area_m": list(experiment.world.area_m),
        "range_m": experiment.world.range_m,
        "model_bytes": fleet.model_bytes,
        "model_parameters": trainer.layout.parameters,
        "data_source": data.source,
        "device": str(trainer.device),
        "training_path": trainer.path,
        "physics": physics,
    }


@dataclass(frozen=True)
class WorkerParts:
    """What a worker is made of."""

    node: int
    schema: Schema
    vector: Vector  # the initial model
    counters: Counters
    train: Callable[[Train], TrainingDone] | None  # None for a server, which has no data
    data_size: int
    label_counts: tuple[int, ...]
    first_steps: int  # mini-batches of the training that begins at the start of the run
    step_s: float  # least seconds of a mini-batch; 0: as long as it takes


def worker_parts(experiment: Experiment, node: int) -> WorkerParts:
    """Load the data, keep what belongs to this node, and build its trainer.

    Sample orders are addressed by (seed, node, number), so they are the simulator's.
    """
    check_testbed(experiment)
    experiment = _alone(experiment)
    data = load_data(experiment)
    shards = split_data(experiment, data)
    counts = label_counts(data.y_train, shards, data.classes)
    is_server = node >= len(shards)
    own = shards[0][: experiment.training.batch] if is_server else shards[node]
    trainer = make_trainer(experiment, _cut(data, own), _only(0 if is_server else node, len(own)))
    vector, counters = trainer.initial()
    fleet = fleet_of(experiment, counts, 4 * trainer.width)
    free = experiment.testbed.devices == "free" or is_server
    step_s = 0.0 if free else float(step_seconds(experiment, world_of(experiment, fleet))[node])
    return WorkerParts(
        node=node,
        schema=schema_of(trainer.layout),
        vector=vector.cpu().numpy(),
        counters=counters.cpu().numpy(),
        train=None if is_server else local_trainer(trainer, node),
        data_size=0 if is_server else int(fleet.data_size[node]),
        label_counts=() if is_server else tuple(counts[node].tolist()),
        first_steps=0 if is_server else int(steps_of(experiment, fleet)[node]),
        step_s=step_s * experiment.testbed.time_scale,
    )


def _cut(data: Dataset, own: Ints) -> Dataset:
    """The data set with one worker's samples; a single test image stays, which nobody looks at."""
    return replace(
        data,
        x_train=data.x_train[own].copy(),
        y_train=data.y_train[own].copy(),
        x_test=data.x_test[:1].copy(),
        y_test=data.y_test[:1].copy(),
    )


def _only(node: int, size: int) -> list[Ints]:
    """Shards of which only one holds samples, at the place that its number says."""
    return [np.arange(size if k == node else 0) for k in range(node + 1)]


@dataclass(frozen=True)
class ObserverParts:
    """What an observer is made of: the test set, and how much each worker's model counts."""

    trainer: Trainer
    schema: Schema
    counters: Counters
    data_size: Ints  # D_i, [N]
    samples: int | None  # test images per model; None: all


def observer_parts(experiment: Experiment) -> ObserverParts:
    """Load the test set and build the examiner."""
    check_testbed(experiment)
    data = load_data(experiment)
    shards = split_data(experiment, data)
    sizes = np.array([len(shard) for shard in shards])
    few = np.arange(min(experiment.training.batch, len(data.y_train)))
    tests = replace(data, x_train=data.x_train[few].copy(), y_train=data.y_train[few].copy())
    trainer = make_trainer(_alone(experiment), tests, [few])
    counters = trainer.initial()[1].cpu().numpy()
    samples = experiment.evaluate.samples or None
    return ObserverParts(trainer, schema_of(trainer.layout), counters, sizes, samples)
