"""The fused CPU kernels against the plain reference, on chains of all shapes."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dystop.errors import ConfigError, DataError
from dystop.training.backend_choice import why_not_fused
from dystop.training.backends import sequential
from dystop.training.backends.cpu import backend as fused
from dystop.training.backends.cpu.blocks import block_rows
from dystop.training.backends.cpu.passes import train_or_evaluate
from dystop.training.backends.cpu.vectors import LANES
from dystop.training.evaluate import EvalTask, evaluate
from dystop.training.flat import layout_of
from dystop.training.local_steps.augmentation import Augmentation
from dystop.training.local_steps.optimisers import optimiser_of
from dystop.training.models.build import build_model
from dystop.training.params import AugmentParams, ScheduleParams, TrainerParams
from dystop.training.problem import Job, Problem
from dystop.training.samples import Arrays, samples_of, shards_of
from dystop.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tiny kernels on many threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem_of(net, shape, classes, sizes=(7, 0, 19), batch=5, rate=0.05, floats=False):
    """Workers with so many samples each; noise, a little brighter with the class."""
    rng = np.random.default_rng(len(shape) + sum(sizes))
    y = rng.integers(0, classes, sum(sizes))
    x = rng.integers(0, 200, (len(y), *shape), dtype=np.uint8)
    x += (50 * y / classes).astype(np.uint8).reshape(-1, *(1 for _ in shape))
    x = (x / 255).astype(np.float32) if floats else x
    channels = 1 if len(shape) == 1 else shape[0]
    mean, std = np.linspace(0.3, 0.5, channels), np.linspace(0.2, 0.3, channels)
    parts = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    return Problem(
        module=net.train(),
        layout=layout_of(net),
        samples=samples_of(x, y, mean, std, CPU, "training set"),
        shards=shards_of(parts, len(y)),
        batch=batch,
        learning_rate=rate,
        seed=3,
        chunk=1,
        draws=False,
    )


def job_of(problem, workers=(0, 1, 2, 2), steps=(3, 2, 5, 0), rates=None):
    vector, counters = problem.layout.flatten(problem.module)
    noise = torch.linspace(0.9, 1.1, len(workers))[:, None]
    rates = np.linspace(0.5, 1.5, len(workers)) if rates is None else np.array(rates)
    versions = np.arange(len(workers))
    models = vector * noise
    return Job(models, counters.repeat(len(workers), 1), np.array(workers), versions,
               np.array(steps), rates)  # fmt: skip


def assert_agree(problem, job):
    kept = job.models.clone()
    want, got = sequential.train(problem, job), fused.train(problem, job)
    torch.testing.assert_close(got.models, want.models, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-4)
    assert got.samples == want.samples
    assert torch.equal(job.models, kept)
    return got


@st.composite
def chains(draw):
    """A random chain, the shape of its samples and the number of classes."""
    whole = st.integers
    shape = draw(st.tuples(whole(1, 4), whole(4, 11), whole(4, 11)))
    channels, *sides = shape
    layers = []
    for _ in range(draw(whole(0, 2))):
        kernel = [draw(whole(1, min(5, side))) for side in sides]
        stride = [draw(st.sampled_from([1, 1, 2, 3])) for _ in sides]
        padding = [draw(whole(0, 2)) for _ in sides]
        out = draw(whole(1, 12))
        how = {"stride": tuple(stride), "padding": tuple(padding), "bias": draw(st.booleans())}
        layers.append(nn.Conv2d(channels, out, tuple(kernel), **how))
        channels = out
        sides = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip(sides, padding, kernel, stride)]  # noqa: B905
        layers += [nn.ReLU()] if draw(st.booleans()) else []
        if min(sides) >= 2 and draw(st.booleans()):
            pool = draw(st.sampled_from([nn.MaxPool2d, nn.MaxPool2d, nn.AvgPool2d]))
            side, step = draw(whole(2, min(3, *sides))), draw(whole(1, 3))
            layers.append(pool(side, step))
            sides = [(s - side) // step + 1 for s in sides]
            layers += [nn.ReLU()] if draw(st.booleans()) else []
    layers.append(nn.Flatten())
    width, classes = channels * sides[0] * sides[1], draw(whole(2, 7))
    if draw(st.booleans()):
        hidden = draw(whole(1, 40))
        layers += [nn.Linear(width, hidden, bias=draw(st.booleans())), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, classes)), shape, classes


def seeded(net, seed=0):
    """The same weights every time, larger than torch's so that gradients are not tiny."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in net.parameters():
            width = tensor[0].numel() if tensor.dim() > 1 else 4
            tensor.copy_(torch.randn(tensor.shape, generator=generator) / width**0.5)
    return net


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=60)
@given(chains(), st.integers(1, 2 * LANES + 3), st.booleans())
def test_any_chain_trains_as_in_the_reference(chain, batch, floats):
    net, shape, classes = chain
    problem = problem_of(seeded(net), shape, classes, (7, 0, 2 * batch + 3), batch, 0.02, floats)
    assert why_not_fused(net, problem.layout, shape) is None
    assert_agree(problem, job_of(problem))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn", (1, 28, 28)),
        ("cnn", (3, 17, 20)),
        ("mlp", (1, 9, 9)),
        ("softmax", (2, 5, 5)),
    ],
)
def test_the_small_models(name, shape):
    """Ragged shards, several epochs, a worker without data, one that takes no step."""
    net = build_model(name, shape[0], shape[1:], 10, seed=1)
    problem = problem_of(net, shape, 10, (70, 0, 33), batch=32)
    got = assert_agree(problem, job_of(problem, (0, 1, 2, 2), (7, 2, 5, 0)))
    assert got.samples == 70 + 70 + 32 + 33 + 33 + 32
    assert np.isnan(got.loss).tolist() == [False, True, False, True]
    assert torch.equal(got.models[3], job_of(problem).models[3])


