import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dystop.errors import ConfigError, DataError
from dystop.training.executors import single_threaded_torch
from dystop.training.local_steps import batches as batches_module
from dystop.training.models.build import build_model
from dystop.training.params import TrainerParams
from dystop.training.samples import Arrays
from dystop.training.trainer import Trainer

MEAN, STD = [0.4], [0.25]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tiny kernels on many threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def toy(shape=(1, 16, 16), classes=4, train=60, test=30):
    """Images whose class is a bright stripe: easy to learn."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, train + test)
    x = rng.integers(0, 120, (train + test, *shape), dtype=np.uint8)
    for i, k in enumerate(y):
        x[i, :, k :: 2 * classes] += 120
    return Arrays(x[:train], y[:train], x[train:], y[train:], MEAN, STD)


def shards_of(*sizes):
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def trainer(module, arrays=None, shards=None, seed=3, **params):
    given = TrainerParams(batch=8, device="cpu")
    return Trainer(
        module, arrays or toy(), shards or shards_of(20, 3, 16, 9), replace(given, **params), seed
    )


def start(t, rows):
    vector, counters = t.initial()
    noise = torch.linspace(0.9, 1.1, rows)[:, None]
    return vector * noise, counters.repeat(rows, 1)


def run(t, workers, steps, versions=None):
    workers, steps = np.array(workers), np.array(steps)
    versions = np.zeros_like(workers) if versions is None else np.array(versions)
    return t.train(*start(t, len(workers)), workers, versions, steps)


CASES = [("cnn", (1, 16, 16)), ("mlp", (1, 5, 5)), ("softmax", (1, 5, 5))]
NORMED = [("resnet18-gn", (1, 8, 8)), ("resnet18", (1, 9, 9))]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_paths_agree(name, shape):
    """Ragged shards; one epoch, fewer and more steps, none at all; a worker twice."""
    arrays, module = toy(shape), build_model(name, shape[0], shape[1:], 4, seed=1)
    workers, steps, versions = [0, 1, 2, 3, 0], [3, 5, 1, 0, 4], [0, 0, 2, 0, 7]
    one, all_ = (
        trainer(module, arrays, path=p, chunk=3, learning_rate=0.1)
        for p in ("sequential", "stacked")
    )
    a, b = run(one, workers, steps, versions), run(all_, workers, steps, versions)
    assert not one.is_stacked
    assert all_.is_stacked
    torch.testing.assert_close(a.models, b.models, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(a.loss, b.loss, rtol=1e-4)
    assert a.samples == b.samples == 20 + 5 * 3 + 8 + 0 + 28
    assert np.isnan(a.loss[3])
    assert torch.equal(a.models[3], start(one, 5)[0][3])
    assert (a.models != start(one, 5)[0]).any(1).tolist() == [True, True, True, False, True]


@pytest.mark.parametrize(("name", "shape"), NORMED)
def test_paths_agree_on_resnets(name, shape):
    arrays, module = toy(shape, train=8, test=5), build_model(name, 1, shape[1:], 4, seed=1)
    how = {"batch": 4, "chunk": 2, "learning_rate": 0.01}
    a, b = (
        run(trainer(module, arrays, shards_of(5, 3), path=p, **how), [1, 0], [1, 2])
        for p in ("sequential", "stacked")
    )
    torch.testing.assert_close(a.models, b.models, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(a.loss, b.loss, rtol=1e-3)
    assert a.counters.tolist() == b.counters.tolist() == [[k] * a.counters.shape[1] for k in (1, 2)]
    floats = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
    assert a.models.shape[1] == sum(t.numel() for t in floats)


def test_paths_agree_with_batch_norm_and_many_batch_sizes():
    """No padding touches the statistics: rows of equal batch size are taken together."""
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(196, 4)
    )
    workers, steps = [0, 1, 2, 3, 4, 0], [4, 2, 3, 1, 5, 2]
    a, b = (
        run(
            trainer(net, toy((1, 9, 9)), shards_of(20, 3, 11, 9, 4), path=p, chunk=4),
            workers,
            steps,
        )
        for p in ("sequential", "stacked")
    )
    torch.testing.assert_close(a.models, b.models, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(a.loss, b.loss, rtol=1e-4)
    assert a.counters.flatten().tolist() == b.counters.flatten().tolist() == steps


def test_reference_equals_a_textbook_loop():
    """The flat model is trained exactly as torch.optim would train the module."""
    arrays = toy((1, 9, 9))
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(196, 4)
    )
    t = trainer(net, arrays, path="sequential")
    got = t.train(*(v[None] for v in t.initial()), *np.array([[0], [2], [4]]))
    module = copy.deepcopy(net).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    plan = t._problem.batches(*np.array([[0], [2], [4]]))
    for line in plan.positions[0]:
        pick = line[line >= 0]
        x = (torch.tensor(arrays.x_train[pick]).float() / 255 - 0.4) / 0.25
        optimiser.zero_grad()
        F.cross_entropy(module(x), torch.tensor(arrays.y_train[pick])).backward()
        optimiser.step()
    vector, counters = t.layout.flatten(module)
    torch.testing.assert_close(got.models[0], vector, rtol=1e-4, atol=1e-5)
    assert torch.equal(got.counters[0], counters)


@pytest.mark.parametrize("path", ["sequential", "stacked"])
def test_training_lowers_the_loss_and_learns(path):
    t = trainer(build_model("cnn", 1, (16, 16), 4, seed=0), path=path, learning_rate=0.1)
    workers, steps = np.arange(4), np.array([3, 1, 2, 2])
    models, counters = start(t, 4)
    first = t.train(models, counters, workers, workers * 0, steps)
    last = first
    for version in range(1, 13):
        last = t.train(last.models, last.counters, workers, workers * 0 + version, 2 * steps)
    assert (last.loss < 0.5 * first.loss).all()
    assert t.evaluate(last.models[:1], last.counters[:1]).accuracy[0] > 0.9


@pytest.mark.parametrize("path", ["sequential", "stacked"])
def test_one_epoch_feeds_every_sample_once(path, monkeypatch):
    seen = []
    real = batches_module.epoch_order

    def spy(seed, workers, versions, epoch, sizes):
        order = real(seed, workers, versions, epoch, sizes)
        pairs = zip(workers, order, strict=True)
        seen.extend((int(w), epoch, row[row >= 0].tolist()) for w, row in pairs)
        return order

    monkeypatch.setattr(batches_module, "epoch_order", spy)
    t = trainer(build_model("softmax", 1, (16, 16), 4, seed=0), path=path)
    taken = []
    take = type(t._problem.samples).take
    monkeypatch.setattr(
        type(t._problem.samples), "take", lambda s, i: taken.append(i.clone()) or take(s, i)
    )
    result = run(t, [0, 2], [3, 2])
    assert result.samples == 36
    assert sorted((w, e) for w, e, _ in seen) == [(0, 0), (2, 0)]
    assert {w: sorted(order) for w, _, order in seen} == {0: list(range(20)), 2: list(range(16))}
    fed = {int(i) for index in taken for i in index.flatten()}
    assert fed == set(range(20)) | set(range(23, 39))


@pytest.mark.parametrize("path", ["sequential", "stacked"])
def test_same_inputs_same_bits_and_nothing_else_is_touched(path):
    t = trainer(build_model("cnn", 1, (16, 16), 4, seed=0), path=path)
    models, counters = start(t, 4)
    kept, state = models.clone(), torch.get_rng_state()
    a = run(t, [0, 1, 2, 3], [3, 3, 3, 3])
    b = run(t, [0, 1, 2, 3], [3, 3, 3, 3])
    assert torch.equal(a.models, b.models)
    assert (a.loss == b.loss).all()
    t.train(models, counters, np.arange(4), np.arange(4), np.arange(4))
    assert torch.equal(models, kept)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(a.models, run(t, [0, 1, 2, 3], [3, 3, 3, 3], [1, 1, 1, 1]).models)


def test_dropout_has_an_address():
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 30), nn.Dropout(0.5), nn.Linear(30, 4))
    state = torch.get_rng_state()
    t = trainer(net, path="sequential")
    t.measure_batch_s(repeats=1)
    a = run(t, [0, 1, 2], [2, 2, 2])
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)  # someone else draws
    vector, counters = start(t, 3)
    alone = t.train(vector[2:], counters[2:], *np.array([[2], [0], [2]]))
    assert torch.equal(a.models[2], alone.models[0])
    stacked = run(trainer(net, path="stacked"), [0, 1, 2], [2, 2, 2])
    torch.testing.assert_close(a.models, stacked.models)
    torch.set_rng_state(state)


class Branching(nn.Module):
    """Control flow on data: no vmap."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(256, 4)

    def forward(self, x):
        out = self.fc(x.flatten(1))
        return out if out.sum() > 0 else -out


