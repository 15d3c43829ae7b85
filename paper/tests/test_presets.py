"""Presets for what the paper leaves open, in recipes: one by default, and never mixed."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.errors import ConfigError
from dystop.folders.run_folder import open_run
from dystop_paper.reproduce.campaigns import CAMPAIGNS, experiments
from dystop_paper.reproduce.reading_space import reading_named

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
        assert run.config["reading"] == ("none" if name == "nearest" else name)
        assert "same_as" not in run.info
        for page in ("fig-phases/report.html", "paper.html"):
            stated = (tmp_path / "smoke" / name / page).read_text()
            assert f"Readings: {name}: noise" in stated
            assert "budgets bind" in stated
    shown = CliRunner().invoke(app, ["reproduce", "--list", "reading=none", *words[2:-1]])
    assert shown.exit_code == 0
    assert "verdict" not in shown.output


def test_nearest_gives_the_keys_of_its_sample_unless_they_are_given():
    main = CAMPAIGNS["main-fmnist"]
    for experiment in experiments(main, "small", 1, ["reading=nearest", "engine.timing=overlap"]):
        assert experiment.world.budget.binds == "everybody"
        assert experiment.evaluate.model == "aggregated"
        assert experiment.engine.timing == "overlap"
        assert getattr(experiment.mechanism, "drift", "mean") == "mean"
    with pytest.raises(ConfigError, match="'literal', 'physical'"):
        read_experiment(None, ["reading=nearest"])


def test_nearest_has_the_values_of_the_published_search():
    table = Path(__file__).parents[1] / "docs/results/readings/small-readings.csv"
    rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    (published,) = [row for row in rows if row["reading"] == "nearest"]
    values = reading_named("nearest").values
    assert {key: str(value) for key, value in values.items()} == {k: published[k] for k in values}
