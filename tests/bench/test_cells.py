"""The benchmark of cells measures a real simulation, and its figure shows what was measured."""

import numpy as np
import pytest

from dystop.bench import cells
from dystop.report.figures.costs import plan_costs
from dystop.simulator.loop import begin, simulate
from dystop.sparse import ints


def test_one_coordinator_is_measured_on_the_rounds_of_the_simulator():
    cost = cells._measure(300, 9, 300, 0, 100)
    components = cells.components_of(300, 9, 300, 0)
    records = [record for record, _ in simulate(components, begin(components))]
    assert (cost.coordinators, cost.rounds, cost.border, cost.alone) == (1, 9, 0.0, 1.0)
    assert cost.clock_s == records[-1].clock_s
    assert cost.links == pytest.approx(np.mean([r.links for r in records]))
    assert cost.staleness == pytest.approx(np.mean([r.staleness_mean for r in records]))
    assert cost.links_across > 0
    assert 0 < cost.decision_s < cost.round_s


def test_cells_share_the_work_and_the_messages():
    flat, many = cells._measure(300, 6, 300, 0, 100), cells.measure_plan(300, 6, 100)
    assert (flat.coordinators, many.coordinators) == (1, 4)
    assert many.border > 0
    assert many.status_bytes < flat.status_bytes / 3
    assert many.staleness == pytest.approx(flat.staleness, rel=0.2)
    assert len(many.rounds_s) == 6
    plot = plan_costs([flat, many])
    assert plot.figure is not None
    assert "cells" in plot.alt


def test_status_messages_worked_by_hand():
    sizes = cells.StatusSizes(activation=700, link=150, heartbeat=80, heartbeat_s=2.0)
    # 3 active workers with 10 links; 8 members send 2 heartbeats in 4 s; 5 of the border send one.
    heard = sizes.heard(ints([3]), ints([10]), ints([8]), ints([5]), 4.0)
    assert heard.tolist() == [3 * 700 + 10 * 150 + 16 * 80 + 5 * 80]
    real = cells.status_sizes()
    assert 0 < real.heartbeat < real.link < real.activation
