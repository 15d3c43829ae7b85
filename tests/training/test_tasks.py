"""Tasks: loss, score and targets, the same in every back end."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dystop.errors import ConfigError, UserCodeError
from dystop.training.backends import sequential, stacked
from dystop.training.flat import layout_of
from dystop.training.params import TrainerParams
from dystop.training.problem import Problem
from dystop.training.samples import Arrays, both_samples, shards_of
from dystop.training.tasks.build import checked, make_task, task_name
from dystop.training.tasks.catalogue import TASKS
from dystop.training.tasks.task import Classification, NextToken, Regression, SampleKind, Task
from dystop.training.trainer import Trainer
from support.training_fixtures import CPU, assert_same, job_of

TOKENS, LENGTH = 5, 4


class Absolute(Task):
    """A task of a user's own: absolute errors."""

    score_name = "closeness"

    def targets(self, labels, values):
        return values

    def outputs(self, kind):
        return (1,)

    def losses(self, outputs, targets):
        return (outputs - targets).abs().mean(1)

    def measures(self, outputs, targets):
        return (outputs - targets).abs()

    def score(self, means):
        return 1.0 - means[..., 0]


def per_token():
    return nn.Sequential(nn.Embedding(TOKENS, 6), nn.Tanh(), nn.Linear(6, TOKENS))


def data(task, count=40):
    rng = np.random.default_rng(3)
    if isinstance(task, NextToken):
        start = rng.integers(0, TOKENS, (count, 1))
        text = ((start + 2 * np.arange(LENGTH + 1)) % TOKENS).astype(np.int16)
        x, y, module = text[:, :-1], text[:, 1:], per_token()
    else:
        x = rng.normal(size=(count, 3)).astype(np.float32)
        y = (x @ [[1.0], [-2.0], [0.5]]).astype(np.float32)
        module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return Arrays(x, y, x[:11], y[:11], 0.0, 1.0), module


OTHERS = [NextToken(), Regression(), Absolute()]


def problem_of(task, sizes=(7, 3, 10), batch=4):
    arrays, module = data(task, sum(sizes))
    samples, _ = both_samples(arrays, CPU)
    ends = np.cumsum([0, *sizes])
    shards = shards_of([np.arange(lo, hi) for lo, hi in pairwise(ends)], sum(sizes))
    layout = layout_of(module)
    return Problem(module, layout, samples, shards, batch, 0.1, 7, 8, False, task=task)


@pytest.mark.parametrize("task", OTHERS)
def test_a_stack_learns_what_one_model_after_another_learns(task):
    problem = problem_of(task)
    ours, theirs = (job_of(problem, [2, 0, 1], [5, 3, 2]) for _ in range(2))
    assert_same(stacked.train(problem, ours), sequential.train(problem, theirs))


@pytest.mark.parametrize("task", OTHERS)
@pytest.mark.parametrize("path", ["stacked", "sequential"])
def test_a_trainer_learns_the_task(task, path):
    arrays, module = data(task)
    rate = 2.0 if isinstance(task, NextToken) else 0.1
    params = TrainerParams(batch=8, device="cpu", path=path, learning_rate=rate)
    trainer = Trainer(module, arrays, [np.arange(40)], params, 0, task)
    vector, counters = trainer.initial()
    one = np.ones(1, np.int64)
    trained = trainer.train(vector[None].clone(), counters[None], 0 * one, one, 200 * one)
    stack = torch.stack([vector, trained.models[0]])
    before, after = trainer.evaluate(stack, counters.repeat(2, 1)).accuracy
    assert after > before + 0.1
    assert trainer.evaluate(stack, counters.repeat(2, 1), samples=5).loss.shape == (2,)


