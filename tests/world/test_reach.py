"""The reach graph of moving workers, which is updated from one observation to the next."""

from itertools import pairwise

import numpy as np
import pytest

from dystop.world import Mobility, World, WorldParams
from dystop.world import reach as world_reach


def same_arrays(a, b):
    """Return whether two sequences hold equal arrays."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def walking(pause_s, workers=150):
    """Return (params, workers) of a world whose workers walk and pause."""
    moving = Mobility(enabled=True, speed_mps=(2.0, 9.0), pause_s=pause_s)
    return WorldParams(area_m=(300.0, 200.0), range_m=25.0, mobility=moving), workers


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize("pause_s", [(0.0, 1.0), (100.0, 900.0), (3000.0, 9000.0)])
def test_an_updated_reach_graph_equals_a_new_search(pause_s, server):
    params, workers = walking(pause_s)
    updated = World(params, workers, 1000, 5, server)
    for t, now_s in enumerate([0.0, 3.0, 60.0, 61.0, 500.0, 20.0, 20.5, 5000.0], start=1):
        seen, fresh = (
            world.observe(t, now_s) for world in (updated, World(params, workers, 1000, 5, server))
        )
        assert same_arrays(
            (seen.reach.indptr, seen.reach.dst, seen.reach.src, seen.distance_m, seen.link_s),
            (fresh.reach.indptr, fresh.reach.dst, fresh.reach.src, fresh.distance_m, fresh.link_s),
        )


def test_links_between_resting_workers_are_not_measured_again(monkeypatch):
    params, workers = walking((3000.0, 9000.0))
    world, measured = World(params, workers, 1000, 5), []
    real = world_reach.distance

    def counted(position, dst, src):
        measured.append(len(dst))
        return real(position, dst, src)

    monkeypatch.setattr(world_reach, "distance", counted)
    positions = [world.observe(1, now_s).position for now_s in (60.0, 61.0)]
    moved = (positions[0] != positions[1]).any(axis=1)
    reach = world.observe(1, 61.0).reach
    assert 0 < moved.sum() < workers / 2
    assert sum(measured[1:]) == (moved[reach.dst] | moved[reach.src]).sum() < reach.edges


def test_a_static_world_is_searched_once(monkeypatch):
    world, searched = World(WorldParams(), 50, 1000, 0), []
    real = world_reach.neighbours_within
    monkeypatch.setattr(
        world_reach, "neighbours_within", lambda *args: searched.append(1) or real(*args)
    )
    seen = [world.observe(t, float(t)).reach for t in range(1, 4)]
    assert len(searched) == 1
    assert all(a is b for a, b in pairwise(seen))
