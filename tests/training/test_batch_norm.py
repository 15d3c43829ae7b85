"""Batch-norm recalibration: the statistics of the samples under the present weights."""

import numpy as np
import pytest
import torch
from torch import nn

import dystop
from dystop.config import read_experiment
from dystop.data import load
from dystop.errors import ConfigError
from dystop.runs.building import build
from dystop.testbed.setup.enrolment import check_testbed
from dystop.training import batch_norm
from dystop.training.batch_norm import ALL_WORKERS
from dystop.training.params import TrainerParams
from dystop.training.samples import Arrays
from dystop.training.trainer import Trainer
from support.training_fixtures import normed

SIZES = (26, 34, 0, 1)


def trainer(module: nn.Module, lanes: int = 1) -> Trainer:
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 3.0, (61, 1, 4, 4)).astype(np.float32)
    y = rng.integers(0, 3, 61)
    shards = np.split(np.arange(61), np.cumsum(SIZES)[:-1])
    params = TrainerParams(batch=8, lanes=lanes, path="sequential")
    if any(isinstance(m, nn.BatchNorm1d) for m in module.modules()):
        shards[3] = np.arange(0)  # batch norm cannot train on one sample
    return Trainer(module, Arrays(x, y, x, y, 0.0, 1.0), shards, params, seed=1)


def outdated(one: Trainer, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Models whose statistics do not fit their weights."""
    vector, counters = one.initial()
    models = vector.expand(rows, -1).clone()
    models[:, one.layout.parameters :] += 3.0
    return models, counters.expand(rows, -1).clone()


def by_hand(module: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Statistics of all samples at once, layer by layer."""
    found = {}
    with torch.no_grad():
        for name, layer in module.named_children():
            if isinstance(layer, nn.BatchNorm1d):
                found[f"{name}.running_mean"] = x.mean(0)
                found[f"{name}.running_var"] = x.var(0)
                x = (x - x.mean(0)) / (x.var(0, unbiased=False) + layer.eps).sqrt()
                x = x * layer.weight + layer.bias
            elif not isinstance(layer, nn.Dropout):
                x = layer(x)
    return found


def test_one_batch_has_the_statistics_of_its_samples():
    module = normed(1, (4, 4), 3)
    one = trainer(module)
    models, counters = outdated(one, 3)
    before = models.clone()
    recalibrated = one.recalibrated(models, counters, np.array([1, ALL_WORKERS, 2]))
    assert torch.equal(models, before)  # a copy was made
    for row, wanted in ((0, np.arange(26, 60)), (1, np.arange(60))):
        x, _ = one._problem.samples.take(torch.from_numpy(wanted))
        named = one.layout.unflatten(recalibrated[row], counters[row])
        for name, value in by_hand(module, x).items():
            torch.testing.assert_close(named[name], value, rtol=1e-4, atol=1e-5)
    cut = one.layout.parameters
    assert torch.equal(recalibrated[:, :cut], models[:, :cut])
    assert torch.equal(recalibrated[2], models[2])  # worker 2 has no samples


def test_parts_are_averaged(monkeypatch):
    monkeypatch.setattr(batch_norm, "PART", 10)
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3))
    one = trainer(module)
    models, counters = outdated(one, 1)
    recalibrated = one.recalibrated(models, counters, np.array([1]))
    x, _ = one._problem.samples.take(torch.arange(26, 60))
    parts = [x.flatten(1)[torch.from_numpy(p)] for p in np.array_split(np.arange(34), 4)]
    named = one.layout.unflatten(recalibrated[0], counters[0])
    mean = torch.stack([p.mean(0) for p in parts]).mean(0)
    torch.testing.assert_close(named["1.running_mean"], mean, rtol=1e-4, atol=1e-5)
    var = torch.stack([p.var(0) for p in parts]).mean(0)
    torch.testing.assert_close(named["1.running_var"], var, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_evaluation_may_recalibrate_first(lanes):
    one = trainer(normed(1, (4, 4), 3), lanes=lanes)
    models, counters = outdated(one, 2)
    workers = np.array([0, ALL_WORKERS])
    found = one.evaluate(models, counters, recalibrate_on=workers)
    wanted = one.evaluate(one.recalibrated(models, counters, workers), counters)
    np.testing.assert_array_equal(found.loss, wanted.loss)
    plain = one.evaluate(models, counters)
    assert (np.abs(found.loss - plain.loss) > 1e-3).all()


def test_models_without_statistics_stay_as_they_are():
    one = trainer(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))
    vector, counters = one.initial()
    recalibrated = one.recalibrated(vector[None], counters[None], np.array([ALL_WORKERS]))
    assert torch.equal(recalibrated[0], vector)


def test_a_run_is_the_same_but_for_its_tests():
    words = [
        "model.name=support.training_fixtures:normed",
        "data.phi=0.4",
        "evaluate.every_rounds=2",
    ]

    def run(*more):
        return dystop.simulate(workers=5, dataset="synthetic", rounds=4, overrides=[*words, *more])

    plain, recalibrated = run(), run("evaluate.statistics=recomputed")
    pairs = list(zip(plain, recalibrated, strict=True))
    assert [a.loss for a, _ in pairs] == [b.loss for _, b in pairs]
    assert pairs[-1][0].accuracy != pairs[-1][1].accuracy
    assert pairs[-1][0].get("accuracy_global") != pairs[-1][1].get("accuracy_global")
    data, last = load("synthetic"), pairs[-1][1]

    def accuracy(model):
        return float((model(data.x_test).argmax(1).numpy() == data.y_test).mean())

    assert accuracy(recalibrated.model()) == pytest.approx(last.get("accuracy_global"))
    each = [accuracy(recalibrated.model(k)) for k in range(5)]
    assert np.mean(each) == pytest.approx(last.accuracy)


def test_the_testbed_has_no_samples_to_recalibrate_on():
    experiment = read_experiment(None, ["evaluate.statistics=recomputed"])
    assert build(experiment).components.evaluate.statistics == "recomputed"
    with pytest.raises(ConfigError, match="an observer has no training samples"):
        check_testbed(experiment)
