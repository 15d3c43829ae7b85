"""What a round is planned from, for many workers: every step equals a plain reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control import plan_check
from dystop.control.plan_check import check_plan
from dystop.control.priority import (
    emd,
    first_phase_priority,
    label_shares,
    second_phase_of_links,
    second_phase_priority,
)
from dystop.control.topology import connect, ranked_candidates
from dystop.errors import PlanError
from dystop.mechanisms import DySTop
from dystop.plan import Plan, links, mix_of
from dystop.sparse import graph_of, ints, no_pairs
from support.strategies import random_view

quick = settings(derandomize=True, deadline=None, max_examples=60)


def same(a, b):
    """Return whether two sequences hold equal arrays."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@quick
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 7, 8, 10, 17, 62, 100, 128, 129, 300]))
def test_label_distance_equals_numpy_exactly(seed, classes):
    rng = np.random.default_rng(seed)
    shares = label_shares(ints(rng.integers(0, 50, (9, classes))))
    dst, src = rng.integers(0, 9, 150), rng.integers(0, 9, 150)
    plain = np.abs(shares[dst] - shares[src]).sum(axis=1)
    assert np.array_equal(emd(shares, dst, src), plain)
    assert np.array_equal(emd(shares, src, dst), plain)


def test_label_distance_of_an_unknown_worker_is_refused():
    with pytest.raises(IndexError, match=r"3 .*0\.\.2"):
        emd(np.ones((3, 2)), ints([0, 3]), ints([1, 1]))


@quick
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_second_phase_of_links_equals_the_equation(seed, t):
    rng = np.random.default_rng(seed)
    pulls = no_pairs(8)
    for _ in range(3):
        pulls = pulls.add(rng.integers(0, 8, 12), rng.integers(0, 8, 12))
    staleness = rng.integers(0, 9, 8)
    dst, src = rng.integers(0, 8, 700), rng.integers(0, 8, 700)
    plain = (1.0 - pulls.get(dst, src) / t) / (1.0 + np.abs(staleness[dst] - staleness[src]))
    assert np.array_equal(second_phase_of_links(pulls, t, staleness)(dst, src), plain)
    gap = staleness[dst] - staleness[src]
    assert np.array_equal(second_phase_priority(pulls.get(dst, src), t, gap), plain)


def test_second_phase_of_an_unknown_worker_is_refused():
    with pytest.raises(IndexError, match=r"2 .*0\.\.1"):
        second_phase_of_links(no_pairs(2), 1, ints([0, 0]))(ints([0]), ints([2]))


@quick
@given(st.integers(0, 2**32), st.booleans())
def test_ranking_by_function_equals_ranking_by_array(seed, all_active):
    view = random_view(seed % 1000, 9)
    rng = np.random.default_rng(seed)
    active = rng.permutation(9)[: 9 if all_active else 4]
    priority = first_phase_priority(rng.integers(0, 3, view.reach.edges) / 2.0, view.distance_m)
    whole = ranked_candidates(active, view.reach, priority)
    assert same(whole, ranked_candidates(active, view.reach, lambda edges: priority[edges]))
    order = np.lexsort((view.reach.src, -priority, view.reach.dst))
    for k, i in enumerate(active.tolist()):
        row = order[view.reach.dst[order] == i]
        assert whole[1][whole[0][k] : whole[0][k + 1]].tolist() == view.reach.src[row].tolist()


def test_long_candidate_lists_equal_a_plain_loop():
    rng, n = np.random.default_rng(0), 400
    dst, src = np.nonzero(~np.eye(n, dtype=bool))
    reach, priority = graph_of(n, dst, src), rng.integers(0, 50, n * (n - 1)) / 7.0
    active, budget = rng.permutation(n), rng.integers(0, 300, n).astype(float)
    bounds, ranked = ranked_candidates(active, reach, priority)
    left, lists, chosen = budget.copy(), [], []
    for k, i in enumerate(active.tolist()):
        lists.append(ranked[bounds[k] : bounds[k + 1]].tolist())
        row = slice(reach.indptr[i], reach.indptr[i + 1])
        assert lists[k] == reach.src[row][np.lexsort((reach.src[row], -priority[row]))].tolist()
    for _ in range(150):
        for k, i in enumerate(active.tolist()):
            while left[i] >= 1 and lists[k]:
                j = lists[k].pop(0)
                if left[j] >= 1:
                    left[i], left[j] = left[i] - 1, left[j] - 1
                    chosen.append((i, j))
                    break
    taken = connect(active, bounds, ranked, budget, 150)
    assert list(zip(*(x.tolist() for x in taken), strict=True)) == chosen


def test_bounds_that_do_not_fit_are_refused():
    for bounds in ([0, 1], [0, 1, 3]):
        with pytest.raises(IndexError, match="2 workers"):
            connect(ints([0, 1]), ints(bounds), ints([1, 0]), np.ones(2), 3)


def test_links_of_unknown_workers_are_refused():
    for active, ranked in [([0, 7], [1, 0]), ([0, 1], [1, 9]), ([0, 1], [1, -1])]:
        with pytest.raises(IndexError, match=r"0\.\.1"):
            connect(ints(active), ints([0, 1, 2]), ints(ranked), np.ones(2), 3)


def broken(plan, rng):
    """Return the plan with one random change."""
    mix = plan.mixes[0]
    source, weight, indptr = mix.source.copy(), mix.weight.copy(), mix.indptr.copy()
    dst, src = plan.links.dst.copy(), plan.links.src.copy()
    kind = rng.integers(0, 7)
    if kind == 0 and len(source):
        source[rng.integers(len(source))] = rng.integers(-1, 8)
    elif kind == 1 and len(weight):
        weight[rng.integers(len(weight))] += rng.choice([0.5, -2.0, np.nan, 1e-12])
    elif kind == 2 and len(indptr) > 2:
        indptr[rng.integers(len(indptr))] += 1
    elif kind == 3 and len(src):
        src[rng.integers(len(src))] = rng.integers(-1, 8)
    elif kind == 4 and len(dst):
        dst[rng.integers(len(dst))] = rng.integers(-1, 8)
    elif kind == 5 and len(dst):
        dst, src = dst[1:], src[1:]
    rows = type(mix)(mix.receiver, indptr, source, weight)
    return Plan(plan.active, links(dst, src), (rows,))


def verdict(mechanism, plan, view):
    """Return the error that `check_plan` raises, or "valid"."""
    try:
        check_plan(mechanism, plan, view)
    except (PlanError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return "valid"


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_the_fast_check_agrees_with_the_slow_checks(seed):
    rng = np.random.default_rng(seed)
    view = random_view(seed % 500, 7, all_alive=True)
    mechanism = DySTop()
    plan = broken(mechanism.plan(mechanism.init(view.fleet), view)[0], rng)
    fast = verdict(mechanism, plan, view)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_check, "violations", lambda *_: plan_check.ALL)
        assert verdict(mechanism, plan, view) == fast


def test_every_stage_is_checked_with_its_own_links():
    view = random_view(5, 6, shape="full", all_alive=True)
    pull = links(ints([0]), ints([1]), stage=1)
    rows = mix_of(ints([0, 0]), ints([0, 1]), np.array([0.5, 0.5]))
    own = mix_of(ints([0]), ints([0]), np.ones(1))
    check_plan(DySTop(), Plan(ints([0]), pull, (own, rows)), view)
    with pytest.raises(PlanError, match="stage 0 mixes 1 into 0"):
        check_plan(DySTop(), Plan(ints([0]), pull, (rows, own)), view)
