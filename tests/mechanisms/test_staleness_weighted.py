"""Staleness weighting: worked examples, row sums, and every rule in a simulation."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.config import read_experiment
from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.mechanisms import MECHANISMS, AsyDFL, AsyNG, DySTop
from dystop.mechanisms.staleness_weighted import (
    StalenessWeighted,
    StalenessWeighting,
    apply,
    freshness,
    participation_rate,
    without_effect,
)
from dystop.plan import Plan, links, mix_of, no_links
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from support.engine_fixtures import (
    STABLE_WORLD,
    AddingTrainer,
    DeltaScript,
    Script,
    components_for,
    run_to_end,
    weights,
)
from support.strategies import random_view

RULES = ["constant", "polynomial", "hinge", "discard", "learning-rate", "compensate"]


def test_fedasync_weights_by_hand():
    age = np.array([0, 3, 6])
    assert freshness(StalenessWeighting("constant", share=0.6), age).tolist() == [0.6, 0.6, 0.6]
    assert freshness(StalenessWeighting("polynomial", share=0.6), age)[1] == pytest.approx(0.30)
    hinge = freshness(StalenessWeighting("hinge", share=0.6), age)
    assert hinge.tolist() == pytest.approx([0.6, 0.6, 0.6 / 21])


def test_aso_fed_rates_by_hand():
    assert participation_rate(10, np.array([9, 0])).tolist() == pytest.approx([1.0, np.log(10)])


def view_and_plan(staleness):
    view = random_view(3, 4, shape="complete", all_alive=True)
    view = replace(view, staleness=ints(staleness), t=9)
    dst, src = ints([0, 0, 0]), ints([1, 2, 3])
    rows = mix_of(ints([0, 0, 0, 0]), ints([0, 1, 2, 3]), np.full(4, 0.25))
    return view, Plan(ints([0]), links(dst, src), (rows,))


def test_old_models_count_less_and_the_rest_stays_at_home():
    view, plan = view_and_plan([0, 0, 3, 8])
    (row,) = apply(StalenessWeighting("polynomial"), plan, view).mixes
    assert row.weight.tolist() == pytest.approx([0.625 - 0.25 / 3, 0.25, 0.125, 0.25 / 3])


def test_safa_leaves_out_what_is_too_old():
    view, plan = view_and_plan([0, 0, 4, 5])
    (row,) = apply(StalenessWeighting("discard", limit=4), plan, view).mixes
    assert row.weight.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


@pytest.mark.parametrize("rule", RULES)
def test_treated_plans_keep_the_contract(rule):
    mechanism = DySTop()
    for seed in range(60):
        view = random_view(seed, 2 + seed % 9)
        plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
        treated = apply(StalenessWeighting(rule, share=0.7), plan, view)
        check_plan(mechanism, treated, view)
        assert treated.active.tolist() == plan.active.tolist()


def test_none_changes_nothing():
    view, plan = view_and_plan([0, 1, 2, 3])
    assert apply(StalenessWeighting(), plan, view) is plan


PULL = Plan(
    ints([0]), links(ints([0]), ints([2])), (mix_of(ints([0, 0]), ints([0, 2]), np.full(2, 0.5)),)
)


def weighted(mechanism, *rule, **params):
    return StalenessWeighted(mechanism, StalenessWeighting(*rule, **params))


@pytest.mark.parametrize("publish", ["eager", "on_completion"])
def test_compensation_by_hand(publish):
    components = components_for(
        weighted(Script(plans=(PULL,)), "compensate", strength=0.1),
        3,
        stop=Stop(rounds=1),
        engine=EngineParams(publish=publish),
    )
    _, state = run_to_end(components)
    # Worker 2 came from 0 with an update of 3; worker 0 stands at 1: 3 - 0.1 * 9 * (1 - 0) = 2.1.
    assert weights(state)[0] == pytest.approx((1 + 2.1) / 2 + 1)


def test_compensation_of_a_message():
    push = Plan(
        ints([2]),
        links(ints([0]), ints([2]), pushed=True),
        (mix_of(ints([2]), ints([2]), np.ones(1)),),
    )
    use = replace(PULL, links=no_links())
    components = components_for(
        weighted(Script(plans=(push, use)), "compensate", strength=0.1),
        3,
        stop=Stop(rounds=2),
    )
    _, state = run_to_end(components)
    assert weights(state)[0] == pytest.approx((1 + 2.1) / 2 + 1)
    assert not state.models.origins


def test_the_age_of_a_message_is_counted_from_its_sending():
    push = Plan(
        ints([2]),
        links(ints([0]), ints([2]), pushed=True),
        (mix_of(ints([2]), ints([2]), np.ones(1)),),
    )
    other = Plan(ints([1]), no_links(), (mix_of(ints([1]), ints([1]), np.ones(1)),))
    use = replace(PULL, links=no_links())
    script = Script(plans=(push, other, other, use))
    components = components_for(
        weighted(script, "polynomial", exponent=1.0),
        3,
        stop=Stop(rounds=4),
    )
    _, state = run_to_end(components)
    assert weights(state)[0] == pytest.approx(1 * 0.875 + 3 * 0.125 + 1)  # 0.5 / (3 + 1)


@pytest.mark.parametrize("rule", RULES)
def test_every_remedy_runs_with_dystop(rule):
    params = replace(STABLE_WORLD, compute=replace(STABLE_WORLD.compute, spread=0.4))
    components = components_for(
        weighted(DySTop(), rule, share=0.9, strength=1e-4),
        8,
        params=params,
        stop=Stop(rounds=15),
    )
    records, state = run_to_end(components)
    assert len(records) == 15
    assert np.isfinite(state.models.latest.numpy()).all()


def with_a_mailed_update(gap=3, weight=0.5, **rule):
    """Run: worker 2 pushes an update of 3; after some rounds worker 0 adds it, then trains (+1)."""
    alone = Plan(ints([1]), no_links(), (mix_of(ints([1]), ints([1]), np.ones(1)),))
    push = replace(
        alone,
        active=ints([2]),
        links=links(ints([0]), ints([2]), pushed=True, delta=True),
        mixes=(mix_of(ints([2]), ints([2]), np.ones(1)),),
    )
    add = mix_of(ints([0, 0]), ints([0, 2]), np.array([1.0, weight]), kind="delta")
    use = Plan(ints([0]), no_links(), (add,))
    components = components_for(
        weighted(DeltaScript(plans=(push, *[alone] * (gap - 1), use)), **rule),
        3,
        stop=Stop(rounds=gap + 1),
    )
    _, state = run_to_end(components)
    return weights(state)[0] - 1.0


def test_old_updates_count_less_and_the_own_model_keeps_its_weight():
    assert with_a_mailed_update() == pytest.approx(1 + 0.5 * 3)
    assert with_a_mailed_update(rule="constant", share=0.5) == pytest.approx(1 + 0.25 * 3)
    old = with_a_mailed_update(rule="polynomial", exponent=1.0)
    assert old == pytest.approx(1 + 0.5 / (3 + 1) * 3)
    assert with_a_mailed_update(rule="discard", limit=3) == pytest.approx(1 + 0.5 * 3)
    assert with_a_mailed_update(rule="discard", limit=2) == pytest.approx(1)


def test_compensation_of_an_update():
    """Worker 2 came from 0 with an update of 3; worker 0 stands at 1: 3 - 0.1 * 9 * (1 - 0)."""
    got = with_a_mailed_update(rule="compensate", strength=0.1)
    assert got == pytest.approx(1 + 0.5 * 2.1)


EFFECTIVE = {"constant": {"share": 0.5}, "discard": {"limit": 0}, "hinge": {"limit": 0}}
OTHERS = {
    "asyng-resync": AsyNG(resync=3),
    "asyng-one": AsyNG(wakes="one"),
    "asydfl-updates": AsyDFL(payload="delta"),
}


def models_after(mechanism, weighting, publish):
    params = replace(STABLE_WORLD, compute=replace(STABLE_WORLD.compute, spread=0.4))
    components = components_for(
        StalenessWeighted(mechanism, weighting),
        6,
        params=params,
        trainer=AddingTrainer(gain=0.1),
        engine=EngineParams(publish=publish),
        stop=Stop(rounds=25),
    )
    _, state = run_to_end(components)
    return state.models.latest.tolist()


@pytest.mark.parametrize("publish", ["eager", "on_completion"])
@pytest.mark.parametrize("name", sorted({*MECHANISMS, *OTHERS}))
def test_a_rule_changes_a_run_or_is_refused(name, publish):
    """No rule may be accepted and do nothing, whatever the mechanism."""
    mechanism = OTHERS.get(name) or MECHANISMS[name]()
    able = mechanism.capabilities()
    plain = None
    for rule in RULES:
        weighting = StalenessWeighting(rule, **EFFECTIVE.get(rule, {}))
        if without_effect(weighting, able):
            assert able.mode == "sync" or name == "hadfl", "only these have nothing to weight"
            continue
        plain = plain or models_after(mechanism, StalenessWeighting(), publish)
        assert models_after(mechanism, weighting, publish) != plain, rule


@pytest.mark.parametrize(
    ("rule", "mechanism", "facts"),
    [
        ("polynomial", "d-psgd", ["d-psgd", "synchronous"]),
        ("polynomial", "hadfl", ["hadfl", "ring"]),
        ("constant", "dystop", ["dystop", "staleness.share = 1"]),
        ("polynomial staleness.exponent=0", "dystop", ["staleness.share = 1"]),
        ("hinge staleness.slope=0", "asyng", ["staleness.share = 1"]),
        ("compensate staleness.strength=0", "dystop", ["staleness.strength = 0"]),
    ],
)
def test_a_rule_without_effect_is_refused_before_the_run(rule, mechanism, facts):
    from dystop.errors import ConfigError
    from dystop.runs.building import build

    rule, *more = rule.split()
    words = [f"staleness.rule={rule}", *more, "data.name=synthetic", "model.name=softmax"]
    experiment = read_experiment(None, [*words, f"mechanism.name={mechanism}"])
    assert experiment.staleness.rule == rule
    with pytest.raises(ConfigError) as error:
        build(experiment)
    for fact in [f"staleness.rule = {rule!r}", "'none'", *facts]:
        assert fact in str(error.value)
