"""The partition of a labelled data set over workers: IID, or drawn from a Dirichlet distribution.

`scheme_for` chooses the scheme for a non-IID level phi, `partition` draws the partition, and
`label_counts` and `describe_partition` describe it. All functions are pure.
"""

import heapq
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from dystop.errors import ConfigError, DataError, nearest
from dystop.rng import stream
from dystop.sparse import Floats, Ints, ints

Scheme = Literal["iid", "dirichlet"]
PartitionChoice = Literal["auto", "iid", "dirichlet"]


def scheme_for(phi: float, partition: str = "auto") -> Scheme:
    """Return the scheme for a non-IID level phi.

    The paper calls phi = 1.0 IID, but Dirichlet(1.0) is not. "auto" follows the paper: phi >= 1
    gives an IID partition. An explicit "dirichlet" draws from Dirichlet(phi) for every phi.

    >>> scheme_for(1.0), scheme_for(0.4), scheme_for(1.0, "dirichlet")
    ('iid', 'dirichlet', 'dirichlet')
    """
    if partition not in get_args(PartitionChoice):
        raise ConfigError(
            f"partition = {partition!r}; allowed are {', '.join(get_args(PartitionChoice))}"
            f"{nearest(partition, get_args(PartitionChoice))}"
        )
    if partition == "auto":
        return "iid" if phi >= 1.0 else "dirichlet"
    return "iid" if partition == "iid" else "dirichlet"


def partition(
    labels: Ints, workers: int, *, scheme: Scheme, phi: float, seed: int, min_size: int = 1
) -> list[Ints]:
    """Return the sample indices of every worker: sorted, disjoint, covering all samples.

    "iid" splits a random permutation: sizes differ by at most one. "dirichlet" splits every class
    over the workers in proportions drawn from Dir(phi): sizes and label distributions both vary,
    more for smaller phi. A worker with fewer than `min_size` samples then receives random samples,
    one at a time, each from the worker that has most at that moment. The usual alternative, to draw
    again until every worker has enough, may never end for many workers or a small phi.

    Args:
        labels: Class of every sample, [n].
        workers: Number of workers N.
        scheme: "iid" or "dirichlet"; see `scheme_for`.
        phi: Concentration of the Dirichlet distribution; "iid" does not use it.
        seed: Seed of the run; the draw for a class depends on the seed and the class alone.
        min_size: Minimum number of samples of a worker.

    Raises:
        ConfigError: The scheme, phi, workers or min_size cannot be used.
        DataError: There are fewer samples than workers * min_size.
    """
    owner = _owners(labels, workers, scheme, phi, seed, min_size)
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=workers))
    return [ints(shard) for shard in np.split(order, ends[:-1])]


def split_counts(
    labels: Ints, classes: int, workers: int, *, scheme: Scheme, phi: float, seed: int
) -> Ints:
    """Return the label counts [N, K] of the partition that `partition` draws.

    No list of samples is made for each worker, so that a million workers are cheap.

    >>> split_counts(ints([0, 1, 1, 1]), 2, 2, scheme="iid", phi=1.0, seed=0).sum(axis=1).tolist()
    [2, 2]
    """
    owner = _owners(labels, workers, scheme, phi, seed, min_size=1)
    cells = np.bincount(owner * classes + labels, minlength=workers * classes)
    return ints(cells.reshape(workers, classes))


def _owners(
    labels: Ints, workers: int, scheme: Scheme, phi: float, seed: int, min_size: int
) -> Ints:
    """Return the worker of every sample, [n]."""
    _check(len(labels), workers, scheme, phi, min_size)
    if scheme == "iid":
        return _iid_owners(len(labels), workers, seed)
    owner = _dirichlet_owners(ints(labels), workers, phi, seed)
    _raise_to_min_size(owner, workers, min_size, seed)
    return owner


def _iid_owners(samples: int, workers: int, seed: int) -> Ints:
    """Return the worker of every sample; the first workers have one sample more than the others."""
    owner = np.empty(samples, np.int64)
    shuffled = stream(seed, "partition", "iid").permutation(samples)
    size, more = divmod(samples, workers)
    owner[shuffled] = np.repeat(np.arange(workers), size + (np.arange(workers) < more))
    return owner


def _check(samples: int, workers: int, scheme: str, phi: float, min_size: int) -> None:
    if scheme not in get_args(Scheme):
        raise ConfigError(
            f"scheme = {scheme!r}; allowed are {', '.join(get_args(Scheme))}"
            f"{nearest(scheme, get_args(Scheme))}"
        )
    if scheme == "dirichlet" and not (0 < phi < np.inf):
        raise ConfigError(f"phi = {phi}; expected a number above 0 (the paper uses 0.4, 0.7, 1.0)")
    for name, value in (("workers", workers), ("min_size", min_size)):
        if value < 1:
            raise ConfigError(f"{name} = {value}; expected an integer >= 1")
    if samples < workers * min_size:
        raise DataError(
            f"{samples} training samples cannot give {workers} workers {min_size} each: "
            f"{workers * min_size} are needed; use fewer workers or more training samples"
        )


def _dirichlet_owners(labels: Ints, workers: int, phi: float, seed: int) -> Ints:
    """Return the worker of every sample; each class is split by shares drawn from Dir(phi)."""
    owner = np.zeros(len(labels), np.int64)
    concentration = np.full(workers, float(phi))
    for k in np.unique(labels).tolist():
        rng = stream(seed, "partition", "dirichlet", k)
        members = rng.permutation(np.flatnonzero(labels == k))
        share = rng.dirichlet(concentration)
        cuts = (np.cumsum(share)[:-1] * len(members)).astype(np.int64)
        owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return owner


def _raise_to_min_size(owner: Ints, workers: int, min_size: int, seed: int) -> None:
    """Move samples, in place, from the largest workers to those below `min_size`."""
    size = np.bincount(owner, minlength=workers)
    short = np.flatnonzero(size < min_size)
    donors = [(-int(size[i]), i) for i in np.flatnonzero(size > min_size).tolist()]
    heapq.heapify(donors)
    order = np.argsort(owner, kind="stable") if len(short) else owner
    end = np.cumsum(size)
    shuffled: dict[int, list[int]] = {}
    for i in np.repeat(short, min_size - size[short]).tolist():
        less, donor = heapq.heappop(donors)
        if donor not in shuffled:
            rng = stream(seed, "partition", "give", donor)
            held = order[end[donor] - size[donor] : end[donor]]
            shuffled[donor] = rng.permutation(held).tolist()
        owner[shuffled[donor].pop()] = i
        if -less - 1 > min_size:
            heapq.heappush(donors, (less + 1, donor))


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