@pytest.mark.parametrize("task", OTHERS)
def test_the_compiled_kernels_train_classes_only(task):
    arrays, _ = data(Regression())
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    params = TrainerParams(batch=8, device="cpu")
    assert not task.has_kernels
    path = Trainer(module, arrays, [np.arange(40)], params, 0, Regression()).path
    assert path == "stacked"
    fused = replace(params, path="fused")
    with pytest.raises(ConfigError, match=r"fused.*cross-entropy"):
        Trainer(module, arrays, [np.arange(40)], fused, 0, Regression())


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9, unique=True), st.floats(-2, 2))
def test_r2_is_the_explained_share_of_the_variance(values, shift):
    task, y = Regression(), torch.tensor(values, dtype=torch.float64)[:, None]
    if float(y.var(correction=0)) < 1e-3:
        return
    guess = y + shift
    means = task.measures(guess, y).mean(0)
    expected = 1 - shift**2 / float(y.var(correction=0))
    assert float(task.score(means)) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_measures_of_a_worked_example():
    scores = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    assert Classification().measures(scores, torch.tensor([0, 0]))[:, 0].tolist() == [True, False]
    text = scores[None].repeat(2, 1, 1)
    follow = torch.tensor([[0, 1], [1, 1]])
    assert NextToken().measures(text, follow)[:, 0].tolist() == [1.0, 0.5]
    wanted = F.cross_entropy(text.flatten(0, 1), follow.flatten())
    assert NextToken().loss(text, follow) == pytest.approx(float(wanted))
    assert NextToken().outputs(SampleKind((LENGTH,), 3, TOKENS)) == (LENGTH, TOKENS)


def test_the_mean_of_losses_is_the_loss():
    scores, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    task = Classification()
    assert math.isclose(task.losses(scores, labels).mean(), task.loss(scores, labels), rel_tol=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_of_the_catalogue_has_its_name_and_score(name):
    task = make_task("auto", name)
    assert task_name(task) == name


@pytest.mark.parametrize(
    ("task", "values", "expected"),
    [
        (Regression(), None, r"regression.*class labels alone"),
        (Regression(), np.zeros((2, 3), np.int64), r"regression.*int64.*expected floats"),
        (NextToken(), np.zeros(2, np.float32), r"next-token.*float32.*token ids"),
    ],
)
def test_targets_that_a_task_cannot_learn_are_refused(task, values, expected):
    with pytest.raises(ConfigError, match=expected):
        task.targets(np.zeros(2, np.int64), values)


@pytest.mark.parametrize("task", [Regression(), NextToken()])
def test_a_data_set_of_images_has_no_targets_for_other_tasks(task):
    with pytest.raises(ConfigError, match=r"the data set has.*dystop list datasets"):
        task.outputs(SampleKind((1, 8, 8), 10))


OWN = """
from dystop.training.tasks.task import Regression

class Mine(Regression):
    score_name = "mine"

class Bad(Regression):
    def __init__(self):
        raise ValueError("no")

def number(): return 3
"""


def test_a_task_of_ones_own_by_import_path(tmp_path):
    (tmp_path / "my_tasks_file.py").write_text(OWN)
    task = make_task("my_tasks_file:Mine", "classification", str(tmp_path))
    assert task.score_name == "mine"
    assert task_name(task) == "my_tasks_file:Mine"
    assert not task.has_kernels
    with pytest.raises(ConfigError, match=r"is a int.*dystop\.Task"):
        make_task("my_tasks_file:number", "classification", str(tmp_path))
    with pytest.raises(UserCodeError, match=r"my_tasks_file\.py:\d+: ValueError: no"):
        make_task("my_tasks_file:Bad", "classification", str(tmp_path))
    (tmp_path / "my_empty_task.py").write_text("import dystop\nclass Empty(dystop.Task): pass\n")
    with pytest.raises(ConfigError, match=r"has no losses and no measures; a task of your own"):
        make_task("my_empty_task:Empty", "classification", str(tmp_path))
    with pytest.raises(ConfigError, match=r"regresion.*regression"):
        make_task("regresion", "classification")


@pytest.mark.parametrize("name", TASKS)
def test_a_loss_of_dystop_is_not_negative(name):
    assert make_task(name, "").least_loss == 0.0


def test_a_task_with_a_loss_of_its_own_has_no_least_one_unless_it_says_so():
    class Negative(Regression):
        def losses(self, outputs, targets):
            return -super().losses(outputs, targets)

    class Bounded(Negative):
        least_loss = -4.0

    class Renamed(Bounded):
        score_name = "mine"

    class Scored(Classification):
        score_name = "mine"

    kinds = Task, Negative, Bounded, Renamed, Scored
    assert [kind.least_loss for kind in kinds] == [-math.inf, -math.inf, -4.0, -4.0, 0.0]


@pytest.mark.parametrize("least", ["0", math.nan, None, True])
def test_a_least_loss_is_a_number(least):
    class Strange(Regression):
        least_loss = least

    with pytest.raises(ConfigError, match="least_loss"):
        checked(Strange())
