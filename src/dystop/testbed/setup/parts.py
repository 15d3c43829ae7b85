"""What the parties of a testbed need of data and models: every worker gets its own shard only."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dystop.carried import Places
from dystop.config import Experiment
from dystop.data import Dataset, label_counts
from dystop.data.dataset import taken
from dystop.data.private import own_samples, placeholder_samples
from dystop.errors import ConfigError
from dystop.exchange.rules import Models
from dystop.runs.building import (
    card_of,
    exchange_of,
    load_data,
    make_trainer,
    message_bytes,
    split_data,
    with_wrong_labels,
)
from dystop.runs.fleet import fleet_of, steps_of
from dystop.sparse import Floats, Ints
from dystop.testbed.events import Counters, StartTraining, TrainingFinished, Vector
from dystop.testbed.protocol.payload import Schema, schema_of
from dystop.testbed.setup.enrolment import Enrolled, check_testbed, step_seconds
from dystop.testbed.worker.state import OwnLosses
from dystop.testbed.worker.training_thread import local_trainer
from dystop.training.flat import Layout
from dystop.training.saved import ModelCard
from dystop.training.trainer import Trainer


def warm_up(trainer: Trainer, shards: list[Ints]) -> None:
    """Train and drop the result, so that all compiled code is loaded.

    A CPU needs one mini-batch. A GPU captures a graph for every size of mini-batch, and the last
    one of an epoch has a size of its own.
    """
    owner = next((k for k, shard in enumerate(shards) if len(shard)), None)
    if owner is not None:
        (vector, counters), one = trainer.initial(), np.ones(1, np.int64)
        epoch = -(-len(shards[owner]) // trainer.params.batch)
        steps = one * (epoch if trainer.returns_early else 1)
        trainer.train(vector[None], counters[None], np.array([owner]), 0 * one, steps)


def wire_schema(experiment: Experiment, trainer: Trainer) -> Schema:
    """Return what a model looks like on the wire."""
    return schema_of(trainer.layout, exchange_of(experiment, trainer.layout).codec)


def model_bytes_on_wire(experiment: Experiment, trainer: Trainer) -> int:
    """Return the bytes of one model on the wire, without headers."""
    return message_bytes(experiment, trainer.layout)


Samples = tuple[Dataset, list[Ints], Ints]  # data set, who has which of it, label counts [N, K]


def split_samples(experiment: Experiment) -> Samples:
    """Load the data set of the experiment and split it over the workers."""
    data = load_data(experiment)
    shards = split_data(experiment, data)
    return data, shards, label_counts(data.y_train, shards, data.classes)


def unseen_samples(experiment: Experiment, enrolled: tuple[Enrolled, ...] | None) -> Samples | None:
    """Return what is known of private data without loading it; None if data are not private."""
    private = experiment.data.private
    if enrolled is None and private.classes:
        raise ConfigError(
            "data.private: the workers bring their data along, so every party is started by hand: "
            "'dystop coordinator' and 'dystop observer' with --enrolment FILE, and on each host "
            "'dystop worker --data FILE.npz' (docs/two-hosts.md)"
        )
    if enrolled is not None and not private.classes:
        raise ConfigError(
            "--enrolment: enrols workers that bring data along, but the configuration has no "
            "data.private, which says what their data have in common; 'dystop data enrol' prints it"
        )
    if enrolled is None:
        return None
    counts = np.array([worker.label_counts for worker in enrolled], np.int64)
    batch = experiment.training.batch
    return placeholder_samples(private, batch), [np.arange(batch)], counts


def one_training_at_a_time(experiment: Experiment) -> Experiment:
    """Return the settings with one training at a time: every worker is its own process."""
    return replace(experiment, training=replace(experiment.training, lanes=1))


@dataclass(frozen=True)
class WorkerParts:
    """What a worker is built from."""

    node: int
    schema: Schema
    vector: Vector  # the initial model
    counters: Counters
    train: (
        Callable[[StartTraining], TrainingFinished] | None
    )  # None for a server, which has no data
    data_size: int
    label_counts: tuple[int, ...]
    first_steps: int  # mini-batches of the training that starts with the run
    step_s: float  # minimum seconds of a mini-batch; 0: no emulation
    layout: Layout
    places: Places  # of carried vectors
    card: ModelCard  # of the trained model
    own_losses: OwnLosses


def worker_parts(experiment: Experiment, node: int, file: Path | None = None) -> WorkerParts:
    """Load the data, keep the samples of this node, and build its trainer.

    Sample orders are addressed by (seed, node, number), so they equal those of the simulator. The
    noise of private training is from a seed that only this process knows.

    Args:
        experiment: The settings.
        node: Which worker; the server's number is one more than the last worker's.
        file: The worker's own samples, if data are private; nothing else is loaded then.
    """
    check_testbed(experiment)
    experiment = one_training_at_a_time(experiment)
    is_server = node >= experiment.fleet.workers
    data, counts = _own_data(experiment, node, file) or _share(experiment, node)
    data = with_wrong_labels(experiment, data, {node: np.arange(len(data.y_train))})
    only = _only(0 if is_server else node, len(data.y_train))
    trainer = make_trainer(experiment, data, only, noise_seed=secrets.randbits(63))
    # A worker joins when it can train: the slow first step must not delay a round.
    warm_up(trainer, only)
    vector, counters = trainer.initial()
    fleet = fleet_of(experiment, counts, model_bytes_on_wire(experiment, trainer))
    free = experiment.testbed.devices == "free" or is_server
    step_s = 0.0 if free else float(step_seconds(experiment, fleet)[node])
    return WorkerParts(
        node=node,
        schema=wire_schema(experiment, trainer),
        vector=vector.cpu().numpy(),
        counters=counters.cpu().numpy(),
        train=None if is_server else local_trainer(trainer, node),
        data_size=0 if is_server else int(fleet.data_size[node]),
        label_counts=() if is_server else tuple(counts[node].tolist()),
        first_steps=0 if is_server else int(steps_of(experiment, fleet)[node]),
        step_s=step_s * experiment.testbed.time_scale,
        layout=trainer.layout,
        places=trainer.places,
        card=card_of(experiment, data, trainer.task),
        own_losses=_own_losses(experiment, trainer, node),
    )


def _own_losses(experiment: Experiment, trainer: Trainer, node: int) -> OwnLosses:
    """Return a function that tests models on samples of this node; None if it has none."""
    counters = trainer.initial()[1]
    is_server = node >= experiment.fleet.workers

    def own_losses(models: Models, samples: int) -> Floats | None:
        if is_server:
            return None
        stack = torch.from_numpy(np.stack(list(models)))
        return trainer.own_losses(stack, counters, node, samples)

    return own_losses


def _share(experiment: Experiment, node: int) -> tuple[Dataset, Ints]:
    """Return one node's samples of the common data set, and all label counts."""
    data, shards, counts = split_samples(experiment)
    is_server = node >= len(shards)
    own = shards[0][: experiment.training.batch] if is_server else shards[node]
    return _only_own(data, own), counts


