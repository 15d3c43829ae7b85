"""Random views by seed: what a mechanism may see in some round.

Every function depends on its arguments alone, so that a failing view can be built again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from dystop.rng import stream
from dystop.sparse import Bools, Graph, PairCounts, graph_of, ints, no_pairs
from dystop.types import Budgets, Fleet, Mailbox, Outcome, View

SIZES = (1, 2, 3, 5, 6, 9, 14)
SHAPES = ("sparse", "dense", "complete", "islands", "empty")
HORIZON = 40
_BUDGETS = (0, 0.5, 1, 2, 3.7, 8, np.inf)
_CHANCE = {"sparse": 0.25, "dense": 0.7, "empty": 0.0}

Tree = TypeVar("Tree")


def random_fleet(seed: int, n: int, *, server: bool = False, classes: int = 4) -> Fleet:
    """Return a fleet of n workers with uneven data."""
    rng = stream(seed, "fleet", n)
    size = rng.integers(1, 200, n)
    share = rng.dirichlet(np.full(classes, 0.5), n)
    counts = np.stack([rng.multinomial(d, p) for d, p in zip(size, share, strict=True)])
    return Fleet(
        data_size=ints(size),
        label_counts=ints(counts),
        batch=16,
        model_bytes=4_000,
        horizon=HORIZON,
        seed=seed,
        server=server,
    )


def random_view(
    seed: int,
    n: int,
    *,
    server: bool = False,
    shape: str | None = None,
    all_alive: bool = False,
    budget: float | None = None,
) -> View:
    """Return a random view; its arrays are read-only.

    Args:
        seed: seed of the view.
        n: number of workers.
        server: whether node n is a server, with links to and from every present worker.
        shape: one of SHAPES; random if None.
        all_alive: no worker is absent; otherwise about a quarter of them is, but never all.
        budget: budget of every node; random if None, with zeros, fractions and infinity.

    >>> random_view(3, 5, shape="empty").reach.edges
    0
    """
    rng = stream(seed, "view", n)
    fleet = random_fleet(seed, n, server=server)
    t = int(rng.integers(1, HORIZON + 1))
    alive = np.ones(n, bool) if all_alive else rng.random(n) < 0.75
    alive[rng.integers(n)] = True
    reach = random_reach(rng, alive, shape or str(rng.choice(SHAPES)), server)
    position = rng.uniform(0, 100, (fleet.nodes, 2))
    gap = position[reach.dst] - position[reach.src]
    view = View(
        t=t,
        now_s=float(rng.uniform(0, 1000)),
        fleet=fleet,
        staleness=ints(rng.integers(0, min(t, 9), n)),
        queue=np.where(rng.random(n) < 0.4, 0.0, rng.integers(0, 20, n).astype(float)),
        version=ints(rng.integers(0, t, n)),
        pulls=random_pulls(rng, reach, t),
        last=random_outcome(rng, fleet) if t > 1 else None,
        alive=alive,
        reach=reach,
        distance_m=np.sqrt((gap**2).sum(axis=1)),
        link_s=rng.exponential(1.0, reach.edges) + 0.01,
        step_s=rng.uniform(0.01, 0.05, n),
        remaining_s=np.where(rng.random(n) < 0.3, 0.0, rng.uniform(0, 3, n)),
        budget_of=_budgets(rng, fleet.nodes, budget),
        mailbox=random_mailbox(rng, reach, t),
    )
    return freeze(view)


def _budgets(rng: np.random.Generator, nodes: int, budget: float | None) -> Budgets:
    return Budgets(rng.choice(_BUDGETS, nodes) if budget is None else np.full(nodes, budget))


def random_reach(rng: np.random.Generator, alive: Bools, shape: str, server: bool = False) -> Graph:
    """Return symmetric links between present workers, and between the server and all of them."""
    n = len(alive)
    a, b = np.triu_indices(n, 1)
    keep = alive[a] & alive[b] & (rng.random(len(a)) < _CHANCE.get(shape, 1.0))
    if shape == "islands":
        keep &= (a < n // 2) == (b < n // 2)
    a, b = a[keep], b[keep]
    if server:
        here = np.flatnonzero(alive)
        a, b = np.append(a, here), np.append(b, np.full(len(here), n))
    return graph_of(n + int(server), ints(np.append(a, b)), ints(np.append(b, a)))


def random_pulls(rng: np.random.Generator, reach: Graph, t: int) -> PairCounts:
    """Return counts of pulls in the first t - 1 rounds, over some of the links."""
    used = rng.random(reach.edges) < 0.5
    if t == 1 or not used.any():
        return no_pairs(reach.n)
    keys = (reach.dst * reach.n + reach.src)[used]
    return PairCounts(reach.n, keys, ints(rng.integers(1, t, len(keys))))


def random_mailbox(rng: np.random.Generator, reach: Graph, t: int) -> Mailbox:
    """Return messages that arrived over some of the links, sent in earlier rounds."""
    came = (rng.random(reach.edges) < 0.2) & (t > 1)
    version = ints(rng.integers(0, t, int(came.sum())))
    sent = np.minimum(version + 1, t - 1)
    return Mailbox(reach.dst[came], reach.src[came], version, sent)


def random_outcome(rng: np.random.Generator, fleet: Fleet) -> Outcome:
    """Return an outcome of the previous round; its links may be out of reach by now.

    Losses and model distances are always present here; in a run, only those that a mechanism needs.
    """
    active = np.flatnonzero(rng.random(fleet.workers) < 0.5)
    duration_s, comm_s = float(rng.uniform(0.1, 3)), rng.uniform(0, 2, len(active))
    loss, samples = rng.uniform(0, 2, len(active)), int(rng.integers(1, 1000))
    more = stream(fleet.seed, "last links", fleet.nodes)
    used = random_reach(more, np.ones(fleet.nodes, bool), "sparse")
    return Outcome(
        duration_s=duration_s,
        comm_s=comm_s,
        link_s=more.exponential(1.0, used.edges) + 0.01,
        link_bytes=np.full(used.edges, fleet.model_bytes),
        lost=more.random(used.edges) < 0.1,
        loss=np.where(more.random(len(active)) < 0.1, np.nan, loss),
        samples=samples,
        active=ints(active),
        dst=used.dst,
        src=used.src,
        distance=more.exponential(1.0, used.edges),
    )


def freeze(value: Tree) -> Tree:
    """Make every array inside a tree of dataclasses read-only; return the tree."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif is_dataclass(value):
        for f in fields(value):
            freeze(getattr(value, f.name))
    return value


