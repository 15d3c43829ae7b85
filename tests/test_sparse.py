"""Graphs and pair counts equal plain sets and dictionaries."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.sparse import graph_of, ints, no_pairs
from support.strategies import dst_src, pairs

quick = settings(derandomize=True, deadline=None, max_examples=150)


@quick
@given(st.data(), st.integers(1, 6))
def test_graph_equals_a_set_of_pairs(data, n):
    chosen = data.draw(st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=20))
    graph, truth = graph_of(n, *dst_src(chosen)), {(i, j) for i, j in chosen if i != j}
    assert list(zip(graph.dst.tolist(), graph.src.tolist(), strict=True)) == sorted(truth)
    assert (graph.n, graph.edges) == (n, len(truth))
    assert graph.degree.tolist() == [sum(i == k for i, _ in truth) for k in range(n)]
    for k in range(n):
        assert graph.row(k).tolist() == sorted(j for i, j in truth if i == k)
    every = [(i, j) for i in range(n) for j in range(n)]
    where = graph.find(*dst_src(every)).tolist()
    found = [p for p, at in zip(every, where, strict=True) if at >= 0]
    assert found == sorted(truth)
    assert [at for at in where if at >= 0] == list(range(len(truth)))


@quick
@given(st.data(), st.integers(1, 5))
def test_keeping_edges(data, n):
    graph = graph_of(n, *dst_src(data.draw(pairs(n))))
    size = graph.edges
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    kept = graph.keep(mask)
    assert (kept.dst.tolist(), kept.src.tolist()) == (
        graph.dst[mask].tolist(),
        graph.src[mask].tolist(),
    )
    assert (kept.n, int(kept.indptr[-1])) == (n, kept.edges)


@quick
@given(st.data(), st.integers(1, 5))
def test_pair_counts_equal_a_dict(data, n):
    counts, truth = no_pairs(n), {}
    every = [(i, j) for i in range(n) for j in range(n)]
    for _ in range(data.draw(st.integers(0, 4))):
        used = data.draw(st.lists(st.sampled_from(every), max_size=6))
        before, held = counts, counts.counts.copy()
        counts = counts.add(*dst_src(used))
        assert np.array_equal(before.counts, held)
        for p in used:
            truth[p] = truth.get(p, 0) + 1
    assert counts.get(*dst_src(every)).tolist() == [truth.get(p, 0) for p in every]
    assert (np.diff(counts.keys) > 0).all()
    assert len(counts.keys) == len(truth)


def test_a_million_pairs_stay_sparse():
    n = 1_000_000
    graph = graph_of(n, ints([n - 1, 3]), ints([0, n - 1]))
    assert graph.find(ints([n - 1, 3, 3]), ints([0, n - 1, 4])).tolist() == [1, 0, -1]
    assert no_pairs(n).add(ints([n - 1]), ints([n - 2])).get(ints([n - 1]), ints([n - 2])) == [1]
