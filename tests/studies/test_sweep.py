"""A sweep: its grid, its folder, its page, and what is refused before anything runs."""

import csv
import io
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config.keys import keys_of
from dystop.errors import ConfigError
from dystop.mechanisms import MECHANISMS
from dystop.studies.study import open_study
from dystop.studies.sweep import Axis, Sweep, default_name, grid, read_axes

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=6", "stop.rounds=4", "evaluate.every_rounds=1",
]  # fmt: skip
FREE = [word for word in SMALL if not word.startswith("fleet.")]


def call(*words):
    return CliRunner().invoke(app, ["sweep", *map(str, words)])


def asked(*over, words=SMALL, file=None, seeds=1):
    return Sweep(file, words, read_axes(over), seeds)


def refused(*over, **more):
    with pytest.raises(ConfigError) as error:
        grid(asked(*over, **more))
    return str(error.value)


def test_each_fleet_of_a_sweep_has_the_yard_of_its_size():
    sides = [e.world.area_m[0] for e in grid(asked("fleet.workers=4,9,100", words=FREE))]
    assert sides == pytest.approx([20.0, 30.0, 100.0])
    sides = [e.world.area_m[0] for e in grid(asked("world.area_m=[25, 25],[50, 50]"))]
    assert sides == [25.0, 50.0]
    ranged = grid(asked("world.range_m=30,60", "fleet.workers=4,9", words=FREE))
    assert {e.world.area_m for e in ranged} == {(100.0, 100.0)}


