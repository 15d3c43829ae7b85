"""Mobility and churn depend on the time only, not on earlier queries."""

import numpy as np
import pytest

from dystop.rng import exponential
from dystop.world import Churn, Mobility, World, WorldParams
from dystop.world.dynamics import Presence, Walk
from dystop.world.geometry import scatter

AREA = (60.0, 40.0)
WALKING = Mobility(enabled=True, speed_mps=(0.5, 2.0), pause_s=(0.0, 5.0))
LEAVING = Churn(enabled=True, mean_up_s=20.0, mean_down_s=10.0)


def walk(seed=1, mobility=WALKING):
    return Walk(scatter(30, AREA, seed), AREA, mobility, seed)


def test_everybody_starts_at_home():
    np.testing.assert_array_equal(walk().position(0.0), scatter(30, AREA, 1))


def test_walkers_stay_inside_and_within_their_speed():
    times = np.arange(0.0, 400.0, 0.5)
    someone = walk()
    path = np.stack([someone.position(float(s)) for s in times])
    assert (path >= 0).all()
    assert (path <= AREA).all()
    speed = np.hypot(*np.moveaxis(np.diff(path, axis=0), -1, 0)) / 0.5
    assert speed.max() <= 2.0 + 1e-9
    assert speed.max() > 1.5
    # Between two waypoints nobody is slower than the lowest speed; only rests and turns are.
    steady = np.isclose(speed[1:], speed[:-1]) & (speed[1:] > 1e-9)
    assert speed[1:][steady].min() >= 0.5 - 1e-9
    assert (speed < 1e-9).any()
    assert (np.ptp(path, axis=0) > 10).all()  # everybody got somewhere


def test_without_rests_everybody_always_walks():
    restless = walk(mobility=Mobility(enabled=True, speed_mps=(1.0, 1.0), pause_s=(0.0, 0.0)))
    moved = restless.position(100.0) - restless.position(99.99)
    assert (np.abs(moved).sum(1) > 0).all()


def test_a_position_does_not_depend_on_what_was_asked_before():
    times = [0.0, 300.0, 12.5, 299.0, 40.0, 300.0]
    one = walk()
    for now_s in times:
        np.testing.assert_array_equal(one.position(now_s), walk().position(now_s))


def test_walks_differ_by_seed():
    assert (walk(1).position(50.0) != walk(2).position(50.0)).all()


@pytest.mark.parametrize("now_s", [-1.0, float("inf"), float("nan")])
def test_a_time_must_be_a_time(now_s):
    with pytest.raises(ValueError, match="now_s"):
        walk().position(now_s)


def test_reach_changes_as_workers_walk():
    world = World(WorldParams(mobility=WALKING), 40, 1000, 0)
    early, late = world.observe(1, 0.0), world.observe(1, 60.0)
    pairs = [
        set(zip(s.reach.dst.tolist(), s.reach.src.tolist(), strict=True)) for s in (early, late)
    ]
    assert pairs[0] - pairs[1]
    assert pairs[1] - pairs[0]
    assert (early.distance_m <= 40).all()
    assert (late.distance_m <= 40).all()


def test_presence_follows_its_definition():
    presence = Presence(8, LEAVING, 3)
    worker = 5
    ends = np.cumsum(
        [
            (20.0 if k % 2 == 0 else 10.0) * float(exponential(3, "churn", worker, k))
            for k in range(12)
        ]
    )
    for now_s in np.linspace(0.0, ends[-1] * 0.99, 200):
        expected = np.searchsorted(ends, now_s, side="right") % 2 == 0
        assert presence.alive(float(now_s))[worker] == expected


def test_all_are_there_at_first_and_the_long_run_share_is_right():
    presence = Presence(500, LEAVING, 0)
    assert presence.alive(0.0).all()
    share = np.mean([presence.alive(s).mean() for s in np.arange(200.0, 1000.0, 20.0)])
    assert share == pytest.approx(2 / 3, abs=0.02)


def test_next_return_is_the_first_moment_somebody_is_back():
    presence = Presence(6, LEAVING, 1)
    now_s = next(s for s in np.arange(0.0, 200.0) if not presence.alive(s).all())
    back_s = presence.next_return_s(now_s)
    absent = ~presence.alive(now_s)
    assert back_s > now_s
    assert not presence.alive(np.nextafter(back_s, 0))[absent].any()
    assert presence.alive(back_s)[absent].any()


def test_nobody_returns_where_nobody_leaves():
    assert World(WorldParams(), 3, 1000, 0).next_return_s(5.0) == np.inf
    assert Presence(3, LEAVING, 0).next_return_s(0.0) == np.inf


def test_presence_does_not_depend_on_what_was_asked_before():
    presence = Presence(50, LEAVING, 2)
    for now_s in (500.0, 3.0, 250.0, 251.0, 0.0, 500.0):
        fresh = Presence(50, LEAVING, 2)
        np.testing.assert_array_equal(presence.alive(now_s), fresh.alive(now_s))
        assert presence.next_return_s(now_s) == fresh.next_return_s(now_s)


def test_churn_takes_links_away_and_gives_them_back():
    world = World(WorldParams(churn=LEAVING), 30, 1000, 0, server=True)
    full = world.observe(1, 0.0)
    now_s = 60.0
    seen = world.observe(2, now_s)
    assert full.alive.all()
    assert not seen.alive.all()
    there = np.append(seen.alive, True)
    assert there[seen.reach.dst].all()
    assert there[seen.reach.src].all()
    kept = there[full.reach.dst] & there[full.reach.src]
    np.testing.assert_array_equal(seen.reach.src, full.reach.src[kept])
    np.testing.assert_array_equal(seen.link_s, full.link_s[kept])
    absent = int(np.flatnonzero(~seen.alive)[0])
    back_s = world.next_return_s(now_s)
    while not world.observe(3, back_s).alive[absent]:
        back_s = world.next_return_s(back_s)
    assert len(world.observe(3, back_s).reach.row(absent)) > 0


def test_a_transfer_with_an_absent_end_is_lost():
    world = World(WorldParams(churn=LEAVING), 30, 1000, 0)
    full, alive = world.observe(1, 0.0), world.observe(1, 60.0).alive
    got = world.transfer(1, 60.0, full.reach.dst, full.reach.src, 1.0)
    np.testing.assert_array_equal(got.lost, ~(alive[full.reach.dst] & alive[full.reach.src]))
    assert np.isfinite(got.seconds).all()
