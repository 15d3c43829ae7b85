"""Which model of a worker is tested: after its local training, or after its last aggregation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.config import read_experiment
from dystop.control.stopping import Evaluate, Stop
from dystop.errors import ConfigError
from dystop.mechanisms import MECHANISMS
from dystop.plan import Plan, links, mix_of, no_links
from dystop.runs.building import build
from dystop.simulator import checkpoint
from dystop.simulator.evaluation import evaluation_models
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin, simulate
from dystop.sparse import ints
from dystop.testbed.setup.enrolment import check_testbed
from support.engine_fixtures import AddingTrainer, Script, components_for, run_to_end
from support.fake_runs import changed
from support.unstable_world import ENGINES, UNSTABLE_WORLD

AGGREGATED = Evaluate(every_rounds=1, model="aggregated")
ALONE = Plan(ints([2]), no_links(), (mix_of(ints([2]), ints([2]), np.ones(1)),))
HALVES = mix_of(ints([0, 0]), ints([0, 2]), np.full(2, 0.5))
PULL = Plan(ints([0]), links(ints([0]), ints([2])), (HALVES,))
SWAP = replace(
    PULL,
    links=links(ints([0, 2]), ints([2, 0])),
    mixes=(mix_of(ints([0, 0, 2, 2]), ints([0, 2, 0, 2]), np.full(4, 0.5)),),
)


def models_of(plans, evaluate=AGGREGATED, **engine):
    """Run scripted plans; return what three workers would be tested by after each round."""
    components = components_for(
        Script(plans=plans),
        3,
        stop=Stop(rounds=len(plans)),
        engine=EngineParams(**engine),
        evaluate=evaluate,
    )
    state, rows = begin(components), []
    for _, after in simulate(components, state):
        rows.append(evaluation_models(components, after).models[:, 0].tolist())
    return rows


def test_aggregated_by_hand():
    # At time 0 the workers train to 1, 2, 3. Worker 2 keeps its 3 and trains to 6; worker 0 mixes
    # 1 and 6 to 3.5 and trains to 4.5. Worker 1 never aggregates: its model is its trained 2.
    assert models_of((ALONE, PULL)) == [[1, 2, 3], [3.5, 2, 3]]
    assert models_of((ALONE, PULL), Evaluate(every_rounds=1)) == [[1, 2, 6], [4.5, 2, 6]]


def test_the_score_of_a_record_is_that_of_the_aggregated_models():
    script = components_for(Script(plans=(PULL,)), 3, stop=Stop(rounds=1), evaluate=AGGREGATED)
    (record,), _ = run_to_end(script)
    assert record.accuracy == pytest.approx((2 + 2 + 3) / 300)
    assert record.get("accuracy_global") == pytest.approx((2 + 2 + 3) / 300)


def test_a_passive_worker_is_tested_by_the_model_that_the_exchange_left():
    # Worker 2 is mixed passively in both rounds, and once active in between.
    assert models_of((SWAP,)) == [[2, 2, 2]]
    assert models_of((SWAP, ALONE, SWAP))[-1] == [(3 + 5) / 2, 2, (3 + 5) / 2]


def test_an_exchange_under_way_does_not_count_where_only_finished_models_do():
    # Under overlap a round closes when worker 0 has taken up its order; its pull is under way.
    finished = {"timing": "overlap", "publish": "on_completion"}
    assert models_of((PULL, PULL), **finished) == [[1, 2, 3], [2, 2, 3]]
    # An eager evaluation already counts the exchange, as it counts trainings that still run.
    assert models_of((PULL, PULL), timing="overlap") == [[2, 2, 3], [3, 2, 3]]


class LastStart(AddingTrainer):
    """Remembers from which model each worker's newest training began."""

    def train(self, models, counters, workers, versions, steps, rates=None):
        for row, worker, version in zip(models, workers.tolist(), versions.tolist(), strict=True):
            if version:  # the training before the first round follows no aggregation
                self.starts = getattr(self, "starts", {}) | {worker: float(row[0])}
        return super().train(models, counters, workers, versions, steps, rates)


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(["dystop", "asydfl", "sa-adfl", "d-psgd", "braintorrent", "fedavg"]),
    timing=st.sampled_from(["paper", "overlap"]),
    n=st.integers(2, 9),
    seed=st.integers(0, 2**32),
)
def test_without_passive_mixes_it_is_the_start_of_the_last_training(name, timing, n, seed):
    components = components_for(
        MECHANISMS[name](),
        n,
        params=UNSTABLE_WORLD,
        seed=seed,
        engine=EngineParams(timing=timing),
        stop=Stop(rounds=15),
        evaluate=AGGREGATED,
        trainer=LastStart(),
    )
    _, state = run_to_end(components)
    found = evaluation_models(components, state).models[:, 0].tolist()
    own = state.models.latest[:n, 0].tolist()
    starts = components.trainer.starts
    assert found == [starts.get(k, own[k]) for k in range(n)]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_tested_models_survive_a_checkpoint(engine, tmp_path):
    components = components_for(
        MECHANISMS["ad-psgd"](), 7, params=UNSTABLE_WORLD, engine=engine, stop=Stop(rounds=20),
        evaluate=AGGREGATED,
    )  # fmt: skip
    whole = list(simulate(components, begin(components)))
    half = components_for(
        MECHANISMS["ad-psgd"](), 7, params=UNSTABLE_WORLD, engine=engine, stop=Stop(rounds=20),
        evaluate=AGGREGATED,
    )  # fmt: skip
    run = simulate(half, begin(half))
    for _ in range(9):
        _, state = next(run)
    checkpoint.save(tmp_path, state)
    loaded = checkpoint.load_newest(tmp_path, torch.device("cpu")).state
    rest = [record.to_json() for record, _ in simulate(half, loaded)]
    assert rest == [record.to_json() for record, _ in whole[9:]]


