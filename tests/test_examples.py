"""Examples: those in Python run from beginning to end, configurations for two rounds."""

import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.folders.run_folder import open_run

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["callbacks.py", "import_data.py", "partitions.py"])
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out


SHORT = ["stop.rounds=2", "evaluate.every_rounds=1", "training.local_steps=1"]
FEW = {
    "fmnist-mini": ["data.train_limit=300", "data.test_limit=50"],
    "generated-text": ["data.options.train=60", "data.options.test=12"],
    "generated-table": [],
}
APART = {
    "flower.toml",
    "lora.toml",
}  # needs flwr (tests/training/trainers/test_flower.py); needs a base
FILES = sorted(file for file in EXAMPLES.glob("*.toml") if file.name not in APART)


def run_shortly(file, name, *words):
    """Run an example with its own model and data, for two rounds and few samples."""
    few = FEW[read_experiment(file).data.name]
    done = CliRunner().invoke(
        app,
        ["run", str(file), *SHORT, *few, *words, "--out", "runs", "--name", name, "--no-report"],
    )
    assert done.exit_code == 0, (file.name, done.output)
    return open_run(Path("runs") / name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_of_a_configuration_runs(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = run_shortly(file, "short")
    assert len(run.records) == 2
    assert run.records[-1].accuracy is not None


def test_the_example_of_adapters_runs_after_that_of_its_base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = run_shortly(EXAMPLES / "lora-base.toml", "lora-base")
    run = run_shortly(EXAMPLES / "lora.toml", "lora")
    assert run.fleet["model_bytes"] < base.fleet["model_bytes"] / 4


def kinds(notebook):
    """Return what kinds of outputs every cell of code has."""
    return [
        sorted(kind for output in cell.outputs for kind in output.get("data", {"text": ""}))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_notebook_runs_and_is_stored_with_its_outputs(tmp_path, monkeypatch):
    stored = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    fresh = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(fresh, timeout=600, resources=resources).execute()
    assert kinds(fresh) == kinds(stored)
    assert "does not compare" not in str(fresh)
    shown = {kind for cell in kinds(stored) for kind in cell}
    assert {"image/png", "text/html"} <= shown
    text = (EXAMPLES / "notebook.ipynb").read_text()
    assert str(Path.home()) not in text
    assert "http" not in "".join(
        html
        for cell in stored.cells
        for output in cell.get("outputs", ())
        for html in output.get("data", {}).get("text/html", ())
    )
