"""`testbed.links = "trace"`: a run with the link speeds of a recorded run."""

from pathlib import Path

from typer.testing import CliRunner

from dystop.cli import app
from dystop.folders.run_folder import open_run
from dystop.testbed.audit.check import check_run

TINY = [
    "fleet.workers=3",
    "stop.rounds=3",
    "model.name=softmax",
    "data.name=synthetic",
    "testbed.observer=false",
    "testbed.time_scale=0.2",
]
QUIET = ["--transport", "memory", "--quiet", "--no-report"]


def test_links_from_a_recorded_run(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path)]
    first = CliRunner().invoke(app, ["testbed", *TINY, *QUIET, *out, "--name", "first"])
    assert first.exit_code == 0, first.output
    again = [*TINY, "testbed.links=trace", f"testbed.trace={tmp_path / 'first'}"]
    second = CliRunner().invoke(app, ["testbed", *again, *QUIET, *out, "--name", "second"])
    assert second.exit_code == 0, second.output
    assert len(open_run(tmp_path / "second").records) == 3
    assert check_run(tmp_path / "second") == []
    lost = [*TINY, "testbed.links=trace"]
    refused = CliRunner().invoke(app, ["testbed", *lost, *QUIET, *out, "--name", "third"])
    assert refused.exit_code == 2
    assert "testbed.trace" in refused.output
