"""HADFL: hyperperiod, forecast, random choice, ring and broadcast."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.mechanisms import DPSGD, HADFL
from dystop.mechanisms.hadfl import forecast, grow_ring, hyperperiod_s, log_density, period_steps
from dystop.rng import stream
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from dystop.world import Compute, Outages
from support.engine_fixtures import STABLE_WORLD, components_for, run_to_end, weights
from support.strategies import dense, random_view, two_way, undirected
from support.unstable_world import UNSTABLE_WORLD, check_unstable_run


def everyone(n, seed=0):
    return random_view(seed, n, shape="complete", all_alive=True)


def first_plan(mechanism, view):
    plan, memory = mechanism.plan(mechanism.init(view.fleet), view)
    check_plan(mechanism, plan, view)
    return plan, memory


@pytest.mark.parametrize(
    ("epoch_s", "period", "epochs"),
    [
        ([1, 1, 3, 3], 3.0, [3, 3, 1, 1]),
        ([1, 2, 2, 4], 4.0, [4, 2, 2, 1]),
        ([2, 2], 2.0, [1, 1]),
        ([1, 1.25, 1.75], 7.0, [7, 5, 4]),  # 4, 5 and 7 ticks: 140 ticks, capped by 4 x 1.75
        ([0.1, 0.3], 0.3, [3, 1]),
    ],
)
def test_hyperperiod(epoch_s, period, epochs):
    times = np.array(epoch_s, float)
    assert hyperperiod_s(times, 4.0) == pytest.approx(period)
    assert period_steps(hyperperiod_s(times, 4.0), times).tolist() == epochs


def test_hyperperiod_of_many_workers_is_capped():
    times = stream(0, "epochs").uniform(1, 5, 500)
    assert hyperperiod_s(times, 4.0) == 4 * times.max()


def test_period_holds_at_least_one_step():
    assert period_steps(1.0, np.array([1.1, 0.3])).tolist() == [1, 3]


def run_forecast(versions, smoothing=0.5):
    mechanism = HADFL(smoothing=smoothing)
    first = np.array([float(versions[0])])
    memory = {"once": first, "twice": first}
    for version in versions:
        memory = mechanism._smooth({**memory, "version": np.array([float(version)])}, ints([0]))
    return memory["once"][0], memory["twice"][0], forecast(memory["once"], memory["twice"], 0.5)[0]


def test_forecast_of_the_worked_example():
    assert run_forecast([10, 20, 30]) == (22.5, 17.5, 32.5)


def test_forecast_is_exact_on_a_long_arithmetic_series():
    assert run_forecast([10 * k for k in range(1, 30)])[2] == pytest.approx(300.0, abs=5e-4)


def test_absent_workers_are_not_smoothed():
    view = everyone(4)
    view = replace(view, alive=np.array([True, False, True, True]))
    view = replace(view, reach=view.reach.keep((view.reach.dst != 1) & (view.reach.src != 1)))
    mechanism = HADFL()
    before = mechanism.init(view.fleet)
    before = {**before, "version": before["version"] + 8}
    _, after = mechanism.plan(before, view)
    assert after["once"][1] == before["once"][1]
    assert after["version"][1] == before["version"][1]
    assert (after["version"][[0, 2, 3]] > before["version"][[0, 2, 3]]).all()
    assert (after["once"] - before["once"])[[0, 2, 3]].tolist() == [4.0] * 3


def share(versions):
    weight = np.exp(log_density(np.asarray(versions, float)))
    return weight / weight.sum()


def test_chances_of_the_worked_example():
    np.testing.assert_allclose(share([12, 8, 4, 4]), [0.294, 0.422, 0.142, 0.142], atol=5e-4)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_chances_are_positive_and_equal_for_equal_versions(versions):
    chance = share(versions)
    assert (chance > 0).all()
    assert chance.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(share([versions[0]] * len(versions)), 1 / len(versions))


def test_an_outlier_among_many_can_still_be_drawn():
    version = np.zeros(4000)
    version[0] = 1e9
    assert np.isfinite(log_density(version)).all()


def test_draws_follow_the_chances():
    """Members drawn first, over many rounds; the ring is full, so its members are the draw."""
    view = everyone(4)
    mechanism = HADFL(members=2)
    version = np.array([12.0, 8.0, 4.0, 4.0])
    memory = {**mechanism.init(view.fleet), "version": version, "once": version, "twice": version}
    hits = np.zeros(4)
    rounds = 3000
    for t in range(rounds):
        hits[mechanism._ring(memory, replace(view, t=t), np.arange(4))] += 1
    p = share(version)
    second = np.array([sum(p[a] * p[i] / (1 - p[a]) for a in range(4) if a != i) for i in range(4)])
    np.testing.assert_allclose(hits / rounds, p + second, atol=0.03)


def is_ring(ring, reach):
    """One cycle of distinct workers, each in reach of the one before."""
    return (
        len(ring) >= 2
        and len(set(ring.tolist())) == len(ring)
        and (reach.find(np.roll(ring, -1), ring) >= 0).all()
    )


@given(undirected(), st.integers(2, 7), st.integers(0, 20))
def test_consecutive_members_are_in_reach(case, size, seed):
    n, edges = case
    reach = two_way(n, edges)
    rng = stream(seed, "ring")
    ring = grow_ring(ints(rng.permutation(n)), reach, size, rng)
    assert len(ring) <= size
    assert is_ring(ring, reach) if edges else len(ring) == 0


@pytest.mark.parametrize("size", [2, 5, 9, 30])
def test_a_full_graph_takes_the_first_ones_drawn(size):
    view = everyone(9)
    order = ints(stream(size, "order").permutation(9))
    ring = grow_ring(order, view.reach, size, stream(0, "ring"))
    assert sorted(ring.tolist()) == sorted(order[:size].tolist())
    assert is_ring(ring, view.reach)


def test_rings_are_random():
    view = everyone(6)
    seen = {
        tuple(grow_ring(np.arange(6), view.reach, 6, stream(k, "ring")).tolist())
        for k in range(2000)
    }
    assert len(seen) == 120  # 5! directed rings


def test_whoever_fits_nowhere_is_bypassed():
    rng = stream(0, "ring")
    path = two_way(4, {(0, 1), (1, 2), (2, 3)})
    assert sorted(grow_ring(ints([2, 0, 1, 3]), path, 4, rng).tolist()) == [1, 2]
    kite = two_way(4, {(0, 1), (1, 2), (2, 0), (2, 3)})
    assert sorted(grow_ring(ints([0, 3, 1, 2]), kite, 3, rng).tolist()) == [0, 1, 2]
    assert len(grow_ring(ints([0, 1]), two_way(2, set()), 2, rng)) == 0


def test_one_way_links_make_no_pair():
    view = everyone(2)
    one_way = replace(view, reach=view.reach.keep(np.array([True, False])), link_s=np.ones(1))
    plan, memory = first_plan(HADFL(), one_way)
    assert len(plan.links) == 0
    assert plan.active.tolist() == [0, 1]
    assert memory["age"].tolist() == [1, 1]


@pytest.mark.parametrize(("n", "members"), [(2, None), (3, None), (9, None), (9, 7), (9, 100)])
def test_the_ring_averages_and_the_others_hear_of_it(n, members):
    view = everyone(n)
    plan, memory = first_plan(HADFL(members=members), view)
    k = min(members or max(2, n // 2), n)
    gather, spread = plan.mixes
    ring = gather.receiver
    assert len(ring) == k
    assert gather.collective
    scalars = stream(n, "models").normal(size=n)
    after = dense(gather, n) @ scalars
    np.testing.assert_allclose(after[ring], scalars[ring].mean())
    others = np.setdiff1d(np.arange(n), ring)
    np.testing.assert_array_equal(after[others], scalars[others])
    last = dense(spread, n) @ after
    np.testing.assert_allclose(last[others], 0.5 * scalars[others] + 0.5 * scalars[ring].mean())
    np.testing.assert_allclose(last[ring], after[ring])
    around = plan.links.stage == 0
    assert plan.links.background.tolist() == (~around).tolist()
    assert plan.links.fraction[around].sum() == pytest.approx(2 * (k - 1))
    assert plan.links.fraction[~around].sum() == n - k
    assert plan.notes["ring"] == k
    assert (memory["age"][ring] == 0).all()
    assert (memory["age"][others] == 1).all()


def test_links_of_the_ring_form_one_cycle():
    for seed in range(10):
        plan, _ = first_plan(HADFL(), everyone(14, seed))
        here = plan.links.stage == 0
        after = dict(zip(plan.links.src[here].tolist(), plan.links.dst[here].tolist(), strict=True))
        at = start = next(iter(after))
        walked = set()
        while at not in walked:
            walked.add(at)
            at = after[at]
        assert at == start
        assert walked == set(plan.mixes[0].receiver.tolist())


def test_equal_hardware_gives_equal_steps_and_no_preference():
    view = everyone(6)
    fleet = replace(view.fleet, data_size=np.full(6, 64))
    view = replace(view, fleet=fleet, step_s=np.full(6, 0.5))
    mechanism = HADFL()
    memory = mechanism.init(fleet)
    for t in range(1, 6):
        plan, memory = mechanism.plan(memory, replace(view, t=t))
        assert plan.steps.tolist() == [4] * 6
        assert plan.notes["period_s"] == 2.0
    assert not log_density(forecast(memory["once"], memory["twice"], 0.5)).any()


def test_sync_age_counts_rounds_outside_the_ring():
    view = everyone(9)
    mechanism = HADFL(members=2)
    memory = mechanism.init(view.fleet)
    age = np.zeros(9)
    for t in range(1, 8):
        plan, memory = mechanism.plan(memory, replace(view, t=t))
        age += 1
        age[plan.mixes[0].receiver] = 0
        assert memory["age"].tolist() == age.tolist()
        assert plan.notes["sync_age_max"] == age.max()
        assert plan.notes["sync_age_mean"] == pytest.approx(age.mean())


@pytest.mark.parametrize("publish", ["eager", "on_completion"])
@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_with_everyone_in_the_ring_it_is_a_periodic_all_reduce(timing, publish):
    changes = {"stop": Stop(rounds=4), "engine": EngineParams(timing=timing, publish=publish)}
    ring, ours = run_to_end(components_for(HADFL(members=5), 5, **changes))
    _, theirs = run_to_end(components_for(DPSGD(topology="complete"), 5, **changes))
    assert weights(ours) == pytest.approx(weights(theirs), abs=1e-4)
    mean = 3.0 * 4  # of the first training and three rounds; the fourth is each one's own
    assert weights(ours) == pytest.approx([mean + k + 1 for k in range(5)], abs=1e-4)
    assert ring[0].wire_bytes == 2 * 4 * 40_000


def test_round_time_is_the_period_and_the_ring():
    still = replace(STABLE_WORLD, compute=Compute(batch_s=1.0, spread=0.4))
    components = components_for(HADFL(members=4), 6, params=still, stop=Stop(rounds=3))
    records, _ = run_to_end(components)
    around = components.world.observe(1, 0.0)
    period_s = hyperperiod_s(around.step_s, 4.0)
    steps = period_steps(period_s, around.step_s)
    pairs = ints(records[2].get("link_pairs"))[:4]  # the ring comes first
    link_s = np.zeros(6)
    link_s[pairs[:, 0]] = around.link_s[around.reach.find(pairs[:, 0], pairs[:, 1])] * 1.5
    assert records[2].duration_s == pytest.approx((steps * around.step_s + link_s).max())
    assert records[2].duration_s <= period_s + link_s.max() + 1e-9
    assert records[2].wire_bytes == (6 + 2) * 40_000


def test_broadcast_is_mixed_in_when_it_arrives():
    _, state = run_to_end(components_for(HADFL(members=2), 3, stop=Stop(rounds=1)))
    after, alone = weights(state), [2.0, 4.0, 6.0]
    outside = next(k for k in range(3) if after[k] == alone[k])  # its letter is still on the way
    inside = [k for k in range(3) if k != outside]
    mean = np.mean([k + 1.0 for k in inside])
    assert [after[k] for k in inside] == [mean + k + 1 for k in inside]
    assert state.progress.in_flight.messages().weight.tolist() == [0.5]
    assert state.progress.in_flight.messages().dst.tolist() == [outside]
    snapshot = state.models.snapshots[int(state.progress.in_flight.snapshot[0])]
    assert float(snapshot[0]) == mean  # what the ring agreed on


def test_a_broken_ring_brings_nobody_anything():
    components = components_for(
        HADFL(members=4),
        4,
        params=replace(STABLE_WORLD, outages=Outages(loss=1.0)),
        stop=Stop(rounds=2),
    )
    _, state = run_to_end(components)
    assert weights(state) == [3.0 * (k + 1) for k in range(4)]


@pytest.mark.parametrize("publish", ["eager", "on_completion"])
@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_it_survives_everything_at_once(timing, publish):
    engine = EngineParams(timing=timing, publish=publish)
    records, _ = check_unstable_run(HADFL(), engine, world=UNSTABLE_WORLD)
    assert max(r.notes["ring"] for r in records) >= 3
