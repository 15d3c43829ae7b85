"""Tables reach a model as `[batch, features]`, and without a name the model follows the data."""

import tomllib

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import dystop
from dystop.cli import app
from dystop.data.private import combine, describe, own_samples
from dystop.errors import DataError

TEXT = ["data.name=generated-text", "data.options.train=60", "data.options.test=20"]
TABLE = ["data.name=generated-table", "data.options.train=120", "data.options.test=40"]
FEW = {"workers": 3, "rounds": 2}


def arrays(x):
    """A data set of these samples, with two classes."""
    y = np.arange(len(x)) % 2
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}


def table(features=4, kind=np.float32):
    """Sixty rows."""
    return np.random.default_rng(0).integers(0, 200, (60, features)).astype(kind)


class Seen(nn.Linear):
    """A linear layer that notes the shapes of its inputs."""

    shapes = set()  # noqa: RUF012 (copies of a module share it)

    def forward(self, x):
        self.shapes.add(tuple(x.shape[1:]))
        return super().forward(x)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8])
def test_a_row_reaches_a_model_as_a_vector(kind):
    Seen.shapes.clear()
    dystop.simulate(dataset=arrays(table(kind=kind)), model=Seen(4, 2), **FEW).run()
    assert Seen.shapes == {(4,)}


def batch_norm(features, classes):
    """A model of one's own for a table."""
    return nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes))


@pytest.mark.parametrize("words", [TABLE, [*TABLE, "task.name=regression"]])
def test_a_factory_may_take_the_number_of_features(words):
    dystop.simulate(model=batch_norm, overrides=words, **FEW).run()


def test_a_factory_for_images_gets_the_numbers_of_an_image():
    given = []

    def make(features, classes):
        given.append(features)
        return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))

    dystop.simulate(dataset=arrays(np.ones((60, 5, 6), np.uint8)), model=make, **FEW)
    assert given == [30]


def test_a_trained_model_takes_rows():
    x = table()
    simulation = dystop.simulate(dataset=arrays(x), **FEW)
    simulation.run()
    assert simulation.model()(x[:7]).shape == (7, 2)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["data.train_limit=60", "data.test_limit=20"], "cnn"),
        (["data.name=synthetic", "data.options.train=60", "data.options.test=20"], "mlp"),
        (TABLE, "mlp"),
        ([*TABLE, "task.name=regression"], "mlp"),
        (
            ["data.name=generated-text", "data.options.train=60", "data.options.test=20"],
            "transformer",
        ),
    ],
)
@pytest.mark.parametrize("train", ["true", "false"])
def test_without_a_name_the_model_follows_the_data_and_is_noted(words, name, train, tmp_path):
    words = [*words, "fleet.workers=3", "stop.rounds=1", "stop.seconds=0", f"engine.train={train}"]
    done = CliRunner().invoke(app, ["run", *words, "--out", str(tmp_path), "--name", "one"])
    assert done.exit_code == 0, done.output
    config = tomllib.loads((tmp_path / "one/config.toml").read_text())
    assert config["model"]["name"] == name


def test_a_study_reports_runs_that_note_what_the_plan_left_open(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*TABLE, "fleet.workers=3", "stop.rounds=1", "stop.seconds=0"]
    words += ["--mechanisms", "dystop,matcha", "--seeds", "1"]
    done = CliRunner().invoke(app, ["compare", *words, "--name", "open"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["report", "runs/open"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("model", ["mlp", nn.Linear(4, 2), batch_norm])
def test_integers_that_are_taken_for_tokens_may_be_a_table(model):
    with pytest.raises(dystop.DystopError, match=r"token ids.*if this is a table.*float"):
        dystop.simulate(dataset=arrays(table(kind=np.int64)), model=model, **FEW)


INTEGERS = {"dataset": arrays(table(kind=np.int64)), **FEW}


def test_where_integers_train_somebody_says_that_they_may_be_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"taken for token ids.*if this is a table.*float"):
        dystop.simulate(**INTEGERS)
    np.savez("mine.npz", **INTEGERS["dataset"])
    words = ["data.name=mine.npz", "fleet.workers=3", "stop.rounds=1", "--no-report"]
    done = CliRunner().invoke(app, ["run", *words])
    assert (done.exit_code, done.stderr.count("if this is a table")) == (0, 1), done.stderr


def test_a_text_is_not_said_to_be_a_table():
    few = {"options": {"train": 60, "test": 20}}
    assert "samples" not in dystop.simulate(dataset="generated-text", data=few, **FEW).physics


@pytest.mark.parametrize("number", [-1, 40_000])
def test_integers_that_are_no_tokens_may_be_a_table(number):
    x = table(kind=np.int64)
    x[3, 1] = number
    with pytest.raises(DataError, match=f"{number}.*token ids.*if this is a table.*float"):
        dystop.simulate(dataset=arrays(x), **FEW)


def test_private_tables_are_described_and_read(tmp_path):
    files = []
    for k in range(2):
        x = table() + k
        files.append(tmp_path / f"{k}.npz")
        np.savez(files[-1], x=x, y=np.arange(60) % 2)
    private = combine([describe(file) for file in files])
    assert (private.shape, len(private.mean)) == ((4,), 4)
    assert own_samples(files[0], private).x_train.shape == (60, 4)
    np.savez(files[0], x=table(kind=np.int64), y=np.arange(60) % 2)
    with pytest.raises(DataError, match=r"token ids.*float"):
        describe(files[0])