def test_plain_vectors_and_a_single_layer():
    problem = problem_of(nn.Linear(5, 3), (5,), 3)
    assert_agree(problem, job_of(problem))


@pytest.mark.parametrize(("padding", "features"), [(0, 4), (2, 36)])
def test_one_step_follows_the_gradient(padding, features):
    """Against double precision, so that only the kernels' own rounding is left."""
    net = nn.Sequential(
        nn.Conv2d(2, 7, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(7, 4, 2),
        nn.AvgPool2d(2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(features, 9), nn.ReLU(),
        nn.Linear(9, 3)
    )  # fmt: skip
    net = seeded(net)
    problem = problem_of(net, (2, 9, 9), 3, (11,), batch=11, rate=1.0)
    job = job_of(problem, (0,), (1,), (1.0,))
    got = job.models[0] - fused.train(problem, job).models[0]
    double = copy.deepcopy(net).double()
    torch.nn.utils.vector_to_parameters(job.models[0].double(), double.parameters())
    x, y = problem.samples.take(torch.arange(11))
    F.cross_entropy(double(x.double()), y).backward()
    want = torch.cat([p.grad.flatten() for p in double.parameters()])
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-6)


def small_cnn():
    return seeded(
        nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(96, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        )
    )


def test_rows_do_not_influence_each_other_and_bits_repeat():
    problem = problem_of(small_cnn(), (1, 9, 9), 3, (21, 40, 3), batch=16)
    job = job_of(problem, (0, 1, 2, 1), (5, 3, 4, 1))
    whole = fused.train(problem, job)
    again = fused.train(problem, job)
    assert torch.equal(whole.models, again.models)
    assert (whole.loss == again.loss).all()
    for row in range(4):
        alone = fused.train(problem, job.rows(np.array([row])))
        assert torch.equal(alone.models[0], whole.models[row])
        assert alone.loss[0] == whole.loss[row]


def test_another_batch_or_other_samples_get_a_workspace_of_their_own():
    problem = problem_of(small_cnn(), (1, 9, 9), 3, (21,), batch=16)
    other = problem_of(problem.module, (1, 9, 9), 3, (25,), batch=16)
    for one in (problem, replace(problem, batch=40), other, problem):
        assert_agree(one, job_of(one, (0,), (4,)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("place", [0, 60, 70, 840, -1])
def test_a_diverged_model_is_nan_where_torch_says_so(bad, place):
    problem = problem_of(small_cnn(), (1, 9, 9), 3, (13,), batch=6)
    job = job_of(problem, (0,), (3,))
    job.models[0, place] = bad
    want, got = sequential.train(problem, job), fused.train(problem, job)
    assert np.isnan(got.loss).tolist() == np.isnan(want.loss).tolist()
    assert torch.equal(got.models.isnan(), want.models.isnan())


def test_a_nan_in_a_sample_reaches_the_loss_and_only_that_worker():
    problem = problem_of(small_cnn(), (1, 9, 9), 3, (13, 12), batch=6, floats=True)
    problem.samples.x[3, 0, 4, 4] = np.nan
    job = job_of(problem, (0, 1), (3, 2))
    want, got = sequential.train(problem, job), fused.train(problem, job)
    assert np.isnan(got.loss).tolist() == [True, False]
    assert torch.equal(got.models.isnan(), want.models.isnan())


def test_frozen_parameters_stay():
    net = small_cnn()
    net[0].weight.requires_grad_(False)
    net[4].bias.requires_grad_(False)
    net[6].weight.requires_grad_(False)
    problem = problem_of(net, (1, 9, 9), 3)
    job = job_of(problem)
    got, cut = assert_agree(problem, job), problem.layout.parameters
    assert torch.equal(got.models[:, cut:], job.models[:, cut:])


def task_of(net, shape, classes, samples, floats=False, batch=500):
    problem = problem_of(net, shape, classes, (samples,), floats=floats)
    return EvalTask(copy.deepcopy(net).eval(), problem.layout, problem.samples, 1, batch)


@pytest.mark.parametrize("samples", [1, 31, 32, 75])
@pytest.mark.parametrize("floats", [False, True])
def test_evaluation_agrees(samples, floats):
    task = task_of(small_cnn(), (1, 9, 9), 3, samples, floats)
    vector, counters = task.layout.flatten(task.module)
    models = vector * torch.linspace(0.5, 2, 4)[:, None]
    index = torch.arange(samples).flip(0)
    want = evaluate(task, models, counters.repeat(4, 1), index)
    got = fused.evaluate(task, models, counters.repeat(4, 1), index)
    assert got.accuracy.tolist() == want.accuracy.tolist()
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-5)
    some = fused.evaluate(replace(task, batch=7), models, counters.repeat(4, 1), index)
    assert some.accuracy.tolist() == want.accuracy.tolist()


def test_evaluation_of_a_diverged_model():
    task = task_of(small_cnn(), (1, 9, 9), 3, 40)
    vector, counters = task.layout.flatten(task.module)
    models = vector.repeat(3, 1)
    models[0, -1], models[1, -3], models[2, 0] = np.nan, np.inf, np.nan
    want = [evaluate(task, m[None], counters[None], torch.arange(40)) for m in models]
    got = fused.evaluate(task, models, counters.repeat(3, 1), torch.arange(40))
    assert got.accuracy.tolist() == [one.accuracy[0] for one in want]
    np.testing.assert_array_equal(got.loss, [one.loss[0] for one in want])


def test_everything_is_compiled_once():
    """Bytes and floats, training and evaluation, one row and many: one set of machine code."""
    for floats in (False, True):
        problem = problem_of(small_cnn(), (1, 9, 9), 3, floats=floats)
        fused.train(problem, job_of(problem))
        fused.train(problem, job_of(problem, (0,), (1,)))
        task = task_of(small_cnn(), (1, 9, 9), 3, 40, floats)
        vector, counters = task.layout.flatten(task.module)
        fused.evaluate(task, vector[None], counters[None], torch.arange(40))
    assert len(train_or_evaluate.signatures) == 1


def arrays(shape=(1, 12, 12), train=60, test=30, classes=4):
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, train + test)
    x = rng.integers(0, 256, (train + test, *shape), dtype=np.uint8)
    return Arrays(x[:train], y[:train], x[train:], y[train:], 0.4, 0.3)


def trainer(net, lanes=None, path="auto", **params):
    shards = np.split(np.arange(60), [20, 23, 39])
    how = TrainerParams(batch=8, device="cpu", path=path, lanes=lanes, **params)
    return Trainer(net, arrays(), shards, how, seed=3)


def test_the_number_of_threads_changes_no_bit():
    net = build_model("mlp", 1, (12, 12), 4, seed=0)
    results = []
    for lanes in (1, 2, 3):
        t = trainer(net, lanes)
        vector, counters = t.initial()
        models, counters = vector * torch.linspace(0.9, 1.1, 40)[:, None], counters.repeat(40, 1)
        who = np.arange(40) % 4
        done = t.train(models, counters, who, np.arange(40), np.arange(40) % 5)
        results.append((done, t.evaluate(done.models, done.counters)))
    first, evaluation = results[0]
    for again, score in results[1:]:
        assert torch.equal(again.models, first.models)
        np.testing.assert_array_equal(again.loss, first.loss)
        assert (score.accuracy == evaluation.accuracy).all()
        assert (score.loss == evaluation.loss).all()


def test_the_path_is_chosen():
    cnn = build_model("cnn", 1, (16, 16), 4, seed=0)
    small = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    odd = nn.Sequential(nn.Flatten(), nn.Linear(144, 9), nn.Tanh(), nn.Linear(9, 4))
    large = nn.Sequential(nn.Flatten(), nn.Linear(144, 28_000), nn.ReLU(), nn.Linear(28_000, 4))
    assert trainer(small).path == trainer(small, path="fused").path == "fused"
    assert not trainer(small).is_stacked
    assert trainer(small, path="sequential").path == "sequential"
    assert trainer(odd).path == "stacked"
    assert trainer(large).path == "sequential"
    with pytest.raises(ConfigError, match=r"'fused' is not possible.*'2' \(Tanh\).*'sequential'"):
        trainer(odd, path="fused")
    assert why_not_fused(cnn, layout_of(cnn), (1, 16, 16)) is None


def test_memory_is_estimated_by_what_the_kernels_take():
    net = build_model("cnn", 1, (28, 28), 10, seed=0)
    problem = problem_of(net, (1, 28, 28), 10, (64,), batch=32)
    fused.train(problem, job_of(problem, (0,), (1,)))
    taken = 4 * fused.arena_for(net, problem.layout, (1, 28, 28), 32).size
    size = fused.kernel_size(trainer(nn.Sequential(nn.Flatten(), nn.Linear(144, 4))).size, net,
                            problem.layout, (1, 28, 28))  # fmt: skip
    assert 0.8 * taken < size.activation_bytes * 32 + 4 * problem.layout.width < taken


def test_without_a_compiler_there_is_no_fused_path(monkeypatch):
    net = nn.Linear(5, 3)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert "NUMBA_DISABLE_JIT" in str(why_not_fused(net, layout_of(net), (5,)))
    assert trainer(nn.Sequential(nn.Flatten(), nn.Linear(144, 4))).path == "stacked"


def test_chains_may_be_nested_and_have_idle_parts():
    inner = nn.Sequential(nn.Conv2d(1, 3, 3, padding="valid"), nn.Identity(), nn.ReLU(), nn.ReLU())
    net = nn.Sequential(inner, nn.Sequential(nn.Flatten(), nn.Linear(147, 3)))
    problem = problem_of(seeded(net), (1, 9, 9), 3)
    assert_agree(problem, job_of(problem))
    assert "neither images" in str(why_not_fused(net, problem.layout, (9, 9)))


def test_labels_that_do_not_fit_are_refused():
    problem = problem_of(nn.Linear(5, 3), (5,), 9)
    with pytest.raises(DataError, match="labels 0 to 8 do not fit a model with 3 scores"):
        fused.train(problem, job_of(problem))


@given(st.integers(1, 300), st.integers(3, 5))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_blocks_cover_all_rows(rows, most):
    sizes = []
    while sum(sizes) < rows:
        sizes.append(int(block_rows(rows - sum(sizes), most)))
    assert sum(sizes) == rows
    assert set(sizes) <= {1, 3, 4, 5}
    assert max(sizes) <= most


OPTIMISERS = {
    "momentum": {"momentum": 0.9},
    "decay": {"weight_decay": 0.05},
    "nesterov": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
    "schedule": {"schedule": ScheduleParams("step", warmup=2, every=2, factor=0.5)},
    "augmented": {"augment": AugmentParams(crop=2, flip=True), "momentum": 0.5},
}


@pytest.mark.parametrize("floats", [False, True], ids=["bytes", "floats"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_and_moves_are_those_of_the_reference(name, floats):
    net = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(6 * 12, 21), nn.ReLU(), nn.Linear(21, 4))  # fmt: skip
    params = TrainerParams(**OPTIMISERS[name])
    how = {"optimiser": optimiser_of(params), "augmentation": Augmentation(params.augment)}
    plain = problem_of(net, (2, 7, 9), 4, floats=floats)
    problem, job = replace(plain, **how), job_of(plain, steps=(6, 2, 5, 0))
    unchanged = fused.train(plain, job).models
    assert not torch.allclose(assert_agree(problem, job).models, unchanged)
    floats_ = problem.optimiser.moments * problem.layout.parameters
    moments = torch.linspace(-0.05, 0.05, 4 * floats_).view(4, floats_)
    job = replace(job, moments=moments, taken=torch.tensor([0, 3, 1, 0]))
    got = fused.train(problem, replace(job, moments=moments.clone()))
    want = sequential.train(problem, job)
    torch.testing.assert_close(got.models, want.models, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.moments, want.moments, rtol=1e-4, atol=1e-5)
    assert torch.equal(fused.train(plain, job_of(plain, steps=(6, 2, 5, 0))).models, unchanged)


def test_what_the_kernels_do_not_cover_falls_back():
    how = TrainerParams(batch=5, device="cpu", lanes=1)
    x, y = np.zeros((20, 1, 4, 4), np.uint8), np.arange(20) % 3
    data, net = Arrays(x, y, x, y, 0.5, 0.5), nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    paths = {
        "fused": {"momentum": 0.9, "weight_decay": 0.1},
        "stacked": {"optimizer": "adamw"},
    }
    for path, given_ in paths.items():
        assert Trainer(net, data, [np.arange(20)], replace(how, **given_), 0).path == path
    for given_ in ({"optimizer": "adam"}, {"clip_norm": 1.0}):
        with pytest.raises(ConfigError, match="'fused' is not possible"):
            Trainer(net, data, [np.arange(20)], replace(how, path="fused", **given_), 0)
