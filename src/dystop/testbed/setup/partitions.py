"""The partition of an experiment or a run, for people and for other frameworks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dystop.config import Experiment, read_experiment
from dystop.data import (
    Dataset,
    describe_partition,
    fingerprint,
    kept_samples,
    label_chart,
    labels_of,
    shards_of,
    split_counts,
    take,
    write_assignment,
)
from dystop.data.npz import write_npz
from dystop.errors import ConfigError
from dystop.folders.run_folder import CONFIG, INFO, open_run
from dystop.runs.building import check_same_data, sample_owners, whole_data
from dystop.sparse import Ints
from dystop.testbed.setup.enrolment import node_names


@dataclass(frozen=True)
class Split:
    """Who has which training sample."""

    experiment: Experiment
    data: Dataset  # the samples that the experiment uses
    owner: Ints  # worker of each of them; -1: nobody
    index: Ints  # their numbers in the whole training set

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.experiment.fleet.workers

    @property
    def samples(self) -> int:
        """Number of samples that some worker has."""
        return int((self.owner >= 0).sum())

    @property
    def rows(self) -> list[str]:
        """A description in lines of text."""
        counts = split_counts(self.data.y_train, self.data.classes, self.owner, self.workers)
        return [*describe_partition(counts).rows(), *label_chart(counts, self.data.class_names)]

    def write(self, path: Path) -> None:
        """Write a partition file; samples are numbered as in the whole training set."""
        write_assignment(path, self.owner, self.index)


def partition_of(source: Path | None, overrides: Sequence[str] = ()) -> Split:
    """Return the partition of an experiment: a file, a run folder, or the defaults.

    Raises:
        ConfigError: The configuration cannot be used, or workers bring their own data.
        DataError: The data set cannot be used, or is not the one that the run began with.
    """
    is_run = source is not None and (source / INFO).is_file()
    file = source / CONFIG if source is not None and is_run else source
    experiment = read_experiment(file, overrides, imports=not is_run)
    if experiment.data.private.classes:
        raise ConfigError("data.private: the workers bring their data along; there is no partition")
    whole, limit = whole_data(experiment), experiment.data.train_limit or None
    index = kept_samples(whole, limit, seed=experiment.seed)
    data = take(whole, limit, experiment.data.test_limit or None, seed=experiment.seed)
    owner = sample_owners(experiment, labels_of(data))
    if source is not None and is_run and not overrides:
        run = open_run(source)
        facts = fingerprint(data if experiment.engine.train else labels_of(data), owner)
        check_same_data(source, run.fleet, facts)
    return Split(experiment, data, owner, index)


def write_parts(split: Split, folder: Path) -> None:
    """Write the samples of each worker into a file of its own, for `dystop worker --data`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = node_names(split.experiment)[: split.workers]
    for name, own in zip(names, shards_of(split.owner, split.workers), strict=True):
        write_npz(
            folder / f"{name}.npz", {"x": split.data.x_train[own], "y": split.data.y_train[own]}
        )
