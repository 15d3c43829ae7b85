"""The partition of a labelled data set over workers.

`scheme_of` says which scheme `PartitionParams` choose, `owners` draws the worker of every sample,
`partition` and `split_counts` list and count them, and `describe_partition` describes the result.
All functions are pure; `dystop.data.assignment` reads a partition from a file.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, cast, get_args

import numpy as np
from annotated_types import Ge, Gt

from dystop.data.dataset import Columns
from dystop.data.schemes import (
    column_owners,
    dirichlet_owners,
    iid_owners,
    power_law_shares,
    quantity_shares,
    raise_to_min_size,
    shard_owners,
    sized_owners,
)
from dystop.errors import ConfigError, DataError, nearest
from dystop.params import param
from dystop.sparse import Floats, Ints, ints

Scheme = Literal["iid", "dirichlet", "quantity", "power-law", "shards", "column"]
PartitionChoice = Literal["auto", "iid", "dirichlet", "quantity", "power-law", "shards", "column"]

FILE_KINDS = (".csv", ".json", ".parquet")
"""Files that hold a partition; `dystop.data.assignment` reads them."""


@dataclass(frozen=True)
class PartitionParams:
    """How the training samples are split over the workers."""

    partition: PartitionChoice | str = param(
        "auto",
        "how samples are split; auto: dirichlet below phi = 1, iid from there on; or a FILE.csv, "
        ".json or .parquet that says which worker has which sample",
    )
    phi: Annotated[float, Gt(0)] = param(
        0.4,
        "concentration of labels (dirichlet) or of sizes (quantity); small is more skewed",
        under={"partition": ("auto", "dirichlet", "quantity")},
    )
    exponent: Annotated[float, Ge(0)] = param(
        1.0,
        "power-law: the k-th largest worker has samples in proportion to k^-exponent",
        under={"partition": ("power-law",)},
    )
    shards: Annotated[int, Ge(1)] = param(
        2,
        "shards: pieces of the sorted labels that each worker gets, about one class each",
        under={"partition": ("shards",)},
    )
    column: str = param(
        "", "column: which column of the data set says whose a sample is, as in writer or sensor"
    )


def is_file(partition: str) -> bool:
    """Return whether a partition is the path of a file."""
    return partition.endswith(FILE_KINDS)


def scheme_of(how: PartitionParams) -> Scheme:
    """Return the scheme that the parameters choose.

    The paper calls phi = 1.0 IID, but Dirichlet(1.0) is not. "auto" follows the paper: phi >= 1
    gives an IID partition. An explicit "dirichlet" draws from Dirichlet(phi) for every phi.

    >>> scheme_of(PartitionParams(phi=1.0)), scheme_of(PartitionParams(phi=0.4))
    ('iid', 'dirichlet')
    >>> scheme_of(PartitionParams("dirichlet", phi=1.0))
    'dirichlet'
    """
    if how.partition == "auto":
        return "iid" if how.phi >= 1.0 else "dirichlet"
    if how.partition in get_args(Scheme):
        return cast(Scheme, how.partition)
    raise ConfigError(
        f"partition = {how.partition!r}; allowed are {', '.join(get_args(PartitionChoice))}"
        f"{nearest(how.partition, get_args(PartitionChoice))}"
    )


def owners(
    labels: Ints,
    workers: int,
    how: PartitionParams,
    seed: int,
    *,
    columns: Columns | None = None,
    min_size: int = 1,
) -> Ints:
    """Return the worker of every sample, [n].

    - "iid" splits a random permutation: sizes differ by at most one.
    - "dirichlet" splits every class in shares drawn from Dir(phi): sizes and label distributions
      both vary, more for smaller phi.
    - "quantity" splits a random permutation in shares drawn from Dir(phi): only sizes vary.
    - "power-law" does so in shares k^-exponent of the k-th largest worker.
    - "shards" sorts the samples by label, cuts them into equal pieces, and gives each worker
      `shards` of them (McMahan et al. 2017).
    - "column" keeps the samples together that have the same value in a column, and deals these
      groups to the workers in random order.

    A worker with fewer than `min_size` samples then receives random samples, one at a time, each
    from the worker that has most at that moment ("dirichlet", "quantity", "power-law"). The usual
    alternative, to draw again until every worker has enough, may never end for many workers or a
    small phi.

    Args:
        labels: Class of every sample, [n].
        workers: Number of workers N.
        how: The scheme and its numbers.
        seed: Seed of the run; each draw has an address of its own.
        columns: Columns of the data set, for "column".
        min_size: Minimum number of samples of a worker.

    Raises:
        ConfigError: The scheme, a number or the column cannot be used.
        DataError: There are fewer samples than workers * min_size, or too few groups.
    """
    scheme, labels = scheme_of(how), ints(labels)
    _check(len(labels), workers, scheme, how, min_size)
    if scheme == "iid":
        return iid_owners(len(labels), workers, seed)
    if scheme == "shards":
        return shard_owners(labels, workers, how.shards, seed)
    if scheme == "column":
        return _column_owners(columns or {}, how.column, workers, seed)
    if scheme == "dirichlet":
        owner = dirichlet_owners(labels, workers, how.phi, seed)
    else:
        shares = (
            quantity_shares(workers, how.phi, seed)
            if scheme == "quantity"
            else power_law_shares(workers, how.exponent, seed)
        )
        owner = sized_owners(len(labels), shares, seed)
    raise_to_min_size(owner, workers, min_size, seed)
    return owner


def partition(
    labels: Ints,
    workers: int,
    how: PartitionParams,
    seed: int,
    *,
    columns: Columns | None = None,
    min_size: int = 1,
) -> list[Ints]:
    """Return the sample indices of every worker: sorted, disjoint, covering all samples.

    The arguments and errors are those of `owners`.

    >>> [len(own) for own in partition(ints([0, 1, 1, 1]), 2, PartitionParams("iid"), seed=0)]
    [2, 2]
    """
    return shards_of(
        owners(labels, workers, how, seed, columns=columns, min_size=min_size), workers
    )


def shards_of(owner: Ints, workers: int) -> list[Ints]:
    """Return the sample indices of every worker, sorted; a sample with owner -1 is nobody's.

    >>> [own.tolist() for own in shards_of(ints([1, 0, -1, 1]), 2)]
    [[1], [0, 3]]
    """
    order = np.argsort(owner, kind="stable")[int((owner < 0).sum()) :]
    ends = np.cumsum(np.bincount(owner[owner >= 0], minlength=workers))
    return [ints(shard) for shard in np.split(order, ends[:-1])]


def split_counts(labels: Ints, classes: int, owner: Ints, workers: int) -> Ints:
    """Return the label counts [N, K] of the workers that `owners` assigns.

    No list of samples is made for each worker, so that a million workers are cheap.

    >>> split_counts(ints([0, 1, 1, 1]), 2, ints([0, 1, -1, 0]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    held = owner >= 0
    cells = np.bincount(owner[held] * classes + labels[held], minlength=workers * classes)
    return ints(cells.reshape(workers, classes))


def _check(samples: int, workers: int, scheme: Scheme, how: PartitionParams, min_size: int) -> None:
    if scheme in ("dirichlet", "quantity") and not (0 < how.phi < np.inf):
        raise ConfigError(
            f"phi = {how.phi}; expected a number above 0 (the paper uses 0.4, 0.7, 1.0)"
        )
    for name, value in (("workers", workers), ("shards", how.shards), ("min_size", min_size)):
        if value < 1:
            raise ConfigError(f"{name} = {value}; expected an integer >= 1")
    each = max(min_size, how.shards) if scheme == "shards" else min_size
    if samples < workers * each:
        raise DataError(
            f"{samples} training samples cannot give {workers} workers {each} each: "
            f"{workers * each} are needed; use fewer workers or more training samples"
        )


def _column_owners(columns: Columns, column: str, workers: int, seed: int) -> Ints:
    """Return the worker of every sample; samples with the same value stay together."""
    if column not in columns:
        there = f"it has {', '.join(columns)}" if columns else "it has no column"
        raise ConfigError(
            f"data.column = {column!r}: the data set has no such column; {there}"
            f"{nearest(column, columns)}. 'dystop data import --group COLUMN' keeps a column"
        )
    names, group = np.unique(columns[column], return_inverse=True)
    if len(names) < workers:
        raise DataError(
            f"data.column = {column!r}: {len(names)} different values cannot give {workers} workers"
            f" one each; use at most {len(names)} workers"
        )
    return column_owners(ints(group), workers, seed)


def label_counts(labels: Ints, shards: list[Ints], classes: int) -> Ints:
    """Return the number of samples of class k at worker i: D_i^k, [N, K].

    >>> label_counts(ints([0, 1, 1]), [ints([0, 1]), ints([2])], 2).tolist()
    [[1, 1], [0, 1]]
    """
    owner = np.repeat(np.arange(len(shards)), [len(s) for s in shards])
    held = labels[np.concatenate(shards)]
    cells = np.bincount(owner * classes + held, minlength=len(shards) * classes)
    return ints(cells.reshape(len(shards), classes))


def emd_to_global(counts: Ints) -> Floats:
    """Return the EMD of every worker's labels to those of all workers (paper eq:EMD), [N].

    >>> emd_to_global(ints([[2, 0], [0, 2]])).tolist()
    [1.0, 1.0]
    """
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    overall = counts.sum(axis=0) / max(int(counts.sum()), 1)
    out: Floats = np.abs(share - overall).sum(axis=1)
    return out


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """Sizes and label skew of a partition."""

    workers: int
    samples: int
    size_min: int
    size_median: float
    size_max: int
    classes_mean: float  # distinct classes per worker
    emd_mean: float  # to the distribution of all samples; 0 is IID, 2 the largest possible

    def rows(self) -> list[str]:
        """Return the summary as lines of text."""
        return [
            f"{self.samples} samples over {self.workers} workers",
            f"samples per worker: {self.size_min} to {self.size_max}, median {self.size_median:g}",
            f"classes per worker: {self.classes_mean:.1f} on average",
            f"EMD to all data: {self.emd_mean:.3f} on average (0 is IID)",
        ]


def describe_partition(counts: Ints) -> PartitionSummary:
    """Summarise a partition from its label counts [N, K].

    >>> describe_partition(ints([[3, 0], [1, 4]])).rows()[1]
    'samples per worker: 3 to 5, median 4'
    """
    size = counts.sum(axis=1)
    return PartitionSummary(
        workers=len(counts),
        samples=int(size.sum()),
        size_min=int(size.min()),
        size_median=float(np.median(size)),
        size_max=int(size.max()),
        classes_mean=float((counts > 0).sum(axis=1).mean()),
        emd_mean=float(emd_to_global(counts).mean()),
    )


_SHADES = " ▁▂▃▄▅▆▇█"
_CHART_WORKERS = 64


def label_chart(counts: Ints, class_names: tuple[str, ...]) -> list[str]:
    """Return a chart: a line for each class, a character for each worker, higher for larger shares.

    The chart is empty for more than 64 workers or 20 classes.

    >>> label_chart(ints([[4, 0], [1, 3]]), ("cat", "dog"))
    ['share of each class, one column per worker:', 'cat █▂', 'dog  ▆']
    """
    if len(counts) > _CHART_WORKERS or counts.shape[1] > 20:
        return []
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    level = np.ceil(share * (len(_SHADES) - 1)).astype(int)
    width = max(len(name) for name in class_names)
    lines = ("".join(_SHADES[k] for k in column) for column in level.T)
    chart = [f"{name:<{width}} {line}" for name, line in zip(class_names, lines, strict=True)]
    return ["share of each class, one column per worker:", *chart]
