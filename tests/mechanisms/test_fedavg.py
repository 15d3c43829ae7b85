"""FedAvg: two stages over the server, sampling, and a server out of reach."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.mechanisms import FedAvg
from dystop.sparse import graph_of, ints
from support.strategies import dense, random_view


def test_everybody_ends_with_the_average_by_data_size():
    view = random_view(6, 5, server=True, all_alive=True)
    plan, memory = FedAvg().plan({}, view)
    assert memory == {}
    gather, spread = plan.mixes
    scalars = np.append(np.arange(5.0), 99.0)
    after = dense(spread, 6) @ dense(gather, 6) @ scalars
    size = view.fleet.data_size
    np.testing.assert_allclose(after, (size * np.arange(5)).sum() / size.sum())


def test_uploads_are_paid_by_the_workers_and_downloads_too():
    view = random_view(6, 3, server=True, all_alive=True)
    plan, _ = FedAvg().plan({}, view)
    up = plan.links.stage == 0
    assert len(plan.links) == 6
    assert plan.links.pushed.tolist() == up.tolist()
    assert (plan.links.dst[up] == 3).all()
    assert (plan.links.src[~up] == 3).all()
    assert plan.synchronous


@pytest.mark.parametrize(
    ("share", "n", "chosen"),
    [(0.3, 9, 3), (0.01, 9, 1), (1.0, 9, 9), (1e-12, 9, 1), (0.28, 50, 14), (0.55, 100, 55)],
)
def test_a_share_of_those_present_takes_part(share, n, chosen):
    view = random_view(2, n, server=True, all_alive=True)
    plan, _ = FedAvg(participation=share).plan({}, view)
    assert len(plan.active) == chosen
    assert plan.active.tolist() == sorted(set(plan.active.tolist()))


def test_sampling_changes_from_round_to_round_and_reaches_everyone():
    view = random_view(2, 9, server=True, all_alive=True)
    seen = [FedAvg(participation=0.3).plan({}, replace(view, t=t))[0].active for t in range(1, 30)]
    assert len({tuple(s.tolist()) for s in seen}) > 5
    assert set(np.concatenate(seen).tolist()) == set(range(9))


@pytest.mark.parametrize("n", [1, 4])
def test_a_round_in_which_nobody_reaches_the_server(n):
    """Outages may take down every link of the server; the round must still be planned."""
    view = random_view(2, n, server=True, all_alive=True)
    none = graph_of(n + 1, ints([]), ints([]))
    view = replace(view, reach=none, distance_m=np.zeros(0), link_s=np.zeros(0))
    plan, _ = FedAvg().plan({}, view)
    check_plan(FedAvg(), plan, view)
    assert len(plan.links) == 0