plain = st.text("abcXYZ019._-", min_size=1, max_size=6)
bracketed = st.lists(plain, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
quoted = st.text("ab, =.", max_size=6).map(lambda text: f'"{text}"')


@given(st.lists(st.one_of(plain, bracketed, quoted), min_size=1, max_size=5))
@settings(derandomize=True, deadline=None)
def test_values_come_back_as_they_were_given(values):
    assert read_axes([f"some.key={','.join(values)}"]) == [Axis("some.key", tuple(values))]


@pytest.mark.parametrize(
    ("over", "fact"),
    [
        (["mechanism.V"], "expected KEY=VALUE,VALUE"),
        (["=1,2"], "expected KEY=VALUE,VALUE"),
        (["mechanism.V="], "expected KEY=VALUE,VALUE"),
        (["mechanism.V=1,,2"], "--over mechanism.V=1,,2: a value"),
        (["mechanism.V=1,2,"], "--over mechanism.V=1,2,: a value"),
        (["mechanism.V=1, ,2"], "--over mechanism.V=1, ,2: a value"),
        (["mechanism.V=1", "mechanism.V=2"], "mechanism.V twice"),
        (["seed=1,2"], "set by --seeds N"),
        (["name=a,b"], "set by --name"),
        (["mechanism.W=1,2"], "mechanism.W"),
        (["mechanism.V=1,1.0"], "V1 and V1.0"),
        (["data.phi=-1,1"], "data.phi"),
        (["stop.rounds=4,8"], "stop.rounds= is given"),
    ],
)
def test_what_cannot_be_swept_is_refused(over, fact):
    assert fact in refused(*over)


def test_a_name_belongs_elsewhere_and_a_measured_clock_nowhere():
    assert "--name NAME" in refused("mechanism.V=1,2", words=[*SMALL, "name=x"])
    measured = [*SMALL, "world.compute.batch_s=measure"]
    assert "world.compute.batch_s" in refused("mechanism.V=1,2", words=measured)


def test_the_grid_has_every_combination_seed_by_seed():
    runs = grid(asked("mechanism.V=1,10", "data.phi=0.4,1.0", seeds=2))
    assert [run.name for run in runs] == [
        "V1-phi0.4-s0", "V1-phi1.0-s0", "V10-phi0.4-s0", "V10-phi1.0-s0",
        "V1-phi0.4-s1", "V1-phi1.0-s1", "V10-phi0.4-s1", "V10-phi1.0-s1",
    ]  # fmt: skip
    assert [(run.mechanism.V, run.data.phi, run.seed) for run in runs[3:5]] == [
        (10.0, 1.0, 0), (1.0, 0.4, 1),
    ]  # fmt: skip


def test_a_mechanism_takes_its_own_block_of_the_file_and_no_other(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('[mechanism]\nname = "dystop"\nV = 33.0\n')
    runs = grid(asked("mechanism.name=dystop,matcha", "data.phi=0.4,1.0", file=file))
    assert [run.name for run in runs] == [
        "dystop-phi0.4-s0", "dystop-phi1.0-s0", "matcha-phi0.4-s0", "matcha-phi1.0-s0"
    ]  # fmt: skip
    assert [run.mechanism.name for run in runs] == ["dystop", "dystop", "matcha", "matcha"]
    assert runs[0].mechanism.V == 33.0
    assert "matcha" in refused("mechanism.name=dystop,matcha", "mechanism.V=1,2", file=file)


def test_keys_with_the_same_ending_have_different_names():
    over = ["world.churn.enabled=true,false", "world.mobility.enabled=true,false"]
    names = [run.name for run in grid(asked(*over, "mechanism.V=1"))]
    assert names[1] == "churn.enabledtrue-mobility.enabledfalse-V1-s0"
    assert default_name(read_axes([*over, "mechanism.V=1"])) == (
        "sweep-churn.enabled-mobility.enabled-V"
    )
    over = ["mechanism.name=dystop,matcha", "model.name=softmax,mlp"]
    names = [run.name for run in grid(asked(*over, words=SMALL[:3]))]
    assert names[1] == "dystop-mlp-s0"  # these values need no key before them
    assert default_name(read_axes(over)) == "sweep-mechanism.name-model.name"


def test_a_key_that_a_mechanism_lacks_is_not_called_a_misspelling():
    message = refused("mechanism.name=dystop,matcha", "mechanism.V=1,10")
    assert message.startswith("command line: --over mechanism.name with mechanism.V=1: matcha ")
    given = refused("mechanism.name=dystop,matcha", words=[*SMALL, "mechanism.V=1"])
    for text in (message, given):
        _, found, keys = text.partition("no key 'V'; it has: ")
        assert found
        assert keys.split(", ") == [key.name for key in keys_of(MECHANISMS["matcha"])]
    close = refused("mechanism.name=dystop,matcha", "mechanism.neighbour=1,2")
    assert "dystop has no key 'neighbour'" in close
    assert close.endswith("'neighbours'?")


def test_long_names_are_cut_and_numbered():
    names = [run.name for run in grid(asked("model.name=softmax,mlp", words=SMALL[:3]))]
    assert names == ["softmax-s0", "mlp-s0"]
    long = ",".join(f"tests.{'x' * 90}{k}:make" for k in range(2))
    runs = grid(asked(f"model.name={long}", words=SMALL[:3]))
    assert [run.name[:4] for run in runs] == ["000-", "001-"]
    assert default_name(read_axes([f"some.{'k' * 200}=1"])) == f"sweep-{'k' * 74}"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    over = ["--over", "mechanism.V=1,10,100", "--over", "data.phi=1.0,0.7,0.4"]
    result = call(*SMALL, *over, "--seeds", 2, "--out", out, "--target", 0.1)
    assert result.exit_code == 0, result.output
    return out / "sweep-V-phi", result


def test_the_folder_and_the_page(done):
    path, result = done
    study = open_study(path)
    assert study.over == ("mechanism.V", "data.phi")
    assert study.resume_command == f"dystop sweep {path}"
    assert not study.todo()
    assert "dystop (paper), phi = 0.4, V = 100" in " ".join(result.stdout.split())
    page = (path / "report" / "report.html").read_text()
    assert "1 mechanism in 9 settings, 2 seeds each: 18 runs. Over mechanism.V, data.phi." in page
    assert "phi = 0.4" in page  # the title of a panel
    assert page.count("provenance: paper") == 1  # one card for all settings
    assert "V = swept" in page
    figures = os.listdir(path / "report" / "figures")
    for key in ("sweep-accuracy", "sweep-time", "sweep-data", "sweep-map", "accuracy-time"):
        assert f"{key}.png" in figures


def test_the_sheet_has_a_row_per_run(done):
    path, _ = done
    rows = list(csv.DictReader(io.StringIO((path / "report" / "results.csv").read_text())))
    assert len(rows) == 18
    by_run = {row["run"]: row for row in rows}
    row = by_run["V10-phi0.4-s1"]
    assert (row["mechanism.V"], row["data.phi"], row["seed"]) == ("10.0", "0.4", "1")
    assert (row["mechanism"], row["provenance"], row["timing"]) == ("dystop", "paper", "paper")
    last = json.loads((path / row["run"] / "records.jsonl").read_text().splitlines()[-1])
    assert float(row["accuracy"]) == last["accuracy"]
    assert int(row["wire_bytes"]) == last["wire_bytes_total"]


def test_a_finished_sweep_is_reported_again(done):
    path, _ = done
    for verb in ("sweep", "compare", "report"):  # all of them know what it is
        result = CliRunner().invoke(app, [verb, str(path)])
        assert result.exit_code == 0, result.output
        assert "setting" in result.stdout
    again = call(*SMALL, "--over", "mechanism.V=1,10", "--out", path.parent, "--name", path.name)
    assert again.exit_code == 2
    assert f"{path}: " in again.output
    for name in ("V100-phi1.0-s0", "V1-phi0.7-s0"):  # runs that the new command does not have
        assert name in again.output
    assert f"dystop sweep {path}" in again.output


def test_mistakes_are_named_and_leave_nothing(tmp_path, done):
    run = done[0] / "V1-phi1.0-s0"
    for words, facts in [
        (SMALL, ["--over is missing", "dystop sweep --over mechanism.V=1,10,50"]),
        (
            [run, "--over", "data.phi=1"],
            [f"{run}: is one run", f"dystop sweep {run / 'config.toml'} --over"],
        ),
        ([done[0], "--over", "data.phi=1"], [f"{done[0]} is a study", "--target, --jobs"]),
        ([*FREE, "--over", "fleet.workers=4,300"], ["300"]),  # more workers than samples
        (["nowhere.toml", "--over", "data.phi=1"], ["nowhere.toml: no such file"]),
    ]:
        result = call(*words, "--out", tmp_path / "runs")
        assert result.exit_code == 2, result.output
        for fact in facts:
            assert fact in result.output
        assert not (tmp_path / "runs").exists()


def test_what_has_no_value_is_called_unset_everywhere(tmp_path):
    over = ["--over", "mechanism.neighbours=unset,2,4", "--over", "world.churn.enabled=true,false"]
    both = [*over, "--over", "world.mobility.enabled=true,false"]
    result = call(*SMALL, *both, "--out", tmp_path, "--name", "x")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "x" / "report" / "report.html").read_text()
    assert "neighbours = unset" in page
    assert "neighbours = –" not in page
    assert "churn.enabled = true, mobility.enabled = false" in page  # a panel


def test_names_along_the_axis_and_a_target_that_nobody_reached(tmp_path):
    over = ["--over", "mechanism.name=dystop,d-psgd,fedavg", "--over", "fleet.workers=4"]
    result = call(*FREE, *over, "--out", tmp_path, "--name", "x", "--target", "1.0")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "x" / "report" / "report.html").read_text()
    assert "by mechanism.name" in page
    assert "sweep-map" not in page
    assert "No run reached 100 %." in page
    assert page.count('class="card run"') == 3