SMALL = ["fleet.workers=40", "data.name=synthetic", "data.options.train=200", "model.name=mlp"]


@pytest.mark.parametrize(("publish", "stacks"), [("eager", 1), ("on_completion", 2)])
def test_memory_grows_by_the_stacks_that_are_kept(publish, stacks, monkeypatch):
    estimates = []
    monkeypatch.setattr(
        "dystop.runs.building.simulation.ensure_fits",
        lambda found, *_: estimates.append(found.needed),
    )
    for model in ("trained", "aggregated"):
        words = [*SMALL, f"evaluate.model={model}", f"engine.publish={publish}"]
        built = build(read_experiment(None, words))
    trained, aggregated = estimates
    assert aggregated - trained == stacks * 40 * built.components.trainer.size.row_bytes


def test_the_testbed_refuses_models_that_nobody_publishes():
    with pytest.raises(ConfigError, match=r"evaluate.model = 'aggregated'.*use 'trained'"):
        check_testbed(read_experiment(None, ["evaluate.model=aggregated"]))


def test_records_hold_the_results_of_single_workers_on_request():
    script = components_for(Script(plans=(ALONE, PULL)), 3, stop=Stop(rounds=2))
    each = replace(script, evaluate=Evaluate(every_rounds=2, per_worker=True))
    first, last = run_to_end(each)[0]
    assert (first.get("worker_accuracy"), first.get("worker_loss")) == (None, None)
    assert last.get("worker_accuracy") == pytest.approx([0.045, 0.02, 0.06])
    assert last.get("worker_loss") == pytest.approx([-4.5, -2.0, -6.0])
    assert np.mean(last.get("worker_accuracy")) == pytest.approx(last.accuracy)
    plain = run_to_end(replace(script, evaluate=Evaluate(every_rounds=2)))[0][-1]
    assert changed(last, worker_accuracy=None, worker_loss=None) == plain
    assert "worker" not in plain.to_json()


def test_an_attacker_has_no_result():
    keys = ["data.name=synthetic", "model.name=softmax", "fleet.workers=4", "stop.rounds=2"]
    attack = ["adversary.kind=flip", "adversary.share=0.25", "evaluate.per_worker=true"]
    built = build(read_experiment(None, [*keys, *attack, "evaluate.every_rounds=2"]))
    last = run_to_end(built.components)[0][-1]
    nodes = built.components.exchange.attackers.nodes.tolist()
    assert [k for k, share in enumerate(last.get("worker_accuracy")) if share is None] == nodes
