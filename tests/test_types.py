"""Fleet, mailbox, view and the base class of mechanisms."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.sparse import ints
from dystop.types import Budgets, Mailbox, Mechanism, no_mail
from support.strategies import random_fleet, random_view


def test_fleet_and_mailbox():
    fleet = random_fleet(0, 4, server=True)
    assert (fleet.workers, fleet.nodes) == (4, 5)
    assert fleet.epoch_steps.tolist() == [-(-d // 16) for d in fleet.data_size.tolist()]
    assert (fleet.label_counts.sum(axis=1) == fleet.data_size).all()
    box = Mailbox(ints([1, 1, 3]), ints([0, 2, 0]), ints([5, 6, 7]))
    assert [box.of(i).tolist() for i in range(4)] == [[], [0, 2], [], [0]]
    assert no_mail().of(0).tolist() == []


def test_a_view_draws_by_run_round_and_key():
    view = random_view(0, 3)
    assert view.rng("a").random() == view.rng("a").random()
    assert view.rng("a").random() != view.rng("b").random()


def test_the_budgets_of_all_nodes():
    view = replace(random_view(0, 2, server=True), budget_of=Budgets(np.array([4.0, 5.0, np.inf])))
    assert view.budget.tolist() == [4.0, 5.0, np.inf]


@pytest.mark.parametrize("by", ["link_s", "distance_m"])
@pytest.mark.parametrize("server", [False, True])
def test_the_nearest_neighbours_of_every_worker(by, server):
    for seed in range(20):
        view = random_view(seed, 7, server=server)
        cost = getattr(view, by)
        for k in (0, 1, 3, 9):
            expected = []
            for i in range(7):
                row = range(view.reach.indptr[i], view.reach.indptr[i + 1])
                near = sorted((cost[e], view.reach.src[e]) for e in row if view.reach.src[e] < 7)
                expected += [(i, j) for _, j in near[:k]]
            dst, src = view.k_nearest(k, by=by)
            assert list(zip(dst.tolist(), src.tolist(), strict=True)) == expected
            one = view.k_nearest(k, by=by, worker=2)
            assert list(zip(*one, strict=True)) == [pair for pair in expected if pair[0] == 2]


def test_equally_near_neighbours_are_sorted_by_id():
    view = random_view(0, 4, shape="complete", all_alive=True)
    view = replace(view, distance_m=np.ones(view.reach.edges))
    assert [x.tolist() for x in view.k_nearest(2, by="distance_m", worker=1)] == [[1, 1], [0, 2]]


@pytest.mark.parametrize("server", [False, True])
def test_the_neighbours_of_a_worker_are_the_workers_that_it_may_pull_from(server):
    for seed in range(20):
        view = random_view(seed, 7, server=server)
        pairs = set(zip(view.reach.dst.tolist(), view.reach.src.tolist(), strict=True))
        for i in range(7):
            assert view.neighbours(i).tolist() == [j for j in range(7) if (i, j) in pairs]
    for nobody in (-1, 7):
        with pytest.raises(IndexError, match=str(nobody)):
            view.neighbours(nobody)


def test_a_mechanism_must_implement_plan():
    with pytest.raises(NotImplementedError, match=r"Mechanism.*`plan`"):
        Mechanism().plan({}, random_view(0, 2))
    assert Mechanism().init(random_fleet(0, 2)) == {}
    assert Mechanism().capabilities().queue_bound is None
