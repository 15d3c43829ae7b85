"""Observations of a simulated world."""

import dataclasses

import numpy as np
import pytest

from dystop.control.laws import TestbedLaw
from dystop.control.round import build_view, initial_state
from dystop.mechanisms.asydfl import AsyDFL
from dystop.types import Fleet, Observation
from dystop.world import (
    Budget,
    Channel,
    Churn,
    Compute,
    Mobility,
    Outages,
    Overhead,
    Progress,
    World,
    WorldParams,
)
from dystop.world.describe import GRAPH, describe, pieces_notice
from dystop.world.params import yard_of
from dystop.world.progress import nothing_in_flight

MODEL = 87_360
LIVELY = WorldParams(
    mobility=Mobility(enabled=True),
    churn=Churn(enabled=True, mean_up_s=30.0, mean_down_s=10.0),
    outages=Outages(drop=0.2, loss=0.1),
)


def world(workers=50, seed=7, server=False, position=None, **knobs):
    return World(WorldParams(**knobs), workers, MODEL, seed, server, position)


def leaves(value):
    """All arrays of a nested dataclass, and the budgets of the first nodes."""
    if callable(value):
        return [value(np.arange(3))]
    if isinstance(value, tuple):
        return [x for part in value for x in leaves(part)]
    if not dataclasses.is_dataclass(value):
        return [value]
    return [x for f in dataclasses.fields(value) for x in leaves(getattr(value, f.name))]


def assert_same(a, b):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def pairs(seen):
    return set(zip(seen.reach.dst.tolist(), seen.reach.src.tolist(), strict=True))


@pytest.mark.parametrize("reach", ["strict", "overlay"])
@pytest.mark.parametrize("server", [False, True])
def test_nothing_depends_on_the_order_of_calls(reach, server):
    params = dataclasses.replace(LIVELY, reach=reach)
    used = World(params, 40, MODEL, 7, server)
    for t, now_s in [(9, 80.0), (1, 0.0), (5, 33.3), (9, 80.0), (2, 33.3)]:
        fresh = World(params, 40, MODEL, 7, server)
        seen = used.observe(t, now_s)
        links = seen.reach.dst, seen.reach.src
        got = used.transfer(t, now_s, *links, 0.5)
        assert_same(got, fresh.transfer(t, now_s, *links, 0.5))
        assert_same(seen, fresh.observe(t, now_s))
        back = np.arange(len(links[0]))[::-1]  # the same links asked for in another order
        assert_same(
            used.transfer(t, now_s, links[0][back], links[1][back], 0.5),
            dataclasses.replace(
                got, seconds=got.seconds[back], hops=got.hops[back], lost=got.lost[back]
            ),
        )


def test_another_seed_is_another_world():
    a, b = world(seed=1).observe(1, 0.0), world(seed=2).observe(1, 0.0)
    assert (a.position != b.position).all()
    assert (a.step_s != b.step_s).any()
    assert pairs(a) != pairs(b)


def test_observed_arrays_have_the_promised_shapes():
    seen = world(server=True).observe(1, 0.0)
    edges = seen.reach.edges
    assert seen.alive.shape == seen.step_s.shape == (50,)
    assert seen.distance_m.shape == seen.link_s.shape == (edges,)
    assert seen.budget_of(np.arange(51)).shape == (51,)
    assert seen.position.shape == (51, 2)
    assert seen.reach.n == 51


def test_a_still_world_remembers_its_links_and_protects_them():
    still = world()
    first, second = still.observe(1, 0.0), still.observe(2, 99.0)
    assert first.reach is second.reach
    assert first.link_s is second.link_s
    for values in (first.link_s, first.distance_m, first.reach.src, first.step_s, first.position):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0


def test_expected_time_uses_the_senders_power_and_the_distance():
    spots = np.array([[0.0, 0.0], [30.0, 0.0], [0.0, 10.0]])
    weak = Channel(power_dbm=(10.0, 10.0), fading=False)
    seen = world(3, position=spots, channel=weak).observe(1, 0.0)
    at = seen.reach.find(np.array([0, 1, 0]), np.array([1, 0, 2]))
    rate = 1e6 * np.log2(1 + 0.01 * 10**-4.3 * np.array([30.0, 30.0, 10.0]) ** -4.0 / 1e-13)
    np.testing.assert_allclose(seen.link_s[at], 8 * MODEL / rate)
    uneven = world(3, position=spots).observe(1, 0.0)
    there, back = uneven.link_s[at[:2]]
    assert there != back


