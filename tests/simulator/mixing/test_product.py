"""The product of sparse rows with a stack of models, compiled and plain."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dystop.acceleration import Accelerated
from dystop.simulator.mixing.product import SparseRows, mix_rows


def sparse_and_dense(seed, rows, models):
    random = np.random.default_rng(seed)
    dense = random.random((rows, models)) * (random.random((rows, models)) < 0.5)
    indptr = np.append(0, np.cumsum((dense != 0).sum(axis=1)))
    return SparseRows(indptr, np.nonzero(dense)[1], dense[dense != 0]), dense


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 7, 5000])
)
def test_the_kernel_gives_the_bits_of_its_reference(seed, rows, models, width):
    sparse, dense = sparse_and_dense(seed, rows, models)
    stack = np.random.default_rng(seed).normal(size=(models, width)).astype(np.float32)
    weight, plain = sparse.weight.astype(np.float32), np.empty((rows, width), np.float32)
    mix_rows.reference(sparse.indptr, sparse.column, weight, stack, plain, 0, rows)
    np.testing.assert_array_equal((sparse @ torch.from_numpy(stack)).numpy(), plain)
    np.testing.assert_allclose(plain, dense @ stack, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_row_without_weights_is_zero(enabled, monkeypatch):
    monkeypatch.setattr(Accelerated, "enabled", enabled)
    sparse = SparseRows(np.array([0, 0, 2]), np.array([0, 2]), np.array([0.5, 0.25]))
    mixed = sparse @ torch.arange(6, dtype=torch.float64).reshape(3, 2)
    assert mixed.tolist() == [[0.0, 0.0], [1.0, 1.75]]
