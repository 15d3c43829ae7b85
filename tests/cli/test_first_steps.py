"""What somebody meets who uses dystop for the first time: Ctrl-C, slips, and what messages say."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from requests import RequestException
from torch import nn
from typer.testing import CliRunner
from urllib3.exceptions import MaxRetryError, NameResolutionError

import dystop
from dystop.cli import app
from dystop.data import load
from dystop.errors import ConfigError, DataError, UserCodeError, nearest

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")
SMALL = [
    "data.train_limit=60", "data.test_limit=20", "fleet.workers=3", "model.name=softmax",
    "stop.rounds=4", "stop.seconds=0",
]  # fmt: skip
TABLE = "a,b,y\n" + "".join(f"{k},{k % 3},{'xz'[k % 2]}\n" for k in range(20))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(*words):
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(
    "start", [["-m", "dystop"], ["-c", "import dystop.__main__ as m; m.main()"]]
)
@pytest.mark.parametrize("module", ["typer", "numpy"])
def test_ctrl_c_while_modules_are_loaded_prints_no_traceback(start, module):
    command = [sys.executable, "-X", "importtime", *start, "list", "mechanisms"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        lines = []
        for line in process.stderr:
            lines.append(line.decode())
            if lines[-1].rpartition("|")[2].strip().partition(".")[0] == module:
                process.send_signal(signal.SIGINT)
                break
        lines += [line.decode() for line in process.stderr]
    assert "Traceback" not in "".join(lines)
    assert process.returncode in (-signal.SIGINT, 130)


def test_an_ignored_ctrl_c_stays_ignored():
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import dystop.__main__ as m; m._end_on_ctrl_c()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["list", "fig-nope"], ["'fig-nope'", "mechanisms"]),
        (["sweep", "--jobs", "x"], ["--jobs", "'x'", "an integer"]),
        (["compare", "--seeds", "0"], ["--seeds", ">= 1"]),
        (["data", "import", "a.csv", "a.npz", "--share", "x"], ["--share", "'x'", "a number"]),
        (["data", "import", "a.csv", "a.npz", "--seed", "-1"], ["--seed", ">= 0"]),
    ],
)
def test_a_wrong_option_is_explained_in_words_of_dystop(words, facts):
    done = call(*words)
    assert done.exit_code == 2
    assert all(fact in done.stderr for fact in facts), done.stderr
    assert not any(phrase in done.stderr for phrase in ("Value error", "Input should"))


@pytest.mark.parametrize(
    ("given", "allowed", "found"),
    [
        ("fig-nope", ["fig-phases", "fig-staleness"], None),
        ("missing.toml", ["mine.toml", "tiny.toml", "testing.toml"], None),
        ("x", ["V"], None),
        ("v", ["V"], "V"),
        ("cn", ["mlp", "cnn"], "cnn"),
        ("adpsgd", ["d-psgd", "ad-psgd"], "ad-psgd"),
        ("matcah", ["fedhp", "matcha"], "matcha"),
        ("mobilnet", ["mobilenet-v2", "mlp"], "mobilenet-v2"),
        ("psgd", ["dystop", "d-psgd"], "d-psgd"),
        ("cifar", ["svhn", "cifar10"], "cifar10"),
        ("learning_rat", ["learning_rate"], "learning_rate"),
    ],
)
def test_only_what_is_near_is_suggested(given, allowed, found):
    assert nearest(given, allowed) == (f"; did you mean {found!r}?" if found else "")


def test_a_name_that_resembles_nothing_gets_no_suggestion():
    Path("steering.toml").write_text("")
    done = call("run", "missing.toml")
    assert done.exit_code == 2
    assert "did you mean" not in done.stderr


@pytest.mark.parametrize(("text", "rounds"), [("1e1", 10), ("3.0", 3)])
def test_a_whole_number_may_be_written_as_a_float(text, rounds):
    words = [*SMALL, f"stop.rounds={text}", "--name", "one", "--no-report"]
    assert call("run", *words).exit_code == 0
    config = tomllib.loads(Path("runs/one/config.toml").read_text())
    assert config["stop"]["rounds"] == rounds
    assert len(Path("runs/one/records.jsonl").read_text().splitlines()) == rounds


@pytest.mark.parametrize("text", ["2.5", "1e400", "true", "[1e1]"])
def test_another_float_is_no_whole_number(text):
    done = call("run", *SMALL, f"stop.rounds={text}")
    assert (done.exit_code, "an integer >= 1" in done.stderr or "finite" in done.stderr) == (
        2,
        True,
    )


def test_rounds_in_python_may_be_a_whole_float():
    assert dystop.simulate(rounds=1e1, workers=3).experiment.stop.rounds == 10
    with pytest.raises(ConfigError, match="an integer"):
        dystop.simulate(rounds=1.5, workers=3)


@pytest.mark.parametrize("out", [["new.npz"], ["--out", "new.npz"]])
def test_the_file_of_an_import_may_be_an_option(out):
    Path("t.csv").write_text(TABLE)
    assert call("data", "import", "t.csv", *out, "--target", "y").exit_code == 0
    assert load("new.npz").classes == 2


@pytest.mark.parametrize(
    ("out", "facts"),
    [
        ([], ["OUT.npz", "--out"]),
        (["a.npz", "--out", "b.npz"], ["a.npz", "b.npz", "twice"]),
        (["--out", "nowhere/a.npz"], ["nowhere/a.npz", "no folder nowhere"]),
        (["--out", "a.csv"], ["a.csv", ".npz"]),
    ],
)
def test_a_file_that_an_import_cannot_write_is_refused_first(out, facts):
    done = call("data", "import", "no-such.csv", *out, "--target", "y")
    assert done.exit_code == 2
    assert all(fact in done.stderr for fact in facts), done.stderr


def unconnected(*given, **named):
    try:
        raise OSError(-2, "Name or service not known")
    except OSError as error:
        wrapped = NameResolutionError("host.example", None, error)
        raise RequestException(MaxRetryError(None, "/a.tar.gz", wrapped)) from error


def test_without_a_network_one_short_reason_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr("pooch.retrieve", unconnected)
    monkeypatch.setattr("dystop.data.loading.user_cache", lambda: tmp_path)
    with pytest.raises(DataError) as caught:
        load("cifar10")
    message = str(caught.value)
    assert "Name or service not known" in message
    assert "fmnist-mini" in message
    assert not any(word in message for word in ("Max retries", "NameResolutionError", "HTTPS"))


def test_a_divergence_is_printed_once():
    words = [*SMALL, "training.learning_rate=1e30", "evaluate.every_rounds=1", "--no-report"]
    done = call("run", *words, "--name", "steep")
    assert done.exit_code == 7
    assert done.stderr.count("diverged in round") == done.stderr.count("learning_rate") == 1


def broken_weights(features, classes, value=float("nan")):
    """A model of one's own that is initialised wrongly."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(features, classes))
    module[1].weight.data[0, 0] = value
    return module


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_at_the_start_are_named(value):
    module = broken_weights(784, 10, value)
    for model in (module, lambda features, classes: broken_weights(features, classes, value)):
        with pytest.raises(ConfigError, match=r"1\.weight.*before the first round") as caught:
            dystop.simulate(model=model, workers=3)
        assert "learning_rate" not in str(caught.value)


