"""An atlas: its axes, its grid, its maps and tables, and what is refused before anything runs."""

import csv
import json

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.errors import ConfigError, RunFolderError
from dystop.studies.study import create_study
from dystop.studies.trials import pace_of
from dystop.studies.worlds import range_for
from dystop_paper.atlas import Atlas, chart, read_axis, read_points, write_points
from dystop_paper.cli.atlas import report_atlas

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=5", "world.range_m=90",
]  # fmt: skip


def call(*words):
    return CliRunner().invoke(app, ["atlas", *map(str, words)])


def asked(x, y, *, words=SMALL, mechanisms=("dystop", "matcha"), **more):
    return Atlas(None, words, read_axis("--x", x), read_axis("--y", y), mechanisms, **more)


def test_worked_example_of_a_grid():
    found = chart(asked("spread=0,0.5", "skew=0.2,1", seeds=2))
    names = [experiment.name for experiment in found.experiments]
    assert len(names) == len(set(names)) == 2 * 2 * 2 * 2
    assert names[0] == "spread0-skew0.2-dystop-s0"
    first = found.experiments[0]
    assert (first.world.compute.spread, first.data.phi) == (0.0, 0.2)
    assert found.content["points"]["spread0.5-skew1-matcha-s1"] == (1, 1)
    assert found.over == ("world.compute.spread", "data.phi", "mechanism.name")


@pytest.mark.parametrize("ratio", ["0.1", "3"])
@pytest.mark.parametrize("order", ["x", "y"])
def test_communication_is_exact_whatever_the_other_axis(ratio, order):
    """The range changes the median link, so the bandwidth is chosen for the range of the point."""
    axes = (f"communication={ratio}", "density=2,4")
    x, y = axes if order == "x" else axes[::-1]
    for experiment in chart(asked(x, y, mechanisms=["dystop"])).experiments:
        assert pace_of(experiment).ratio == pytest.approx(float(ratio), rel=1e-3)


def test_points_last_equally_many_turns_of_their_own_network():
    every = chart(asked("communication=0.1,10", "spread=0,0.5", turns=30.0)).experiments
    limits = {round(e.stop.seconds / pace_of(e).turn_s, 1) for e in every}
    assert limits == {30.0}
    assert len({e.stop.seconds for e in every}) > 1


def test_density_keeps_the_area():
    few = [word for word in SMALL if not word.startswith("world.")]
    for words in (few, [*few, "world.area_m=[300, 40]"]):
        area_m = read_experiment(None, words).world.area_m
        every = chart(asked("density=2", "skew=1", words=words)).experiments
        assert {e.world.area_m for e in every} == {area_m}
        for experiment in every:
            assert experiment.world.range_m == pytest.approx(range_for(2, 5, area_m), rel=1e-3)


@pytest.mark.parametrize(
    ("x", "y", "facts"),
    [
        ("spread", "skew=1", ["--x spread", "NAME=VALUE"]),
        ("spread=1,,2", "skew=1", ["--x spread=1,,2"]),
        ("spread=1,1", "skew=1", ["twice"]),
        ("spread=-1", "skew=1", ["'-1'", ">= 0"]),
        ("spread=fast", "skew=1", ["'fast'", "a number"]),
        ("spread=nan", "skew=1", ["'nan'"]),
        ("churn=1", "skew=1", ["'1'", "< 1"]),
        ("spred=1", "skew=1", ["spred", "spread"]),
        ("mechanism.V=1,2", "skew=1", ["mechanism.V"]),
        ("skew=1", "skew=0.4", ["both skew"]),
        ("density=99", "skew=1", ["99", "5 workers", "at most 4"]),
        ("data.phi=-3,1", "spread=0", ["data.phi"]),
    ],
)
def test_axes_that_make_no_sense_are_refused(x, y, facts):
    with pytest.raises(ConfigError) as error:
        chart(asked(x, y))
    assert all(fact in str(error.value) for fact in facts), str(error.value)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--x", "spread=0,1"], ["--y is missing", "communication"]),
        (["--x", "spread=0", "--y", "skew=1", "--turns", "0"], ["--turns 0"]),
        (["--x", "spread=0", "--y", "skew=1", "engine.train=false"], ["engine.train"]),
        (
            ["--x", "spread=0", "--y", "communication=1", "world.range_m=0.001"],
            ["communication", "world.range_m"],
        ),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path, words, facts):
    result = call(*SMALL, *words, "--out", tmp_path / "runs")
    assert result.exit_code == 2, result.output
    assert all(fact in result.stderr for fact in facts), result.stderr
    assert not (tmp_path / "runs").exists()


def test_maps_tables_and_resume(tmp_path, capsys):
    words = ["--x", "spread=0,0.8", "--y", "communication=0.2,5", "--turns", 12, "--out", tmp_path]
    result = call(*SMALL, *words, "--mechanisms", "dystop,matcha,asydfl", "--seeds", 2)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "atlas-spread-communication"
    assert all(f"spread {v}" in result.stdout for v in ("0", "0.8"))
    assert "highest multiple of 5 %" in result.stdout
    assert "reconstruction" in result.stdout
    for goal in ("time", "traffic", "compute"):
        assert (folder / "report" / "figures" / f"map-{goal}.png").is_file()
    winners = list(csv.DictReader((folder / "report" / "winners.csv").read_text().splitlines()))
    everybody = list(
        csv.DictReader((folder / "report" / "mechanisms.csv").read_text().splitlines())
    )
    page = (folder / "report" / "report.html").read_text()
    assert all(fact in page for fact in ("timing law paper", "budgets bind mechanism"))
    assert len(winners) == 4 * 3
    assert len(everybody) == 4 * 3
    for row in winners:
        here = [r for r in everybody if (r["x"], r["y"]) == (row["x"], row["y"])]
        short = {r["mechanism"] for r in here if int(r["reached"]) < int(r["seeds"])}
        assert set(row["not_reached"].split()) == short
    assert read_points(folder).x.values == ("0", "0.8")

    gone = folder / "spread0-communication5-dystop-s1"
    info = json.loads((gone / "run.json").read_text())
    (gone / "run.json").write_text(json.dumps(info | {"status": "interrupted"}))
    capsys.readouterr()
    report_atlas(folder, None, out=tmp_path / "page", quiet=False)
    partial = capsys.readouterr()
    assert f"dystop atlas {folder}" in partial.err
    assert "1 of 24 runs" in (tmp_path / "page" / "report.html").read_text()
    assert "5 of 6 runs" in partial.out
    whole = csv.DictReader((tmp_path / "page" / "winners.csv").read_text().splitlines())
    assert {(row["x"], row["y"]) for row in whole} == {("0", "0.2"), ("0.8", "0.2"), ("0.8", "5")}
    again = call(folder, "--target", 0.99)
    assert again.exit_code == 0, again.output
    assert json.loads((gone / "run.json").read_text())["status"] == "finished"
    assert "nobody" in again.stdout
    assert "99 %" in again.stdout


def test_nothing_is_drawn_before_a_run_has_finished(tmp_path):
    folder = tmp_path / "empty"
    study = create_study(tmp_path, "empty", chart(asked("spread=0", "skew=1")).experiments, ["x"])
    write_points(study.path, chart(asked("spread=0", "skew=1")).content)
    with pytest.raises(RunFolderError, match=f"dystop atlas {folder}"):
        report_atlas(folder, None, quiet=False)


def test_another_study_is_no_atlas(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.json").write_text('{"runs": [{"folder": "a"}]}')
    result = call(tmp_path / "s", "--x", "spread=0,1")
    assert result.exit_code == 2
    assert "own settings" in result.stderr
