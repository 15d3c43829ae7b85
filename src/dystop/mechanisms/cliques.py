"""Cliques whose members together hold what everyone holds, and the edges between them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from dystop.control.priority import label_shares
from dystop.sparse import Bools, Floats, Graph, Ints, ints

InterClique = Literal["ring", "fractal", "smallworld", "full"]
Cliques = list[Ints]  # the members of each


@dataclass(frozen=True)
class Apart:
    """Which workers are known not to hear each other; nothing is known of absent ones."""

    alive: Bools  # [N]
    heard: Ints  # sorted keys i * N + j of the ordered pairs that hear each other

    def __call__(self, a: Ints, b: Ints) -> Ints:
        """1 where a[x] and b[y] cannot talk, [A, B]; a worker is not apart from itself."""
        if self.nobody:
            return np.zeros((len(a), len(b)), np.int64)
        key = a[:, None] * len(self.alive) + b
        known = self.alive[a][:, None] & self.alive[b] & (a[:, None] != b)
        at = np.minimum(np.searchsorted(self.heard, key), max(len(self.heard) - 1, 0))
        talk = self.heard[at] == key if len(self.heard) else np.zeros(key.shape, bool)
        return ints(known & ~talk)

    @property
    def nobody(self) -> bool:
        """Whether all present workers hear each other."""
        here = int(self.alive.sum())
        return len(self.heard) == here * (here - 1)


def apart_of(reach: Graph, alive: Bools) -> Apart:
    """Who cannot talk, from a reach graph; an exchange needs both directions."""
    both = reach.find(reach.src, reach.dst) >= 0
    return Apart(alive, (reach.dst * len(alive) + reach.src)[both])


def random_cliques(n: int, size: int, rng: np.random.Generator) -> Cliques:
    """A random partition into cliques of `size` workers, the last of what is left."""
    order = rng.permutation(n)
    return [np.sort(order[lo : lo + size]) for lo in range(0, n, size)]


def skew(counts: Ints, share: Floats) -> Floats:
    """Distance of label counts [..., K] from the shares of everyone's data, sum |p_C - p|.

    >>> skew(ints([[8, 0], [4, 4]]), np.array([0.5, 0.5])).tolist()
    [1.0, 0.0]
    """
    total = np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    distance: Floats = np.abs(counts / total - share).sum(axis=-1)
    return distance


def global_share(label_counts: Ints) -> Floats:
    """Share of each class in everyone's data, [K]."""
    share: Floats = label_shares(label_counts.sum(axis=0, keepdims=True))[0]
    return share


def greedy_swap(
    cliques: Cliques, label_counts: Ints, apart: Apart, steps: int, rng: np.random.Generator
) -> Cliques:
    """Exchange members of two random cliques, again and again, wherever it lowers their skew.

    Each step draws two cliques, lists all exchanges of one member each that help, and makes one of
    them at random. Where not everyone hears everyone, an exchange helps if it lowers the number of
    member pairs that cannot talk, or keeps that number and lowers the sum of the two skews.
    """
    cliques = list(cliques)
    share = global_share(label_counts)
    settled: set[tuple[int, int]] = set()  # pairs of cliques without an exchange that helps
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
    """Two different cliques for each step, the lower number first."""
    if count < 2:
        return
    first = rng.integers(count, size=steps)
    second = (first + rng.integers(1, count, size=steps)) % count
    pairs = np.sort(np.stack([first, second], axis=1), axis=1)
    yield from ((int(a), int(b)) for a, b in pairs)


def _helpful(a: Ints, b: Ints, label_counts: Ints, share: Floats, apart: Apart) -> Ints:
    """Positions (x, y) of the members whose exchange helps, [H, 2]."""
    mine, other = label_counts[a], label_counts[b]
    moved = other[None, :] - mine[:, None]  # what the first clique would gain, [A, B, K]
    before = skew(mine.sum(axis=0), share) + skew(other.sum(axis=0), share)
    after = skew(mine.sum(axis=0) + moved, share) + skew(other.sum(axis=0) - moved, share)
    lower = after < before - 1e-12
    if not apart.nobody:
        change = _change_apart(a, b, apart)
        lower = (change < 0) | ((change == 0) & lower)
    return ints(np.argwhere(lower))


def _change_apart(a: Ints, b: Ints, apart: Apart) -> Ints:
    """How many member pairs that cannot talk each exchange adds, [A, B]."""
    across = apart(a, b)
    gone = apart(a, a).sum(axis=1)[:, None] + apart(b, b).sum(axis=1)
    come = across.sum(axis=0) + across.sum(axis=1)[:, None] - 2 * across
    return ints(come - gone)


def _exchanged(a: Ints, b: Ints, x: int, y: int) -> tuple[Ints, Ints]:
    """Both cliques after a[x] and b[y] have changed places."""
    a, b = a.copy(), b.copy()
    a[x], b[y] = b[y], a[x]
    return np.sort(a), np.sort(b)


def inter_edges(
    kind: InterClique, cliques: Cliques, classes: int, apart: Apart, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Edges (i, j) between cliques, each end put on the member with the fewest of them so far.

    Args:
        kind: "ring" of cliques; "fractal": groups of `classes` cliques, all linked inside a group,
            then groups of groups; "smallworld": a ring with links at distances 2^k and 2^k + 1 both
            ways from every clique; "full": one edge per pair of cliques.
        cliques: members of each clique.
        classes: number of classes in the data.
        apart: where two members cannot talk, another pair is taken; where none can, no edge.
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
    """Pairs of groups of workers that shall be linked, in order."""
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
    a: Ints, b: Ints, load: Ints, apart: Apart, rng: np.random.Generator
) -> tuple[int, int] | None:
    """A pair that can talk and has the fewest edges to other cliques, ties at random."""
    if apart.nobody:
        return _lightest(a, load, rng), _lightest(b, load, rng)
    talk = np.argwhere(apart(a, b) == 0)
    if not len(talk):
        return None
    pairs = np.stack([a[talk[:, 0]], b[talk[:, 1]]], axis=1)
    x, y = pairs[_lightest(np.arange(len(pairs)), load[pairs].sum(axis=1), rng)]
    return int(x), int(y)


def _lightest(members: Ints, load: Ints, rng: np.random.Generator) -> int:
    ties = members[load[members] == load[members].min()]
    return int(ties[rng.integers(len(ties))])
