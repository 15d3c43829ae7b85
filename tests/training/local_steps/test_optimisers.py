"""Optimisers, stacked and sequential, against `torch.optim`; their state between trainings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from dystop.errors import ConfigError
from dystop.training.backends import sequential, stacked
from dystop.training.flat import layout_of
from dystop.training.local_steps.optimisers import optimiser_of
from dystop.training.local_steps.schedules import schedule_of
from dystop.training.params import ScheduleParams, TrainerParams
from dystop.training.problem import Job
from dystop.training.randomness import seed_generators
from dystop.training.samples import Arrays
from dystop.training.trainer import Trainer
from support.training_fixtures import CPU, assert_same, job_of, problem_of

CASES = {
    "momentum": {"momentum": 0.9},
    "decay": {"weight_decay": 0.05},
    "momentum-decay": {"momentum": 0.9, "weight_decay": 0.05},
    "nesterov": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "weight_decay": 0.02},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "betas": (0.8, 0.95)},
    "clipped": {"clip_norm": 0.1},
    "clipped-adamw": {"optimizer": "adamw", "clip_norm": 0.2, "eps": 1e-6},
}


def net() -> nn.Module:
    with seed_generators(CPU, 0, "test"):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3))


def problem_with(params: TrainerParams, sizes=(9, 4, 11, 0)):
    return replace(problem_of(net(), list(sizes)), optimiser=optimiser_of(params))


def torch_optimiser(params: TrainerParams, tensors, rate: float) -> torch.optim.Optimizer:
    decay = {"lr": rate, "weight_decay": params.weight_decay}
    if params.optimizer == "sgd":
        how = {"momentum": params.momentum, "nesterov": params.nesterov}
        return torch.optim.SGD(tensors, **decay, **how)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[params.optimizer]
    return kind(tensors, **decay, betas=params.betas, eps=params.eps)


def by_torch(problem, job, params: TrainerParams):
    """Train every row with a module and an optimiser of torch; schedules by hand."""
    factors, out = schedule_of(params.schedule), []
    for row in range(len(job.workers)):
        module = net()
        flat = {k: v.clone() for k, v in problem.layout.unflatten(job.models[row],
                job.counters[row]).items()}  # fmt: skip
        module.load_state_dict(flat)
        base = problem.learning_rate * float(job.rates[row])
        optimiser = torch_optimiser(params, module.parameters(), base)
        one = slice(row, row + 1)
        batches = problem.batches(job.workers[one], job.versions[one], job.steps[one])
        index = problem.indices(job.workers[one], batches.positions)[0]
        for k, count in enumerate(batches.counts[0].tolist()):
            optimiser.param_groups[0]["lr"] = base * float(factors.at(torch.tensor(k)))
            optimiser.zero_grad()
            x, y = problem.samples.take(index[k, :count])
            F.cross_entropy(functional_call(module, {}, (x,)), y).backward()
            if params.clip_norm:
                nn.utils.clip_grad_norm_(module.parameters(), params.clip_norm)
            optimiser.step()
        out.append(layout_of(module).flatten(module)[0])
    return torch.stack(out)


@pytest.mark.parametrize("backend", [sequential, stacked], ids=["sequential", "stacked"])
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_torch(name, backend):
    params = TrainerParams(**CASES[name])
    problem = problem_with(params)
    job = job_of(problem, [0, 1, 2, 3, 0], [7, 3, 0, 4, 2])
    want = by_torch(problem, job, params)
    ours = backend.train(problem, job)
    torch.testing.assert_close(ours.models, want, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(sequential.train(problem_with(TrainerParams()), job).models, want)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(CASES)),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
    st.integers(0, 5),
    st.floats(0.2, 1.0),
)
def test_stacks_train_as_one_after_another(name, steps, warmup, floor):
    schedule = ScheduleParams(name="cosine", warmup=warmup, steps=5, floor=floor)
    problem = problem_with(TrainerParams(**CASES[name], schedule=schedule), (9, 4, 11))
    job = job_of(problem, [0, 1, 2], steps)
    floats = problem.optimiser.moments * problem.layout.parameters
    state = torch.linspace(0, 0.2, 3 * floats).view(3, floats)
    job = replace(job, moments=state, taken=torch.tensor([0, 3, 50]))
    copy = replace(job, models=job.models.clone(), moments=state.clone())
    ours, theirs = stacked.train(problem, copy), sequential.train(problem, job)
    assert_same(ours, theirs)
    torch.testing.assert_close(ours.moments, theirs.moments, rtol=1e-4, atol=1e-6)


def trainer(**params) -> Trainer:
    how = TrainerParams(batch=8, device="cpu", path="sequential", lanes=1)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (50, 1, 6, 6), dtype=np.uint8), rng.integers(0, 3, 50)
    data = Arrays(x[:39], y[:39], x[39:], y[39:], 0.5, 0.25)
    shards = np.split(np.arange(39), [20, 23])
    return Trainer(net3(), data, shards, replace(how, **params), 3)


def net3() -> nn.Module:
    with seed_generators(CPU, 1, "test"):
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 3, bias=False), nn.BatchNorm1d(3))


def continued(t: Trainer, parts: list[int]):
    """Train one worker in several trainings of the same version, so that batches repeat."""
    models, counters = (part[None] for part in t.initial())
    for steps in parts:
        done = t.train(models, counters, *np.array([[0], [4], [steps]]))
        models, counters = done.models, done.counters
    return models, counters


@pytest.mark.parametrize("state", ["kept", "mixed"])
@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam", "adamw"])
def test_a_state_that_stays_continues_a_training(name, state):
    """Twice one step on the same mini-batch is what torch does without a pause."""
    t = trainer(**CASES[name], optimizer_state=state)
    models, _ = continued(t, [1, 1, 1])
    module = net3().train()
    optimiser = torch_optimiser(t.params, module.parameters(), t.params.learning_rate)
    problem = t._problem
    batches = problem.batches(np.array([0]), np.array([4]), np.array([1]))
    x, y = problem.samples.take(problem.indices(np.array([0]), batches.positions)[0, 0])
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    want = layout_of(module).flatten(module)[0]
    torch.testing.assert_close(models[0, : len(want)], want, rtol=1e-4, atol=1e-6)
    reset, _ = continued(trainer(**CASES[name]), [1, 1, 1])
    assert not torch.allclose(reset[0], want)


def test_the_state_follows_the_vector_that_it_belongs_to():
    plain, width = trainer(), layout_of(net3()).width
    assert (plain.width, plain.layout.counters) == (width, 1)
    for name, n in (("momentum", 1), ("adam", 2)):
        floats, steps = n * 114, int(name == "adam")
        kept = trainer(**CASES[name], optimizer_state="kept")
        assert (kept.width, kept.layout.counters) == (width, 1 + steps + -(-floats // 2))
        mixed = trainer(**CASES[name], optimizer_state="mixed")
        assert (mixed.width, mixed.layout.counters) == (width + floats, 1 + steps)
        assert trainer(**CASES[name]).width == width


@pytest.mark.parametrize("state", ["reset", "kept", "mixed"])
def test_evaluations_and_saved_models_leave_the_state_out(state):
    t = trainer(momentum=0.9, optimizer_state=state)
    models, counters = continued(t, [2])
    scores = t.evaluate(models, counters, recalibrate_on=np.array([0]))
    assert np.isfinite(scores.loss).all()
    assert t.own_losses(models, counters[0], 0, 5) is not None
    assert set(t.layout.unflatten(models, counters)) == set(net3().state_dict())
    assert t.measure_batch_s(2) > 0


def test_mixed_second_moments_are_never_negative():
    t = trainer(optimizer="adam", optimizer_state="mixed")
    models, counters = continued(t, [1])
    models[:, layout_of(net3()).width :] = -1.0
    done = t.train(models, counters, *np.array([[0], [0], [2]]))
    assert torch.isfinite(done.models).all()


def test_the_memory_of_the_state_is_estimated():
    parts = [dict(trainer(momentum=0.9, optimizer_state=s).estimate(10, 2.0).parts)
             for s in ("reset", "kept")]  # fmt: skip
    assert 0 < parts[0]["optimiser state"] < parts[1]["optimiser state"]
    assert "optimiser state" not in dict(trainer().estimate(10, 2.0).parts)


def test_a_schedule_counts_the_steps_of_all_trainings():
    schedule = ScheduleParams(name="step", every=2, factor=0.5, warmup=1)
    t = trainer(schedule=schedule)
    _, counters = continued(t, [2, 3])
    assert counters[0, -1] == 5
    optimiser, taken = optimiser_of(t.params), counters[:, -1]
    numbers = optimiser.numbers(torch.tensor([0.8], dtype=torch.float64), taken, 4)[0, :, 0]
    assert numbers.tolist() == [0.2, 0.2, 0.1, 0.1]


@given(st.integers(0, 6), st.integers(1, 9), st.floats(0, 1), st.integers(0, 40))
def test_cosine_and_warm_up(warmup, steps, floor, step):
    factor = float(
        schedule_of(ScheduleParams("cosine", warmup=warmup, steps=steps, floor=floor)).at(
            torch.tensor(step)
        )
    )
    if step < warmup:
        assert factor == (step + 1) / warmup
    else:
        share = min(1.0, (step - warmup) / steps)
        want = floor + (1 - floor) * (1 + np.cos(np.pi * share)) / 2
        assert factor == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"nesterov": True}, "needs training.momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "no momentum of its own"),
        ({"betas": (0.5, 0.9)}, "training.betas"),
        ({"optimizer_state": "kept"}, "plain SGD has no state"),
        ({"schedule": ScheduleParams(name="cosine")}, "needs training.schedule.steps"),
        ({"schedule": ScheduleParams(every=3)}, "does not use it"),
    ],
)
def test_keys_that_do_not_fit_are_refused(params, why):
    with pytest.raises(ConfigError, match=why):
        trainer(**params)


def test_rows_of_a_job_keep_their_state():
    problem = problem_with(TrainerParams(momentum=0.9))
    job = job_of(problem, [0, 1, 2], [1, 1, 1])
    job = replace(job, moments=torch.arange(3.0)[:, None], taken=torch.arange(3))
    part: Job = job.rows(np.array([2, 0]))
    assert part.moments.tolist() == [[2.0], [0.0]]
    assert part.taken.tolist() == [2, 0]
    assert job.rows(np.arange(3)).moments is not None


def test_a_penalty_pulls_parameters_towards_zero():
    """One step under 0.3 / 2 |x|^2 subtracts the rate times 0.3 x, beside the gradient."""
    plain = problem_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), [8])
    job = job_of(plain, [0], [1])
    begin, rate = job.models.clone(), plain.learning_rate * float(job.rates[0])
    without = sequential.train(plain, job_of(plain, [0], [1])).models
    penalised = sequential.train(replace(plain, l2=0.3), job).models
    torch.testing.assert_close(without - penalised, rate * 0.3 * begin)
