"""Mixing weights, the product of rows and models, and rows after lost transfers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.aggregation import (
    global_weights,
    metropolis,
    mix,
    renormalise_lost,
    size_weights,
    with_self,
)
from dystop.plan import mix_of
from dystop.rng import stream
from dystop.simulator.mixing.product import sparse_rows
from dystop.sparse import ints
from support import paper_reference
from support.strategies import dense, pairs, two_way, undirected

close = {"rtol": 0, "atol": 1e-12}


def split(links):
    return ints([i for i, _ in links]), ints([j for _, j in links])


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.data())
def test_size_weights_equal_the_dense_twin(data):
    n = data.draw(st.integers(1, 6))
    receivers = data.draw(st.lists(st.sampled_from(range(n)), unique=True, min_size=1))
    links = [p for p in data.draw(pairs(n)) if p[0] in receivers]
    size = data.draw(st.lists(st.integers(1, 500), min_size=n, max_size=n))
    rows = size_weights(ints(receivers), *split(links), ints(size))
    assert rows.receiver.tolist() == sorted(receivers)
    sums = np.bincount(rows.row_of, weights=rows.weight)
    np.testing.assert_allclose(sums, 1.0, **close)
    expected = np.array(paper_reference.sigma(n, receivers, links, size))
    got = dense(rows, n)
    np.testing.assert_allclose(got[receivers], expected[receivers], **close)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(undirected())
def test_metropolis_is_symmetric_doubly_stochastic_and_equals_the_dense_twin(case):
    n, edges = case
    matrix = dense(metropolis(two_way(n, edges), np.arange(n)), n)
    np.testing.assert_allclose(matrix, paper_reference.metropolis(n, edges), **close)
    np.testing.assert_allclose(matrix, matrix.T, **close)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0, **close)
    assert (matrix > -1e-12).all()


def test_with_self_gives_the_rest_to_the_own_model():
    rows = with_self(ints([2]), ints([0]), np.array([0.25]), ints([2, 1]))
    assert rows.receiver.tolist() == [1, 2]
    assert dense(rows, 3).tolist() == [[1, 0, 0], [0, 1, 0], [0.25, 0, 0.75]]
    assert len(with_self(ints([]), ints([]), np.zeros(0), ints([])).receiver) == 0


def test_global_weights_are_data_shares():
    assert global_weights(ints([1, 3])).tolist() == [0.25, 0.75]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.data(), undirected())
def test_lost_transfers_leave_a_symmetric_matrix_doubly_stochastic(data, case):
    n, edges = case
    graph = two_way(n, edges)
    both = list(zip(graph.dst.tolist(), graph.src.tolist(), strict=True))
    lost = data.draw(st.lists(st.sampled_from(both), unique=True)) if both else []
    rows = renormalise_lost(metropolis(graph, np.arange(n)), *split(lost), to_self=True)
    matrix = dense(rows, n)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, **close)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0, **close)
    np.testing.assert_allclose(matrix, matrix.T, **close)
    for i, j in lost:
        assert matrix[i, j] == matrix[j, i] == 0.0


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.data())
def test_lost_transfers_renormalise_rows_by_size(data):
    """As if the lost links had never been planned."""
    n = data.draw(st.integers(1, 6))
    links = data.draw(pairs(n))
    size = ints(data.draw(st.lists(st.integers(1, 50), min_size=n, max_size=n)))
    lost = data.draw(st.lists(st.sampled_from(links), unique=True)) if links else []
    kept = [p for p in links if p not in lost]
    rows = renormalise_lost(
        size_weights(np.arange(n), *split(links), size), *split(lost), to_self=False
    )
    expected = size_weights(np.arange(n), *split(kept), size)
    assert rows.indptr.tolist() == expected.indptr.tolist()
    assert rows.source.tolist() == expected.source.tolist()
    np.testing.assert_allclose(rows.weight, expected.weight, **close)


def test_rows_of_updates_just_lose_the_term():
    rows = mix_of(ints([0, 0, 0]), ints([0, 1, 2]), np.array([1.0, 0.5, 0.25]), kind="delta")
    after = renormalise_lost(rows, ints([0]), ints([1]), to_self=False)
    assert (after.source.tolist(), after.weight.tolist()) == ([0, 2], [1.0, 0.25])
    assert after.kind == "delta"


def test_a_row_that_lost_everything_becomes_empty():
    rows = mix_of(ints([0, 1]), ints([2, 2]), np.ones(2))
    after = renormalise_lost(rows, ints([0]), ints([2]), to_self=False)
    assert after.receiver.tolist() == [0, 1]
    assert after.indptr.tolist() == [0, 0, 1]
    assert after.weight.tolist() == [1.0]


def test_a_row_left_with_an_own_weight_of_nothing_keeps_its_model():
    """A server that takes an upload as it is (share 1) and does not get it."""
    rows = mix_of(ints([2, 2, 1]), ints([2, 0, 1]), np.array([0.0, 1.0, 1.0]))
    after = renormalise_lost(rows, ints([2]), ints([0]), to_self=False)
    assert after.receiver.tolist() == [1, 2]
    assert after.indptr.tolist() == [0, 1, 1]


def test_a_lost_link_leaves_the_compensation_of_a_stage():
    rows = replace(metropolis(two_way(3, [(0, 1), (1, 2)]), np.arange(3)), compensation=0.5)
    assert renormalise_lost(rows, ints([0]), ints([1]), to_self=True).compensation == 0.5


def test_mending_nothing_changes_nothing():
    rows = mix_of(ints([0, 0]), ints([0, 1]), np.array([0.5, 0.5]), kind="masked", mask=(7, 0.1))
    assert renormalise_lost(rows, ints([]), ints([]), to_self=True) is rows
    after = renormalise_lost(rows, ints([1]), ints([0]), to_self=False)  # a loss that no row names
    assert after.weight.tolist() == [0.5, 0.5]
    assert after.mask == (7, 0.1)


def test_mending_a_stage_without_rows():
    """All rows of a stage may wait for background links while one of its links is lost."""
    rows = mix_of(ints([]), ints([]), np.zeros(0))
    assert len(renormalise_lost(rows, ints([0]), ints([1]), to_self=False).receiver) == 0


@pytest.mark.parametrize("seed", range(5))
def test_mix_is_one_function_for_a_whole_stack_and_for_one_worker(seed):
    """Sparse rows on the engine's stack, dense rows, and one row with only what arrived."""
    rng = stream(seed, "mix")
    n, width = 7, 11
    graph = two_way(n, {(i, j) for i in range(n) for j in range(i) if rng.random() < 0.5})
    size = ints(rng.integers(1, 90, n))
    rows = size_weights(np.arange(n), graph.dst, graph.src, size)
    models = rng.normal(size=(n, width))
    stack = torch.from_numpy(models)
    every = np.ones(len(rows.source), bool)
    whole = mix(sparse_rows(rows, every, rows.source), stack).numpy()
    np.testing.assert_allclose(whole, mix(dense(rows, n), models), **close)
    for k, i in enumerate(rows.receiver.tolist()):
        lo, hi = rows.indptr[k], rows.indptr[k + 1]
        weight, arrived = rows.weight[lo:hi][None], models[rows.source[lo:hi]]
        np.testing.assert_allclose(mix(weight, arrived)[0], whole[i], **close)
        alone = mix(torch.from_numpy(weight), torch.from_numpy(arrived))
        np.testing.assert_allclose(alone.numpy()[0], whole[i], **close)
