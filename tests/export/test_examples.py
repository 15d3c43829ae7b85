"""The examples of exports and of energy run as they are printed, or smaller."""

import csv
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from dystop.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_export_results(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "export_results.py"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for words in ("has the worst model: ", "most often, ", "all workers together drew "):
        assert words in done.stdout


def test_energy(tmp_path):
    small = ["data.name=synthetic", "stop.seconds=2", "evaluate.every_s=1"]
    words = ["compare", str(EXAMPLES / "energy.toml"), "--mechanisms", "dystop,ad-psgd", *small]
    done = CliRunner().invoke(app, [*words, "--seeds", "1", "--out", str(tmp_path), "--name", "e"])
    assert done.exit_code == 0, done.output
    with (tmp_path / "e" / "report" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["mechanism"] for row in rows} == {"dystop", "ad-psgd"}
    for row in rows:
        assert float(row["energy_j"]) > 0
        assert 0 <= float(row["accuracy_worst"]) <= float(row["accuracy"])
    assert "energy to" in (tmp_path / "e" / "report" / "report.html").read_text()
