"""A graph that does not connect the workers is named in the terminal and in the report."""

import pytest
from typer.testing import CliRunner

from dystop.cli import app

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

WORDS = ["fleet.workers=30", "data.name=synthetic", "model.name=softmax", "stop.rounds=2"]
SMALL = ["data.options.train=300", "data.options.test=50", "mechanism.name=d-psgd"]


@pytest.mark.parametrize("pairs", ["reach", "all"])
def test_a_ring_in_pieces_is_named(tmp_path, pairs):
    words = [*WORDS, *SMALL, f"mechanism.pairs={pairs}", "--out", str(tmp_path), "--name", "ring"]
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 0, done.output
    start, _, rest = done.output.partition("round 1")
    page = (tmp_path / "ring" / "report" / "report.html").read_text()
    apart = "the graph of the mechanism is not connected"
    assert start.count(apart) == page.count(apart) == (pairs == "all")
    assert apart not in rest
    again = CliRunner().invoke(app, ["report", str(tmp_path / "ring")])
    assert again.output.count(apart) == (pairs == "all")
