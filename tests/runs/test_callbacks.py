"""Callbacks of simulations: they see rounds and models, stop runs, and change no record."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import dystop
from dystop.cli.app import app
from dystop.record import RoundRecord

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SMALL = {"workers": 4, "dataset": "synthetic", "model": "softmax", "seed": 1}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def small(mechanism="dystop", rounds=12, **more):
    return dystop.simulate(mechanism, **{**SMALL, "evaluate": {"every_rounds": 3}, **more,
        "rounds": rounds})  # fmt: skip


def lines(simulation):
    return [record.to_json() for record in simulation]


class Look(dystop.Callback):
    """Notes what it is told, and what the models score."""

    def __init__(self, stop_at=0):
        self.calls, self.scores, self.stop_at = [], [], stop_at

    def on_start(self, simulation):
        self.calls.append("start")

    def on_round(self, record):
        self.calls.append(record.round)

    def on_evaluation(self, evaluation):
        x, y = evaluation.data.x_test, evaluation.targets
        right = [
            (evaluation.model(k)(x).argmax(1).numpy() == y).mean()
            for k in range(evaluation.workers)
        ]
        together = (evaluation.model()(x).argmax(1).numpy() == y).mean()
        self.scores.append((evaluation.record.round, np.mean(right), together))
        if evaluation.record.round == self.stop_at:
            evaluation.stop("enough")

    def on_end(self, simulation):
        self.calls.append("end")


class KeepModel(dystop.Callback):
    """Keeps the model of worker 2 after a round."""

    def __init__(self, at):
        self.at, self.model = at, None

    def on_evaluation(self, evaluation):
        if evaluation.record.round == self.at:
            self.model = evaluation.model(2)


@pytest.mark.parametrize("mechanism", ["dystop", "d-psgd", "ad-psgd", "fedavg"])
@pytest.mark.parametrize("publish", ["eager", "on_completion"])
def test_callbacks_see_the_tested_models_and_change_nothing(mechanism, publish):
    if mechanism == "fedavg" and publish == "on_completion":
        pytest.skip("one publish rule will do for a server")
    look = Look()
    engine = {"publish": publish}
    watched = small(mechanism, engine=engine, callbacks=[look])
    assert lines(watched) == lines(small(mechanism, engine=engine))
    assert look.calls == ["start", *range(1, len(watched.records) + 1), "end"]
    tested = [r for r in watched.records if r.accuracy is not None]
    assert [t for t, _, _ in look.scores] == [r.round for r in tested]
    np.testing.assert_allclose([a for _, a, _ in look.scores], [r.accuracy for r in tested])
    np.testing.assert_allclose(
        [g for _, _, g in look.scores], [r.get("accuracy_global") for r in tested]
    )


def test_callbacks_see_models_where_tests_go_by_time():
    look = Look()
    simulation = small(rounds=20, evaluate={"every_s": 0.4}, callbacks=[look])
    simulation.run()
    tested = [r for r in simulation.records if r.accuracy is not None]
    assert len(tested) > 2
    np.testing.assert_allclose([a for _, a, _ in look.scores], [r.accuracy for r in tested])


def test_a_stopped_run_leaves_its_models():
    simulation = small(callbacks=[Look(stop_at=6)])
    run = simulation.run()
    assert (len(run.records), run.stop_reason) == (6, "enough")
    whole = small(callbacks=[look := KeepModel(at=6)])
    whole.run()
    images = np.random.default_rng(0).integers(0, 255, (3, 1, 8, 8), np.uint8)
    assert np.array_equal(simulation.model(2)(images).numpy(), look.model(images).numpy())
    assert simulation.model()(images).shape == (3, 10)


def dystop_command(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("given", ["name", "arrays"])
def test_a_stopped_run_is_saved_and_goes_on(given):
    arrays = {}
    if given == "arrays":
        y = np.arange(90) % 3
        x = np.random.default_rng(0).normal(size=(90, 5)).astype("float32") + y[:, None]
        arrays = {
            "dataset": {"x_train": x[:60], "y_train": y[:60], "x_test": x[60:], "y_test": y[60:]}
        }
    simulation = small(callbacks=[Look(stop_at=6)], **arrays)
    simulation.run()
    assert simulation.save("runs/early") == Path("runs/early")
    saved = dystop.load_run("runs/early")
    assert [r.to_json() for r in saved.records] == [r.to_json() for r in simulation.records]
    assert saved.stop_reason == "enough"
    model, loaded = simulation.model(), dystop.load_model("runs/early")
    sample = np.zeros((2, *model.card.shape), np.float32)
    assert np.array_equal(model(sample).numpy(), loaded(sample).numpy())
    with pytest.raises(dystop.RunFolderError, match="runs/early"):
        simulation.save("runs/early")
    dystop_command("resume", "runs/early", "--no-report", "-q")
    dystop_command("verify", "runs/early")
    whole = [r.to_json() for r in dystop.load_run("runs/early").records]
    assert whole == lines(small(**arrays))
    dystop_command("report", "runs/early")


def test_a_finished_run_is_saved_and_verified():
    simulation = small(rounds=4)
    with pytest.raises(ValueError, match="rounds left"):
        simulation.save("runs/whole")
    simulation.run()
    simulation.save("runs/whole")
    assert "identical: 4 rounds" in dystop_command("verify", "runs/whole")
    assert "finished" in Path("runs/whole/run.json").read_text()


def record(accuracy, t):
    plain = dict.fromkeys(
        ("clock_s", "duration_s", "alive", "active", "links", "lost", "wire_bytes", "idle_s",
         "wire_bytes_total", "endpoint_bytes_total", "samples_total", "epochs_total",
         "staleness_mean", "staleness_max", "queue_mean"), 0)  # fmt: skip
    return RoundRecord(
        round=t,
        **plain,
        staleness_histogram=(),
        loss=None,
        added={"accuracy": accuracy, "test_loss": -accuracy},
    )


@pytest.mark.parametrize("measure", ["accuracy", "test_loss"])
@pytest.mark.parametrize(
    ("scores", "stops"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], None),
        ([0.1, 0.5, 0.4, 0.5], 4),
        ([0.1, 0.5, 0.4, 0.6, 0.5, 0.5], 6),
        ([0.1, 0.105, 0.109, 0.3], 3),
        ([float("nan"), float("nan"), 0.5], 2),
    ],
)
def test_early_stopping_worked_by_hand(measure, scores, stops):
    stopping = dystop.EarlyStopping(measure, patience=2, min_change=0.01)
    stopping.on_start(None)
    for t, score in enumerate(scores, 1):
        evaluation = dystop.Evaluation(record(score, t), 1, None, None, None)
        stopping.on_evaluation(evaluation)
        if evaluation.stop_reason:
            break
    assert (t if evaluation.stop_reason else None) == stops


def test_early_stopping_ends_a_run():
    stopping = dystop.EarlyStopping(patience=2, min_change=0.5)
    run = small(callbacks=[stopping]).run()
    assert [r.round for r in run.records][-1] == 9  # tests after rounds 3, 6 and 9
    assert "accuracy has not improved for 2 tests" in run.stop_reason
    assert stopping.best_round == 3


def test_metrics_of_each_worker():
    def accuracy(outputs, labels):
        return (outputs.argmax(1) == labels).mean()

    metrics = dystop.WorkerMetrics(accuracy=accuracy, largest=lambda out, labels: out.max())
    run = small(evaluate={"every_rounds": 3, "per_worker": True}, callbacks=[metrics]).run()
    tested = [r for r in run.records if r.accuracy is not None]
    assert metrics.rounds == [r.round for r in tested]
    assert metrics.values["accuracy"].shape == metrics.values["largest"].shape == (4, 4)
    expected = [r.get("worker_accuracy") for r in tested]
    np.testing.assert_allclose(metrics.values["accuracy"], expected, atol=1e-6)


def test_metrics_of_a_regression():
    metrics = dystop.WorkerMetrics(error=lambda out, targets: ((out - targets) ** 2).mean())
    run = small(dataset="generated-table", task="regression", callbacks=[metrics]).run()
    losses = [r.get("test_loss") for r in run.records if r.accuracy is not None]
    np.testing.assert_allclose(metrics.values["error"].mean(axis=1), losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: dystop.EarlyStopping("acuracy"), ["'acuracy'", "did you mean 'accuracy'"]),
        (lambda: dystop.EarlyStopping(patience=0), ["patience = 0"]),
        (lambda: dystop.WorkerMetrics(), ["functions by name"]),
        (lambda: dystop.WorkerMetrics(recall=3), ["functions by name"]),
        (lambda: small(callbacks=dystop.EarlyStopping()), ["callbacks", "list"]),
        (lambda: small(callbacks=[print]), ["callbacks", "dystop.EarlyStopping()"]),
    ],
)
def test_bad_callbacks_are_named(make, facts):
    with pytest.raises(dystop.ConfigError) as caught:
        make()
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)


def test_a_callback_that_fails_ends_the_run_and_the_others():
    class Fails(dystop.Callback):
        def on_round(self, record):
            raise RuntimeError("mine")

    look = Look()
    with pytest.raises(RuntimeError, match="mine"):
        small(callbacks=[look, Fails()]).run()
    assert look.calls[-1] == "end"


def test_the_bar_of_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    small(rounds=3, callbacks=[dystop.ProgressBar()]).run()
    assert "3/3" in capsys.readouterr().out
    timed = {key: value for key, value in SMALL.items() if key != "rounds"}
    bar = dystop.ProgressBar()
    dystop.simulate(**timed, stop={"seconds": 2}, callbacks=[bar]).run()
    assert "2/2" in capsys.readouterr().out


def test_a_log_gets_no_bar(capsys):
    small(rounds=3, callbacks=[dystop.ProgressBar()]).run()
    assert capsys.readouterr().out == ""


def test_comparisons_take_callbacks():
    look = Look()
    dystop.compare(["dystop", "d-psgd"], **{k: v for k, v in SMALL.items() if k != "seed"},
        rounds=2, callbacks=[look])  # fmt: skip
    assert look.calls.count("start") == look.calls.count("end") == 2


def test_a_set_with_its_own_statistics_is_saved_with_them():
    data = dystop.import_data(
        [(np.full((4, 4), 60 * (k % 3), np.uint8), k % 3) for k in range(30)], share=0.3
    )
    data = replace(data, mean=(0.3,), std=(0.7,))
    simulation = small(dataset=data, callbacks=[Look(stop_at=6)])
    simulation.run()
    simulation.save("runs/own")
    dystop_command("resume", "runs/own", "--no-report", "-q")
    assert [r.to_json() for r in dystop.load_run("runs/own").records] == lines(small(dataset=data))
