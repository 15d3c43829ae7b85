"""Rounds of many coordinators, against the rounds of one."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.stopping import Stop
from dystop.control.topology import bandwidth_use
from dystop.errors import ConfigError
from dystop.mechanisms import MECHANISMS, DySTop
from dystop.simulator.cells import simulate_cells
from dystop.simulator.loop import begin, simulate
from dystop.simulator.params import EngineParams
from dystop.training.flat import Layout
from dystop.training.trainers.no_training import NoTraining
from dystop.world import Budget, Churn, Mobility, Outages, WorldParams
from dystop.world.geometry import scatter
from support.engine_fixtures import components_for

AREA = (200.0, 200.0)
WORKERS = 40


def able(kind):
    needs = kind().capabilities()
    return not (needs.needs or needs.server or needs.pushes)


PULLING = sorted(name for name, kind in MECHANISMS.items() if able(kind))


def planned(mechanism, params=None, **engine):
    """A simulation without models of forty workers, who each know about five others."""
    components = components_for(
        mechanism,
        WORKERS,
        params=params or WorldParams(area_m=AREA),
        position=scatter(WORKERS, AREA, 1),
        engine=EngineParams(**{"train": False, **engine}),
        stop=Stop(rounds=9),
        topology=False,
    )
    fleet = components.fleet
    trainer = NoTraining(Layout((), (), ()), fleet.data_size, fleet.batch)
    return replace(components, trainer=trainer)


@pytest.mark.parametrize("name", PULLING)
def test_one_cell_is_the_flat_coordinator_bit_for_bit(name):
    components = planned(MECHANISMS[name]())
    flat = [record.to_json() for record, _ in simulate(components, begin(components))]
    cells = [found.record.to_json() for found in simulate_cells(components, WORKERS)]
    assert cells == flat


def test_one_cell_with_lost_transfers():
    params = WorldParams(area_m=AREA, outages=Outages(loss=0.2))
    components = planned(DySTop(estimate="last"), params)
    flat = [record.to_json() for record, _ in simulate(components, begin(components))]
    cells = [found.record.to_json() for found in simulate_cells(components, WORKERS)]
    assert cells == flat
    assert not all('"lost":0' in line for line in flat)


@pytest.mark.parametrize("name", PULLING)
def test_cells_keep_to_budgets_that_bind_everybody(name):
    tight = WorldParams(area_m=AREA, budget=Budget(models=3.0, binds="everybody"))
    components = replace(planned(MECHANISMS[name](), tight), budgets_bind=True)
    flat = [record.to_json() for record, _ in simulate(components, begin(components))]
    assert [found.record.to_json() for found in simulate_cells(components, WORKERS)] == flat
    for found in simulate_cells(components, 10):
        links, used = found.plan.links, np.zeros(WORKERS)
        for ends in (links.dst, links.src):
            np.add.at(used, ends, links.fraction)
        assert (used <= components.world.observe(found.record.round, 0.0).budget).all()


@pytest.mark.parametrize("name", PULLING)
def test_cells_decide_together_on_one_clock(name):
    components = planned(MECHANISMS[name]())
    clock_s, activations = 0.0, np.zeros(WORKERS)
    for found in simulate_cells(components, 10):
        assert len(found.coordinators) == 4
        record, links = found.record, found.plan.links
        clock_s += record.duration_s
        assert record.clock_s == pytest.approx(clock_s)
        assert found.alone_s.max() <= record.duration_s * (1 + 1e-12)
        activations[found.plan.active] += 1
        if components.mechanism.capabilities().budgeted:
            used = bandwidth_use(links.dst, links.src, WORKERS)
            assert (used <= components.world.observe(record.round, 0.0).budget).all()
    for one in found.coordinators:
        members = one.cell.own
        assert one.control.t == 10
        assert one.control.clock_s == pytest.approx(clock_s)
        assert np.array_equal(one.control.version[members], activations[one.cell.members])


def test_every_coordinator_wakes_its_own_worker_where_one_would_wake_one():
    components = planned(DySTop())
    first = next(iter(simulate_cells(components, 10)))
    assert len(first.plan.active) == 4
    cells = [set(one.cell.members.tolist()) for one in first.coordinators]
    assert all(len(members & set(first.plan.active.tolist())) == 1 for members in cells)


def test_links_go_across_borders():
    components = planned(DySTop())
    cell_of = np.zeros(WORKERS, np.int64)
    across = 0
    for found in simulate_cells(components, 10):
        for number, one in enumerate(found.coordinators):
            cell_of[one.cell.members] = number
        across += int((cell_of[found.plan.links.dst] != cell_of[found.plan.links.src]).sum())
    assert across > 0


@pytest.mark.parametrize(
    ("components", "fact"),
    [
        (planned(DySTop(), train=True), "engine.train"),
        (planned(DySTop(), timing="overlap"), "engine.timing"),
        (planned(MECHANISMS["sa-adfl"]()), "'sa-adfl' pushes"),
        (planned(MECHANISMS["fedavg"]()), "'fedavg' uses a server"),
        (planned(DySTop(), WorldParams(mobility=Mobility(enabled=True))), "world.mobility"),
        (planned(DySTop(), WorldParams(churn=Churn(enabled=True))), "world.churn"),
        (planned(DySTop(), WorldParams(outages=Outages(drop=0.1))), "world.outages.drop"),
        (planned(DySTop(), WorldParams(reach="overlay")), "world.reach"),
    ],
)
def test_what_cells_do_not_support_is_refused(components, fact):
    with pytest.raises(ConfigError) as refused:
        next(iter(simulate_cells(components, 10)))
    assert fact in str(refused.value)
