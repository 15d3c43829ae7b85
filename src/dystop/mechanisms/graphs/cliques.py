"""Cliques for D-Cliques: groups with balanced labels, and the edges between them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from dystop.control.priority import label_shares
from dystop.sparse import Bools, Floats, Graph, Ints, ints

InterClique = Literal["ring", "fractal", "smallworld", "full"]
Cliques = list[Ints]  # members of each clique


@dataclass(frozen=True)
class OutOfReach:
    """Which workers are out of reach of each other; absent workers count as in reach."""

    alive: Bools  # [N]
    linked: Ints  # sorted keys i * N + j of the ordered pairs in reach of each other

    def __call__(self, a: Ints, b: Ints) -> Ints:
        """Return 1 where a[x] and b[y] are out of reach, [A, B]; 0 for a worker and itself."""
        if self.is_empty:
            return np.zeros((len(a), len(b)), np.int64)
        key = a[:, None] * len(self.alive) + b
        known = self.alive[a][:, None] & self.alive[b] & (a[:, None] != b)
        at = np.minimum(np.searchsorted(self.linked, key), max(len(self.linked) - 1, 0))
        reached = self.linked[at] == key if len(self.linked) else np.zeros(key.shape, bool)
        return ints(known & ~reached)

    @property
    def is_empty(self) -> bool:
        """Whether all present workers are in reach of each other."""
        here = int(self.alive.sum())
        return len(self.linked) == here * (here - 1)


def out_of_reach(reach: Graph, alive: Bools) -> OutOfReach:
    """Return who is out of reach of whom; an exchange needs links in both directions."""
    both = reach.find(reach.src, reach.dst) >= 0
    return OutOfReach(alive, (reach.dst * len(alive) + reach.src)[both])


def random_cliques(n: int, size: int, rng: np.random.Generator) -> Cliques:
    """Return a random partition into cliques of `size` workers; the last may be smaller."""
    order = rng.permutation(n)
    return [np.sort(order[lo : lo + size]) for lo in range(0, n, size)]


def skew(counts: Ints, share: Floats) -> Floats:
    """Return the distance of label counts [..., K] from the global label shares, sum |p_C - p|.

    >>> skew(ints([[8, 0], [4, 4]]), np.array([0.5, 0.5])).tolist()
    [1.0, 0.0]
    """
    total = np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    distance: Floats = np.abs(counts / total - share).sum(axis=-1)
    return distance


def global_share(label_counts: Ints) -> Floats:
    """Return the share of each class in the data of all workers, [K]."""
    share: Floats = label_shares(label_counts.sum(axis=0, keepdims=True))[0]
    return share


def greedy_swap(
    cliques: Cliques, label_counts: Ints, apart: OutOfReach, steps: int, rng: np.random.Generator
) -> Cliques:
    """Swap members of two random cliques, step by step, whenever that lowers their skew.

    Each step draws two cliques, lists all exchanges of one member each that help, and makes one of
    them at random. Where not everyone hears everyone, an exchange helps if it lowers the number of
    member pairs that cannot talk, or keeps that number and lowers the sum of the two skews.
    """
    cliques = list(cliques)
    share = global_share(label_counts)
    settled: set[tuple[int, int]] = set()  # pairs of cliques without a helpful swap
    for one, two in _draw_pairs(len(cliques), steps, rng):
        if (one, two) in settled:
            continue
        helps = _helpful(cliques[one], cliques[two], label_counts, share, apart)
        if not len(helps):
            settled.add((one, two))
            continue
        x, y = helps[rng.integers(len(helps))]
        cliques[one], cliques[two] = _exchanged(cliques[one], cliques[two], x, y)
        settled = {pair for pair in settled if not {one, two} & set(pair)}
    return cliques


def _draw_pairs(count: int, steps: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield two different cliques for each step, the lower number first."""
    if count < 2:
        return
    first = rng.integers(count, size=steps)
    second = (first + rng.integers(1, count, size=steps)) % count
    pairs = np.sort(np.stack([first, second], axis=1), axis=1)
    yield from ((int(a), int(b)) for a, b in pairs)


