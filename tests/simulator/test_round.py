"""The loop: records, clocks, stop rules, evaluation, and the recurrences of the paper."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.staleness import next_queue, next_staleness
from dystop.control.stopping import Evaluate, Stop, stop_reason
from dystop.mechanisms import DPSGD, DySTop, FedAvg
from dystop.record import from_json
from dystop.world import Compute, WorldParams
from support.engine_fixtures import STABLE_WORLD, AddingTrainer, components_for, run_to_end

HETEROGENEOUS = replace(STABLE_WORLD, compute=Compute(batch_s=1.0, spread=0.4))
EVERY = [DySTop(), DySTop(phases="first"), DySTop(estimate="last"), DPSGD(), FedAvg()]


@pytest.mark.parametrize("mechanism", EVERY, ids=["dystop", "first", "last", "d-psgd", "fedavg"])
def test_records_follow_the_recurrences(mechanism):
    components = components_for(mechanism, 12, params=HETEROGENEOUS, stop=Stop(rounds=40))
    records, state = run_to_end(components)
    staleness, queue, clock = np.zeros(12, int), np.zeros(12), 0.0
    everyone = np.ones(12, bool)
    for t, record in enumerate(records, 1):
        clock += record.duration_s
        assert record.round == t
        assert record.clock_s == pytest.approx(clock)
        assert record.staleness_mean == pytest.approx(staleness.mean())
        assert record.staleness_histogram == np.bincount(staleness).tolist()
        assert record.queue_mean == pytest.approx(queue.mean())
        active = np.zeros(12, bool)
        active[list(record.get("active_ids"))] = True
        assert record.active == active.sum() == len(record.get("active_ids"))
        if mechanism.capabilities().queue_bound is not None:
            queue = next_queue(queue, staleness, mechanism.capabilities().queue_bound, everyone)
        staleness = next_staleness(staleness, active)
    assert state.control.staleness.tolist() == staleness.tolist()
    assert records[-1].samples_total == 12 + sum(r.active for r in records)  # one step each


def test_versions_address_the_trainings_in_order():
    components = components_for(DySTop(), 6, params=HETEROGENEOUS, stop=Stop(rounds=20))
    run_to_end(components)
    for worker in range(6):
        versions = [v for w, v, _ in components.trainer.log if w == worker]
        assert versions == list(range(len(versions)))


def test_same_parts_same_records():
    lines = []
    for _ in range(2):
        records, _ = run_to_end(
            components_for(DySTop(), 10, params=WorldParams(), stop=Stop(rounds=15))
        )
        lines.append([r.to_json() for r in records])
    assert lines[0] == lines[1]
    assert [from_json(line).to_json() for line in lines[0]] == lines[0]


def test_seed_changes_the_run():
    clocks = []
    for seed in (0, 1):
        components = components_for(
            DySTop(), 10, params=WorldParams(), stop=Stop(rounds=5), seed=seed
        )
        clocks.append(run_to_end(components)[0][-1].clock_s)
    assert clocks[0] != clocks[1]


def test_stop_by_seconds_evaluates_at_the_end():
    components = components_for(DPSGD(), 4, stop=Stop(rounds=1000, seconds=5.0))
    records, _ = run_to_end(components)
    assert records[-1].clock_s >= 5.0 > records[-2].clock_s
    assert records[-1].accuracy is not None
    assert "5 simulated seconds" in stop_reason(components.stop, records[-1])


def test_stop_by_accuracy_and_by_loss():
    goal = components_for(
        DPSGD(), 4, stop=Stop(rounds=99, accuracy=0.10), evaluate=Evaluate(every_rounds=1)
    )
    records, _ = run_to_end(goal)
    assert records[-1].accuracy >= 0.10 > records[-2].accuracy
    assert stop_reason(goal.stop, records[-1]) == "target accuracy reached"
    rule = {"stop": Stop(rounds=99, loss=1.0), "evaluate": Evaluate(every_rounds=3)}
    records, _ = run_to_end(components_for(DPSGD(), 4, **rule))
    assert (len(records), stop_reason(rule["stop"], records[-1])) == (3, "target loss reached")
    assert records[-1].get("test_loss") <= 1.0


def test_evaluation_by_simulated_seconds():
    components = components_for(
        DPSGD(), 4, stop=Stop(rounds=30), evaluate=Evaluate(every_s=5.0), trainer=AddingTrainer()
    )
    records, _ = run_to_end(components)
    scored = [r.clock_s for r in records if r.accuracy is not None]
    assert scored[-1] == records[-1].clock_s
    marks = [np.floor(s / 5.0) for s in scored[:-1]]
    assert marks == sorted(set(marks))  # once per interval
    assert marks[0] == 1


def test_one_worker_alone():
    for mechanism in (DySTop(), DPSGD(), FedAvg()):
        records, _ = run_to_end(components_for(mechanism, 1, stop=Stop(rounds=4)))
        assert [r.active for r in records] == [1] * 4


def test_no_neighbour_in_range():
    params = replace(STABLE_WORLD, range_m=1.0)
    records, _ = run_to_end(components_for(DySTop(), 5, params=params, stop=Stop(rounds=10)))
    assert sum(r.links for r in records) == 0
    assert all(r.wire_bytes == 0 for r in records)


class Diverging(AddingTrainer):
    """Worker 1 learns nothing but NaN."""

    def train(self, models, counters, workers, versions, steps, rates=None):
        done = super().train(models, counters, workers, versions, steps, rates)
        done.models[np.asarray(workers) == 1] = np.nan
        done.loss[np.asarray(workers) == 1] = np.nan
        return done

    def evaluate(self, models, counters, samples=None, recalibrate_on=None):
        score = super().evaluate(models, counters, samples)
        return replace(score, accuracy=np.nan_to_num(score.accuracy))


def test_a_diverged_model_is_counted_and_the_run_goes_on():
    lonely = replace(STABLE_WORLD, range_m=1.0)
    components = components_for(
        DySTop(), 3, params=lonely, trainer=Diverging(), evaluate=Evaluate(every_rounds=1),
        stop=Stop(rounds=3, diverged=0.0),
    )  # fmt: skip
    records, _ = run_to_end(components)
    assert [r.get("diverged") for r in records] == [1, 1, 1]
    assert all(np.isfinite(r.get("test_loss")) for r in records)
    assert all(r.get("test_loss_global") is None for r in records)  # the weighted mean is lost
    assert all(from_json(r.to_json()) for r in records)
