"""Run folders that release 0.1.0 wrote: verified, resumed, checked, replayed and reported.

Made by `scripts/make_compatibility_runs.py` at commit b6d154b. Decisions must repeat exactly.
Learned numbers must repeat closely, because the folders come from another machine.
"""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.experiments.api import Simulation
from dystop.experiments.config import read_experiment
from dystop.experiments.run import resume_run
from dystop.mechanisms import BUILT_IN
from support.stored_runs import LAWS, assert_same, lines_again, read_lines, unpacked

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return unpacked("runs", tmp_path_factory.mktemp("runs"))


@pytest.fixture
def interrupted(tmp_path) -> Path:
    return unpacked("interrupted", tmp_path)


@pytest.fixture
def testbed(tmp_path) -> Path:
    return unpacked("testbed", tmp_path) / "testbed"


def lines_of(folder: Path) -> list[dict]:
    return read_lines(folder / "records.jsonl")


def command(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mechanism", BUILT_IN)
def test_every_mechanism_repeats(runs, mechanism, law):
    folder = runs / f"{mechanism}--{law}"
    assert_same(lines_again(folder), lines_of(folder))


def test_an_interrupted_run_resumes(interrupted):
    resume_run(interrupted / "interrupted", lambda _: None, lambda _: None)
    assert_same(lines_of(interrupted / "interrupted"), lines_of(interrupted / "whole"))


def test_runs_are_reported(runs, tmp_path):
    folders = [runs / f"{name}--paper-eager" for name in ("dystop", "matcha", "asydfl")]
    command("report", *folders, "--out", tmp_path)
    assert (tmp_path / "report.html").is_file()


def test_a_testbed_run_is_checked_replayed_and_reported(testbed, tmp_path):
    command("check", testbed)
    command("report", testbed, "--out", tmp_path / "page")
    replay = Simulation(read_experiment(testbed / "config.toml", [f"trace={testbed}"]))
    recorded = lines_of(testbed)
    for mine, theirs in zip(replay, recorded, strict=False):
        assert mine.active_ids == theirs["active_ids"]
        assert mine.link_pairs == theirs["link_pairs"]


def test_a_testbed_run_resumes(testbed):
    before = lines_of(testbed)
    command("testbed", "--resume", testbed, "--quiet", "--no-report")
    after = lines_of(testbed)
    assert after[: len(before)] == before
    assert [line["round"] for line in after] == list(range(1, 61))
