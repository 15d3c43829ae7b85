"""Examples in Python: each runs from beginning to end in an empty folder."""

import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["callbacks.py", "import_data.py", "partitions.py"])
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out


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
