"""The compiled ground: rows grouped, sorted and searched, blocks on cores, memory lent again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop import parallel
from dystop.kernels import buffers
from dystop.kernels.sorting import kth_of_rows, rank_rows, sort_ids
from dystop.parallel import as_readonly, block_size, run_in_blocks
from dystop.sparse import PairCounts, graph_of, group, ints, no_pairs, row_order

quick = settings(derandomize=True, deadline=None, max_examples=100)


few = st.integers(0, 40)


def pairs_of(data, size=few):
    """Rows and values of some pairs, drawn from a seed so that examples may be large."""
    n, m = data.draw(st.integers(1, 9)), data.draw(size)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    return n, rng.integers(0, n, m), rng.integers(0, 12, m)


@pytest.fixture(params=[1, 3])
def some_cores(request, monkeypatch):
    """Blocks run one after the other, or on three threads."""
    monkeypatch.setattr(parallel, "cores", lambda: request.param)
    return request.param


@quick
@given(st.data())
def test_grouping_is_a_stable_sort_by_row(data):
    n, row, value = pairs_of(data)
    order = np.argsort(row, kind="stable")
    rows = group(n, row, value)
    assert rows.value.tolist() == value[order].tolist()
    assert rows.indptr.tolist() == np.searchsorted(row[order], np.arange(n + 1)).tolist()
    assert (
        group(n, row, value, ascending=True).value.tolist()
        == value[np.lexsort((value, row))].tolist()
    )
    assert row_order(row, value).tolist() == np.lexsort((value, row)).tolist()


def test_grouping_over_many_stretches_and_threads(some_cores):
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
def test_ids_that_cannot_be_are_refused(row, value):
    with pytest.raises(IndexError, match="outside of 0"):
        group(5, ints([0, row]), ints([1, value]))


def test_odd_ids_are_still_ordered():
    row, value = ints([7, -3, 7]), ints([1, 2**40, -5])
    assert row_order(row, value).tolist() == np.lexsort((value, row)).tolist()


def ranked(keys, indptr):
    out = np.empty(len(keys), np.int64)
    where = as_readonly(ints(indptr))
    rank_rows(
        as_readonly(keys),
        as_readonly(np.arange(len(keys))),
        where,
        (0, len(indptr) - 1),
        where,
        out,
    )
    return out


@quick
@given(st.data())
def test_ranks_in_rows_equal_a_lexsort(data):
    n, row, value = pairs_of(data, size=st.sampled_from([0, 3, 30, 300, 2000]))
    indptr, value = group(n, row, value)
    row = np.repeat(np.arange(n), np.diff(indptr))
    for kind in (np.int64, np.float64):
        keys = value.astype(kind)
        assert ranked(keys, indptr).tolist() == np.lexsort((keys, row)).tolist()
    keys = value.astype(float)
    keys[value % 5 == 0] = np.nan
    keys[value % 7 == 0] = -np.inf
    assert ranked(keys, indptr).tolist() == np.lexsort((keys, row)).tolist()
    ascending = np.empty_like(row)
    sort_ids(ints(value), ascending)
    assert ascending.tolist() == sorted(value.tolist())


@quick
@given(st.data(), st.integers(1, 400), st.booleans())
def test_the_kth_of_a_row(data, rank, odd):
    n, row, value = pairs_of(data, size=st.sampled_from([0, 3, 30, 900]))
    indptr, value = group(n, row, value)
    keys, out = value.astype(float), np.empty(n)
    if odd:
        keys[value == 3] = np.nan
    kth_of_rows(as_readonly(keys), as_readonly(indptr), rank, 0, n, out)
    for i in range(n):
        own = np.sort(keys[indptr[i] : indptr[i + 1]])
        expected = own[min(rank, len(own)) - 1] if len(own) else 0.0
        np.testing.assert_array_equal(out[i], expected)


def test_counting_pairs_over_many_blocks(some_cores):
    n, rng = 150_000, np.random.default_rng(1)
    counts, truth = no_pairs(n), {}
    for _ in range(3):
        dst, src = rng.integers(0, n, 4000), rng.integers(0, 3, 4000)
        counts = counts.add(dst, src)
        for pair in zip(dst.tolist(), src.tolist(), strict=True):
            truth[pair] = truth.get(pair, 0) + 1
    again = counts.add(dst, src)
    assert again.keys is counts.keys  # nothing new: the keys are shared
    order = rng.permutation(len(counts.keys))
    dst, src = counts.keys[order] // n, counts.keys[order] % n
    assert {(i, j): c for i, j, c in zip(dst, src, counts.get(dst, src), strict=True)} == truth
    assert counts.get(dst, src + 3).tolist() == [0] * len(dst)
    assert (again.counts - counts.counts).sum() == 4000
    assert (np.diff(counts.keys) > 0).all()


def test_looking_edges_up_beyond_the_graph():
    graph = graph_of(3, ints([2, 0]), ints([0, 2]))
    assert graph.find(ints([-1, 3, 0, 2]), ints([0, 0, 9, -1])).tolist() == [-1] * 4
    assert PairCounts(3, ints([5]), ints([4])).get(ints([1, 1]), ints([2, 1])).tolist() == [4, 0]


def test_blocks_cover_everything_once(some_cores):
    seen = np.zeros(1000, int)

    def work(lo, hi):
        seen[lo:hi] += 1

    run_in_blocks(work, 1000, 7)
    run_in_blocks(work, 0, 7)
    assert (seen == 1).all()
    assert block_size(10, 100) == 100
    assert block_size(300, 1) == -(-300 // some_cores)


def test_an_error_in_a_block_is_not_lost(some_cores):
    def work(lo, hi):
        if lo == 20:
            raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        run_in_blocks(work, 40, 10)


def test_compiled_functions_get_one_kind_of_array():
    own = np.arange(6)
    assert np.shares_memory(as_readonly(own), own)
    assert own.flags.writeable
    assert as_readonly(own[::2]).flags.c_contiguous


@pytest.fixture
def lending(monkeypatch):
    """Arrays of a kilobyte count as large."""
    monkeypatch.setattr(buffers, "LARGE_BYTES", 1000)
    monkeypatch.setattr(buffers, "_blocks", [])
    return buffers._blocks


def test_memory_is_lent_again_only_when_nobody_holds_it(lending):
    first, second = buffers.buffer(500, np.int64), buffers.buffer(500, np.float64)
    first[:], second[:] = 1, 2.0
    assert len(lending) == 2
    part = first[3:9].reshape(2, 3)
    del first
    third = buffers.buffer(500, np.int64)
    third[:] = 3
    assert len(lending) == 3
    assert (part == 1).all()
    assert (second == 2.0).all()
    del part
    fourth = buffers.buffer(490, np.int64)  # a little smaller fits as well
    fourth[:] = 4
    assert len(lending) == 3
    assert (third == 3).all()
    assert (second == 2.0).all()


def test_memory_that_nobody_wants_goes_back(lending):
    buffers.buffer(500, np.int64)  # given up at once
    for _ in range(50):
        buffers.buffer(5000, np.int64)
    assert [len(block.memory) // 1000 for block in lending] == [41]


def test_small_arrays_are_not_lent(lending):
    assert buffers.buffer(10, np.bool_).base is None
    assert not lending
