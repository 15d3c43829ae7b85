"""Which studies are small enough to be planned under the other timing law."""

from dystop.studies.other_law import MOST_S, planning_s


def test_a_study_of_many_small_rounds_is_planned_and_a_large_one_is_not():
    asynchronous = 9 * planning_s(rounds=1500, workers=30)  # three mechanisms, three seeds
    assert asynchronous < MOST_S
    assert planning_s(rounds=20_000, workers=100) > MOST_S
