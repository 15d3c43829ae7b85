"""Random cases for tests: seeded views for every mechanism, and hypothesis strategies.

`random_view` is a plain function of its arguments, so that a failing seed can be typed in again.
"""

from dataclasses import fields, is_dataclass

import numpy as np
from hypothesis import strategies as st

from dystop.rng import stream
from dystop.sparse import PairCounts, graph_of, ints, no_pairs
from dystop.types import Fleet, Mailbox, Outcome, View

SIZES = (1, 2, 3, 5, 6, 9, 14)
SHAPES = ("sparse", "dense", "complete", "islands", "empty")
HORIZON = 40


def random_fleet(seed, n, *, server=False, classes=4):
    """A fleet of n workers with uneven data."""
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


def random_view(seed, n, *, server=False, shape=None, all_alive=False, budget=None):
    """What some mechanism might see in some round; all of its arrays refuse to be written to.

    Args:
        seed: of everything random here.
        n: number of workers.
        server: whether node n is a server, linked both ways with everyone present.
        shape: one of SHAPES; drawn if not given.
        all_alive: nobody is absent. Otherwise about a quarter is, but never everybody.
        budget: the same for everyone; drawn if not given, with zeros, fractions and infinity.
    """
    rng = stream(seed, "view", n)
    fleet = random_fleet(seed, n, server=server)
    t = int(rng.integers(1, HORIZON + 1))
    alive = np.ones(n, bool) if all_alive else rng.random(n) < 0.75
    alive[rng.integers(n)] = True
    reach = random_reach(rng, alive, shape or str(rng.choice(SHAPES)), server)
    position = rng.uniform(0, 100, (fleet.nodes, 2))
    gap = position[reach.dst] - position[reach.src]
    purse = [0, 0.5, 1, 2, 3.7, 8, np.inf]
    view = View(
        t=t,
        now_s=float(rng.uniform(0, 1000)),
        fleet=fleet,
        staleness=ints(rng.integers(0, min(t, 9), n)),
        queue=np.where(rng.random(n) < 0.4, 0.0, rng.integers(0, 20, n).astype(float)),
        version=ints(rng.integers(0, t, n)),
        pulls=random_pulls(rng, reach, t),
        last=random_outcome(rng, n) if t > 1 else None,
        alive=alive,
        reach=reach,
        distance_m=np.sqrt((gap**2).sum(axis=1)),
        link_s=rng.exponential(1.0, reach.edges) + 0.01,
        step_s=rng.uniform(0.01, 0.05, n),
        remaining_s=np.where(rng.random(n) < 0.3, 0.0, rng.uniform(0, 3, n)),
        budget=rng.choice(purse, fleet.nodes) if budget is None else np.full(fleet.nodes, budget),
        mailbox=random_mailbox(rng, reach, t),
    )
    return freeze(view)


def random_reach(rng, alive, shape, server=False):
    """Symmetric links between workers that are present, and of the server with all of them."""
    n = len(alive)
    a, b = np.triu_indices(n, 1)
    chance = {"sparse": 0.25, "dense": 0.7, "empty": 0.0}.get(shape, 1.0)
    keep = alive[a] & alive[b] & (rng.random(len(a)) < chance)
    if shape == "islands":
        keep &= (a < n // 2) == (b < n // 2)
    a, b = a[keep], b[keep]
    if server:
        here = np.flatnonzero(alive)
        a, b = np.append(a, here), np.append(b, np.full(len(here), n))
    return graph_of(n + int(server), ints(np.append(a, b)), ints(np.append(b, a)))


def random_pulls(rng, reach, t):
    """Counts of pulls in the first t - 1 rounds, of some of the links."""
    used = rng.random(reach.edges) < 0.5
    if t == 1 or not used.any():
        return no_pairs(reach.n)
    keys = (reach.dst * reach.n + reach.src)[used]
    return PairCounts(reach.n, keys, ints(rng.integers(1, t, len(keys))))


def random_mailbox(rng, reach, t):
    """Messages that came over some of the links."""
    came = rng.random(reach.edges) < 0.2
    return Mailbox(reach.dst[came], reach.src[came], ints(rng.integers(0, t, int(came.sum()))))


def random_outcome(rng, n):
    """How the round before may have ended; it had no links."""
    active = np.flatnonzero(rng.random(n) < 0.5)
    none = np.zeros(0)
    return Outcome(
        duration_s=float(rng.uniform(0.1, 3)),
        comm_s=rng.uniform(0, 2, len(active)),
        link_s=none,
        link_bytes=ints([]),
        lost=none.astype(bool),
        loss=rng.uniform(0, 2, len(active)),
        samples=int(rng.integers(1, 1000)),
        active=ints(active),
    )


def freeze(value):
    """Make every array inside a tree of dataclasses read-only; returns the tree."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif is_dataclass(value):
        for f in fields(value):
            freeze(getattr(value, f.name))
    return value


def same(a, b):
    """Whether two trees of dataclasses, dicts, sequences, arrays and scalars are equal."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if is_dataclass(a):
        return type(a) is type(b) and all(
            same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def dense(mix, nodes):
    """A mix stage as a dense matrix; a node without a row keeps its model."""
    out = np.eye(nodes)
    out[mix.receiver] = 0.0
    np.add.at(out, (mix.dst, mix.source), mix.weight)
    return out


small = st.integers(0, 5)


@st.composite
def waa_cases(draw):
    """Whole numbers, so that every sum is exact: (staleness, queue, cost, V, bound, candidates)."""
    n = draw(st.integers(1, 8))
    column = st.lists(small, min_size=n, max_size=n)
    who = draw(st.lists(st.sampled_from(range(n)), min_size=1, unique=True))
    V, bound = draw(st.sampled_from([0, 1, 2, 5, 10, 100])), draw(small)
    return draw(column), draw(column), draw(column), V, bound, who


@st.composite
def pairs(draw, n, max_size=30):
    """Distinct directed pairs of n nodes without self links."""
    every = [(i, j) for i in range(n) for j in range(n) if i != j]
    return draw(st.lists(st.sampled_from(every), unique=True, max_size=max_size)) if every else []


@st.composite
def ptca_cases(draw):
    """(n, active in turn order, {(dst, src): priority}, budgets, cap); priorities tie often."""
    n = draw(st.integers(1, 7))
    active = draw(st.lists(st.sampled_from(range(n)), unique=True, min_size=1))
    absent = draw(st.sets(st.sampled_from(range(n)), max_size=2)) - set(active)
    links = [p for p in draw(pairs(n, 42)) if not absent & set(p)]
    level = st.lists(st.integers(0, 3), min_size=len(links), max_size=len(links))
    priority = {p: k / 2 for p, k in zip(links, draw(level), strict=True)}
    purse = st.sampled_from([0.0, 0.5, 1.0, 1.9, 2.0, 3.0, 3.3, 20.0, np.inf])
    budget = draw(st.lists(purse, min_size=n, max_size=n))
    return n, active, priority, budget, draw(st.sampled_from([0, 1, 2, 3, 100]))


@st.composite
def undirected(draw, max_n=7):
    """(n, set of undirected edges)."""
    n = draw(st.integers(1, max_n))
    every = [(i, j) for i in range(n) for j in range(i)]
    return n, set(draw(st.lists(st.sampled_from(every), unique=True)) if every else [])


def two_way(n, edges):
    """Graph with both directions of every undirected edge."""
    a, b = [i for i, _ in edges], [j for _, j in edges]
    return graph_of(n, ints(a + b), ints(b + a))