def test_a_buffer_of_nan_is_named_and_a_mask_may_hold_infinite_values():
    for value, names in ((float("nan"), True), (-float("inf"), False)):
        module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        module.register_buffer("mask", torch.full((2,), value))
        if names:
            with pytest.raises(ConfigError, match=r"mask.*before the first round"):
                dystop.simulate(model=module, workers=3)
        else:
            dystop.simulate(model=module, workers=3)


def test_a_base_that_is_not_finite_is_named(tmp_path):
    simulation = dystop.simulate(model="softmax", workers=3, rounds=1)
    simulation.run()
    run = simulation.save(tmp_path / "one")
    from safetensors.torch import load_file, safe_open, save_file

    file = next((run / "models").glob("*.safetensors"))
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    next(iter(tensors.values())).fill_(float("nan"))
    save_file(tensors, tmp_path / "base.safetensors", metadata)
    with pytest.raises(ConfigError, match=r"base\.safetensors.*before the first round"):
        dystop.simulate(model={"name": "softmax", "base": "base.safetensors"}, workers=3)


def failing(features, classes):
    """A factory with a slip."""
    return nn.Linear(features, undefined)  # noqa: F821


def test_the_error_of_a_factory_is_shown_in_python():
    with pytest.raises(
        UserCodeError, match=r"test_first_steps\.py:.*NameError.*undefined"
    ) as caught:
        dystop.simulate(model=failing, workers=3)
    assert isinstance(caught.value.__cause__, NameError)


ARRAYS = {
    "x_train": np.zeros((6, 8, 8), np.uint8), "y_train": np.arange(6) % 2,
    "x_test": np.zeros((4, 8, 8), np.uint8), "y_test": np.arange(4) % 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"x_train": np.zeros((6, 8, 8), np.int64)},
        {"x_train": np.full((6, 8, 8), np.nan)},
        {"x_train": np.full((6, 8, 8), 1e300)},
        {"x_train": np.zeros((6, 7, 8, 9), np.uint8)},
        {"y_train": np.eye(6, dtype=int)},
        {"y_train": np.array(list("ababab"))},
        {"y_train": np.zeros(6, int), "y_test": np.zeros(4, int)},
        {"mean": np.array("a"), "std": np.array("b")},
        {"mean": np.array([np.nan]), "std": np.array([1.0])},
        {"target_train": np.ones((6, 2)), "target_test": np.ones((4, 3))},
        {"target_train": np.ones((6, 2)), "target_test": np.ones((4, 2), int)},
        {
            "x_train": np.zeros((6, 5), int),
            "x_test": np.zeros((4, 5), int),
            "tokens": np.array("a"),
        },
    ],
)
@pytest.mark.filterwarnings("error")
def test_wrong_arrays_are_not_to_be_saved_again(changed):
    np.savez("mine.npz", **{**ARRAYS, **changed})
    with pytest.raises(DataError, match=r"mine\.npz: .*expected") as caught:
        load("mine.npz")
    assert "savez" not in str(caught.value)


def test_a_damaged_file_is_to_be_saved_again():
    Path("mine.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="savez_compressed"):
        load("mine.npz")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_called_so(make):
    make("mine.npz")
    with pytest.raises(DataError, match=r"mine\.npz: not a file"):
        load("mine.npz")


def test_a_table_that_is_not_imported_is_no_data_set():
    done = call("run", "data.name=t.csv")
    assert (done.exit_code, "dystop data import" in done.stderr) == (2, True)
