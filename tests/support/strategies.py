"""Random test cases: the seeded views of the conformance kit, and hypothesis strategies."""

import numpy as np
from hypothesis import strategies as st

from dystop.conformance.views import (
    HORIZON,
    SHAPES,
    SIZES,
    freeze,
    random_fleet,
    random_mailbox,
    random_outcome,
    random_pulls,
    random_reach,
    random_view,
    same,
)
from dystop.sparse import graph_of, ints

__all__ = [
    "HORIZON",
    "SHAPES",
    "SIZES",
    "freeze",
    "random_fleet",
    "random_mailbox",
    "random_outcome",
    "random_pulls",
    "random_reach",
    "random_view",
    "same",
]


def dense(mix, nodes):
    """Return a mix stage as a dense matrix; a node without a row keeps its model."""
    out = np.eye(nodes)
    out[mix.receiver] = 0.0
    np.add.at(out, (mix.dst, mix.source), mix.weight)
    return out


def dst_src(chosen):
    """Return pairs (dst, src) as two arrays."""
    return ints([i for i, _ in chosen]), ints([j for _, j in chosen])


small = st.integers(0, 5)


@st.composite
def waa_cases(draw):
    """Draw a case of WAA: (staleness, queue, cost, V, bound, candidates).

    All values are integers, so that every sum is exact.
    """
    n = draw(st.integers(1, 8))
    column = st.lists(small, min_size=n, max_size=n)
    who = draw(st.lists(st.sampled_from(range(n)), min_size=1, unique=True))
    V, bound = draw(st.sampled_from([0, 1, 2, 5, 10, 100])), draw(small)
    return draw(column), draw(column), draw(column), V, bound, who


@st.composite
def pairs(draw, n, max_size=30):
    """Draw distinct directed pairs of n nodes without self links."""
    every = [(i, j) for i in range(n) for j in range(n) if i != j]
    return draw(st.lists(st.sampled_from(every), unique=True, max_size=max_size)) if every else []


@st.composite
def ptca_cases(draw):
    """Draw a case of PTCA: (n, active in turn order, {(dst, src): priority}, budgets, cap).

    Many priorities are equal.
    """
    n = draw(st.integers(1, 7))
    active = draw(st.lists(st.sampled_from(range(n)), unique=True, min_size=1))
    absent = draw(st.sets(st.sampled_from(range(n)), max_size=2)) - set(active)
    links = [p for p in draw(pairs(n, 42)) if not absent & set(p)]
    level = st.lists(st.integers(0, 3), min_size=len(links), max_size=len(links))
    priority = {p: k / 2 for p, k in zip(links, draw(level), strict=True)}
    models = st.sampled_from([0.0, 0.5, 1.0, 1.9, 2.0, 3.0, 3.3, 20.0, np.inf])
    budget = draw(st.lists(models, min_size=n, max_size=n))
    return n, active, priority, budget, draw(st.sampled_from([0, 1, 2, 3, 100]))


@st.composite
def undirected(draw, max_n=7):
    """Draw (n, set of undirected edges)."""
    n = draw(st.integers(1, max_n))
    every = [(i, j) for i in range(n) for j in range(i)]
    return n, set(draw(st.lists(st.sampled_from(every), unique=True)) if every else [])


def two_way(n, edges):
    """Return the graph with both directions of every undirected edge."""
    a, b = [i for i, _ in edges], [j for _, j in edges]
    return graph_of(n, ints(a + b), ints(b + a))
