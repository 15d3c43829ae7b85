"""Names that one must type are never cut or broken, on 80 columns and in a pipe."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from dystop.cli import app, terminal
from dystop.config import Experiment
from dystop.config.keys import keys_of
from dystop.mechanisms import MECHANISMS
from dystop.training.models.catalogue import MODELS

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")


class Terminal:
    """A standard output that says it is a terminal."""

    def __init__(self, real):
        self._real = real

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self._real, name)


@pytest.fixture(params=["pipe", "80 columns"])
def screen(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    if request.param == "80 columns":
        real = CliRunner.isolation

        def isolated(self, *args, **kwargs):
            context = real(self, *args, **kwargs)

            class Inside:
                def __enter__(self):
                    entered = context.__enter__()
                    terminal.sys.stdout = Terminal(terminal.sys.stdout)
                    return entered

                def __exit__(self, *error):
                    return context.__exit__(*error)

            return Inside()

        monkeypatch.setattr(CliRunner, "isolation", isolated)
    return request.param


def words(*command):
    done = CliRunner().invoke(app, list(map(str, command)))
    assert done.exit_code == 0, done.output
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.output)
    return set(plain.split())


def test_listings_have_whole_names(screen):
    assert set(MECHANISMS) <= words("list", "mechanisms")
    listed = words("list", "keys")
    assert {key.name for key in keys_of(Experiment)} <= listed
    assert set(MODELS) <= words("list", "models")
    assert {"classification", "next-token", "regression"} <= words("list", "tasks")


def test_a_comparison_has_whole_names(screen, tmp_path):
    small = ["data.name=synthetic", "data.options.train=100", "data.options.test=40",
             "model.name=softmax", "fleet.workers=5", "stop.rounds=2"]  # fmt: skip
    name = "a-rather-long-name-of-a-comparison-of-mechanisms"
    found = words(
        "compare", *small, "--mechanisms", "dystop,braintorrent,d-cliques", "--seeds", 1,
        "--out", tmp_path, "--name", name,
    )  # fmt: skip
    assert {"dystop", "braintorrent", "d-cliques"} <= found
    report = tmp_path / name / "report" / "report.html"
    assert str(report) in found
    assert {"dystop", "braintorrent"} <= words("report", tmp_path / name)
    long = tmp_path / name / ("dystop-of-" + name)
    (tmp_path / name / "dystop-s0").rename(long)  # a name of 58 letters
    runs = [long, tmp_path / name / "d-cliques-s0"]
    shown = words("report", *runs, "--out", tmp_path / "page")
    assert {run.name for run in runs} <= shown


@given(st.lists(st.lists(st.text("abc-_ ", max_size=40), min_size=3, max_size=3), max_size=4))
@settings(max_examples=50, deadline=None)
def test_no_table_breaks_a_word(rows):
    columns = ("name", "a long heading", "x")
    width = max(terminal._least_width(columns, rows), 20)
    table = terminal._table(columns, rows, width)
    console = Console(width=width, highlight=False)
    with console.capture() as shown:
        console.print(table)
    text = shown.get()
    for word in (word for row in rows for cell in row for word in cell.split()):
        assert word in text
