"""Presets for what the paper leaves open, in recipes: one by default, and never mixed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.experiments.folders.run_folder import open_run
from dystop_paper.reproduce.campaigns import CAMPAIGNS, experiments

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

PRESETS = ("literal", "physical", "nearest")


def test_recipes_take_a_reading():
    for experiment in experiments(CAMPAIGNS["sensitivity"], "smoke", 1, ["reading=literal"]):
        given = {"overlap": "overlap"}.get(experiment.name.split("-")[-2], "paper")
        assert experiment.engine.timing == given  # the word of an arm wins
        assert experiment.world.channel.noise == "squared"


def test_recipes_of_the_paper_follow_its_letter_unless_told_otherwise():
    for campaign in CAMPAIGNS.values():
        wanted = "none" if campaign.name == "sensitivity" else "literal"
        assert {e.reading for e in experiments(campaign, "paper", 1)} == {wanted}
    main = CAMPAIGNS["main-fmnist"]
    assert {e.world.channel.noise for e in experiments(main, "small", 1)} == {"squared"}
    physical = experiments(main, "small", 1, ["reading=physical"])
    assert {(e.reading, e.engine.timing) for e in physical} == {("physical", "overlap")}


def test_results_of_different_readings_are_not_mixed(tmp_path: Path):
    words = ["reproduce", "fig-phases", "--scale", "smoke", "--out", str(tmp_path), "-q"]
    for name in PRESETS:
        more = [] if name == "literal" else [f"reading={name}"]
        assert CliRunner().invoke(app, [*words, *more]).exit_code == 0
    for name in PRESETS:
        run = open_run(tmp_path / "smoke" / name / "runs" / "phases-fmnist" / "combined-s0")
        assert run.config["reading"] == name
        assert "same_as" not in run.info
        for page in ("fig-phases/report.html", "paper.html"):
            stated = (tmp_path / "smoke" / name / page).read_text()
            assert f"Readings: {name}: noise" in stated
            assert "budgets bind" in stated
    shown = CliRunner().invoke(app, ["reproduce", "--list", "reading=none", *words[2:-1]])
    assert shown.exit_code == 0
    assert "verdict" not in shown.output
