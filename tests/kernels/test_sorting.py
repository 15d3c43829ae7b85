"""Sorted rows equal NumPy sorts."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.kernels.sorting import kth_of_rows, rank_rows, sort_ids
from dystop.parallel import as_readonly
from dystop.sparse import group, ints
from support.random_pairs import random_pairs

quick = settings(derandomize=True, deadline=None, max_examples=100)


def ranked(keys, indptr):
    """Return the order that sorts the keys of each row."""
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
    n, row, value = random_pairs(data, size=st.sampled_from([0, 3, 30, 300, 2000]))
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
def test_the_kth_smallest_of_each_row(data, rank, with_nan):
    n, row, value = random_pairs(data, size=st.sampled_from([0, 3, 30, 900]))
    indptr, value = group(n, row, value)
    keys, out = value.astype(float), np.empty(n)
    if with_nan:
        keys[value == 3] = np.nan
    kth_of_rows(as_readonly(keys), as_readonly(indptr), rank, 0, n, out)
    for i in range(n):
        own = np.sort(keys[indptr[i] : indptr[i + 1]])
        expected = own[min(rank, len(own)) - 1] if len(own) else 0.0
        np.testing.assert_array_equal(out[i], expected)