def _helpful(a: Ints, b: Ints, label_counts: Ints, share: Floats, apart: OutOfReach) -> Ints:
    """Return the positions (x, y) of the members whose swap helps, [H, 2]."""
    mine, other = label_counts[a], label_counts[b]
    moved = other[None, :] - mine[:, None]  # what the first clique gains, [A, B, K]
    before = skew(mine.sum(axis=0), share) + skew(other.sum(axis=0), share)
    after = skew(mine.sum(axis=0) + moved, share) + skew(other.sum(axis=0) - moved, share)
    lower = after < before - 1e-12
    if not apart.is_empty:
        change = _change_apart(a, b, apart)
        lower = (change < 0) | ((change == 0) & lower)
    return ints(np.argwhere(lower))


def _change_apart(a: Ints, b: Ints, apart: OutOfReach) -> Ints:
    """Return how many member pairs out of reach each swap adds, [A, B]."""
    across = apart(a, b)
    gone = apart(a, a).sum(axis=1)[:, None] + apart(b, b).sum(axis=1)
    come = across.sum(axis=0) + across.sum(axis=1)[:, None] - 2 * across
    return ints(come - gone)


def _exchanged(a: Ints, b: Ints, x: int, y: int) -> tuple[Ints, Ints]:
    """Return both cliques after swapping a[x] and b[y]."""
    a, b = a.copy(), b.copy()
    a[x], b[y] = b[y], a[x]
    return np.sort(a), np.sort(b)


def inter_edges(
    kind: InterClique, cliques: Cliques, classes: int, apart: OutOfReach, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return edges (i, j) between cliques; each end is the member with the fewest edges so far.

    Args:
        kind: "ring" of cliques; "fractal": groups of `classes` cliques, all linked inside a group,
            then groups of groups; "smallworld": a ring with links at distances 2^k and 2^k + 1 both
            ways from every clique; "full": one edge per pair of cliques.
        cliques: members of each clique.
        classes: number of classes in the data.
        apart: two members out of reach get no edge; another pair takes their place, if any.
        rng: breaks ties.
    """
    load = np.zeros(sum(map(len, cliques)), np.int64)
    edges: list[tuple[int, int]] = []
    for a, b in _wanted(kind, cliques, classes):
        pair = _least_loaded(a, b, load, apart, rng)
        if pair is not None:
            load[list(pair)] += 1
            edges.append((min(pair), max(pair)))
    distinct = np.unique(ints(edges).reshape(-1, 2), axis=0)
    return distinct[:, 0], distinct[:, 1]


def _wanted(kind: InterClique, cliques: Cliques, classes: int) -> Iterable[tuple[Ints, Ints]]:
    """Return the pairs of groups of workers to link, in order."""
    count = len(cliques)
    if kind == "fractal":
        return _fractal(cliques, max(classes, 2))
    if kind == "full":
        return combinations(cliques, 2)
    hops = [1] if kind == "ring" else _smallworld_hops(count)
    return (
        (cliques[c], cliques[(c + hop) % count])
        for c in range(count)
        for hop in hops
        if hop % count
    )


def _smallworld_hops(count: int) -> list[int]:
    powers = [2**k for k in range(math.ceil(math.log2(count)))]
    return [sign * (power + more) for power in powers for more in (0, 1) for sign in (-1, 1)]


def _fractal(groups: Cliques, size: int) -> Iterator[tuple[Ints, Ints]]:
    while len(groups) > 1:
        bundles = [groups[lo : lo + size] for lo in range(0, len(groups), size)]
        for bundle in bundles:
            yield from combinations(bundle, 2)
        groups = [np.concatenate(bundle) for bundle in bundles]


def _least_loaded(
    a: Ints, b: Ints, load: Ints, apart: OutOfReach, rng: np.random.Generator
) -> tuple[int, int] | None:
    """Return a pair in reach with the fewest edges to other cliques, ties at random."""
    if apart.is_empty:
        return _lightest(a, load, rng), _lightest(b, load, rng)
    reached = np.argwhere(apart(a, b) == 0)
    if not len(reached):
        return None
    pairs = np.stack([a[reached[:, 0]], b[reached[:, 1]]], axis=1)
    x, y = pairs[_lightest(np.arange(len(pairs)), load[pairs].sum(axis=1), rng)]
    return int(x), int(y)


def _lightest(members: Ints, load: Ints, rng: np.random.Generator) -> int:
    ties = members[load[members] == load[members].min()]
    return int(ties[rng.integers(len(ties))])
