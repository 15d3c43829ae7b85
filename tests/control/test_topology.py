"""PTCA and its priorities: the pseudo-code of the paper, worked examples and invariants."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.priority import emd, first_phase_priority, label_shares, second_phase_priority
from dystop.control.topology import bandwidth_use, connect, ranked_candidates
from dystop.sparse import graph_of, ints
from support import paper_reference
from support.strategies import pairs, ptca_cases, small


def ptca(case):
    """The package's links of a case, as pairs in order of choice."""
    n, active, priority, budget, cap = case
    reach = graph_of(n, ints([i for i, _ in priority]), ints([j for _, j in priority]))
    value = np.array(
        [priority[p] for p in zip(reach.dst.tolist(), reach.src.tolist(), strict=True)]
    )
    bounds, ranked = ranked_candidates(ints(active), reach, value)
    dst, src = connect(ints(active), bounds, ranked, np.array(budget), cap)
    return list(zip(dst.tolist(), src.tolist(), strict=True))


def in_range(n, priority):
    return {i: {j for dst, j in priority if dst == i} | {i} for i in range(n)}


@settings(derandomize=True, deadline=None, max_examples=500)
@given(ptca_cases())
def test_equals_the_literal_algorithm(case):
    n, active, priority, budget, cap = case
    assert ptca(case) == paper_reference.ptca(active, in_range(n, priority), priority, budget, cap)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ptca_cases())
def test_invariants(case):
    n, active, priority, budget, cap = case
    links = ptca(case)
    dst, src = ints([i for i, _ in links]), ints([j for _, j in links])
    used = bandwidth_use(dst, src, n)
    assert set(dst.tolist()) <= set(active)
    assert set(links) <= set(priority)
    assert len(set(links)) == len(links)
    assert (used <= np.array(budget)).all()
    assert used.sum() == 2 * len(links)
    assert (np.bincount(dst, minlength=n) <= cap).all()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ptca_cases())
def test_a_single_active_worker_fills_its_budget(case):
    n, active, priority, budget, cap = case
    i = active[0]
    willing = sum(budget[j] >= 1 for dst, j in priority if dst == i)
    own = budget[i] if math.isinf(budget[i]) else math.floor(budget[i])
    assert len(ptca((n, [i], priority, budget, cap))) == min(cap, own, willing)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ptca_cases())
def test_nothing_can_be_added_to_the_result(case):
    n, active, priority, budget, cap = case
    links = ptca(case)
    left = np.array(budget) - bandwidth_use(
        ints([i for i, _ in links]), ints([j for _, j in links]), n
    )
    taken = [sum(dst == i for dst, _ in links) for i in range(n)]
    for i, j in set(priority) - set(links):
        if i in active and taken[i] < cap:
            assert left[i] < 1 or left[j] < 1


def test_worked_numbers():
    """Budgets (2, 1, 2, 2), worker 0 then 3, lists 0: [1, 2, 3] and 3: [1, 0, 2]."""
    bounds, ranked = ints([0, 3, 6]), ints([1, 2, 3, 1, 0, 2])
    dst, src = connect(ints([0, 3]), bounds, ranked, np.array([2.0, 1, 2, 2]), cap=100)
    assert list(zip(dst.tolist(), src.tolist(), strict=True)) == [(0, 1), (3, 0), (3, 2)]
    assert bandwidth_use(dst, src, 4).tolist() == [2, 1, 1, 2]
    priority = {(0, 1): 3, (0, 2): 2, (0, 3): 1, (3, 1): 3, (3, 0): 2, (3, 2): 1}
    assert paper_reference.ptca([0, 3], in_range(4, priority), priority, [2, 1, 2, 2], 100) == [
        (0, 1),
        (3, 0),
        (3, 2),
    ]


def test_turns_follow_the_order_of_activation():
    priority = {(0, 2): 1.0, (1, 2): 1.0}
    assert ptca((3, [1, 0], priority, [9.0, 9.0, 1.0], 5)) == [(1, 2)]
    assert ptca((3, [0, 1], priority, [9.0, 9.0, 1.0], 5)) == [(0, 2)]


def test_ranked_lists_put_ties_to_the_lower_id():
    reach = graph_of(4, ints([1, 1, 1]), ints([3, 0, 2]))
    _, ranked = ranked_candidates(ints([1]), reach, np.array([0.5, 1.0, 0.5]))
    assert ranked.tolist() == [2, 0, 3]


def test_lonely_and_empty():
    assert ptca((1, [0], {}, [5.0], 3)) == []
    assert ptca((3, [2, 1], {}, [5.0] * 3, 3)) == []
    bounds, ranked = ranked_candidates(ints([]), graph_of(2, ints([0]), ints([1])), np.ones(1))
    assert (bounds.tolist(), ranked.tolist()) == ([0], [])


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.data())
def test_first_phase_equals_its_twin(data):
    n, classes = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 4))
    row = st.lists(small, min_size=classes, max_size=classes)
    counts = data.draw(st.lists(row, min_size=n, max_size=n))
    links = data.draw(pairs(n))
    metres = {p: float(data.draw(small)) for p in links}
    emds = {(i, j): paper_reference.emd(counts[i], counts[j]) for i, j in links}
    dst, src = ints([i for i, _ in links]), ints([j for _, j in links])
    distance = emd(label_shares(ints(counts).reshape(n, classes)), dst, src)
    assert distance.tolist() == [approx(emds[p]) for p in links]
    priority = first_phase_priority(distance, np.array([metres[p] for p in links]))
    expected = paper_reference.p1(links, emds, metres)
    assert priority.tolist() == [approx(expected[p]) for p in links]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(1, 50), st.integers(0, 50), small, small)
def test_second_phase_equals_its_twin(t, pulls, tau_i, tau_j):
    pulls = min(pulls, t - 1)
    value = second_phase_priority(ints([pulls]), t, ints([tau_i - tau_j]))
    assert value.tolist() == [approx(paper_reference.p2(pulls, t, tau_i, tau_j))]
    assert 0 < value[0] <= 1


def approx(value):
    return pytest.approx(value, rel=1e-12, abs=1e-12)


def test_emd_extremes():
    shares = label_shares(ints([[3, 0], [0, 7], [6, 0], [0, 0]]))
    assert emd(shares, ints([0, 0, 0]), ints([1, 2, 3])).tolist() == [2.0, 0.0, 1.0]


def test_priorities_of_no_link_and_of_equal_links():
    assert len(first_phase_priority(np.zeros(0), np.zeros(0))) == 0
    assert first_phase_priority(np.zeros(2), np.zeros(2)).tolist() == [1.0, 1.0]