class Drawing(Branching):
    """Dropout that no layer declares."""

    def forward(self, x):
        return self.fc(F.dropout(x.flatten(1), training=self.training))


def test_auto_falls_back_and_forced_stacks_are_refused():
    for module, why in [(Branching(), "vmap"), (Drawing(), "dropout")]:
        assert not trainer(module).is_stacked
        with pytest.raises(ConfigError, match=f"'stacked' is not possible.*{why}.*'sequential'"):
            trainer(module, path="stacked")
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(256, 9), nn.Tanh(), nn.Linear(9, 4))
    assert trainer(smooth).is_stacked
    for name in ("cnn", "mlp", "softmax"):
        assert trainer(build_model(name, 1, (16, 16), 4, seed=0)).path == "fused"
    assert not trainer(build_model("resnet18-gn", 1, (16, 16), 4, seed=0)).is_stacked


def test_large_nets_with_dropout_train():
    for name in ("squeezenet", "mobilenet-v2"):
        t = trainer(build_model(name, 1, (16, 16), 4, seed=0), learning_rate=0.01)
        models, counters = start(t, 1)
        result = t.train(models, counters, *np.array([[1], [0], [1]]))
        assert np.isfinite(result.loss).all()
        assert not torch.equal(result.models, models)


@pytest.mark.parametrize("path", ["sequential", "stacked"])
def test_frozen_parameters_stay(path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.Linear(6, 4))
    net[1].weight.requires_grad_(False)
    t = trainer(net, path=path)
    result = run(t, [0, 1], [2, 2])
    cut = t.layout.parameters
    assert cut == 6 + 24 + 4
    assert torch.equal(result.models[:, cut:], start(t, 2)[0][:, cut:])
    assert not torch.equal(result.models[:, :cut], start(t, 2)[0][:, :cut])


