"""Budgets that bind everybody: turns, whole exchanges, and the rows that are left."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.config import read_experiment
from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.errors import ConfigError
from dystop.mechanisms import MECHANISMS
from dystop.mechanisms.budgeted import (
    OVER_BUDGET,
    Budgeted,
    exchanges,
    links_within,
    within_budgets,
)
from dystop.plan import Plan, links, mix_of
from dystop.runs.building import build
from dystop.simulator import run_rounds
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin
from dystop.sparse import ints
from dystop.testbed.setup.preparation import prepare
from dystop.world import Budget, WorldParams
from dystop.world.capacity import budget_of_round
from support import paper_reference
from support.engine_fixtures import components_for
from support.strategies import pairs, random_view
from support.unstable_world import UNSTABLE_WORLD


def use(plan_links, nodes):
    """Return the models that each node sends and receives."""
    out = np.zeros(nodes)
    np.add.at(out, plan_links.dst, plan_links.fraction)
    np.add.at(out, plan_links.src, plan_links.fraction)
    return out


def test_turns_by_hand():
    # Worker 0 wants three links, worker 1 one, and node 3 may send two models. In the first turn
    # 1 <- 3 (draw 0.1) and 0 <- 3 (0.2) are made; then node 3 has none left, and 0 <- 2 is made.
    wanted = links(ints([0, 0, 0, 1]), ints([3, 2, 4, 3]))
    draw, budget = np.array([0.2, 0.3, 0.4, 0.1]), np.array([2.0, 9, 9, 2, 9])
    made = links_within(wanted, np.arange(4), budget, draw)
    assert made.tolist() == [True, True, False, True]  # 0 <- 4 would be the third of worker 0


def test_nobody_gets_a_second_link_before_others_had_their_first():
    # Node 2 may send twice. The draws of worker 0 are the smallest, but worker 1 comes in between.
    wanted = links(ints([0, 0, 1]), ints([2, 3, 2]))
    draw, budget = np.array([0.2, 0.1, 0.9]), np.array([9.0, 9, 1, 9])
    assert links_within(wanted, np.arange(3), budget, draw).tolist() == [False, True, True]


@st.composite
def budget_cases(draw):
    n = draw(st.integers(2, 7))
    chosen = draw(pairs(n, max_size=20))
    shares = draw(
        st.lists(st.sampled_from([0.25, 1.0]), min_size=len(chosen), max_size=len(chosen))
    )
    exchange = draw(
        st.lists(st.integers(0, 9), min_size=len(chosen), max_size=len(chosen))
        if draw(st.booleans())
        else st.just(list(range(len(chosen))))
    )
    budget = draw(st.lists(st.sampled_from([0.0, 1, 2, 3, 5, np.inf]), min_size=n, max_size=n))
    numbers = draw(st.permutations(range(len(chosen))))
    return chosen, shares, exchange, budget, [k / 100 for k in numbers]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(budget_cases())
def test_equals_the_plain_reference(case):
    chosen, shares, exchange, budget, draw = case
    wanted = links(ints([i for i, _ in chosen]), ints([j for _, j in chosen]))
    wanted = replace(wanted, fraction=np.array(shares, float))
    numbers = np.unique(ints(exchange), return_inverse=True)[1] if exchange else ints([])
    made = links_within(wanted, numbers, np.array(budget), np.array(draw))
    each = [(i, j, share) for (i, j), share in zip(chosen, shares, strict=True)]
    assert made.tolist() == paper_reference.links_within(each, exchange, budget, draw)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_plan_keeps_to_the_budgets_and_to_the_contract(name):
    mechanism = MECHANISMS[name]()
    able, cut = mechanism.capabilities(), 0
    for seed in range(12):
        view = random_view(seed, 9, server=able.server, shape="full")
        plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
        kept = within_budgets(plan, view, keep_mean=able.doubly_stochastic)
        check_plan(mechanism, kept, view)
        assert (use(kept.links, view.fleet.nodes) <= view.budget + 1e-6).all()
        assert kept.active is plan.active
        gone = len(plan.links) - len(kept.links)
        assert kept.notes.get(OVER_BUDGET, 0) == gone
        assert kept is plan or gone
        assert _none_more_fits(plan, kept, view, able.doubly_stochastic)
        cut += gone
        again = within_budgets(kept, view, keep_mean=able.doubly_stochastic)
        assert again is kept
    assert cut == 0 or not able.budgeted  # those that heed budgets lose nothing


def _none_more_fits(plan, kept, view, keep_mean):
    """Whether no exchange that is missing would fit beside those that were made."""
    number = exchanges(plan, keep_mean)
    base = view.fleet.nodes
    made = np.isin(plan.links.dst * base + plan.links.src, kept.links.dst * base + kept.links.src)
    used = use(kept.links, view.fleet.nodes)
    for k in np.unique(number[~made]) if len(made) else []:
        more = use(plan.links.take(number == k), view.fleet.nodes)
        if (used + more <= np.where(more > 0, view.budget, np.inf)).all():
            return False
    return True


def test_an_exchange_that_keeps_the_mean_goes_as_a_whole():
    view = random_view(0, 3, shape="full", all_alive=True, budget=2.0)
    both = links(ints([0, 1, 0, 2]), ints([1, 0, 2, 0]))  # two exchanges; node 0 can afford one
    third = np.full(7, 1 / 3)
    rows = mix_of(ints([0, 0, 0, 1, 1, 2, 2]), ints([0, 1, 2, 0, 1, 0, 2]),
                  np.where([1, 1, 1, 1, 0, 1, 0], third, 2 / 3))  # fmt: skip
    kept = within_budgets(Plan(ints([0, 1, 2]), both, (rows,)), view, keep_mean=True)
    assert len(kept.links) == 2
    partner = int(kept.links.src[kept.links.dst == 0][0])
    weights = np.zeros((3, 3))
    (row,) = kept.mixes
    weights[row.dst, row.source] = row.weight
    assert weights.sum(axis=0) == pytest.approx(1.0)  # the mean of all models is kept
    assert weights[0, partner] == pytest.approx(1 / 3)
    assert kept.notes == {OVER_BUDGET: 2.0}


def test_a_ring_with_a_gap_is_not_begun():
    view = random_view(0, 3, shape="full", all_alive=True, budget=1.0)
    ring = links(ints([0, 1, 2]), ints([2, 0, 1]))
    rows = mix_of(ints([0, 0, 0, 1, 1, 1, 2, 2, 2]), ints([0, 1, 2] * 3), np.full(9, 1 / 3),
                  collective=True)  # fmt: skip
    kept = within_budgets(Plan(ints([0, 1, 2]), ring, (rows,)), view, keep_mean=False)
    assert len(kept.links) == 0
    assert kept.mixes[0].source.tolist() == [0, 1, 2]
    assert kept.mixes[0].weight.tolist() == [1, 1, 1]


def test_a_row_without_sources_is_left_out():
    view = random_view(0, 2, shape="full", all_alive=True, budget=0.0)
    copy = mix_of(ints([0]), ints([1]), np.ones(1))  # worker 0 replaces its model
    plan = Plan(ints([0]), links(ints([0]), ints([1])), (copy,))
    kept = within_budgets(plan, view, keep_mean=False)
    assert len(kept.mixes[0].receiver) == 0


def excess(components):
    """Return by how much a worker exceeds its budget in a run, in whole links and in models."""
    workers, size, most = components.fleet.workers, components.fleet.model_bytes, [-np.inf] * 2
    limits = components.world.params.budget
    for record, state in run_rounds(components, begin(components)):
        t, outcome = record.round, state.control.last
        budget = budget_of_round(limits, workers, components.fleet.seed, t, np.arange(workers))
        used = np.zeros((2, components.fleet.nodes))
        for ends in (outcome.dst, outcome.src):
            np.add.at(used[0], ends, outcome.link_bytes >= size)
            np.add.at(used[1], ends, outcome.link_bytes / size)
        most = np.maximum(most, (used[:, :workers] - budget).max(axis=1))
    return most


SETTINGS = [
    f"link.compression={kind} world.reach={reach}"
    for kind in ("none", "int8", "topk", "randomk", "sign")
    for reach in ("strict", "overlay")
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_nobody_exceeds_a_budget_for_everybody_or_the_setting_is_refused(name, setting):
    words = [
        *setting.split(), f"mechanism.name={name}", "world.budget.binds=everybody",
        "data.name=synthetic", "data.options.train=160", "data.options.test=8",
        "model.name=softmax", "fleet.workers=8", "stop.rounds=10", "evaluate.every_rounds=50",
        "world.budget.models=3", "world.range_m=70", "world.compute.batch_s=0.2",
    ]  # fmt: skip
    if len(name + setting) % 2:
        words += ["world.outages.loss=0.2", "world.churn.enabled=true", "world.churn.mean_up_s=9"]
    able = MECHANISMS[name]().capabilities()
    by_itself = not able.collective and (able.deltas or not able.doubly_stochastic)
    can_tell = {"none": True, "int8": by_itself}.get(setting.split()[0].partition("=")[2])
    if can_tell and "strict" in setting:
        in_links, in_models = excess(build(read_experiment(None, words)).components)
        assert in_links <= 0
        assert in_models <= 1e-4  # bytes of a link are rounded up
    else:
        with pytest.raises(ConfigError, match=r"world\.budget\.binds"):
            build(read_experiment(None, words))


def test_the_testbed_refuses_what_a_simulation_refuses():
    words = ["link.compression=sign", "world.budget.binds=everybody", "fleet.workers=3"]
    with pytest.raises(ConfigError, match=r"link\.compression.*world\.budget\.binds"):
        prepare(read_experiment(None, [*words, "data.name=synthetic", "model.name=softmax"]))


@pytest.mark.parametrize("timing", ["paper", "overlap", "testbed"])
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_run_with_budgets_for_everybody(name, timing):
    budget = Budget(models=3.0, binds="everybody")
    components = components_for(
        Budgeted(MECHANISMS[name]()), 12,
        params=replace(UNSTABLE_WORLD, range_m=200.0, budget=budget),
        stop=Stop(rounds=12), engine=EngineParams(timing=timing),
    )  # fmt: skip
    in_links, in_models = excess(components)
    assert in_links <= 0
    assert in_models <= 1e-3


@pytest.mark.parametrize("name", ["braintorrent", "d-cliques", "matcha", "epidemic"])
def test_without_them_a_mechanism_exceeds_budgets(name):
    params = WorldParams(range_m=200.0, budget=Budget(models=3.0))
    free = components_for(MECHANISMS[name](), 12, params=params, stop=Stop(rounds=8))
    assert excess(free).min() > 0


def test_the_key_reaches_a_run():
    words = ["data.name=synthetic", "model.name=softmax", "fleet.workers=5"]
    for binds, bound in {"mechanism": False, "everybody": True, "nobody": False}.items():
        built = build(read_experiment(None, [*words, f"world.budget.binds={binds}"]))
        assert isinstance(built.components.mechanism, Budgeted) == bound
        budget = built.components.world.observe(1, 0.0).budget_of(np.arange(5))
        assert np.isinf(budget).all() == (binds == "nobody")
    assert built.physics["budget"] == "unlimited"


def test_there_must_be_a_budget_to_bind():
    with pytest.raises(ConfigError, match=r"world\.budget.*enabled"):
        read_experiment(None, ["world.budget.enabled=false", "world.budget.binds=everybody"])
