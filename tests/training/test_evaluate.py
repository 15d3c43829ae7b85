import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dystop.config import read_experiment
from dystop.runs.building import build
from dystop.training.evaluate import (
    EvalTask,
    Evaluation,
    evaluate,
    stratified_first,
    with_workers,
)
from dystop.training.executors import CPU_EVAL_BYTES
from dystop.training.flat import layout_of
from dystop.training.samples import samples_of
from dystop.types import Score


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tiny kernels on many threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def setting(chunk, batch):
    head = (nn.Flatten(), nn.Dropout(), nn.Linear(36, 3))
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *head).eval()
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (23, 2, 5, 5), dtype=np.uint8)
    y = rng.integers(0, 3, 23)
    samples = samples_of(x, y, [0.5, 0.4], [0.2, 0.3], torch.device("cpu"), "test set")
    layout = layout_of(net)
    vector, counters = layout.flatten(net)
    models = vector + 0.1 * torch.linspace(-1, 1, 5 * layout.width).view(5, -1).sin().abs()
    return EvalTask(net, layout, samples, chunk, batch), models, counters.repeat(5, 1), x, y


@torch.no_grad()
def by_hand(task, models, x, y):
    """One model after another, one sample after another."""
    accuracy, loss = [], []
    for model in models:
        named = task.layout.unflatten(model, torch.zeros(task.layout.counters, dtype=torch.int64))
        task.module.load_state_dict(named)
        right, total = 0, 0.0
        for image, label in zip(x, y, strict=True):
            mean, std = np.array([0.5, 0.4])[:, None, None], np.array([0.2, 0.3])[:, None, None]
            scores = task.module(torch.tensor(((image / 255 - mean) / std)[None]).float())[0]
            right += int(scores.argmax()) == label
            total += float(F.cross_entropy(scores, torch.tensor(label)))
        accuracy.append(right / len(y))
        loss.append(total / len(y))
    return accuracy, loss


@pytest.mark.parametrize(("chunk", "batch"), [(1, 500), (2, 7), (5, 23), (9, 1)])
def test_evaluation_equals_a_hand_written_loop(chunk, batch):
    task, models, counters, x, y = setting(chunk, batch)
    before = models.clone()
    got = evaluate(task, models, counters, torch.arange(23))
    assert torch.equal(models, before)  # running statistics are read, not updated
    assert not counters.any()
    accuracy, loss = by_hand(task, models, x, y)
    assert got.accuracy.tolist() == accuracy
    np.testing.assert_allclose(got.loss, loss, rtol=1e-5)


def test_part_of_the_test_set():
    task, models, counters, x, y = setting(2, 4)
    pick = stratified_first(y, 9)
    got = evaluate(task, models[:1], counters[:1], torch.from_numpy(pick))
    accuracy, _ = by_hand(task, models[:1], x[pick], y[pick])
    assert got.accuracy.tolist() == accuracy
    assert got.loss.shape == (1,)


def test_stratified_first_keeps_the_shares_of_the_classes():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [60, 30, 10]))
    pick = stratified_first(labels, 20)
    assert np.bincount(labels[pick]).tolist() == [12, 6, 2]
    assert (np.diff(pick) > 0).all()
    for k in range(3):  # the first of each class
        have = pick[labels[pick] == k]
        assert have.tolist() == np.flatnonzero(labels == k)[: len(have)].tolist()
    assert stratified_first(labels, 1000).tolist() == list(range(100))
    assert np.bincount(labels[stratified_first(labels, 3)], minlength=3).sum() == 3


@pytest.mark.parametrize(("name", "most"), [("softmax", 500), ("mobilenet-v2", 40)])
def test_a_cpu_evaluates_large_models_in_small_batches(name, most):
    """What is alive at once stays small; small models keep the batch that was asked for."""
    words = ["data.options.shape=[3,32,32]", "data.options.train=40", "data.options.test=9"]
    words += ["data.name=synthetic", f"model.name={name}", "fleet.workers=2", "data.phi=1.0"]
    trainer = build(read_experiment(None, [*words, "training.path=sequential"])).components.trainer
    batch, alive = trainer._task.batch, trainer.size.forward_bytes
    assert batch == min(500, CPU_EVAL_BYTES // alive)
    assert batch <= most


def test_results_of_single_workers():
    found = Evaluation(np.array([0.5, np.nan]), np.array([np.inf, 2.0]))
    score = with_workers(Score(0.5, 0.0, 0.5, 1.0, 1.0), found, np.array([3, 0]), 4)
    assert score.worker_accuracy == (None, None, None, 0.5)
    assert score.worker_loss == (2.0, None, None, None)