@pytest.mark.parametrize("path", ["sequential", "stacked"])
def test_worker_without_data_keeps_its_model(path):
    t = trainer(build_model("softmax", 1, (16, 16), 4, seed=0), shards=shards_of(8, 0), path=path)
    result = run(t, [1, 0], [2, 1])
    assert torch.equal(result.models[0], start(t, 2)[0][0])
    assert np.isnan(result.loss).tolist() == [True, False]
    nobody = np.zeros(0, np.int64)
    assert run(t, nobody, nobody, nobody).models.shape == (0, t.width)


@pytest.mark.parametrize("path", ["fused", "stacked", "sequential"])
def test_losses_on_own_samples(path):
    """Three models on all samples of worker 1, and on every second of them, one after another."""
    arrays, shards = toy(), shards_of(20, 9)
    t = trainer(build_model("softmax", 1, (16, 16), 4, seed=1), arrays, shards, path=path)
    vector, counters = t.initial()
    models = torch.stack([vector, 2 * vector, vector + 0.1])
    own = np.asarray(shards[1])
    for samples, index in ((100, own), (5, own[::2])):
        x = (arrays.x_train[index] / 255 - arrays.mean) / arrays.std
        expected = []
        for model in models:
            weights = t.layout.unflatten(model, counters)
            scores = F.linear(torch.tensor(x).float().flatten(1), *weights.values())
            expected.append(float(F.cross_entropy(scores, torch.tensor(arrays.y_train[index]))))
        got = t.own_losses(models, counters, 1, samples)
        np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_a_node_without_samples_has_no_losses():
    t = trainer(build_model("softmax", 1, (16, 16), 4, seed=1), shards=[*shards_of(20), []])
    vector, counters = t.initial()
    assert t.own_losses(vector[None], counters, 1, 8) is None
    assert t.own_losses(vector[None], counters, 7, 8) is None  # a server


