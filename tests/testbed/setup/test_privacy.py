"""Private training on the testbed: noise that only the worker knows, and a cost that is counted."""

import sys

import numpy as np
import pytest

from dystop.config import read_experiment
from dystop.errors import ConfigError
from dystop.folders.run_folder import open_run
from dystop.recorders.privacy import Accountant, PrivacyRecorder
from dystop.runs.fleet import steps_of
from dystop.studies.gap import gap_of
from dystop.testbed.audit.check import audit_run
from dystop.testbed.events import StartTraining
from dystop.testbed.setup.enrolment import coordinator_setup, read_enrolment
from dystop.testbed.setup.parts import worker_parts
from dystop.testbed.setup.preparation import prepare
from dystop.world import read_trace
from support.testbed.whole_runs import run_command, run_over_grpc

WORDS = [
    "fleet.workers=3",
    "stop.rounds=4",
    "data.name=synthetic",
    "data.options.train=120",
    "data.options.test=40",
    "model.name=softmax",
    "training.batch=8",
    "world.compute.batch_s=0.01",
    "world.range_m=80",
    "testbed.links=free",
    "testbed.timeouts.suspect_s=60",
    "testbed.timeouts.dead_s=90",
    "testbed.timeouts.round_s=60",
    "evaluate.every_rounds=2",
    "evaluate.per_worker=true",
    "privacy.noise_multiplier=1.0",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the folder of a private testbed run without faults."""
    pytest.importorskip("opacus")
    return run_command(tmp_path_factory.mktemp("runs"), "private", WORDS)


def test_records_hold_the_epsilon_of_the_steps_that_were_ordered(recorded):
    experiment = read_experiment(recorded / "config.toml")
    fleet = read_enrolment(recorded, experiment).fleet(experiment)
    steps = steps_of(experiment, fleet)
    accountant = Accountant(experiment.privacy, fleet.data_size, fleet.batch)
    trainings = np.ones(fleet.workers, np.int64)  # the run begins with one of each worker
    for record, line in zip(open_run(recorded).records, read_trace(recorded).rounds, strict=True):
        trainings[line.orders.node[line.orders.train]] += 1
        if record.round % 2:
            assert record.get("epsilon") is None
            continue
        spent = accountant.epsilons(trainings * steps)
        assert record.get("worker_epsilon") == pytest.approx(spent.tolist())
        assert record.get("epsilon") == pytest.approx(max(spent))
    assert trainings.max() > 1


def test_a_private_run_can_be_replayed(recorded):
    found = gap_of(recorded, lambda *_: None)
    assert found.rounds == len(found.replay.records) == 4
    assert found.replay.records[-1].get("epsilon") > 0


def test_a_private_run_over_grpc_counts_its_cost(tmp_path):
    pytest.importorskip("opacus")
    run = run_over_grpc(tmp_path, *WORDS, "data.train_limit=120", "data.test_limit=40")
    spent = [r.get("epsilon") for r in run.records if r.get("epsilon") is not None]
    assert len(spent) == 2
    assert 0 < spent[0] < spent[1]
    assert audit_run(run.path).findings == []


def trained(experiment):
    """Return the first training of worker 1, in a process of its own as far as noise goes."""
    parts = worker_parts(experiment, 1)
    return parts.train(StartTraining(0, parts.vector, parts.counters, 3, 1.0)).vector


def test_noise_does_not_follow_from_the_seed():
    experiment = read_experiment(None, WORDS)
    assert not np.allclose(trained(experiment), trained(experiment))
    plain = read_experiment(None, [*WORDS, "privacy.noise_multiplier=0"])
    assert np.array_equal(trained(plain), trained(plain))


def test_a_missing_accountant_is_named_before_the_run(monkeypatch):
    experiment = read_experiment(None, [*WORDS, "privacy.noise_multiplier=0"])
    enrolment = prepare(experiment).enrolment
    private = read_experiment(None, WORDS)
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    with pytest.raises(ConfigError, match=r"pip install 'dystop\[privacy\]'"):
        prepare(private)
    with pytest.raises(ConfigError, match=r"pip install 'dystop\[privacy\]'"):
        coordinator_setup(private, enrolment, "ab" * 16)
    plain = coordinator_setup(experiment, enrolment, "ab" * 16).recorders
    assert not any(isinstance(each, PrivacyRecorder) for each in plain)
    assert worker_parts(private, 0).train is not None  # a worker needs no accountant
