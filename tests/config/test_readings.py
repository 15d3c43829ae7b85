"""Presets for what the paper leaves open: what they set, what wins over them, where they show."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment, to_toml, to_tree
from dystop.config.readings import OPEN_READINGS, has_key, preset
from dystop.config.write import toml_value
from dystop.errors import ConfigError
from dystop.folders.run_folder import open_run
from dystop.mechanisms import MECHANISMS
from dystop.params import flatten
from dystop.report.data.summary import summarise
from dystop.report.pages.runs import render_runs
from dystop.studies.compare import Comparison, experiments
from dystop.studies.sweep import Sweep, grid, read_axes

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

PRESETS = ("literal", "physical")
SMALL = ["data.name=synthetic", "model.name=softmax", "fleet.workers=4", "stop.rounds=2"]


def values(experiment):
    found = dict(flatten(to_tree(experiment)))
    return {r.key: found[r.key] for r in OPEN_READINGS if r.key in found}


@pytest.mark.parametrize("mechanism", sorted(MECHANISMS))
@pytest.mark.parametrize("name", PRESETS)
def test_a_reading_sets_its_keys_for_every_mechanism(name, mechanism):
    experiment = read_experiment(None, [f"reading={name}", f"mechanism.name={mechanism}"])
    wanted = preset(name, mechanism)
    assert wanted
    assert values(experiment).items() >= wanted.items()
    untouched = values(read_experiment(None, [f"mechanism.name={mechanism}"]))
    assert {k: v for k, v in values(experiment).items() if k not in wanted}.items() <= (
        untouched.items()
    )


def test_what_the_presets_say():
    literal, physical = (read_experiment(None, [f"reading={name}"]) for name in PRESETS[:2])
    assert literal.world.channel.noise == "squared"
    assert literal.world.channel.coherence_blocks == 1
    assert (literal.engine.timing, literal.engine.publish) == ("paper", "eager")
    assert preset("literal", "asydfl")["mechanism.wakes"] == "one"
    assert preset("literal", "asyng")["mechanism.wakes"] == "one"
    assert physical.world.channel.noise == "power"
    assert physical.world.channel.coherence_blocks > 1
    assert (physical.engine.timing, physical.engine.publish) == ("overlap", "on_completion")


def test_explicit_keys_win():
    words = ["reading=literal", "engine.publish=on_completion"]
    for order in (words, words[::-1]):
        engine = read_experiment(None, order).engine
        assert (engine.timing, engine.publish) == ("paper", "on_completion")
    nested = read_experiment(None, ["reading=physical", 'engine={timing = "paper"}'])
    assert (nested.engine.timing, nested.engine.publish) == ("paper", "on_completion")


def test_a_file_may_choose_a_reading_and_change_it(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('reading = "physical"\n[engine]\ntiming = "paper"\n')
    engine = read_experiment(file).engine
    assert (engine.timing, engine.publish) == ("paper", "on_completion")


def test_a_reading_on_the_command_line_wins_over_a_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(to_toml(read_experiment(None, ["reading=literal"])))
    physical = read_experiment(file, ["reading=physical"])
    assert values(physical).items() >= preset("physical", "dystop").items()
    mixed = read_experiment(file, ["reading=physical", "engine.timing=paper"])
    assert (mixed.engine.timing, mixed.engine.publish) == ("paper", "on_completion")


@pytest.mark.parametrize("name", PRESETS)
def test_the_written_configuration_is_resolved_and_reads_back_equal(name, tmp_path):
    experiment = read_experiment(None, [f"reading={name}", "mechanism.name=asydfl"])
    text = to_toml(experiment)
    tree = tomllib.loads(text)
    assert tree["reading"] == name
    assert dict(flatten(tree)).items() >= preset(name, "asydfl").items()
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert read_experiment(file) == experiment


def test_an_unknown_reading_is_refused():
    with pytest.raises(ConfigError, match=r"reading = \"litteral\".*'literal', 'physical'"):
        read_experiment(None, ["reading=litteral"])
    with pytest.raises(ConfigError, match="engine = 3"):  # the reading does not hide a mistake
        read_experiment(None, ["reading=literal", "engine=3"])


def test_a_comparison_gives_every_mechanism_the_reading():
    words = ["reading=literal", *SMALL]
    every = experiments(Comparison(None, words, ["dystop", "asydfl", "asyng"], seeds=1))
    assert {e.mechanism.name: getattr(e.mechanism, "wakes", None) for e in every} == {
        "dystop": None,
        "asydfl": "one",
        "asyng": "one",
    }
    own = ["asydfl.wakes=all"]
    asydfl = experiments(Comparison(None, words, ["asydfl", "dystop"], seeds=1, settings=own))[0]
    assert asydfl.mechanism.wakes == "all"


def test_a_sweep_can_go_over_readings():
    axes = read_axes(["reading=literal,physical", "mechanism.name=dystop,asydfl"])
    every = grid(Sweep(None, SMALL, axes, 1))
    assert [(e.reading, e.engine.timing) for e in every] == [
        ("literal", "paper"), ("literal", "paper"), ("physical", "overlap"), ("physical", "overlap")
    ]  # fmt: skip
    assert every[1].mechanism.wakes == "one"


def test_the_list_of_readings():
    shown = CliRunner().invoke(app, ["list", "readings"])
    assert shown.exit_code == 0
    flat = "".join(shown.output.split())
    for reading in OPEN_READINGS:
        assert reading.key in flat
    literal = CliRunner().invoke(app, ["list", "readings", "--describe", "literal"]).output
    assert 'world.channel.noise = "squared"' in literal


def test_a_run_states_its_readings(tmp_path: Path):
    words = [*SMALL, "reading=literal", "evaluate.model=aggregated", "world.budget.binds=everybody"]
    more = ["--out", str(tmp_path), "--name", "a", "--no-report", "-q"]
    assert CliRunner().invoke(app, ["run", *words, *more]).exit_code == 0
    folder = tmp_path / "a"
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["world"]["channel"]["noise"] == "squared"
    runs = [open_run(folder)]
    page = render_runs(runs, summarise(runs), [])
    assert "literal: noise squared; fading draws 1; timing law paper; publish rule eager" in page
    assert "budgets bind everybody; tested models aggregated; drift sum" in page


def test_the_base_graph_and_background_pushes_are_open():
    values = {r.key: r.values for r in OPEN_READINGS}
    assert values["mechanism.base"] == ("geometric", "fastest", "reach")
    assert values["mechanism.background"] == (False, True)


@pytest.mark.parametrize("reading", OPEN_READINGS, ids=lambda r: r.key)
def test_every_plausible_value_can_be_set(reading):
    names = [name for name in MECHANISMS if has_key(name, reading.key)]
    default = dict(flatten(to_tree(read_experiment(None, [f"mechanism.name={names[0]}"]))))
    assert default[reading.key] in reading.values
    for value in reading.values:
        words = [f"mechanism.name={names[0]}", f"{reading.key}={toml_value(value)}"]
        assert dict(flatten(to_tree(read_experiment(None, words))))[reading.key] == value
    for name in PRESETS:
        assert getattr(reading, name) in (None, *reading.values)