def _own_data(experiment: Experiment, node: int, file: Path | None) -> tuple[Dataset, Ints] | None:
    """Return a worker's own file and its label counts; None if data are not private."""
    private, workers = experiment.data.private, experiment.fleet.workers
    if (file is not None) != (private.classes > 0 and node < workers):
        raise ConfigError(
            "--data and data.private belong together: a worker brings its own data if and only if "
            "data.private says what all such data have in common; a server brings none"
        )
    if not private.classes:
        return None
    counts = np.zeros((workers, private.classes), np.int64)
    if file is None:
        return placeholder_samples(private, experiment.training.batch), counts
    data = own_samples(file, private)
    counts[node] = np.bincount(data.y_train, minlength=private.classes)
    return data, counts


def _only_own(data: Dataset, own: Ints) -> Dataset:
    """Return the data set with one worker's samples, and a single unused test image."""
    return replace(
        data,
        x_train=data.x_train[own].copy(),
        y_train=data.y_train[own].copy(),
        x_test=data.x_test[:1].copy(),
        y_test=data.y_test[:1].copy(),
        targets=taken(data.targets, own, slice(1)),
    )


def _only(node: int, size: int) -> list[Ints]:
    """Return shards of which only this node's has samples."""
    return [np.arange(size if k == node else 0) for k in range(node + 1)]


@dataclass(frozen=True)
class ObserverParts:
    """What an observer is built from: the test set, and the data size of each worker."""

    trainer: Trainer
    schema: Schema
    counters: Counters
    data_size: Ints  # D_i, [N]
    samples: int | None  # test images per model; None: all
    left_out: frozenset[int] = frozenset()  # workers whose models do not count


def observer_parts(
    experiment: Experiment, enrolled: tuple[Enrolled, ...] | None = None
) -> ObserverParts:
    """Load the test set and build the trainer that evaluates.

    Args:
        experiment: The settings.
        enrolled: The workers, if they bring their own data.
    """
    check_testbed(experiment)
    unseen = unseen_samples(experiment, enrolled)
    data, sizes = _tests(experiment, unseen[2]) if unseen else _public_tests(experiment)
    few = np.arange(min(experiment.training.batch, len(data.y_train)))
    tests = replace(
        data,
        x_train=data.x_train[few].copy(),
        y_train=data.y_train[few].copy(),
        targets=taken(data.targets, few, slice(None)),
    )
    trainer = make_trainer(one_training_at_a_time(experiment), tests, [few])
    counters = trainer.initial()[1].cpu().numpy()
    samples = experiment.evaluate.samples or None
    schema = wire_schema(experiment, trainer)
    bad = frozenset(exchange_of(experiment, trainer.layout).dishonest.tolist())
    return ObserverParts(trainer, schema, counters, sizes, samples, bad)


def _public_tests(experiment: Experiment) -> tuple[Dataset, Ints]:
    data, _, counts = split_samples(experiment)
    return data, counts.sum(axis=1)


def _tests(experiment: Experiment, counts: Ints) -> tuple[Dataset, Ints]:
    """Return the operator's own test set, normalised as the workers' private data are."""
    data, private = load_data(experiment), experiment.data.private
    if data.shape != private.shape or data.classes > private.classes:
        raise ConfigError(
            f"data.name = {experiment.data.name!r}: the observer tests on images of shape "
            f"{data.shape} in {data.classes} classes; data.private says {private.shape} in "
            f"{private.classes}"
        )
    alike = replace(data, classes=private.classes, mean=private.mean, std=private.std)
    return alike, counts.sum(axis=1)
