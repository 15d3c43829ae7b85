"""When a run ends and when its models are tested: the moments themselves belong to the rule."""

import pytest

from dystop.control.stopping import (
    Evaluate,
    Stop,
    is_evaluation_due,
    is_over,
    next_evaluation_s,
)


def test_a_round_may_open_before_the_end_and_not_at_it():
    stop = Stop(rounds=3, seconds=5.0)
    assert not is_over(stop, 3, 4.999)
    assert is_over(stop, 4, 1.0)
    assert is_over(stop, 1, 5.0)
    assert not is_over(Stop(rounds=3), 3, 1e9)  # no limit of seconds


def test_tests_are_due_at_their_moment():
    assert [t for t in range(1, 10) if is_evaluation_due(Evaluate(every_rounds=4), t, 0, 0)] == [
        4,
        8,
    ]
    timed = Evaluate(every_s=2.0)
    assert not is_evaluation_due(timed, 1, 3.999, 4.0)
    assert is_evaluation_due(timed, 1, 4.0, 4.0)


@pytest.mark.parametrize(("clock_s", "due_s"), [(0.0, 2.0), (1.9, 2.0), (2.0, 4.0), (7.0, 8.0)])
def test_the_next_test_is_at_a_multiple_of_the_interval(clock_s, due_s):
    assert next_evaluation_s(Evaluate(every_s=2.0), clock_s) == due_s
