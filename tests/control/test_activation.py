"""WAA: it equals the pseudo-code of the paper, worked examples and limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.activation import activate, activate_one
from dystop.control.staleness import drift_plus_penalty
from dystop.sparse import ints
from support import paper_reference
from support.strategies import small, waa_cases


def waa(staleness, queue, cost, V, candidates, drift="sum"):
    who = activate(
        ints(candidates), np.array(cost, float), np.array(queue, float), ints(staleness), V, drift
    )
    return who.tolist()


@settings(derandomize=True, deadline=None, max_examples=800)
@given(waa_cases(), st.sampled_from(["sum", "mean"]))
def test_equals_the_literal_algorithm(case, drift):
    staleness, queue, cost, V, bound, candidates = case
    expected, _ = paper_reference.waa(staleness, queue, cost, V, bound, candidates, drift)
    assert waa(staleness, queue, cost, V, candidates, drift) == expected


@settings(derandomize=True, deadline=None, max_examples=200)
@given(waa_cases())
def test_an_averaged_drift_is_a_larger_v_and_wakes_no_more_workers(case):
    staleness, queue, cost, V, _, candidates = case
    averaged = waa(staleness, queue, cost, V, candidates, "mean")
    assert averaged == waa(staleness, queue, cost, V * len(queue), candidates)
    assert averaged == waa(staleness, queue, cost, V, candidates)[: len(averaged)]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(waa_cases())
def test_one_worker_equals_the_best_singleton(case):
    staleness, queue, cost, V, bound, candidates = case
    who = activate_one(
        ints(candidates), np.array(cost, float), np.array(queue, float), ints(staleness), V
    )
    assert who.tolist() == [
        paper_reference.best_single(staleness, queue, cost, V, bound, candidates)
    ]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(waa_cases())
def test_result_does_not_depend_on_the_order_of_candidates(case):
    staleness, queue, cost, V, _, candidates = case
    once = waa(staleness, queue, cost, V, sorted(candidates))
    assert once == waa(staleness, queue, cost, V, sorted(candidates, reverse=True))
    assert set(once) <= set(candidates)


@pytest.mark.parametrize(
    ("V", "scores", "chosen"),
    [(10, [38, 48, 50, 24], [0, 1, 2, 3]), (20, [48, 68, 80, 64], [0])],
)
def test_worked_numbers(V, scores, chosen):
    staleness, queue, cost = [0, 1, 3, 5], [0, 0, 2, 6], [1, 2, 3, 4]
    assert paper_reference.waa(staleness, queue, cost, V, 2, range(4)) == (chosen, scores)
    assert waa(staleness, queue, cost, V, range(4)) == chosen
    ahead = np.where(np.isin(np.arange(4), chosen), 0, np.array(staleness) + 1)
    best = drift_plus_penalty(np.array(queue, float), ahead, 2, V, float(cost[len(chosen) - 1]))
    assert best == min(scores)


def test_worked_numbers_of_an_averaged_drift():
    # Queues 0, 0, 2, 6 and staleness 0, 1, 3, 5: the sets of the one to four cheapest workers have
    # the drifts 28, 28, 20, -16 (bound 2). A fourth of each, and V = 3 for each second of cost:
    staleness, queue, cost = [0, 1, 3, 5], [0, 0, 2, 6], [1, 2, 3, 4]
    scores = [7 + 3, 7 + 6, 5 + 9, -4 + 12]
    assert paper_reference.waa(staleness, queue, cost, 3, 2, range(4), "mean") == (
        [0, 1, 2, 3],
        scores,
    )
    assert waa(staleness, queue, cost, 3, range(4), "mean") == [0, 1, 2, 3]
    # V = 4 makes them 11, 15, 17, 12: the cheapest worker alone. Beside a sum, V = 4 wakes all.
    assert waa(staleness, queue, cost, 4, range(4), "mean") == [0]
    assert waa(staleness, queue, cost, 4, range(4)) == [0, 1, 2, 3]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(waa_cases())
def test_empty_queues_wake_only_the_cheapest(case):
    staleness, _, cost, V, _, candidates = case
    cheapest = min(candidates, key=lambda i: (cost[i], i))
    if V > 0:
        assert waa(staleness, [0] * len(cost), cost, V, candidates) == [cheapest]
    # With V = 0 all sets are worth the same, and the first one is kept.
    assert waa(staleness, [0] * len(cost), cost, 0, candidates) == [cheapest]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(waa_cases())
def test_without_a_price_on_time_everyone_with_a_queue_wakes(case):
    staleness, queue, cost, _, _, candidates = case
    full = [q + 1 for q in queue]
    assert set(waa(staleness, full, cost, 0, candidates)) == set(candidates)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(waa_cases())
def test_a_huge_price_on_time_wakes_only_ties_for_the_smallest_cost(case):
    """Of the tied workers, in id order, all up to the last one that has a queue.

    Beyond it the objective stays equal, and the first strict minimum is kept; where no tied worker
    has a queue this is the lowest id alone.
    """
    staleness, queue, cost, _, _, candidates = case
    least = min(cost[i] for i in candidates)
    tied = sorted(i for i in candidates if cost[i] == least)
    last = max((k for k, i in enumerate(tied) if queue[i] > 0), default=0)
    assert waa(staleness, queue, cost, 10**9, candidates) == tied[: last + 1]


def test_absent_workers_are_never_woken_however_full_their_queue():
    assert waa([0, 9], [0, 1000], [1, 1], 0, [0]) == [0]


def test_nobody_to_choose_from():
    none = ints([])
    for choose in (activate, activate_one):
        assert len(choose(none, np.zeros(3), np.zeros(3), ints([0, 0, 0]), 1.0)) == 0


def test_single_worker():
    assert waa([3], [7], [2], 10, [0]) == [0]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(waa_cases(), small, st.integers(1, 5))
def test_waking_is_monotone_in_v(case, lower, step):
    """A higher price on time never wakes more workers (the minimisers of a parametric sum)."""
    staleness, queue, cost, _, _, candidates = case
    few = waa(staleness, queue, cost, lower + step, candidates)
    many = waa(staleness, queue, cost, lower, candidates)
    assert few == many[: len(few)]
