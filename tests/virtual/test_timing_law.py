"""The timing law `testbed` predicts when real workers begin to train (ADR 0006)."""

import numpy as np
import pytest

from dystop.control.laws import LAWS, timetable
from dystop.mechanisms import MECHANISMS
from virtual.build import Case, plans_of, play

LINK_S = 0.07  # a pull of the virtual cluster takes 0.03 to 0.12 s
NEAR_S = 0.06  # a stage


@pytest.mark.parametrize("name", ["dystop", "asydfl", "ad-psgd", "sa-adfl", "matcha", "fedavg"])
def test_workers_begin_to_train_when_the_law_says(name):
    cluster = play(Case(MECHANISMS[name](), workers=6, rounds=12))
    plans = plans_of(cluster)
    for published in cluster.published:
        plan, orders = plans[published.record.round], published.trace["orders"]
        waited_s, exchange_s = np.array(orders["waited_s"]), np.array(orders["exchange_s"])
        ended_s, remaining_s = dict(zip(orders["node"], waited_s + exchange_s, strict=True)), {}
        for node, wait_s, trains in zip(orders["node"], waited_s, orders["train"], strict=True):
            remaining_s[node] = wait_s if trains else 0.0
        nodes = np.array([remaining_s.get(node, 0.0) for node in range(7)])
        link_s = np.full(len(plan.links), LINK_S)
        table = timetable(LAWS["testbed"](), plan, link_s, nodes, np.zeros(len(plan.active)))
        near = NEAR_S * max(plan.links.stage_count, 1)
        begin_s = [ended_s[node] for node in plan.active.tolist()]
        assert begin_s == pytest.approx(table.begin_s.tolist(), abs=near)
        if not plan.join:
            assert published.record.duration_s == pytest.approx(table.duration_s, abs=near + 0.05)