def test_without_fading_and_fluctuation_reality_meets_expectation():
    calm = Channel(fading=False, power_fluctuation=0.0)
    for reach in ("strict", "overlay"):
        still = world(channel=calm, reach=reach, range_m=25.0, server=True)
        seen = still.observe(4, 0.0)
        got = still.transfer(4, 0.0, seen.reach.dst, seen.reach.src, 1.0)
        np.testing.assert_allclose(got.seconds, seen.link_s, rtol=1e-12)
        half = still.transfer(4, 0.0, seen.reach.dst, seen.reach.src, 0.5)
        np.testing.assert_allclose(half.seconds, seen.link_s / 2, rtol=1e-12)
        assert not got.lost.any()


def test_fading_and_fluctuation_move_the_clock():
    windy = world(workers=100)
    seen = windy.observe(1, 0.0)
    links = seen.reach.dst, seen.reach.src
    one, two = (windy.transfer(t, 0.0, *links, 1.0).seconds for t in (1, 2))
    assert (one != two).all()
    ratio = one / seen.link_s
    assert 1.0 < ratio.mean() < 1.3  # a mean time exceeds the time at the mean rate
    calm = world(workers=100, channel=Channel(power_fluctuation=0.0))
    assert (calm.transfer(1, 0.0, *links, 1.0).seconds != one).all()


def test_fraction_may_differ_by_link():
    still = world()
    seen = still.observe(1, 0.0)
    dst, src = seen.reach.dst[:3], seen.reach.src[:3]
    full = still.transfer(1, 0.0, dst, src, 1.0).seconds
    some = still.transfer(1, 0.0, dst, src, np.array([0.0, 0.5, 1.0])).seconds
    np.testing.assert_allclose(some, full * [0.0, 0.5, 1.0])


def test_dropped_links_are_gone_both_ways_and_for_one_round():
    flaky, solid = world(outages=Outages(drop=0.3)), world()
    first, second = pairs(flaky.observe(1, 0.0)), pairs(flaky.observe(2, 0.0))
    every = pairs(solid.observe(1, 0.0))
    assert first == {(j, i) for i, j in first}
    assert first < every
    assert first != second
    assert len(first) / len(every) == pytest.approx(0.7, abs=0.08)
    gone = np.array(sorted(every - first))
    assert flaky.transfer(1, 0.0, gone[:, 0], gone[:, 1], 1.0).lost.all()
    kept = np.array(sorted(first))
    assert not flaky.transfer(1, 0.0, kept[:, 0], kept[:, 1], 1.0).lost.any()


def test_loss_marks_transfers_and_leaves_the_reach_alone():
    lossy, solid = world(outages=Outages(loss=0.25)), world()
    seen = lossy.observe(1, 0.0)
    assert_same(seen, solid.observe(1, 0.0))
    lost = lossy.transfer(1, 0.0, seen.reach.dst, seen.reach.src, 1.0).lost
    assert lost.mean() == pytest.approx(0.25, abs=0.05)
    assert not solid.transfer(1, 0.0, seen.reach.dst, seen.reach.src, 1.0).lost.any()


def test_a_transfer_out_of_range_is_lost():
    spots = np.array([[0.0, 0.0], [40.0, 0.0], [80.1, 0.0]])
    got = world(3, position=spots).transfer(1, 0.0, np.array([0, 1]), np.array([1, 2]), 1.0)
    assert got.lost.tolist() == [False, True]


def test_compute_spread():
    many = world(4000, area_m=(2000.0, 2000.0)).observe(1, 0.0).step_s
    assert many.min() == pytest.approx(0.02 * 0.2)
    assert many.max() == pytest.approx(0.02 * 2.5, rel=0.2)
    assert np.median(many) == pytest.approx(0.02, rel=0.03)
    assert many.std() == pytest.approx(0.02 * 0.4, rel=0.06)
    equal = world(compute=Compute(batch_s=0.5, spread=0.0)).observe(1, 0.0).step_s
    assert (equal == 0.5).all()


def budgets(seen, t):
    """Return the budgets of all nodes in round t."""
    return seen.observe(t, 0.0).budget_of(np.arange(seen.nodes))


