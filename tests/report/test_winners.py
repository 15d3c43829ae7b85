"""Who wins by a goal: costs seed by seed, ties, targets, and who stays in a contest."""

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.report.data.contests.winners import (
    GOALS,
    Contender,
    Costs,
    all_contests,
    common_target,
    contest,
    lead,
    survivors,
)


def made(name, *times, best=0.7, provenance="paper"):
    """A contender whose three costs are proportional to its time; None: not reached."""
    costs = {
        str(k): None if t is None else Costs(t, 100.0 * t, 3.0 * t) for k, t in enumerate(times)
    }
    return Contender(name, costs, dict.fromkeys(costs, best), provenance)


def test_worked_example_of_a_clear_win():
    first, second = made("matcha", 10.0, 12.0, 11.0), made("dystop", 15.0, 18.0, 16.5)
    result = contest([second, first], "time", 0.7)
    assert result.winner is first
    assert result.runner_up is second
    assert result.lead is not None
    assert result.lead.factor == pytest.approx(1.5)
    assert (result.lead.ahead, result.lead.seeds, result.lead.tie) == (3, 3, False)
    assert result.tied == ()


def test_seeds_are_compared_in_pairs():
    """Both vary by a factor of four between seeds, but one is 10 % ahead in each of them."""
    first, second = made("a", 5.0, 10.0, 20.0), made("b", 5.5, 11.0, 22.0)
    assert not lead(first, second, "time").tie


def test_a_difference_within_the_spread_is_a_tie():
    first, second, third = made("a", 10.0, 10.0), made("b", 9.0, 13.0), made("c", 20.0, 21.0)
    result = contest([third, second, first], "time", 0.7)
    assert [c.name for c in result.ranked] == ["a", "b", "c"]
    assert result.tied == (second,)
    assert result.lead is not None
    assert (result.lead.ahead, result.lead.tie) == (1, True)


def test_equal_costs_are_a_tie_even_with_one_seed():
    assert lead(made("a", 10.0), made("b", 10.0), "time").tie
    assert not lead(made("a", 10.0), made("b", 10.1), "time").tie


def test_who_misses_the_target_with_a_seed_neither_wins_nor_ties():
    often, always = made("often", 1.0, None, 1.0), made("always", 9.0, 9.0, 9.0)
    never = made("never", None, None, None, best=0.6)
    result = contest([never, often, always], "time", 0.7)
    assert [c.name for c in result.ranked] == ["always", "often", "never"]
    assert result.tied == ()
    assert [c.name for c in result.missing] == ["often", "never"]


def test_without_a_target_nobody_wins_and_accuracy_orders():
    low, high = made("low", None, best=0.2), made("high", None, best=0.4)
    result = contest([low, high], "compute", None)
    assert result.winner is None
    assert result.lead is None
    assert [c.name for c in result.ranked] == ["high", "low"]


def test_no_traffic_at_all_is_a_cost():
    silent = Contender("silent", {"0": Costs(5.0, 0.0, 2.0)}, {"0": 0.7})
    result = contest([made("loud", 1.0), silent], "traffic", 0.7)
    assert result.winner is silent


def test_reconstructions_are_labelled():
    assert made("x", 1.0, provenance="RECONSTRUCTION (no code)").label == "x (reconstruction)"
    assert made("x", 1.0).label == "x"


times = st.lists(st.one_of(st.none(), st.floats(0.1, 1e4)), min_size=3, max_size=3)
fields = st.lists(times, min_size=1, max_size=6)


@given(fields)
@settings(derandomize=True, deadline=None)
def test_order_agrees_with_a_slow_twin(every):
    """A bubble sort by pairs: more seeds reached first, then the smaller mean logarithm."""
    contenders = [made(f"m{k}", *row) for k, row in enumerate(every)]

    def before(a, b):
        if a.reached != b.reached:
            return a.reached > b.reached
        logs = [[math.log(c.time) for c in x.costs.values() if c] for x in (a, b)]
        if not logs[0]:
            return a.name <= b.name
        means = [round(statistics.fmean(values), 9) for values in logs]
        return means[0] < means[1] or (means[0] == means[1] and a.name <= b.name)

    result = contest(contenders, "time", 0.5).ranked
    assert all(
        before(a, b) or math.isclose(a.mean("time") or 0, b.mean("time") or 0, rel_tol=1e-6)
        for a, b in pairwise(result)
    )
    assert sorted(c.name for c in result) == sorted(c.name for c in contenders)


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=5), st.floats(1.001, 50.0))
@settings(derandomize=True, deadline=None)
def test_a_constant_factor_is_found_and_is_no_tie(row, factor):
    first, second = made("a", *row), made("b", *(factor * t for t in row))
    found = lead(first, second, "compute")
    assert found.factor == pytest.approx(factor)
    assert not found.tie
    assert lead(second, first, "compute").factor == pytest.approx(1 / factor)


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=3), min_size=1, max_size=8),
    st.integers(1, 8),
    st.sampled_from([0.01, 0.05]),
)
@settings(derandomize=True, deadline=None)
def test_target_is_the_highest_that_enough_reach(best, least, step):
    target = common_target(best, least, step)
    enough = min(least, len(best))

    def reach(level):
        return sum(min(seeds) >= level - 1e-6 for seeds in best)

    if target is None:
        assert reach(step + 2e-6) < enough
    else:
        assert reach(target) >= enough
        assert reach(target + step + 2e-6) < enough
        assert target / step == pytest.approx(round(target / step))


def test_target_is_not_above_what_is_enough():
    assert common_target([[0.8], [0.9]], 1, 0.05, highest=0.62) == 0.6
    assert common_target([], 1) is None


@given(fields, st.sampled_from(GOALS), st.integers(1, 6))
@settings(derandomize=True, deadline=None)
def test_survivors_are_the_best_and_the_winners_of_other_goals(every, goal, keep):
    contests = all_contests([made(f"m{k}", *row) for k, row in enumerate(every)], 0.5)
    kept = survivors(contests, goal, keep)
    assert kept[: min(keep, len(every))] == [c.name for c in contests[goal].ranked[:keep]]
    winners = {c.winner.name for c in contests.values() if c.winner}
    assert winners <= set(kept)
    assert len(kept) == len(set(kept)) <= keep + len(GOALS) - 1
