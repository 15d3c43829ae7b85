"""An error in a mechanism or model of the user's own is blamed on its file and line."""

import itertools
from importlib import import_module
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

import dystop.mechanisms
from dystop.cli import app
from dystop.errors import UserCodeError
from dystop.registry import Registry
from dystop.types import Mechanism

SMALL = [
    "fleet.workers=3",
    "data.name=synthetic",
    "data.options.train=60",
    "data.options.test=30",
    "stop.rounds=2",
]
NUMBERS = itertools.count()
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x):
        {forward}
        return self.linear(x.flatten(1))

def make(channels, size, classes):
    {factory}
    return Net(channels * size[0] * size[1], classes)
"""
MODELS = {
    "import": (MODEL.format(forward="", factory="") + "no_such_name", "NameError"),
    "syntax": ("def make(:", "SyntaxError"),
    "factory": (MODEL.format(forward="", factory="channels / 0 # bad"), "ZeroDivisionError"),
    "file": (MODEL.format(forward="", factory="open('/no/such/file') # bad"), "FileNotFoundError"),
    "forward": (MODEL.format(forward="x.no_such # bad", factory=""), "AttributeError"),
    "training": (
        MODEL.format(forward="self.training and x.no_such # bad", factory=""),
        "AttributeError",
    ),
}
MECHANISM = """
from dataclasses import dataclass
from dystop import DySTop

@dataclass(frozen=True)
class Mine(DySTop):
    name = "mine"

    def {method}(self, *given):
        return given[0].no_such # bad
"""
TASK = """
import dystop
from pathlib import Path
from torch.nn.functional import cross_entropy

class Scalar(dystop.Classification):
    def losses(self, outputs, targets):
        return cross_entropy(outputs, targets)

class Later(dystop.Classification):
    def measures(self, outputs, targets):
        if len(targets) > 6 and Path("fails").exists():
            raise ValueError("later")
        return super().measures(outputs, targets)
"""


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def line_of(text: str) -> int:
    """The number of the line that is marked, or of the last one."""
    lines = text.splitlines()
    return next((k for k, line in enumerate(lines, 1) if line.endswith("# bad")), len(lines))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        name = f"code_of_mine_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def assert_blamed(done, file, text, what):
    assert done.exit_code == 4, done.output
    assert f"{file}.py:{line_of(text)}: {what}" in done.stderr
    assert "bug in dystop" not in done.output


@pytest.mark.parametrize("kind", MODELS)
def test_a_model(kind, module, monkeypatch):
    text, what = MODELS[kind]
    name = module(text)
    assert_blamed(call("run", f"model.name={name}:make", *SMALL), name, text, what)
    monkeypatch.setenv("DYSTOP_DEBUG", "1")
    assert "Traceback" in call("run", f"model.name={name}:make", *SMALL).stderr


@pytest.mark.parametrize("method", ["plan", "init", "capabilities"])
def test_a_mechanism(method, module, monkeypatch, tmp_path):
    text = MECHANISM.format(method=method)
    if method == "capabilities":
        text = text.replace("given[0].no_such", "self.no_such")
    name = module(text)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("mine", f"{name}:Mine", "dystop.mechanisms")
    monkeypatch.setattr("dystop.registry.entry_points", lambda group: [point])
    found = Registry("mechanism", Mechanism, point.group, dystop.mechanisms.BUILT_IN)
    for place in ("experiment", "read"):
        monkeypatch.setattr(f"dystop.config.{place}.MECHANISMS", found)
    done = call("run", "mechanism.name=mine", "model.name=softmax", *SMALL)
    assert_blamed(done, name, text, "AttributeError")
    assert not list(tmp_path.glob("runs/*"))  # it failed before its first round


def test_a_task(module, tmp_path):
    name = module(TASK)
    words = [f"task.name={name}:Scalar", "model.name=softmax", *SMALL, "--name", "own"]
    for _ in range(2):  # the name stays free
        done = call("run", *words)
        assert done.exit_code == 4, done.output
        facts = [f"{name}:Scalar", "losses", "shape ()", 'reduction="none"']
        assert all(fact in done.stderr for fact in facts), done.stderr
        assert "bug in dystop" not in done.output
        assert not (tmp_path / "runs").exists()


def test_a_run_that_fails_later_is_kept_and_one_that_is_resumed_too(module, tmp_path):
    name = module(TASK)
    flag = tmp_path / "fails"
    words = [f"task.name={name}:Later", "model.name=softmax", *SMALL, "evaluate.every_rounds=2"]
    flag.touch()
    assert call("run", *words, "output.checkpoint_every=1", "--name", "own").exit_code == 4
    assert (tmp_path / "runs/own/records.jsonl").read_text()
    records = tmp_path / "runs/own/records.jsonl"
    records.write_text("")
    for file in (tmp_path / "runs/own/checkpoints").iterdir():
        file.unlink()
    assert call("resume", "runs/own").exit_code == 4  # before its first round
    assert records.is_file()
    flag.unlink()
    assert call("resume", "runs/own").exit_code == 0


@pytest.mark.parametrize("kind", ["factory", "forward"])
def test_an_object_in_python(kind, module, monkeypatch, tmp_path):
    text, what = MODELS[kind]
    name = module(text)
    monkeypatch.syspath_prepend(tmp_path)
    make = import_module(name).make
    with pytest.raises(UserCodeError, match=f"{name}.py:{line_of(text)}: {what}") as caught:
        dystop.simulate(dataset="synthetic", model=make, workers=3, rounds=1)
    assert type(caught.value.__cause__).__name__ == what


def test_an_error_of_dystop_is_still_one_of_dystop(module, monkeypatch):
    module("x = 1")
    monkeypatch.setattr("dystop.user_code._CHOSEN", set())
    monkeypatch.setattr("dystop.runs.run.build", lambda experiment: 1 / 0)
    done = call("run", "model.name=softmax", *SMALL)
    assert (done.exit_code, "bug in dystop" in done.stderr) == (1, True)