def test_floats_are_normalised_without_a_division_by_255():
    bytes_ = toy()
    floats = replace(
        bytes_,
        x_train=(bytes_.x_train / 255).astype(np.float32),
        x_test=(bytes_.x_test / 255).astype(np.float32),
    )
    module = build_model("mlp", 1, (16, 16), 4, seed=0)
    a, b = (run(trainer(module, arrays), [0], [3]) for arrays in (bytes_, floats))
    torch.testing.assert_close(a.models, b.models, rtol=1e-4, atol=1e-5)


def test_user_mistakes():
    module = build_model("softmax", 1, (16, 16), 4, seed=0)
    with pytest.raises(ConfigError, match=r"training.device = 'gpu'.*allowed: 'auto', 'cpu'"):
        trainer(module, device="gpu")
    with pytest.raises(DataError, match=r"sample 60 does not exist.*0 to 59"):
        trainer(module, shards=[np.array([3, 60])])
    with pytest.raises(DataError, match="no worker has any data"):
        trainer(module, shards=[np.zeros(0, int)])
    with pytest.raises(DataError, match="training set: 60 inputs and 59 labels"):
        trainer(module, replace(toy(), y_train=np.zeros(59, int)))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.BatchNorm1d(4))
    with pytest.raises(ConfigError, match=r"batch = 8 leaves worker 3 \(9 samples\).*one sample"):
        trainer(normed)
    with pytest.raises(ValueError, match="do not fit 2 workers"):
        trainer(module).train(torch.zeros(2, 3), torch.zeros(2, 0), *np.zeros((3, 2), int))


def test_cuda_is_refused_where_there_is_none():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError, match="torch sees 0 CUDA devices"):
        trainer(build_model("softmax", 1, (16, 16), 4, seed=0), device="cuda")


def test_measured_time_of_a_batch():
    t = trainer(build_model("softmax", 1, (16, 16), 4, seed=0))
    before = t.initial()[0].clone()
    assert 0 < t.measure_batch_s(repeats=5) < 1
    assert torch.equal(t.initial()[0], before)


@pytest.mark.parametrize("path", ["sequential", "stacked"])
def test_the_number_of_threads_changes_no_bit(path):
    """Every thread has a copy of the module and never splits a piece of work."""
    results = []
    for lanes in (1, 2, 3):
        t = trainer(build_model("cnn", 1, (16, 16), 4, seed=0), path=path, lanes=lanes, chunk=2)
        models, counters = start(t, 3)
        with single_threaded_torch():
            results.append(t.train(models, counters, *np.array([[0, 1, 2], [0, 0, 0], [3, 2, 1]])))
            results.append(t.evaluate(results[-1].models, counters))
        assert t.executor_count == lanes
    first, evaluation = results[:2]
    for again, score in zip(results[2::2], results[3::2], strict=True):
        assert torch.equal(again.models, first.models)
        assert (again.loss == first.loss).all()
        assert (score.accuracy == evaluation.accuracy).all()
