"""The samples of an experiment: loaded, limited, split over the workers, and the same on resume."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dystop.config import Experiment, read_experiment
from dystop.config.experiment import DataParams
from dystop.data import (
    Dataset,
    Labels,
    labels_of,
    load,
    owners_of,
    shards_of,
    take,
    take_labels,
)
from dystop.data.loading import Files
from dystop.errors import DataError, shell_command
from dystop.folders.folder_kinds import RUN, TESTBED_RUN, FolderKind, kind_of
from dystop.folders.run_folder import CONFIG, FLEET
from dystop.registry import chosen
from dystop.sparse import Ints
from dystop.storage import try_read_json

_DATA_FACTS = ("data_sha256", "partition_sha256")  # keys of fleet.json; samples, and their owners


def load_data(experiment: Experiment, given: Dataset | None = None) -> Dataset:
    """Return the given data set, or load the configured one, and limit its size."""
    spec, data = experiment.data, given or whole_data(experiment)
    return take(data, spec.train_limit or None, spec.test_limit or None, seed=experiment.seed)


def whole_data(experiment: Experiment) -> Dataset:
    """Load the configured data set, before its size is limited."""
    spec = experiment.data
    return load(
        spec.name,
        root=spec.root or None,
        download=spec.download,
        seed=experiment.seed,
        options=spec.options,
    )


def load_labels_of(experiment: Experiment, given: Dataset | None) -> Labels:
    """Return the training labels of the given data set, or of the configured one.

    A data set such as "synthetic", which knows its labels without its images, may have any size.
    """
    spec = experiment.data
    source = None if given or spec.name.endswith(".npz") else chosen(spec, "name")
    if source is None or isinstance(source, Files):
        labels = labels_of(given or whole_data(experiment))
    else:
        labels = source.labels(experiment.seed)
    return take_labels(labels, spec.train_limit or None, seed=experiment.seed)


def split_data(experiment: Experiment, data: Dataset) -> list[Ints]:
    """Return which training samples each worker owns."""
    return shards_of(sample_owners(experiment, labels_of(data)), experiment.fleet.workers)


def sample_owners(experiment: Experiment, labels: Labels) -> Ints:
    """Return the worker that owns each training sample, [n]; -1 for one that nobody owns."""
    return owners_of(labels, experiment.fleet.workers, experiment.data, experiment.seed)


def check_same_data(
    folder: Path, noted: Mapping[str, Any], now: Mapping[str, Any], *, trains: bool = True
) -> None:
    """Refuse to go on with other data or another partition than a run began with.

    Args:
        folder: Folder of the run.
        noted: Its `fleet.json`.
        now: The same for the data as they are now.
        trains: Whether models are trained now; otherwise only labels and owners are known.
    """
    if what := _changed_data(noted, now, trains=trains):
        raise DataError(
            f"{folder}: {what} changed since the run began, so its records would no longer fit "
            "together; nothing was written. Restore the file, or start a new run with: "
            f"{_start_again(kind_of(folder) or RUN, folder)}"
        )


def check_replayed_data(experiment: Experiment, now: Mapping[str, Any]) -> None:
    """Refuse to replay a trace on other data than the recorded run had.

    Data that the user chose for the replay, by keys of `data` or by the seed, are not refused.

    Args:
        experiment: An experiment that replays a trace.
        now: What `fleet.json` will note about its data.
    """
    folder = Path(experiment.trace)
    recorded = read_experiment(folder / CONFIG, imports=False)
    if _data_keys(experiment) != _data_keys(recorded):
        return
    noted = try_read_json(folder / FLEET)
    if what := _changed_data(noted, now, trains=experiment.engine.train):
        raise DataError(
            f"trace = {experiment.trace}: {what} changed since the run was recorded, so its "
            "seconds of training would not fit; nothing was written. Restore the file, choose the "
            "data of the replay by keys (data.*, seed), or record a run on the new data with: "
            f"{_start_again(TESTBED_RUN, folder)}"
        )


def _changed_data(noted: Mapping[str, Any], now: Mapping[str, Any], *, trains: bool) -> str:
    """Say what is not as noted in a `fleet.json`; empty if nothing is."""
    known = _DATA_FACTS if trains else _DATA_FACTS[1:]
    changed = [key for key in known if noted.get(key) != now[key]]
    if not changed:
        return ""
    before, after = (f"{facts['train_samples']:,}" for facts in (noted, now))
    if before != after:
        return f"the data ({after} training samples, {before} when the run began)"
    if "data_sha256" not in changed:
        return "the partition of the samples (data.partition)"
    return "the data (as many samples, but other values)"


def _data_keys(experiment: Experiment) -> tuple[DataParams, int]:
    """Return the keys that decide which samples each worker has; files may have moved."""
    return replace(experiment.data, root="", download=False), experiment.seed


def _start_again(kind: FolderKind, folder: Path) -> str:
    return shell_command(kind.start, folder / CONFIG, "--name", "NEW")
