"""Staleness, queues and remaining compute: their recurrences, also over many rounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.activation import activate
from dystop.control.laws import cost_s, remaining_compute_s, round_duration_s
from dystop.control.staleness import drift_plus_penalty, lyapunov, next_queue, next_staleness
from dystop.rng import stream
from dystop.sparse import ints
from support import paper_reference
from support.strategies import small

turns = st.lists(
    st.tuples(st.lists(st.booleans(), min_size=3, max_size=3), st.integers(0, 4)), max_size=15
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(turns)
def test_staleness_counts_rounds_since_the_last_activation(history):
    """eq:staleness, tau' = (tau + 1)(1 - a)."""
    staleness, last = ints([0, 0, 0]), [0, 0, 0]
    for t, (active, _) in enumerate(history, start=1):
        by_paper = [(tau + 1) * (1 - a) for tau, a in zip(staleness.tolist(), active, strict=True)]
        staleness = next_staleness(staleness, np.array(active))
        last = [t if a else before for a, before in zip(active, last, strict=True)]
        assert staleness.tolist() == by_paper == [t - k for k in last]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(turns, small, st.sets(st.integers(0, 2)))
def test_queue_follows_its_recurrence_and_absent_workers_are_frozen(history, bound, absent):
    staleness, queue = ints([0, 0, 0]), np.array([0.0, 3.0, 1.0])
    present = np.array([i not in absent for i in range(3)])
    for active, _ in history:
        after = next_queue(queue, staleness, bound, present)
        for i in range(3):
            q, tau = queue[i], staleness[i]
            assert after[i] == (max(q + tau - bound, 0) if present[i] else q)
        assert (after >= 0).all()
        queue, staleness = after, next_staleness(staleness, np.array(active))


def test_queue_uses_the_staleness_before_the_reset():
    tau = ints([5])
    assert next_queue(np.zeros(1), tau, 2, np.array([True])).tolist() == [3.0]
    assert next_staleness(tau, np.array([True])).tolist() == [0]


def test_objective_and_lyapunov_function():
    queue, tau = np.array([2.0, 0.0, 3.0]), ints([4, 9, 1])
    assert drift_plus_penalty(queue, tau, 2, V=10, duration_s=1.5) == 2 * 2 + 3 * (-1) + 15
    assert lyapunov(queue) == 6.5


@settings(derandomize=True, deadline=None, max_examples=200)
@given(turns, st.integers(0, 12))
def test_remaining_compute_equals_the_explicit_sum(history, full):
    """eq:h_comp as a sum over past durations = length less what has passed since the start."""
    staleness, durations, started, clock = [0] * 3, {}, [0] * 3, 0
    for t, (active, seconds) in enumerate(history, start=1):
        by_sum = [paper_reference.remaining_compute(full, durations, t, tau) for tau in staleness]
        elapsed = np.array([clock - at for at in started], float)
        assert remaining_compute_s(np.full(3, float(full)), elapsed).tolist() == by_sum
        durations[t], clock = seconds, clock + seconds
        staleness = [0 if a else tau + 1 for a, tau in zip(active, staleness, strict=True)]
        started = [clock if a else at for a, at in zip(active, started, strict=True)]


def test_a_training_that_has_not_begun_yet_takes_longer_than_itself():
    assert remaining_compute_s(np.array([2.0]), np.array([-1.5])).tolist() == [3.5]


def staleness_over_rounds(bound, *, workers=100, rounds=300, V=10.0, link_s=0.1):
    """Mean staleness, largest staleness and mean number of active workers under WAA."""
    draw = stream(0, "oracle").normal(1.0, 0.4, workers)
    training = np.abs(draw) + 0.05
    staleness, queue, started = ints(np.zeros(workers)), np.zeros(workers), np.zeros(workers)
    everyone, present, clock = np.arange(workers), np.ones(workers, bool), 0.0
    seen, woken = [], []
    for _ in range(rounds):
        cost = cost_s(remaining_compute_s(training, clock - started), np.full(workers, link_s))
        chosen = activate(everyone, cost, queue, staleness, V)
        active = np.isin(everyone, chosen)
        queue = next_queue(queue, staleness, bound, present)
        seen.append(staleness)
        woken.append(len(chosen))
        staleness = next_staleness(staleness, active)
        clock += round_duration_s(cost[chosen])
        started[active] = clock
    return np.mean(seen), np.max(seen), np.mean(woken)


BOUNDS = (0, 2, 5, 8, 10, 15)


@pytest.fixture(scope="module")
def measured():
    return {bound: staleness_over_rounds(bound) for bound in BOUNDS}


@pytest.mark.parametrize(
    ("bound", "mean", "largest", "active"),
    list(
        zip(
            BOUNDS,
            (0.01, 1.41, 3.02, 4.43, 5.30, 7.56),
            (2, 4, 7, 10, 12, 17),
            (99, 43, 23, 17, 15, 10),
            strict=True,
        )
    ),
)
def test_staleness_settles_where_it_was_measured(measured, bound, mean, largest, active):
    """The bound holds for the long-run mean; single workers exceed it by about two."""
    got_mean, got_largest, got_active = measured[bound]
    assert got_mean == pytest.approx(mean, rel=0.1, abs=0.02)
    assert abs(got_largest - largest) <= 1
    assert got_active == pytest.approx(active, rel=0.15)


def test_mean_staleness_rises_with_the_bound_and_stays_below_it(measured):
    means = [measured[bound][0] for bound in BOUNDS]
    assert means == sorted(means)
    assert all(measured[bound][0] < bound for bound in BOUNDS if bound >= 2)
    assert all(measured[bound][1] > bound for bound in BOUNDS)
