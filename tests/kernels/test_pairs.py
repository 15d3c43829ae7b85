"""Grouped pairs, pair counts and edges equal NumPy sorts and plain dictionaries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.sparse import PairCounts, graph_of, group, ints, no_pairs, row_order
from support.random_pairs import random_pairs

quick = settings(derandomize=True, deadline=None, max_examples=100)


@quick
@given(st.data())
def test_grouping_is_a_stable_sort_by_row(data):
    n, row, value = random_pairs(data)
    order = np.argsort(row, kind="stable")
    rows = group(n, row, value)
    assert rows.value.tolist() == value[order].tolist()
    assert rows.indptr.tolist() == np.searchsorted(row[order], np.arange(n + 1)).tolist()
    assert (
        group(n, row, value, ascending=True).value.tolist()
        == value[np.lexsort((value, row))].tolist()
    )
    assert row_order(row, value).tolist() == np.lexsort((value, row)).tolist()


def test_grouping_in_many_blocks_and_threads(some_cores):
    rng = np.random.default_rng(0)
    for n, m in [(20_000, 150_000), (4096, 200_000), (4097, 10), (100_000, 70_000)]:
        row, value = rng.integers(0, n, m), rng.integers(0, n, m)
        order = np.argsort(row, kind="stable")
        rows = group(n, row, value)
        np.testing.assert_array_equal(rows.value, value[order])
        np.testing.assert_array_equal(rows.indptr, np.searchsorted(row[order], np.arange(n + 1)))
        lexical = np.lexsort((value, row))
        np.testing.assert_array_equal(group(n, row, value, ascending=True).value, value[lexical])
        np.testing.assert_array_equal(row_order(row, value), lexical)


@pytest.mark.parametrize(("row", "value"), [(-1, 0), (5, 0), (0, -1), (0, 2**31)])
def test_ids_out_of_range_are_refused(row, value):
    wrong = row if row else value
    with pytest.raises(IndexError, match=rf"id {wrong} .*0\.\."):
        group(5, ints([0, row]), ints([1, value]))


def test_row_order_sorts_negative_and_large_ids():
    row, value = ints([7, -3, 7]), ints([1, 2**40, -5])
    assert row_order(row, value).tolist() == np.lexsort((value, row)).tolist()


def test_pair_counts_in_many_blocks(some_cores):
    n, rng = 150_000, np.random.default_rng(1)
    counts, truth = no_pairs(n), {}
    for _ in range(3):
        dst, src = rng.integers(0, n, 4000), rng.integers(0, 3, 4000)
        counts = counts.add(dst, src)
        for pair in zip(dst.tolist(), src.tolist(), strict=True):
            truth[pair] = truth.get(pair, 0) + 1
    again = counts.add(dst, src)
    assert again.keys is counts.keys  # no new pair: the keys are shared
    order = rng.permutation(len(counts.keys))
    dst, src = counts.keys[order] // n, counts.keys[order] % n
    assert {(i, j): c for i, j, c in zip(dst, src, counts.get(dst, src), strict=True)} == truth
    assert counts.get(dst, src + 3).tolist() == [0] * len(dst)
    assert (again.counts - counts.counts).sum() == 4000
    assert (np.diff(counts.keys) > 0).all()


def test_edges_of_unknown_nodes_are_not_found():
    graph = graph_of(3, ints([2, 0]), ints([0, 2]))
    assert graph.find(ints([-1, 3, 0, 2]), ints([0, 0, 9, -1])).tolist() == [-1] * 4
    assert PairCounts(3, ints([5]), ints([4])).get(ints([1, 1]), ints([2, 1])).tolist() == [4, 0]