def test_budget_varies_over_rounds_around_its_base():
    seen = world(100, server=True)
    first, second = budgets(seen, 1), budgets(seen, 2)
    assert (first != second).any()
    assert (first == np.floor(first)).all()
    assert (first >= 0).all()
    rounds = np.stack([budgets(seen, t)[:-1] for t in range(50)])
    assert rounds.mean() == pytest.approx(14 - 0.5, abs=0.2)  # rounding down costs half a model
    assert rounds.std() == pytest.approx(14 * 0.25, rel=0.05)
    assert first[-1] == np.inf


def test_budget_can_be_fixed_or_switched_off():
    fixed = budgets(world(budget=Budget(models=3.0, variation=0.0)), 1)
    assert (fixed == 3.0).all()
    assert np.isinf(budgets(world(budget=Budget(enabled=False)), 1)).all()
    wild = budgets(world(budget=Budget(variation=10.0)), 1)
    assert wild.min() == 0.0


def test_the_server_hears_everybody_and_everybody_hears_it():
    served = world(20, server=True, range_m=5.0, area_m=(1000.0, 1000.0))
    seen = served.observe(1, 0.0)
    assert seen.reach.row(20).tolist() == list(range(20))
    assert all(20 in seen.reach.row(i) for i in range(20))
    np.testing.assert_array_equal(seen.position[20], [500.0, 500.0])
    worker, hub = np.arange(20), np.full(20, 20)
    down, up = seen.reach.find(worker, hub), seen.reach.find(hub, worker)
    assert (seen.link_s[down] < seen.link_s[up]).all()  # it has ten times the power
    assert not served.transfer(1, 0.0, worker, hub, 1.0).lost.any()


def test_one_worker_and_no_neighbours():
    alone = world(1)
    seen = alone.observe(1, 0.0)
    assert seen.reach.edges == 0
    assert seen.alive.tolist() == [True]
    none = np.zeros(0, np.int64)
    assert len(alone.transfer(1, 0.0, none, none, 1.0).seconds) == 0
    apart = world(2, position=np.array([[0.0, 0.0], [90.0, 0.0]]))
    assert apart.observe(1, 0.0).reach.edges == 0
    assert describe(apart)["link time"] == "no links"
    assert world(1, reach="overlay", server=True).observe(1, 0.0).reach.edges == 2


def test_overlay_equals_strict_where_all_are_in_range():
    seen = [world(range_m=142.0, reach=reach).observe(1, 0.0) for reach in ("strict", "overlay")]
    assert seen[0].reach.edges == 50 * 49
    assert_same(*seen)
    dst, src = seen[0].reach.dst, seen[0].reach.src
    got = [
        world(range_m=142.0, reach=r).transfer(1, 0.0, dst, src, 1.0) for r in ("strict", "overlay")
    ]
    np.testing.assert_allclose(got[0].seconds, got[1].seconds, rtol=1e-12)
    assert (got[1].hops == 1).all()


def test_overlay_relays_along_a_line():
    spots = np.array([[0.0, 0.0], [30.0, 0.0], [65.0, 0.0], [99.0, 99.0]])
    line = world(4, position=spots, reach="overlay")
    seen = line.observe(1, 0.0)
    assert pairs(seen) == {(i, j) for i in range(3) for j in range(3) if i != j}
    link_s = dict(zip(sorted(pairs(seen)), seen.link_s, strict=True))
    assert link_s[0, 2] == pytest.approx(link_s[0, 1] + link_s[1, 2])
    assert link_s[2, 0] == pytest.approx(link_s[2, 1] + link_s[1, 0])
    assert seen.distance_m[seen.reach.find(np.array([0]), np.array([2]))] == 65.0
    got = line.transfer(1, 0.0, np.array([0, 0, 1, 0]), np.array([2, 1, 2, 3]), 1.0)
    assert got.hops.tolist() == [2, 1, 1, 1]
    assert got.lost.tolist() == [False, False, False, True]
    assert got.seconds[0] == pytest.approx(got.seconds[1] + got.seconds[2])


def test_overlay_takes_the_quickest_of_several_ways():
    spots = np.array([[0.0, 0.0], [35.0, 0.0], [70.0, 0.0], [105.0, 0.0], [35.0, 1.0]])
    equal = Channel(power_dbm=(15.0, 15.0), fading=False, power_fluctuation=0.0)
    line = world(5, position=spots, reach="overlay", channel=equal)
    seen = line.observe(1, 0.0)
    times = dict(zip(sorted(pairs(seen)), seen.link_s, strict=True))
    assert times[3, 0] == pytest.approx(3 * times[0, 1])  # by 1, not by 4
    got = line.transfer(1, 0.0, np.array([3, 0]), np.array([0, 3]), 1.0)
    assert got.hops.tolist() == [3, 3]
    np.testing.assert_allclose(got.seconds, [times[3, 0], times[0, 3]])


