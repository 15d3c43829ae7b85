"""A testbed run before its first process: what is settled once, for all parties."""

from dataclasses import dataclass
from typing import Any

from dystop.config import Experiment
from dystop.data import describe_partition, fingerprint, label_chart, labels_of
from dystop.folders.run_folder import RunData
from dystop.recorders import recorders_of
from dystop.recorders.recorder import Setting
from dystop.runs.building import (
    check_same_data,
    describe_exchange,
    describe_graph,
    describe_samples,
    fleet_json,
    load_data,
    make_trainer,
    measured,
    sample_owners,
    with_named_model,
    with_noted_base,
)
from dystop.runs.fleet import fleet_of, link_codec, mechanism_of
from dystop.sparse import Ints
from dystop.testbed.setup.enrolment import (
    Enrolled,
    Enrolment,
    check_testbed,
    node_names,
    world_of,
)
from dystop.testbed.setup.parts import (
    model_bytes_on_wire,
    one_training_at_a_time,
    split_samples,
    unseen_samples,
    warm_up,
    wire_schema,
)
from dystop.testbed.setup.transports import launcher_of
from dystop.training.memory import available_bytes, ensure_fits
from dystop.training.trainer import Trainer
from dystop.world.describe import describe

_GIGABYTE = 10**9


@dataclass(frozen=True)
class Prepared:
    """A run before its first process: resolved settings, enrolment, and what to display."""

    experiment: Experiment
    enrolment: Enrolment
    physics: dict[str, str]
    partition: list[str]
    fleet: dict[str, Any]  # what `fleet.json` holds


def prepare(experiment: Experiment, enrolled: tuple[Enrolled, ...] | None = None) -> Prepared:
    """Split the data, build the model once, and compute who is enrolled with what.

    Args:
        experiment: The settings.
        enrolled: The workers, if they bring their own data; nothing is loaded then.
    """
    check_testbed(experiment)
    mechanism_of(experiment)  # refuses what does not fit together
    experiment = with_noted_base(experiment)
    unseen = unseen_samples(experiment, enrolled)
    data, shards, counts = unseen or split_samples(experiment)
    noted = {} if unseen else fingerprint(data, sample_owners(experiment, labels_of(data)))
    trainer = make_trainer(one_training_at_a_time(experiment), data, shards)
    warm_up(trainer, shards)
    experiment = with_named_model(experiment, data, trainer.task)
    experiment = measured(experiment, trainer)
    fleet = fleet_of(experiment, counts, model_bytes_on_wire(experiment, trainer))
    enrolment = Enrolment(
        wire_schema(experiment, trainer).hash,
        fleet.model_bytes,
        _enrolled(experiment, counts),
        trainer.task.score_name,
        trainer.layout.model_bytes if _sends_differences(experiment) else 0,
        trainer.task.least_loss,
    )
    recorders_of(Setting(experiment, fleet, testbed=True))  # refuses what cannot be recorded
    _ensure_memory(experiment, trainer)
    world = world_of(experiment, fleet)
    physics = {
        **describe(world),
        **describe_samples(data),
        **describe_exchange(experiment, trainer.layout),
        **describe_graph(experiment.mechanism, fleet, world),
    }
    return Prepared(
        experiment=experiment,
        enrolment=enrolment,
        physics=physics,
        partition=[*describe_partition(counts).rows(), *label_chart(counts, data.class_names)],
        fleet={**fleet_json(experiment, data, fleet, trainer, world, physics), **noted},
    )


def check_data(run: RunData, experiment: Experiment) -> None:
    """Refuse to go on with other data than a run began with; private data are checked by hosts."""
    if not experiment.data.private.classes:
        data = load_data(experiment)
        now = fingerprint(data, sample_owners(experiment, labels_of(data)))
        check_same_data(run.path, run.fleet, now)


def _enrolled(experiment: Experiment, counts: Ints) -> tuple[Enrolled, ...]:
    names = node_names(experiment)
    return tuple(
        Enrolled(name, int(row.sum()), tuple(row.tolist()))
        for name, row in zip(names, counts, strict=False)
    )


def _ensure_memory(experiment: Experiment, trainer: Trainer) -> None:
    """Refuse a fleet of processes that does not fit into this machine; a job's run elsewhere."""
    if launcher_of(experiment).in_job:
        return
    limit = int(experiment.training.memory_limit_gb * _GIGABYTE) or None
    estimate = trainer.estimate(experiment.fleet.workers, stacks=_held_models(experiment))
    ensure_fits(estimate, available_bytes(trainer.device), limit)


def _held_models(experiment: Experiment) -> float:
    """Return how many models a worker holds at most, with the public copies of others."""
    if not _sends_differences(experiment):
        return 6.0
    return 8.0 + min(experiment.fleet.workers - 1, experiment.testbed.limits.copies)


def _sends_differences(experiment: Experiment) -> bool:
    codec = link_codec(experiment)
    return codec is not None and codec.sends_differences
