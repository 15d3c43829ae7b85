"""Splitting a labelled set over workers: IID, or skewed by a Dirichlet distribution.

`scheme_for` settles which of the two a non-IID level phi asks for, `partition` draws the split,
`label_counts` and `describe_partition` say how skewed it came out. Pure: labels in, indices out.
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
    """Which scheme a non-IID level asks for.

    The paper calls phi = 1.0 IID, which a Dirichlet(1.0) is not: "auto" follows the paper and
    makes phi >= 1 an IID split; an explicit "dirichlet" draws from Dirichlet(phi) whatever phi is.

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
    """Sample indices of every worker: sorted, disjoint, together covering all samples.

    "iid" deals a shuffled deck: sizes differ by one at most. "dirichlet" shares every class out
    over the workers in proportions drawn from Dir(phi), class by class: sizes and label mixes both
    vary, more for smaller phi. Workers that end with fewer than `min_size` samples are given
    random samples of the workers that then have most, one at a time. The usual alternative, to
    draw again until all are served, may never end when workers are many or phi is small.

    Args:
        labels: class of every sample, [n].
        workers: number of workers N.
        scheme: "iid" or "dirichlet"; see `scheme_for`.
        phi: concentration of the Dirichlet distribution; unused by "iid".
        seed: seed of the run; the draw for a class depends on nothing but this and the class.
        min_size: fewest samples a worker may have.

    Raises:
        ConfigError: the scheme, phi, workers or min_size cannot be used.
        DataError: there are fewer samples than workers * min_size.
    """
    _check(len(labels), workers, scheme, phi, min_size)
    if scheme == "iid":
        deck = stream(seed, "partition", "iid").permutation(len(labels))
        return [np.sort(ints(hand)) for hand in np.array_split(deck, workers)]
    owner = _dirichlet_owners(ints(labels), workers, phi, seed)
    _serve_the_poor(owner, workers, min_size, seed)
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=workers))
    return [ints(shard) for shard in np.split(order, ends[:-1])]


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
    """Worker of every sample, each class cut at shares drawn from Dir(phi)."""
    owner = np.zeros(len(labels), np.int64)
    concentration = np.full(workers, float(phi))
    for k in np.unique(labels).tolist():
        rng = stream(seed, "partition", "dirichlet", k)
        members = rng.permutation(np.flatnonzero(labels == k))
        share = rng.dirichlet(concentration)
        cuts = (np.cumsum(share)[:-1] * len(members)).astype(np.int64)
        owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return owner


def _serve_the_poor(owner: Ints, workers: int, min_size: int, seed: int) -> None:
    """Move samples, in place, from the largest workers to those under `min_size`."""
    size = np.bincount(owner, minlength=workers)
    poor = np.flatnonzero(size < min_size)
    rich = [(-int(size[i]), i) for i in np.flatnonzero(size > min_size).tolist()]
    heapq.heapify(rich)
    held = np.split(np.argsort(owner, kind="stable"), np.cumsum(size)[:-1])
    decks: dict[int, list[int]] = {}
    for i in np.repeat(poor, min_size - size[poor]).tolist():
        less, donor = heapq.heappop(rich)
        if donor not in decks:
            rng = stream(seed, "partition", "give", donor)
            decks[donor] = rng.permutation(held[donor]).tolist()
        owner[decks[donor].pop()] = i
        if -less - 1 > min_size:
            heapq.heappush(rich, (less + 1, donor))


def label_counts(labels: Ints, shards: list[Ints], classes: int) -> Ints:
    """Samples of class k at worker i: D_i^k, [N, K].

    >>> label_counts(ints([0, 1, 1]), [ints([0, 1]), ints([2])], 2).tolist()
    [[1, 1], [0, 1]]
    """
    owner = np.repeat(np.arange(len(shards)), [len(s) for s in shards])
    held = labels[np.concatenate(shards)]
    cells = np.bincount(owner * classes + held, minlength=len(shards) * classes)
    return ints(cells.reshape(len(shards), classes))


def emd_to_global(counts: Ints) -> Floats:
    """EMD of every worker's labels to those of all workers together (paper eq:EMD), [N].

    >>> emd_to_global(ints([[2, 0], [0, 2]])).tolist()
    [1.0, 1.0]
    """
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    overall = counts.sum(axis=0) / max(int(counts.sum()), 1)
    out: Floats = np.abs(share - overall).sum(axis=1)
    return out


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """How a split came out."""

    workers: int
    samples: int
    size_min: int
    size_median: float
    size_max: int
    classes_mean: float  # distinct classes per worker
    emd_mean: float  # to the distribution of all samples; 0 is IID, 2 the largest possible

    def rows(self) -> list[str]:
        """The summary as lines of text."""
        return [
            f"{self.samples} samples over {self.workers} workers",
            f"samples per worker: {self.size_min} to {self.size_max}, median {self.size_median:g}",
            f"classes per worker: {self.classes_mean:.1f} on average",
            f"EMD to all data: {self.emd_mean:.3f} on average (0 is IID)",
        ]


def describe_partition(counts: Ints) -> PartitionSummary:
    """Summarise a split from its label counts [N, K].

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
    """One line per class, one character per worker: the taller, the larger the class's share there.

    Only as many workers and classes as a terminal line and a glance can hold.

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
