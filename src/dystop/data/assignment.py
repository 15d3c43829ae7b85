"""A partition as a file: which worker has which training sample.

CSV and Parquet files have the columns `sample` and `worker`, a row for each sample. A JSON file is
an object that gives each worker the list of its samples: {"0": [4, 7], "1": [2]}. Samples count
from 0 in the order of the training set, workers from 0 to N - 1. A sample that no row names is
not used. Other frameworks read the same files.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.dataset import Dataset, Labels
from dystop.data.partition import (
    FILE_KINDS,
    PartitionParams,
    is_file,
    owners,
    shards_of,
)
from dystop.data.readers import refusal
from dystop.data.table_files import column_of, read_table, write_table
from dystop.errors import ConfigError, DataError
from dystop.foreign_files import JSON_BYTES, read_bounded
from dystop.sparse import Ints, ints
from dystop.storage import write_atomic
from dystop.strict_json import parse_json

_MOST_DIGITS = 18  # of a number that an array of integers holds
_SHOWN = 40  # characters of a cell
_ADVICE = "Correct the file; 'dystop data partition --out FILE' writes one that can be used"


def owners_of(labels: Labels, workers: int, how: PartitionParams, seed: int) -> Ints:
    """Return the worker of every training sample, [n], by a scheme or from a file.

    A sample that a file does not name has the owner -1.
    """
    if is_file(how.partition):
        path = Path(how.partition).expanduser()
        return read_assignment(path, len(labels.y_train), workers)
    return owners(labels.y_train, workers, how, seed, columns=labels.columns)


@dataclass(frozen=True)
class _Rows:
    """The rows of a partition file, and what messages call the place of a row."""

    path: Path
    sample: NDArray[Any]
    worker: NDArray[Any]
    first: int | None  # number of the first row in a table; None: a JSON file has no rows

    def place(self, k: int) -> str:
        """Return where a row is."""
        if self.first is None:
            return f"worker {self.worker[k]}"
        return f"row {k + self.first}"

    def refused(self, k: int, wrong: str, expected: str) -> DataError:
        """Return the error for a row."""
        return refusal(self.path, f"{self.place(k)}: {wrong}", expected, _ADVICE)


def read_assignment(path: Path, samples: int, workers: int) -> Ints:
    """Read the worker of every training sample, [n]; -1 for one that the file does not name.

    Args:
        path: A .csv, .json or .parquet file.
        samples: Number of training samples.
        workers: Number of workers.

    Raises:
        DataError: The file is missing or damaged, lacks a column, names a sample twice, names a
            sample or worker that does not exist, or leaves a worker without samples.
    """
    rows = _read_json(path) if path.suffix == ".json" else _read_rows(path)
    sample = _numbers(rows, "sample", rows.sample, samples, "the training set has")
    worker = _numbers(rows, "worker", rows.worker, workers, "fleet.workers is")
    order = np.argsort(sample, kind="stable")
    again = np.flatnonzero(np.diff(sample[order]) == 0)
    if len(again):
        first, second = order[again[0]], order[again[0] + 1]
        wrong = f"sample {sample[first]} was already given in {rows.place(first)}"
        raise rows.refused(second, wrong, "every sample once")
    owner = np.full(samples, -1, np.int64)
    owner[sample] = worker
    idle = np.setdiff1d(np.arange(workers), worker)
    if len(idle):
        few = ", ".join(map(str, idle[:5].tolist())) + ("" if len(idle) <= 5 else ", ...")
        wrong = f"gives no sample to {len(idle)} of {workers} workers: {few}"
        raise refusal(path, wrong, "a sample for each worker", _ADVICE)
    return owner


def _numbers(rows: _Rows, name: str, values: NDArray[Any], count: int, has: str) -> Ints:
    """Return a column as numbers below `count`."""
    if values.dtype.kind not in "iu":
        bad = [k for k, value in enumerate(values.tolist()) if not _is_whole(value)]
        if bad:
            raise rows.refused(
                bad[0], f"{name} is {str(values[bad[0]])[:_SHOWN]}", "whole numbers from 0 on"
            )
        values = np.array([int(value) for value in values.tolist()], object)
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if len(wrong):
        k = int(wrong[0])
        expected = f"0 to {count - 1}, since {has} {count}"
        raise rows.refused(k, f"{name} {values[k]} is out of range", expected)
    return ints(values)


def _is_whole(value: object) -> bool:
    """Return whether a cell is a whole number, perhaps written as text or as 3.0."""
    if isinstance(value, str):
        return value.isdecimal() and len(value) < _MOST_DIGITS
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def _read_rows(path: Path) -> _Rows:
    table = read_table(path)
    sample, worker = (column_of(path, table, name) for name in ("sample", "worker"))
    return _Rows(path, sample, worker, first=2 if path.suffix == ".csv" else 1)


def _read_json(path: Path) -> _Rows:
    expected = 'an object such as {"0": [4, 7], "1": [2]}'
    try:
        found = parse_json(read_bounded(path, JSON_BYTES, follow=True))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise refusal(path, f"not JSON: {error}", expected, _ADVICE) from None
    if not isinstance(found, dict) or not all(isinstance(own, list) for own in found.values()):
        raise refusal(path, "holds something else than lists", expected, _ADVICE)
    names = [name for name, own in found.items() for _ in own]
    samples = [sample for own in found.values() for sample in own]
    return _Rows(path, _objects(samples), _objects(names), first=None)


def _objects(values: list[Any]) -> NDArray[Any]:
    """Return an array of these values, even if they are lists."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


def write_assignment(path: Path, owner: Ints, index: Ints | None = None) -> None:
    """Write which worker has which sample, as a .csv, .json or .parquet file.

    Args:
        path: The file.
        owner: Worker of every sample, [n]; -1 for a sample that nobody has.
        index: Number of every sample in the whole training set; by default its place in `owner`.

    Raises:
        ConfigError: The file has another ending.
    """
    if not is_file(str(path)):
        raise ConfigError(f"{path}: expected a file that ends in {', '.join(FILE_KINDS)}")
    index = np.arange(len(owner)) if index is None else index
    if path.suffix == ".json":
        shards = shards_of(owner, int(owner.max()) + 1)
        lists = {str(worker): index[own].tolist() for worker, own in enumerate(shards)}
        write_atomic(path, (json.dumps(lists, separators=(",", ":")) + "\n").encode())
        return
    held = owner >= 0
    write_table(path, {"sample": index[held], "worker": owner[held]})


def fingerprint(data: Dataset | Labels, owner: Ints) -> dict[str, Any]:
    """Return what `fleet.json` notes about data and partition, so that a change is noticed."""
    arrays = (
        (data.x_train, data.y_train, data.x_test, data.y_test, *(data.targets or ()))
        if isinstance(data, Dataset)
        else (data.y_train,)
    )
    return {
        "train_samples": len(data.y_train),
        "data_sha256": _sha256(*arrays),
        "partition_sha256": _sha256(owner),
    }


def _sha256(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
