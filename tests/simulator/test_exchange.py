"""Compressed links in the simulator: what arrives, what it costs, and that runs can go on."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.config import read_experiment
from dystop.control.stopping import Evaluate, Stop
from dystop.exchange import Exchange
from dystop.mechanisms import MECHANISMS
from dystop.plan import Plan, links, mix_of
from dystop.runs.building import build
from dystop.simulator import checkpoint, no_round, run_rounds
from dystop.simulator.round import begin, simulate
from dystop.sparse import ints
from support.codecs import codec_for
from support.engine_fixtures import AddingTrainer, DeltaScript, Script, components_for, run_to_end
from support.unstable_world import ENGINES, UNSTABLE_WORLD

KINDS = ["topk", "randomk", "int8", "sign"]


def codec(kind, width=6, fraction=0.5):
    return codec_for(kind, fraction, (width,), 0)


def pull(dst, src, weight=0.5):
    """Return a plan in which `dst` mixes the model of `src` and trains."""
    mix = mix_of(ints([dst, dst]), ints([dst, src]), np.array([1 - weight, weight]))
    return Plan(ints([dst]), links(ints([dst]), ints([src])), (mix,))


def components_of(*plans, kind, width=6, fraction=0.5, **changes):
    return components_for(
        Script(tuple(plans)),
        3,
        stop=Stop(rounds=len(plans)),
        trainer=AddingTrainer(width=width),
        exchange=Exchange(codec=codec(kind, width, fraction)),
        **changes,
    )


def test_topk_sends_half_of_the_numbers_and_the_rest_later():
    """Worker 1 has trained to 2 in each number; worker 0 asks twice and mixes with weight 1."""
    plan = pull(0, 1, weight=1.0)
    components = components_of(plan, plan, kind="topk", width=4, fraction=0.5)
    seen, (_, state) = [], run_to_end(components)
    for _, after in simulate(components, begin(components)):
        seen.append(after.models.public[1].tolist())
    assert sorted(seen[0]) == [0, 0, 2, 2]  # the copy was 0 in the beginning
    assert seen[1] == [2, 2, 2, 2]  # the second difference brings what the first one left out
    assert state.models.latest[0].tolist() == [3, 3, 3, 3]  # the copy, and a training that adds 1
    assert state.versions.published.tolist() == [0, 2, 0]


def test_the_clock_and_the_traffic_count_messages():
    """Rounds 1 and 2 advance the copy of worker 1; worker 2 then lacks three differences."""
    plans = pull(0, 1), pull(0, 1), pull(2, 1)
    records, _ = run_to_end(components_of(*plans, kind="sign", width=64))
    message = 40_000  # bytes of one message in these fixtures
    assert [r.wire_bytes for r in records] == [message, message, 3 * message]
    assert records[2].duration_s > 2.5 * (records[1].duration_s - 1.0)


def test_a_whole_copy_is_sent_where_it_is_shorter():
    plans = (*[pull(0, 1)] * 6, pull(2, 1))
    records, _ = run_to_end(components_of(*plans, kind="topk", width=80, fraction=0.25))
    whole = 320 / (20 * 4 + 10)
    assert records[-1].wire_bytes == int(np.ceil(whole * 40_000))


def test_a_weight_on_oneself_keeps_the_own_model_whole():
    _, state = run_to_end(components_of(pull(0, 1, weight=0.0), kind="sign"))
    assert state.models.latest[0].tolist() == [2.0] * 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_waves_give_the_records_and_models_of_one_round_after_another(name, kind):
    engine = ENGINES[sum(map(ord, name + kind)) % len(ENGINES)]
    components = components_for(
        MECHANISMS[name](),
        7,
        params=UNSTABLE_WORLD,
        engine=engine,
        stop=Stop(rounds=15),
        evaluate=Evaluate(every_rounds=4),
        trainer=AddingTrainer(width=6),
        exchange=Exchange(codec=codec(kind)),
    )
    found = []
    for ahead in (False, True):
        changed = replace(components, engine=replace(engine, ahead=ahead))
        rounds = list(run_rounds(changed, begin(changed), no_round))
        models = rounds[-1][1].models
        public = models.public is not None and models.public.tolist()
        found.append(([r.to_json() for r, _ in rounds], models.latest.tolist(), public))
    assert found[0] == found[1]
    assert np.isfinite(found[0][1]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["asyng", "matcha"])
def test_a_resumed_run_goes_on_exactly(tmp_path, name, kind):
    components = components_for(
        MECHANISMS[name](),
        6,
        params=UNSTABLE_WORLD,
        stop=Stop(rounds=12),
        trainer=AddingTrainer(width=6),
        exchange=Exchange(codec=codec(kind)),
    )
    whole, end = run_to_end(components)
    cut = replace(components, stop=Stop(rounds=5))
    _, middle = run_to_end(cut)
    checkpoint.save(tmp_path, middle)
    loaded = checkpoint.load_newest(tmp_path, components.trainer.device).state
    rest = list(run_rounds(components, loaded))
    assert [r.to_json() for r, _ in rest] == [r.to_json() for r in whole[5:]]
    assert rest[-1][1].models.latest.tolist() == end.models.latest.tolist()


def test_a_complete_difference_is_the_model():
    """`topk` with fraction 1 leaves nothing out, so that models are those without compression."""
    plain = components_for(MECHANISMS["dystop"](), 6, stop=Stop(rounds=10))
    packed = replace(plain, exchange=Exchange(codec=codec_for("topk", 1.0, (1,), 0)))
    (_, one), (_, other) = run_to_end(plain), run_to_end(packed)
    assert other.models.latest.numpy() == pytest.approx(one.models.latest.numpy(), rel=1e-5)


def updates_sent(kind, rounds):
    """Let worker 0 add the update of worker 2, which is 3 everywhere; return the last state."""
    mix = mix_of(ints([0, 0]), ints([0, 2]), np.ones(2), kind="delta")
    plan = Plan(ints([0]), links(ints([0]), ints([2]), delta=True), (mix,))
    components = components_for(
        DeltaScript((plan,)), 3, stop=Stop(rounds=rounds), trainer=AddingTrainer(width=4),
        exchange=Exchange(codec=codec_for(kind, 0.5, (3, 1), 0)),
    )  # fmt: skip
    return run_to_end(components)[1].models


def test_updates_send_first_what_was_left_out():
    """Half of an update arrives in round 1; in round 2 the other half counts twice."""
    models = updates_sent("topk", rounds=2)
    got = models.latest[0] - 3.0  # worker 0 trains three times and adds 1
    assert sorted(got.tolist()) == [3, 3, 6, 6]
    assert sorted(models.leftover[2].tolist()) == [0, 0, 3, 3]
    assert not models.leftover[:2].any()


@pytest.mark.parametrize("kind", ["topk", "randomk", "sign"])
@pytest.mark.parametrize("rounds", [1, 3, 8])
def test_what_arrived_and_what_is_left_out_are_the_updates(kind, rounds):
    models = updates_sent(kind, rounds)
    got = models.latest[0] - (rounds + 1.0)
    assert (got + models.leftover[2]).tolist() == pytest.approx([3.0 * rounds] * 4)


def config(*words):
    return read_experiment(
        None,
        ["data.name=synthetic", "model.name=mlp", "fleet.workers=4", "stop.rounds=6",
         "data.options.train=200", "data.options.test=50", *words],
    )  # fmt: skip


def test_the_size_of_a_message_is_the_size_of_a_model_for_world_and_mechanism():
    plain, small = build(config()), build(config("link.compression=int8"))
    whole = plain.components.fleet.model_bytes
    width, tensors = whole // 4, len(plain.components.trainer.layout.trained)
    assert small.components.fleet.model_bytes == width + 4 * tensors
    assert small.physics["compression"].startswith("int8")
    half = build(config("link.compression=int8", f"model.wire_bytes={2 * whole}"))
    assert half.components.fleet.model_bytes == 2 * (width + 4 * tensors)
    assert "compression" not in plain.physics


@pytest.mark.parametrize("kind", KINDS)
def test_a_ring_passes_messages_on(kind):
    """Three members: each link carries the messages of two, and all get the mean of the copies."""
    ring = ints([0, 1, 2])
    mean = mix_of(np.repeat(ring, 3), np.tile(ring, 3), np.full(9, 1 / 3), collective=True)
    around = links(np.roll(ring, -1), ring, fraction=4 / 3)
    plan = Plan(ring, around, (mean,), synchronous=True)
    records, state = run_to_end(components_of(plan, plan, kind=kind))
    message = 40_000  # bytes of one message in these fixtures
    assert [r.wire_bytes for r in records] == [3 * 2 * message] * 2
    if state.versions is not None:
        assert state.versions.published.tolist() == [2, 2, 2]
        assert state.versions.known.get(ints([0, 0, 1]), ints([1, 2, 0])).tolist() == [2, 2, 2]


def test_hadfl_can_be_compressed():
    built = build(config("mechanism.name=hadfl", "link.compression=topk"))
    assert built.components.exchange.codec.name == "topk"


def test_planning_only_counts_the_same_bytes():
    words = ["link.compression=topk", "link.fraction=0.05"]
    totals = []
    for train in ("true", "false"):
        built = build(config(*words, f"engine.train={train}"))
        records = [r for r, _ in run_rounds(built.components, begin(built.components))]
        totals.append([(r.wire_bytes, r.clock_s) for r in records])
    assert totals[0] == totals[1]


def test_a_rule_that_does_not_apply_to_updates_says_so():
    asyng = build(config("mechanism.name=asyng", "aggregation.rule=clip"))
    assert asyng.physics["aggregation rule"] == "clip, of models; updates are added as they arrive"
    assert "aggregation rule" not in build(config("aggregation.rule=clip")).physics