def same(a: Any, b: Any) -> bool:
    """Return whether two trees of dataclasses, dicts, sequences, arrays and scalars are equal."""
    if isinstance(a, np.ndarray):
        alike = isinstance(b, np.ndarray) and a.dtype == b.dtype
        return alike and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if is_dataclass(a):
        return type(a) is type(b) and all(
            same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)  # two NaN are equal here


@dataclass(frozen=True)
class Case:
    """The arguments of one random view."""

    seed: int
    n: int
    shape: str | None = None
    budget: float | None = None

    def __str__(self) -> str:
        more = [f"{k}={v!r}" for k in ("shape", "budget") if (v := getattr(self, k)) is not None]
        return f"random_view({', '.join([str(self.seed), str(self.n), *more])})"

    def view(self, server: bool) -> View:
        """Return the view; it is read-only, so that mechanisms may share it."""
        return _cached(self.seed, self.n, server, self.shape, self.budget)


@lru_cache(maxsize=2048)
def _cached(seed: int, n: int, server: bool, shape: str | None, budget: float | None) -> View:
    return random_view(seed, n, server=server, shape=shape, budget=budget)


def cases(views: int, seed: int, smallest: int = 1) -> Iterator[Case]:
    """Yield views of every size and shape, then every shape at every size without bandwidth."""
    sizes = [n for n in SIZES if n >= smallest]
    for k in range(views):
        yield Case(seed + k, sizes[k % len(sizes)])
    for k, shape in enumerate(SHAPES):
        for n in sizes:
            yield Case(seed + k, n, shape, 0.0)
