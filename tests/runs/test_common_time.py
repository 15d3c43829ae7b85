"""The one rule for "accuracy at a time": what was known then, where it can be known of all runs."""

import pytest

from dystop.runs.common_time import Evaluations, common_time_s


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([([2.1, 4.2], 2.0), ([2.0, 4.6], 2.0)], 4.6),  # both have had the test planned for 4 s
        ([([2.1, 4.2], 2.0), ([2.0, 4.6, 6.0], 2.0)], 4.6),  # and none the next one
        ([([2.1, 4.2], 2.0), ([3.0, 9.0], 2.0)], 4.2),  # a round longer than the interval
        ([([2.1, 4.2], 0.0), ([3.0, 4.6], 0.0)], 4.2),  # no plan: when the first one ends
        ([([2.1, 4.2], 2.0), ([3.0, 4.6], 1.0)], 4.2),  # no common plan
        ([([2.1, 4.2], 2.0), ([7.0], 2.0)], None),  # first tested when the other has ended
        ([([1.5], 2.0), ([2.1], 2.0)], None),  # one ended before its first planned test
        ([([2.1], 2.0), ([], 2.0)], None),
        ([], None),
    ],
)
def test_when_the_scores_of_all_runs_compare(runs, expected):
    given = [Evaluations(clocks, [0.5] * len(clocks), every_s) for clocks, every_s in runs]
    assert common_time_s(given) == expected


def test_a_run_that_diverged_shortens_nothing_and_scores_nothing_after():
    lost = Evaluations([2.0], [0.1], 2.0, diverged=True)
    lasting = Evaluations([2.0, 4.0], [0.3, 0.4], 2.0)
    assert common_time_s([lost, lasting]) == 4.0
    assert (lost.score_at(2.0), lost.score_at(4.0), lasting.score_at(9.0)) == (0.1, None, 0.4)