def test_the_server_relays_nothing():
    spots = np.array([[0.0, 0.0], [100.0, 100.0]])
    seen = world(2, position=spots, reach="overlay", server=True).observe(1, 0.0)
    assert pairs(seen) == {(0, 2), (1, 2), (2, 0), (2, 1)}


def test_many_workers_stay_sparse():
    n = 20_000
    side = float(np.sqrt(n * np.pi * 40.0**2 / 20))
    seen = world(n, area_m=(side, side)).observe(1, 0.0)
    assert seen.reach.edges / n == pytest.approx(20, rel=0.05)
    assert (seen.distance_m <= 40.0).all()


def test_description_is_for_humans():
    text = describe(world(100, server=True))
    assert all(isinstance(v, str) and v for v in text.values())
    assert text["area"] == "100 m x 100 m, range 40 m, reach strict"
    assert text["connected"] == "yes"
    assert text["budget"].startswith("14 models")
    assert "fading over 8 blocks" in text["switched on"]
    lively = describe(World(LIVELY, 10, MODEL, 0))
    for word in ("mobility", "churn", "links down 20%", "transfers lost 10%"):
        assert word in lively["switched on"]
    assert describe(world(budget=Budget(enabled=False)))["budget"] == "unlimited"


def test_pieces_of_a_network_are_named_with_their_sizes():
    apart = describe(World(WorldParams(area_m=(1e6, 1e6), range_m=1.0), 3, MODEL, 0))
    assert apart["connected"] == "no, 3 pieces of 1, 1, 1 workers"
    assert "3 pieces" in pieces_notice(apart)
    assert pieces_notice({**apart, "server": "base station at the centre"}) == ""
    assert pieces_notice({**apart, "connected": "yes"}) == ""


def test_pieces_of_the_graph_of_a_mechanism_are_named():
    network = {"connected": "yes", GRAPH: "no, 70 pieces of 4, 3, 1, ... workers"}
    assert "graph of the mechanism is not connected" in pieces_notice(network)
    assert "70 pieces" in pieces_notice(network)
    assert "mechanism.pairs=reach" in pieces_notice(network)
    assert pieces_notice({"connected": "yes", GRAPH: "yes"}) == ""
    same = "no, 2 pieces of 3, 3 workers"  # the network itself is the reason
    assert "world.range_m" in pieces_notice({"connected": same, GRAPH: same})


def test_overhead_is_added_to_transfers_and_rounds():
    """Nothing else changes, and the world without overhead stays as it is."""
    plain = world(5, range_m=200.0)
    slower = plain.with_overhead(Overhead(transfer_s=0.25, round_s=0.5))
    fleet = Fleet(np.full(5, 8), np.full((5, 2), 4), 8, MODEL, 10, 0)
    seen = plain.observe(1, 0.0)
    observation = Observation(
        seen.alive,
        seen.reach,
        seen.distance_m,
        seen.link_s,
        seen.step_s,
        np.zeros(5),
        seen.budget_of,
    )
    view = build_view(fleet, initial_state(fleet, AsyDFL()), observation)
    plan, _ = AsyDFL(wakes="one").plan({}, view)
    progress = Progress(np.zeros(5), np.zeros(5), nothing_in_flight())
    args = TestbedLaw(), view, plan, np.ones(1, np.int64), progress
    before, after = plain.realise(*args), slower.realise(*args)
    assert len(before.link_s) > 1
    np.testing.assert_allclose(after.link_s, before.link_s + 0.25)
    np.testing.assert_allclose(after.arrival_s, before.arrival_s + 0.25)
    assert after.duration_s == pytest.approx(before.duration_s + 0.75)
    np.testing.assert_array_equal(after.begin_s, before.begin_s)
    assert_same(plain.realise(*args), before)


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 75, 99])
def test_small_fleets_at_the_density_of_the_paper_are_in_one_piece(workers):
    area_m = yard_of(workers)
    for seed in range(10):
        yard = World(WorldParams(area_m=area_m), workers, MODEL, seed)
        assert describe(yard)["connected"] == "yes"
    assert workers / (area_m[0] * area_m[1]) == pytest.approx(100 / 100.0**2)
