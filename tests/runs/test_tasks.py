"""Runs of other tasks: text and regression, from the configuration to records and models."""

import json

import numpy as np
import pytest
from torch import nn
from torch.nn.functional import cross_entropy

import dystop
from dystop.config import read_experiment
from dystop.errors import ConfigError
from dystop.folders.run_folder import open_run
from dystop.record import from_json
from dystop.runs.building import build
from dystop.runs.run import resume_run, run_experiment

TEXT = [
    "data.name=generated-text",
    "data.options.train=80",
    "data.options.test=20",
    "data.options.length=8",
    "data.options.sources=4",
    "model.name=task",
]
TABLE = [
    "data.name=generated-table",
    "data.options.train=120",
    "data.options.test=60",
    "task.name=regression",
    "model.name=task",
    "training.learning_rate=0.1",
]
SHORT = ["fleet.workers=4", "stop.rounds=4", "evaluate.every_rounds=2", "training.device=cpu"]


def records_of(words, path):
    experiment = read_experiment(None, [*words, *SHORT, f"training.path={path}"])
    from dystop.simulator import run_rounds
    from dystop.simulator.round import begin

    components = build(experiment).components
    assert components.trainer.path == path
    return [record for record, _ in run_rounds(components, begin(components))]


@pytest.mark.parametrize("words", [TEXT, TABLE])
def test_stacked_and_sequential_runs_are_the_same(words):
    stacked, sequential = (records_of(words, path) for path in ("stacked", "sequential"))
    for ours, theirs in zip(stacked, sequential, strict=True):
        assert ours.get("link_pairs") == theirs.get("link_pairs")
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)
        assert ours.accuracy == pytest.approx(theirs.accuracy, abs=2e-2)


def test_a_record_names_the_score_of_a_regression():
    record = records_of(TABLE, "stacked")[-1]
    line = json.loads(record.to_json())
    assert line["score_name"] == "r2"
    assert line["r2"] == record.accuracy < 1
    assert {"r2_std", "r2_global"} <= set(line)
    assert "accuracy" not in line
    assert from_json(record.to_json()) == record


def test_a_run_of_text_can_be_interrupted_resumed_and_loaded(tmp_path):
    words = [*TEXT, *SHORT, "output.checkpoint_every=1"]
    whole = run_experiment(
        read_experiment(None, words), tmp_path, "whole", lambda _: None, lambda _: None
    )
    stop = Stop(2)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(read_experiment(None, words), tmp_path, "part", lambda _: None, stop)
    resume_run(tmp_path / "part", lambda _: None, lambda _: None)
    ours, theirs = (open_run(tmp_path / name).records for name in ("part", "whole"))
    assert ours == theirs
    assert whole is not None
    model = dystop.load_model(tmp_path / "part")
    assert model(np.zeros((2, 8), np.int64)).shape == (2, 8, model.card.tokens)


class Stop:
    """Interrupts a run after so many rounds, as Ctrl-C does."""

    def __init__(self, rounds):
        self.rounds = rounds

    def __call__(self, record):
        if record.round == self.rounds:
            raise KeyboardInterrupt


def test_text_is_classified_by_its_source():
    words = [*TEXT, "task.name=classification", "model.name=transformer", *SHORT]
    built = build(read_experiment(None, words))
    assert built.components.trainer.evaluate(
        built.components.trainer.initial()[0][None], built.components.trainer.initial()[1][None]
    ).loss[0] == pytest.approx(np.log(4), rel=0.3)


class Median(dystop.Regression):
    """A task of a user's own: absolute errors."""

    score_name = "closeness"

    def losses(self, outputs, targets):
        return (outputs - targets).abs().mean(1)


def test_a_task_object_in_python():
    shared = {"dataset": "generated-table", "model": "mlp", "workers": 3, "rounds": 2}
    data = {"options": {"train": 60, "test": 20}}
    run = dystop.simulate(task=Median(), data=data, **shared).run()
    assert run.score_name == "closeness"
    assert run.config["task"]["name"].endswith(":Median")
    with pytest.raises(ConfigError, match=r"task.*regression"):
        dystop.simulate(task="regresion", **shared)
    with pytest.raises(ConfigError, match=r"expected a name or a dystop\.Task"):
        dystop.simulate(task=3, **shared)

    for name in ("clock_s", "energy_j"):
        clash = type("Clash", (Median,), {"score_name": name})
        with pytest.raises(ConfigError, match=f"score_name = {name!r}"):
            dystop.simulate(task=clash(), **shared)


def test_labels_cannot_be_flipped_where_they_are_not_learned():
    words = [*TABLE, *SHORT, "adversary.kind=label-flip", "adversary.share=0.5"]
    with pytest.raises(ConfigError, match=r"label-flip.*regression"):
        build(read_experiment(None, words))


class Broken(dystop.Regression):
    def losses(self, outputs, targets):
        return super().losses(outputs, targets) / 0.0


def test_a_loss_that_is_not_finite_is_noted_with_its_workers():
    shared = {"dataset": "generated-table", "model": "mlp", "workers": 3, "rounds": 4}
    run = dystop.simulate(
        task=Broken(), data={"options": {"train": 60, "test": 20}}, **shared
    ).run()
    first = run.records[0]
    assert first.get("not_finite")
    assert set(first.get("not_finite")) <= set(first.get("active_ids"))
    assert run.records[-1].get("diverged") == 3
    assert from_json(first.to_json()) == first


NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def own_task(**methods):
    """A task object whose methods are these functions of outputs and targets."""
    made = {name: staticmethod(method) for name, method in methods.items()}
    return type("Own", (dystop.Classification,), made)()


@pytest.mark.parametrize(
    ("task", "facts"),
    [
        (own_task(losses=cross_entropy), ["losses", "shape ()", "(3,)", 'reduction="none"']),
        (own_task(losses=lambda out, y: out), ["losses", "(3, 10)", "(3,)", ".mean(1)"]),
        (own_task(losses=lambda out, y: out[0]), ["losses", "(10,)", "(3,)"]),
        (own_task(losses=lambda out, y: 0.5), ["losses", "float", "tensor", "(3,)"]),
        (own_task(losses=lambda out, y: None), ["losses", "NoneType", "(3,)"]),
        (own_task(losses=lambda out, y: y), ["losses", "torch.int64", "floats"]),
        (own_task(losses=lambda out, y: y.float()), ["losses", "does not depend on the outputs"]),
        (own_task(losses=lambda out: out), ["losses", "TypeError"]),
        (own_task(loss=lambda out, y: out.mean(1)), ["loss ", "(3,)", "shape ()"]),
        (own_task(measures=lambda out, y: out[:, 0]), ["measures", "(3,)", "(3, m)"]),
        (own_task(measures=lambda out, y: out.mean()), ["measures", "shape ()", "(3, m)"]),
        (own_task(score=lambda means: means), ["score", "(1, 1)", "(1,)"]),
        (own_task(outputs=lambda kind: (7,)), ["Sequential", "(2, 10)", "(2, 7)"]),
    ],
)
def test_a_task_of_a_wrong_shape_is_refused_before_the_first_round(task, facts):
    shared = {"dataset": "synthetic", "model": NETWORK, "workers": 3, "rounds": 2}
    with pytest.raises(dystop.DystopError) as caught:
        dystop.simulate(task=task, data={"options": {"train": 60, "test": 20}}, **shared)
    message = str(caught.value)
    assert all(fact in message for fact in facts), message
    assert caught.value.exit_code in (2, 4)
