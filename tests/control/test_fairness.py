"""Fairness: worst decile, spread and Jain's index of the workers' accuracies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.control.fairness import fairness_of, jain_index, worst_decile

shares = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def test_by_hand():
    # Of twelve workers the worst two are a tenth, rounded up.
    values = [0.1, 0.3, *[0.9] * 10]
    found = fairness_of(values)
    assert found.worst_decile == pytest.approx(0.2)
    assert found.spread == pytest.approx(np.std(values))
    assert found.jain == pytest.approx(9.4**2 / (12 * (0.01 + 0.09 + 8.1)))


def test_workers_without_a_test_do_not_count():
    assert fairness_of([None, 0.5, None, 0.5]) == fairness_of([0.5, 0.5])
    assert fairness_of([None, None]) is None
    assert fairness_of(None) is None


def test_negative_scores_have_no_index():
    found = fairness_of([0.5, -0.1])
    assert (found.worst_decile, found.jain) == (-0.1, None)


@given(shares)
def test_bounds(values):
    array = np.array(values)
    assert array.min() - 1e-12 <= worst_decile(array) <= array.mean() + 1e-12
    assert 1 / len(array) - 1e-9 <= jain_index(array) <= 1 + 1e-9
    assert jain_index(np.full(7, values[0])) == pytest.approx(1.0)


@given(shares, st.randoms())
def test_the_order_of_workers_does_not_matter(values, random):
    mixed = values.copy()
    random.shuffle(mixed)
    found, again = fairness_of(values), fairness_of(mixed)
    assert (found.worst_decile, found.jain) == pytest.approx((again.worst_decile, again.jain))
