"""Private steps are those of DP-SGD, number by number, and their cost is counted by Opacus."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from dystop.config import read_experiment
from dystop.errors import ConfigError
from dystop.recorders.privacy import Accountant
from dystop.runs.building import build
from dystop.simulator import checkpoint, run_rounds
from dystop.simulator.round import begin
from dystop.training.backends import sequential
from dystop.training.local_steps.privacy import (
    Privacy,
    check_private_training,
    clipped,
    private_gradient,
)
from dystop.training.params import PrivacyParams, TrainerParams
from support.training_fixtures import job_of, problem_of

PARAMS = PrivacyParams(noise_multiplier=0.5, clip=0.2)
STEP = (1, 3, 2)  # worker, training, step


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3))


def problem(batch=4):
    return replace(problem_of(net(), [9, 23], batch=batch), privacy=Privacy(PARAMS, 7))


def slow_gradient(problem, state, step):
    """DP-SGD sample by sample, with the noise and the samples of the address."""
    parameters, kept, counters = state
    privacy, own = problem.privacy, problem.shards.of(step[0])
    expected = min(problem.batch, len(own))  # samples of a step
    drawn = privacy.drawn(own, problem.batch, step) if expected < len(own) else own
    total = privacy.noise(len(parameters), step)
    for sample in drawn.tolist():
        leaf = parameters.clone().requires_grad_()
        x, y = problem.samples.take(torch.tensor([sample]))
        named = problem.layout.named(leaf, kept, counters)
        loss = problem.task.loss(functional_call(problem.module, named, (x,)), y)
        (gradient,) = torch.autograd.grad(loss, leaf)
        total += gradient / max(1.0, float(gradient.norm()) / PARAMS.clip)
    return total / expected


@pytest.mark.parametrize("batch", [4, 23, 64])  # of 23 samples: some, and all
def test_a_step_is_that_of_dp_sgd(batch):
    one = problem(batch)
    vector, counters = one.layout.flatten(one.module)
    state = (vector, vector[:0], counters)
    for step in ((1, 3, k) for k in range(4)):  # a batch of 4 draws 5, 6, 4 and 1 samples
        ours, _ = private_gradient(one, one.privacy, state, step, torch.zeros(()).long())
        torch.testing.assert_close(ours, slow_gradient(one, state, step), rtol=1e-5, atol=1e-6)


def test_a_batch_larger_than_the_shard_is_the_whole_shard():
    privacy, samples = Privacy(PARAMS, 0), np.arange(5, 14)
    for k in range(20):
        assert privacy.drawn(samples, 64, (0, 1, k)).tolist() == samples.tolist()
    assert len(privacy.drawn(samples[:0], 64, (0, 1, 0))) == 0


def test_training_repeats_and_depends_on_the_address_alone():
    one = problem()
    job = job_of(one, [0, 1], [3, 5])
    first, again = sequential.train(one, job), sequential.train(one, job)
    alone = sequential.train(one, job.rows(np.array([1])))
    assert torch.equal(first.models, again.models)
    assert torch.equal(first.models[1], alone.models[0])
    plain = sequential.train(replace(one, privacy=None), job)
    assert not torch.equal(first.models, plain.models)


def test_samples_are_drawn_one_by_one_and_noise_has_its_deviation():
    privacy, samples = Privacy(PARAMS, 0), np.arange(50, 90)
    drawn = [privacy.drawn(samples, 8, (0, 1, k)) for k in range(400)]
    assert np.mean([len(d) for d in drawn]) == pytest.approx(8, rel=0.05)
    assert np.std([len(d) for d in drawn]) == pytest.approx((40 * 0.2 * 0.8) ** 0.5, rel=0.15)
    assert set(np.concatenate(drawn).tolist()) == set(range(50, 90))
    noise = privacy.noise(20_000, STEP)
    assert float(noise.std()) == pytest.approx(0.5 * 0.2, rel=0.03)
    assert not torch.equal(noise[:5], privacy.noise(5, (1, 3, 3)))


@given(st.integers(0, 10**6), st.floats(0.01, 10), st.floats(0.001, 1000))
def test_clipped_gradients_are_short_and_keep_their_direction(seed, norm, scale):
    gradients = scale * torch.randn(5, 7, generator=torch.Generator().manual_seed(seed))
    short = clipped(gradients, norm)
    assert (short.norm(dim=1) <= norm * 1.0001).all()
    torch.testing.assert_close(
        nn.functional.cosine_similarity(short, gradients), torch.ones(5), rtol=1e-4, atol=1e-4
    )
    inside = gradients.norm(dim=1) <= norm
    assert torch.equal(short[inside], gradients[inside])
    assert torch.equal(clipped(torch.zeros(1, 3), norm), torch.zeros(1, 3))


def test_the_cost_is_that_of_the_accountant_of_opacus():
    accountants = pytest.importorskip("opacus.accountants")
    ours = Accountant(PrivacyParams(1.1, 1.0, 1e-5), np.array([500, 1000, 100]), 50)
    found = ours.epsilons(np.array([200, 200, 0]))
    for worker, size in enumerate((500, 1000)):
        theirs = accountants.RDPAccountant()
        for _ in range(200):
            theirs.step(noise_multiplier=1.1, sample_rate=50 / size)
        assert found[worker] == pytest.approx(theirs.get_epsilon(1e-5))
    assert found[1] < found[0]
    assert found[2] == 0


def config(*words):
    return read_experiment(
        None,
        ["data.name=synthetic", "model.name=softmax", "fleet.workers=3", "stop.rounds=6",
         "data.train_limit=200", "data.test_limit=50", "evaluate.every_rounds=3",
         "privacy.noise_multiplier=1.0", *words],
    )  # fmt: skip


def run(components, state=None):
    return list(run_rounds(components, state or begin(components)))


def test_a_worker_without_data_spends_nothing():
    pytest.importorskip("opacus.accountants")
    accountant = Accountant(PrivacyParams(1.1, 1.0, 1e-5), np.array([0, 40]), 8)
    spent = accountant.epsilons(np.array([3, 3]))
    assert spent[0] == 0
    assert spent[1] > 0


def test_records_hold_epsilon_with_and_without_waves():
    pytest.importorskip("opacus")
    components = build(config("evaluate.per_worker=true")).components
    rounds = run(components)
    slow = replace(components, engine=replace(components.engine, ahead=False))
    one_by_one = run(slow)
    lines = [record.to_json() for record, _ in rounds]
    assert lines == [record.to_json() for record, _ in one_by_one]
    last = rounds[-1][0]
    assert last.get("epsilon") == max(last.get("worker_epsilon")) > rounds[2][0].get("epsilon") > 0
    assert rounds[0][0].get("epsilon") is None
    state = rounds[-1][1]
    steps = components.steps * (state.control.version + 1)
    assert state.memories[-1].tolist() == steps.tolist()


def test_a_run_from_a_checkpoint_counts_on(tmp_path):
    pytest.importorskip("opacus")
    components = build(config()).components
    whole = run(components)
    *_, (_, middle) = run(replace(components, stop=replace(components.stop, rounds=3)))
    checkpoint.save(tmp_path, middle)
    loaded = checkpoint.load_newest(tmp_path, components.trainer.device).state
    rest = run(components, loaded)
    assert [r.to_json() for r, _ in rest] == [r.to_json() for r, _ in whole[3:]]


def test_what_cannot_be_private_is_refused():
    usual = TrainerParams()
    with pytest.raises(ConfigError, match=r"training\.path.*sequential"):
        check_private_training(replace(usual, path="stacked"), net(), False)
    with pytest.raises(ConfigError, match="batch norm"):
        check_private_training(usual, nn.Sequential(nn.BatchNorm1d(3)), False)
    with pytest.raises(ConfigError, match="random"):
        check_private_training(usual, net(), True)


def test_a_missing_accountant_is_named_before_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    with pytest.raises(ConfigError, match=r"pip install 'dystop\[privacy\]'"):
        build(config())
