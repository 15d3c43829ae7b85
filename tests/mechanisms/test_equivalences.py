"""Mechanisms that must agree in special cases; models are scalars."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.activation import activate_one
from dystop.mechanisms import DPSGD, DySTop, FedAvg, GossipFL, Matcha
from dystop.rng import stream
from support import paper_reference
from support.strategies import dense, random_view

SEEDS = range(20)


def mixed(mechanism, view, scalars):
    """Scalars after all mix stages of a plan; a server starts with zero."""
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    values = np.append(scalars, np.zeros(view.fleet.nodes - len(scalars)))
    for stage in plan.mixes:
        values = dense(stage, view.fleet.nodes) @ values
    return values[: len(scalars)]


def everyone(seed, n, *, server=False):
    """All present, all in reach, no bandwidth limit."""
    return random_view(seed, n, server=server, shape="complete", all_alive=True, budget=np.inf)


def all_to_all(view, scalars):
    share = view.fleet.data_size / view.fleet.data_size.sum()
    return np.full(len(scalars), share @ scalars)


@pytest.mark.parametrize("seed", SEEDS)
def test_fedavg_with_everyone_is_complete_dpsgd_by_size(seed):
    n = 1 + seed % 9
    scalars = stream(seed, "models").normal(size=n)
    central = mixed(FedAvg(), everyone(seed, n, server=True), scalars)
    spread = mixed(DPSGD(topology="complete", weights="size"), everyone(seed, n), scalars)
    np.testing.assert_allclose(central, spread, atol=1e-6)
    np.testing.assert_allclose(central, all_to_all(everyone(seed, n), scalars), atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_dystop_without_limits_is_all_to_all_by_size(seed):
    n = 1 + seed % 9
    view = everyone(seed, n)
    view = replace(view, queue=view.queue + 1.0)
    scalars = stream(seed, "models").normal(size=n)
    mechanism = DySTop(V=0.0, neighbours=n)
    plan, _ = mechanism.plan({}, view)
    assert sorted(plan.active.tolist()) == list(range(n))
    assert len(plan.links) == n * (n - 1)
    got = mixed(mechanism, view, scalars)
    np.testing.assert_allclose(got, all_to_all(view, scalars), atol=1e-6)
    other = mixed(DPSGD(topology="complete", weights="size"), view, scalars)
    np.testing.assert_allclose(got, other, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_data_make_size_weights_and_metropolis_agree_on_a_complete_graph(seed):
    n = 2 + seed % 8
    view = everyone(seed, n)
    view = replace(view, fleet=replace(view.fleet, data_size=np.full(n, 7)))
    scalars = stream(seed, "models").normal(size=n)
    by_size = mixed(DPSGD(topology="complete", weights="size"), view, scalars)
    np.testing.assert_allclose(
        by_size, mixed(DPSGD(topology="complete"), view, scalars), atol=1e-12
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_one_worker_at_a_time_minimises_dystops_objective_over_singletons(seed):
    view = random_view(seed, 8)
    alive = np.flatnonzero(view.alive)
    chosen = activate_one(alive, view.remaining_s, view.queue, view.staleness, 10.0)
    columns = view.staleness.tolist(), view.queue.tolist(), view.remaining_s.tolist()
    assert chosen.tolist() == [paper_reference.best_single(*columns, 10.0, 2.0, alive.tolist())]


@pytest.mark.parametrize("seed", SEEDS)
def test_matcha_and_gossipfl_agree_on_two_workers(seed):
    """With the whole budget and whole models both are one plain average."""
    view, scalars = everyone(seed, 2), stream(seed, "two").normal(size=2)
    matcha = mixed(Matcha(budget=1.0, base="reach", weights="optimal"), view, scalars)
    np.testing.assert_allclose(matcha, mixed(GossipFL(keep=1.0), view, scalars), atol=1e-9)
    np.testing.assert_allclose(matcha, scalars.mean(), atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_pairing_of_whole_models_is_idempotent(seed):
    view, gossip = everyone(seed, 7), GossipFL(keep=1.0)
    plan, _ = gossip.plan(gossip.init(view.fleet), view)
    once = dense(plan.mixes[0], 7)
    np.testing.assert_allclose(once @ once, once, atol=1e-12)
