"""The search over readings: the space, its runs, the distance from the paper, and its page."""

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.config.readings import OPEN_READINGS
from dystop.errors import ConfigError, RunFolderError
from dystop.studies.study import create_study, grow_study, open_study
from dystop.training.models.build import build_model
from dystop_paper.data.group_fit import fit_sentences
from dystop_paper.data.nearness import (
    ReadingResult,
    common_numbers,
    judge_reading,
    with_numbers,
)
from dystop_paper.pages.readings import counted_once, number_rows
from dystop_paper.reproduce.campaigns import PAPER_AREA
from dystop_paper.reproduce.distance import CAP, Number, distance
from dystop_paper.reproduce.paper_claims import CLAIMS, Best, Rising
from dystop_paper.reproduce.presets import in_full
from dystop_paper.reproduce.reading_runs import (
    MOBILENET_V2_BYTES,
    PARTS,
    RESNET18_BYTES,
    SQUEEZENET_BYTES,
    Asked,
    finished_runs,
    runs_of,
    search_runs,
)
from dystop_paper.reproduce.reading_space import presets, reading_named, sample
from outcomes import outcome

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SCRIPT = Path(__file__).parents[1] / "scripts" / "search_readings.py"

SMALL = ["data.name=synthetic", "model.name=softmax", "fleet.workers=4", "stop.rounds=2"]


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


# The space


def test_a_sample_depends_on_nothing_but_its_number():
    assert sample(7) == sample(7)
    assert sample(7).values != sample(8).values
    assert reading_named("r007") == sample(7)
    assert reading_named("physical").values["engine.timing"] == "overlap"
    with pytest.raises(ConfigError, match="no reading 'r'"):
        reading_named("r")


def test_every_plausible_value_is_tried():
    many = [sample(k) for k in range(1, 41)]
    for reading in OPEN_READINGS:
        assert {r.values[reading.key] for r in many} == set(reading.values)


def test_presets_are_those_of_the_configuration():
    for reading in presets():
        for mechanism in ("dystop", "asydfl", "sa-adfl", "matcha"):
            words = [PAPER_AREA, f"mechanism.name={mechanism}"]  # as every run of the search
            given = read_experiment(None, in_full([*words, f"reading={reading.name}"]))
            assert read_experiment(None, [*words, *reading.words(mechanism)]) == given


# The runs


def test_every_number_of_the_paper_is_run():
    stated = {
        (campaign, claim)
        for campaign, claims in CLAIMS.items()
        for claim in claims
        if not isinstance(claim, Best | Rising)
    }
    run = {(part.campaign.name, claim) for part in PARTS for claim in part.claims}
    assert stated <= run
    assert {campaign for campaign, claims in CLAIMS.items() if claims} == {c for c, _ in run}


def test_arms_with_the_same_settings_are_run_once():
    runs = runs_of(sample(1), Asked("paper"), 0)
    by_arm = {(run.part.name, run.arm.key): run.experiment.name for run in runs}
    base = by_arm["main-fmnist", "dystop-phi0.4"]
    for part, arm in (
        ("staleness-fmnist", "staleness_bound2"),
        ("control-fmnist", "V10"),
        ("phases-fmnist", "combined"),
    ):
        assert by_arm[part, arm] == base
    planned = [run.experiment for run in runs if run.part.is_planned]
    assert {e.fleet.workers for e in planned} == {100}
    assert not any(e.engine.train for e in planned)


def test_what_decides_most_is_run_first():
    readings = [*presets(), sample(1)]
    some = ("main-fmnist", "planned-fmnist", "phases-fmnist.first")
    runs = search_runs(readings, Asked("smoke", seeds=2, only=some))
    stages = [(run.part.name, run.reading.name, run.seed) for run in runs]
    main = [(name, seed) for part, name, seed in stages if part == "main-fmnist"]
    assert list(dict.fromkeys(main)) == [
        ("literal", 0), ("physical", 0), ("nearest", 0),
        ("literal", 1), ("physical", 1), ("nearest", 1),
        ("none", 0), ("r001", 0), ("none", 1), ("r001", 1),
    ]  # fmt: skip
    assert stages[0][0] == "planned-fmnist"
    assert stages.index(("phases-fmnist", "literal", 0)) < stages.index(("main-fmnist", "none", 1))
    only = search_runs(readings, Asked("smoke", only=("r001.planned",)))
    assert {(run.reading.name, run.part.is_planned) for run in only} == {("r001", True)}


def test_cifar10_is_a_stand_in_at_small_scale_and_resnet18_at_paper_scale():
    def main(scale):
        runs = runs_of(reading_named("physical"), Asked(scale, only=("main-cifar10",)), 0)
        return {run.arm.key: run.experiment for run in runs}

    small, paper = main("small"), main("paper")
    keys = {f"{m}-phi{phi}" for m in ("dystop", "asydfl", "sa-adfl", "matcha") for phi in (1, 0.4)}
    assert set(small) == set(paper) == keys
    for e in small.values():
        assert (e.data.name, e.model.name) == ("fmnist-mini", "softmax")  # nothing to download
        assert e.model.wire_bytes == RESNET18_BYTES
    for e in paper.values():
        assert (e.data.name, e.model.name, e.stop.seconds) == ("cifar10", "resnet18", 25000)
        assert e.model.wire_bytes == 0


def test_background_pushes_of_large_models_are_not_run():
    """A model travels for seconds, and meanwhile a worker trains hundreds of times."""
    only = ("main-fmnist", "main-cifar10")
    quick, slow = sample(1), sample(5)
    assert slow.values["mechanism.background"]
    parts = {r.name: {run.part.name for run in runs_of(r, Asked("small", only=only), 0)}
             for r in (quick, slow)}  # fmt: skip
    assert parts == {"r001": {"main-fmnist", "main-cifar10"}, "r005": {"main-fmnist"}}


def test_the_testbed_has_its_boards_and_as_many_mini_batches_at_small_scale():
    """Worked example: 10,000 / 15 images in batches of 8 are as many as 40,000 / 15 in 32."""
    for data, wire_bytes, batch, seconds in (
        ("svhn", SQUEEZENET_BYTES, 8, 2000),
        ("cifar100", MOBILENET_V2_BYTES, 6, 6000),
    ):
        runs = {
            scale: runs_of(reading_named("literal"), Asked(scale, only=(f"testbed-{data}",)), 0)
            for scale in ("small", "paper")
        }
        assert len(runs["small"]) == len(runs["paper"]) == 8  # four mechanisms, two values of phi
        for small, paper in zip(runs["small"], runs["paper"], strict=True):
            e, large = small.experiment, paper.experiment
            assert (e.data.name, e.model.name) == ("fmnist-mini", "softmax")  # no download
            assert (e.model.wire_bytes, e.training.batch) == (wire_bytes, batch)
            assert e.stop.seconds == seconds / 10
            assert (e.fleet.workers, e.world.compute.devices) == (15, "jetson")
            assert (large.fleet.workers, large.stop.seconds) == (15, seconds)
            assert large.data.name == data


def test_the_bytes_of_the_stand_ins_are_those_of_the_models():
    sizes = {"squeezenet": (10, SQUEEZENET_BYTES), "mobilenet-v2": (100, MOBILENET_V2_BYTES)}
    for name, (classes, wire_bytes) in sizes.items():
        model = build_model(name, 3, (32, 32), classes, seed=0)
        held = [*model.parameters(), *model.buffers()]
        assert wire_bytes == 4 * sum(t.numel() for t in held if t.is_floating_point())


def test_large_models_come_last_at_paper_scale():
    runs = search_runs([*presets(), sample(1)], Asked("paper", seeds=2))
    slow = [k for k, run in enumerate(runs)
            if run.part.data != "fmnist" and not run.part.is_planned]  # fmt: skip
    assert slow == list(range(len(runs) - len(slow), len(runs)))
    is_main = [runs[k].part.is_main for k in slow]
    assert is_main == sorted(is_main, reverse=True)  # the mechanisms before settings of DySTop


def test_a_study_grows_and_refuses_other_settings(tmp_path: Path):
    one, two = (read_experiment(None, [*SMALL, f"name=run{k}", f"seed={k}"]) for k in (1, 2))
    assert grow_study(tmp_path, "s", [one]).experiments == (one,)
    assert grow_study(tmp_path, "s", [two, one]).experiments == (two, one)
    assert open_study(tmp_path / "s").experiments == (one, two)
    assert grow_study(tmp_path, "s", [one]).experiments == (one,)
    assert open_study(tmp_path / "s").experiments == (one, two)
    with pytest.raises(RunFolderError, match="seed is 1 there, 9 here"):
        grow_study(tmp_path, "s", [replace(one, seed=9)])


def test_finished_runs_are_found_by_arm(tmp_path: Path):
    runs = search_runs([sample(1)], Asked("smoke", seeds=2, only=("main-fmnist",)))
    study = create_study(tmp_path, "runs", [run.experiment for run in runs])
    for run in runs[:-1]:
        folder = study.folder(run.experiment)
        folder.mkdir()
        (folder / "run.json").write_text('{"status": "finished"}')
    ((reading, parts),) = finished_runs(study, runs)
    assert reading.name == "r001"
    counts = {arm: len(folders) for arm, folders in parts["main-fmnist"].items()}
    assert counts == {run.arm.key: 1 if run.arm.key == runs[-1].arm.key else 2 for run in runs}


def test_a_claim_is_judged_by_the_seeds_that_all_its_arms_have():
    def seeds(arm, *numbers):
        runs = tuple(replace(r, info={"seed": n}) for r, n in zip(arm.runs, numbers, strict=True))
        return replace(arm, runs=runs)

    runs = main_runs(dystop=[0.61], asydfl=[0.61])
    runs["dystop-phi0.4"] = seeds(outcome("a", [0.61], [0.1, 0.61], [0.61]), 0, 1, 2)
    runs["asydfl-phi0.4"] = seeds(outcome("b", [0.1, 0.61]), 1)
    parts = {"main-fmnist": (part_of("main-fmnist"), runs)}
    result = judge_reading(sample(1), parts, ratios_only=False, core=[part_of("main-fmnist")])
    less = next(n for n in result.numbers if "less completion time than asydfl" in n.name)
    assert less.ours == 1.0  # 20 s of 20 s, with seed 1
    assert not result.is_complete  # two mechanisms are missing
    assert result.distance is None


# The distance


def test_the_distance_of_one_number():
    """Worked by hand."""
    assert Number("n", "time", 80.0, 80.0).distance == 0
    assert Number("n", "time", 80.0, 160.0).distance == pytest.approx(math.log(2))
    assert Number("n", "time", 80.0, 40.0).distance == pytest.approx(math.log(2))
    assert Number("n", "time", 80.0, 4000.0).distance == CAP
    assert Number("n", "time", 80.0, None).distance == CAP
    assert Number("n", "time", 80.0, float("nan")).distance == CAP
    late = Number("n", "time", 349.0, 120.0, beyond=1)
    assert late.distance == pytest.approx(math.log(349 / 120))
    assert Number("n", "time", 80.0, 120.0, beyond=1).distance == CAP
    assert Number("n", "time", 0.23, 0.5, beyond=-1).distance == pytest.approx(math.log(0.5 / 0.23))
    assert Number("n", "time", 0.5, 0.23, beyond=-1).distance == CAP


def test_measures_count_equally():
    numbers = [Number("a", "time", 1.0, 2.0), Number("b", "staleness", 1.0, 1.0)]
    numbers += [Number("c", "staleness", 1.0, 1.0)] * 8
    assert distance(numbers) == pytest.approx(math.log(2) / 2)
    assert distance([]) is None


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), st.floats(0.1, 10.0))
def test_the_distance_knows_no_unit_and_no_direction(paper, ours, unit):
    plain = Number("n", "time", paper, ours).distance
    assert 0 <= plain <= CAP
    assert Number("n", "time", ours, paper).distance == pytest.approx(plain)
    assert Number("n", "time", paper * unit, ours * unit).distance == pytest.approx(plain, abs=1e-9)


# A reading beside the paper


def part_of(name):
    return next(part for part in PARTS if part.name == name)


def main_runs(**curves):
    """Accuracies at 10 s, 20 s, ... by mechanism; phi = 1.0 and 0.4 are alike."""
    return {
        f"{m}-phi{phi}": outcome(m, curve) for m, curve in curves.items() for phi in ("1", "0.4")
    }


def test_a_reading_is_judged_at_the_target_at_which_it_is_nearest():
    curves = {
        "dystop": [0.61, 0.66] + [0.71] * 6,
        "asydfl": [0.5] * 34 + [0.71],
        "sa_adfl": [0.5] * 16 + [0.71],
        "matcha": [0.5] * 41 + [0.71],
    }
    runs = main_runs(**{k.replace("_", "-"): v for k, v in curves.items()})
    parts = {"main-fmnist": (part_of("main-fmnist"), runs)}
    paper = judge_reading(sample(1), parts, ratios_only=False)
    numbers = {n.name: n for n in paper.numbers}
    time = numbers["main-fmnist: phi = 0.4: completion time of matcha"]
    assert (time.paper, time.ours) == (422.76, 420.0)
    # DySTop needs 10 s to 60 %, 20 s to 65 % and 30 s to 70 %: the paper's 80 s are nearest there.
    assert paper.target == 0.7
    less = numbers["main-fmnist: phi = 0.4: less completion time than asydfl"]
    assert (less.paper, less.ours) == (pytest.approx(1 - 0.7704), pytest.approx(30 / 350))
    small = judge_reading(sample(1), parts, ratios_only=True)
    assert not any("completion time of" in number.name for number in small.numbers)
    assert paper.seeds == 1
    assert sum(paper.counts().values()) == len(paper.verdicts)


def test_a_rival_that_never_arrives_gives_a_bound():
    runs = main_runs(dystop=[0.61], asydfl=[0.1] * 3)
    parts = {"main-fmnist": (part_of("main-fmnist"), runs)}
    result = judge_reading(sample(1), parts, ratios_only=False)
    less = next(n for n in result.numbers if "less completion time than asydfl" in n.name)
    assert (less.ours, less.beyond) == (pytest.approx(1 / 3), -1)
    only = with_numbers(result, [less.name])
    assert common_numbers([result, only]) == [less.name]
    assert only.distance == less.distance


CIFAR10 = {"dystop": 0.72, "asydfl": 0.6, "sa-adfl": 0.64, "matcha": 0.7}


def cifar10_result(ends, *, ratios_only, name="r001", planned=True):
    """Judge a reading by what its four mechanisms end with; phi = 1.0 and 0.4 are alike."""
    main, bounds = part_of("main-cifar10"), part_of("planned-cifar10")
    parts = {main.name: (main, main_runs(**{m: [0.1, end] for m, end in ends.items()}))}
    core = [main, *([bounds] if planned else [])]
    return judge_reading(reading_named(name), parts, ratios_only=ratios_only, core=core)


def test_cifar10_has_a_distance_of_its_own():
    result = cifar10_result(CIFAR10, ratios_only=True, planned=False)
    assert result.groups == {"cifar10"}
    assert result.distance is None  # none of its numbers belongs to the distance of ADR 0044
    assert result.distance_on("fmnist") is None
    ours = {n.name: (n.paper, n.ours) for n in result.numbers}
    assert ours["main-cifar10: phi = 0.4: accuracy of asydfl, of that of dystop-phi0.4"] == (
        pytest.approx(0.6718 / 0.8136), pytest.approx(0.6 / 0.72),
    )  # fmt: skip
    assert len(ours) == 4
    off = [abs(math.log(our / paper)) for paper, our in ours.values()]
    assert result.distance_on("cifar10") == pytest.approx(sum(off) / 4)
    assert result.distance_on("cifar10") < 0.05
    rises = [row for _, row in result.verdicts if "rises with skew" in row.claim]
    assert len(rises) == 4  # from 1.0 to 0.4; 0.7 is not run
    incomplete = cifar10_result(CIFAR10, ratios_only=True)
    assert incomplete.distance_on("cifar10") is None  # its staleness has not been planned


def test_levels_of_cifar10_count_at_paper_scale():
    result = cifar10_result(CIFAR10, ratios_only=False, planned=False)
    ours = {n.name: (n.paper, n.ours) for n in result.numbers}
    assert ours["main-cifar10: phi = 0.4: accuracy of matcha"] == (0.7809, 0.7)
    assert len(ours) == 5


def test_models_that_have_not_learned_are_not_near():
    """All of them guess, so that their ratios are 1, near the paper's 0.83 to 1.03."""
    guesses = dict.fromkeys(CIFAR10, 0.3)
    result = cifar10_result(guesses, ratios_only=True, planned=False)
    assert all(n.ours is None for n in result.numbers)
    assert result.distance_on("cifar10") == CAP


def test_trained_runs_of_cifar10_do_not_change_the_distance():
    runs = main_runs(dystop=[0.61], asydfl=[0.1, 0.61], matcha=[0.1, 0.61])
    runs |= {k.replace("asydfl", "sa-adfl"): a for k, a in runs.items() if "asydfl" in k}
    fmnist = {"main-fmnist": (part_of("main-fmnist"), runs)}
    both = fmnist | {"main-cifar10": (part_of("main-cifar10"), runs)}
    core = [part_of("main-fmnist"), part_of("main-cifar10")]
    alone = judge_reading(sample(1), fmnist, ratios_only=True, core=core)
    beside = judge_reading(sample(1), both, ratios_only=True, core=core)
    assert alone.distance == beside.distance == alone.distance_on("fmnist")
    assert (alone.target, alone.seeds) == (beside.target, beside.seeds)
    assert alone.groups < beside.groups == {"fmnist", "cifar10"}


def on_both(name, fmnist, cifar10):
    """Return a reading with one number on each data set, off by these factors."""
    numbers = [
        Number(f"main-{data}: n", "time", 1.0, factor, group=data, in_distance=data == "fmnist")
        for data, factor in (("fmnist", fmnist), ("cifar10", cifar10))
        if factor
    ]
    have = frozenset(number.group for number in numbers)
    return ReadingResult(sample(int(name[1:])), 1, None, tuple(numbers), (), groups=have)


def test_no_reading_is_the_nearest_on_both():
    results = [on_both("r001", 1.05, 3.0), on_both("r002", 2.0, 1.2), on_both("r003", 1.5, 1.5),
               on_both("r004", 1.01, None)]  # fmt: skip
    told = fit_sentences(results)
    for text in ("Fashion-MNIST: r004 is the nearest of 4 readings", "1 lies within 10 %",
                 "CIFAR-10: r002 is the nearest of 3 readings", "0 lie within 10 %",
                 "3 readings were run on Fashion-MNIST and on CIFAR-10",
                 "None of them is the nearest on both",
                 "r001, the nearest on Fashion-MNIST, is number 3 of 3 on CIFAR-10",
                 "r002, the nearest on CIFAR-10, is number 3 of 3 on Fashion-MNIST",
                 "r003 has the smallest mean of both distances: 0.41 and 0.41",
                 "-1.00 on Fashion-MNIST and CIFAR-10 (3 readings)",
                 "No reading is within 30 % of every number"):  # fmt: skip
        assert text in " ".join(told)


def test_one_reading_is_the_nearest_on_both():
    results = [on_both("r001", 1.05, 1.1), on_both("r002", 2.0, 1.2)]
    told = " ".join(fit_sentences(results))
    assert "r001 is the nearest of them on both" in told
    assert "1 reading is within 30 % of every number of these two data sets" in told
    assert "mean of both distances" not in told  # it is the same reading
    assert fit_sentences([on_both("r001", 1.05, None)]) == [told_alone(1.05)]
    assert fit_sentences([]) == []


def told_alone(factor):
    return (
        "Fashion-MNIST: r001 is the nearest of 1 reading, with a distance of "
        f"{math.log(factor):.2f}. Of its 1 number, 1 lies within 10 % of the paper's, "
        "and 1 within 30 %."
    )


def test_a_bound_does_not_hide_a_number_that_another_reading_gives():
    bound = replace(on_both("r001", 1.0, None).numbers[0], beyond=-1)
    results = [replace(on_both("r001", 1.0, None), numbers=(bound,)), on_both("r002", 1.05, None)]
    (row,) = number_rows(results)
    assert (row.closest, row.verdict) == ("1.05 s (r002)", "yes")
    (alone,) = number_rows(results[:1])
    assert (alone.closest, alone.verdict) == ("less than 1 s (r001)", "no")


def test_a_sample_that_is_a_preset_counts_once():
    with_presets = [*presets(), sample(1), sample(2)]
    assert sample(2).values == reading_named("nearest").values
    judged = [ReadingResult(reading, 1, None, (), ()) for reading in with_presets]
    kept = [result.reading.name for result in counted_once(judged)]
    assert kept == ["literal", "physical", "nearest", "none", "r001"]  # r002 is `nearest`


# The whole path


def test_the_search_from_the_command_to_its_tables(tmp_path: Path):
    words = ["reproduce", "readings", "--scale", "smoke", "--out", tmp_path]
    parts = [f"{name}.{p}" for name in ("literal", "r001") for p in ("main", "planned-fmn")]
    only = [word for part in parts for word in ("--only", part)]
    first = invoke(*words, "--samples", 1, *only)
    assert first.exit_code == 0, first.output
    folder = tmp_path / "smoke" / "readings"
    rows = list(csv.DictReader((folder / "readings.csv").read_text().splitlines()))
    assert {row["reading"] for row in rows} == {"literal", "r001"}
    assert [float(r["distance"]) for r in rows] == sorted(float(r["distance"]) for r in rows)
    for name in ("numbers.csv", "verdicts.csv", "claims.csv", "runs.csv"):
        assert len((folder / name).read_text().splitlines()) > 1
    page = (folder / "report.html").read_text()
    told = ("Smoke scale", "r001", "figure-distance-by-reading", "figure-distance-on-both",
            "2 readings were run on Fashion-MNIST and on CIFAR-10",
            "dystop reproduce readings --scale smoke")  # fmt: skip
    for text in told:
        assert text in page
    again = invoke(*words, "--samples", 1, *only)
    assert "42 finished before" in again.output
    more = invoke(*words, "--samples", 2, "--only", "r002.main-fmnist")
    assert "8 runs" in " ".join(more.output.split())
    assert len(open_study(folder / "runs").experiments) == 50


def test_a_search_of_cifar10_alone(tmp_path: Path):
    words = ["--scale", "smoke", "--out", tmp_path, "--samples", 1]
    result = invoke("reproduce", "readings", *words, "--only", "r001.main-cifar10")
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "8 runs" in told
    assert "CIFAR-10: r001 is the nearest of 1 reading" in told
    folder = tmp_path / "smoke" / "readings"
    rows = list(csv.DictReader((folder / "readings.csv").read_text().splitlines()))
    assert [(row["reading"], row["distance"]) for row in rows] == [("r001", "")]
    assert float(rows[0]["distance_cifar10"]) > 0
    page = (folder / "report.html").read_text()
    for text in ("CIFAR-10: ", "of 1 reading", "figure-distance-by-reading-cifar10",
                 "Readings with background pushes are not run"):  # fmt: skip
        assert text in page
    assert "figure-distance-on-both" not in page
    found = invoke("reproduce", "readings", "--scale", "smoke", "--out", tmp_path, "--best", 1)
    assert found.exit_code == 2  # the nearest samples come from a search at small scale


def test_a_search_of_the_testbed_alone(tmp_path: Path):
    words = ["--scale", "smoke", "--out", tmp_path, "--samples", 0]
    result = invoke("reproduce", "readings", *words, "--only", "literal.testbed-svhn")
    assert result.exit_code == 0, result.output
    assert "SVHN: literal is the nearest of 1 reading" in " ".join(result.output.split())
    folder = tmp_path / "smoke" / "readings"
    (row,) = csv.DictReader((folder / "readings.csv").read_text().splitlines())
    assert (row["distance"], row["distance_cifar100"]) == ("", "")
    assert float(row["distance_svhn"]) > 0
    page = (folder / "report.html").read_text()
    assert "engine.timing = testbed" in page
    assert "<td>not run</td>" in page  # its distance, which needs Fashion-MNIST


def test_a_stand_in_has_a_target_of_its_own():
    """The paper's 80 % is not reached: 75 % is; DySTop needs 1 round, MATCHA 2."""
    part = part_of("testbed-svhn")
    ends = {"dystop": [0.76], "asydfl": [0.1, 0.76], "sa-adfl": [0.1, 0.1, 0.1, 0.76],
            "matcha": [0.1, 0.76]}  # fmt: skip
    runs = {key.replace("phi0.4", "phi0.5"): arm for key, arm in main_runs(**ends).items()}
    result = judge_reading(
        reading_named("literal"), {part.name: (part, runs)}, ratios_only=True, core=[part]
    )
    ours = {n.name: n.ours for n in result.numbers}
    assert ours["testbed-svhn: phi = 1: less time than matcha"] == pytest.approx(0.5)
    assert ours["testbed-svhn: phi = 0.5: less time than sa-adfl"] == pytest.approx(0.25)
    assert len(ours) == 6 + 3  # reductions of time, and accuracies as shares; no levels
    assert result.distance_on("svhn") is not None
    assert result.distance is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["engine.timing=paper"], "engine.timing belongs to the readings"),
        (["fig-phases"], "readings is a search of its own"),
        (["--only", "nothing"], "--only nothing: matches no run"),
        (["--best", "2"], "dystop reproduce readings --samples 20"),
    ],
)
def test_what_the_search_refuses(words, said, tmp_path: Path):
    asked = ["reproduce", "readings", "--scale", "smoke", "--out", tmp_path, *words]
    result = invoke(*asked)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())


def search_by_script(out: Path, minutes: float) -> str:
    words = ["training.device=cpu", "--samples", 0, "--scale", "smoke", "--seeds", 1, "--jobs", 2,
             "--minutes", minutes,
             "--only", "literal.main-fmnist", "--only", "literal.planned-f"]  # fmt: skip
    command = [sys.executable, SCRIPT, out, *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_refuses_a_part_that_does_not_exist(tmp_path: Path):
    words = [tmp_path / "out", "--scale", "small", "--samples", "0", "--only", "nothing"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert "--only matches no run" in done.stderr
    assert not list(tmp_path.iterdir())


def test_one_process_may_run_many_runs_and_resumes_those_that_were_cut_off(tmp_path: Path):
    tables = tmp_path / "smoke" / "readings" / "readings.csv"
    assert "time is over: 0 of 13 runs" in search_by_script(tmp_path, minutes=0)
    assert not tables.exists()
    assert "13/13" in search_by_script(tmp_path, minutes=10)
    first = tables.read_text()
    cut_off = next(tmp_path.glob("smoke/**/run.json")).parent
    whole = (cut_off / "records.jsonl").read_bytes()
    (cut_off / "records.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:1]))
    info = json.loads((cut_off / "run.json").read_text())
    info = {key: value for key, value in info.items() if key != "records_sha256"}
    (cut_off / "run.json").write_text(json.dumps({**info, "status": "running"}))
    assert "1/1" in search_by_script(tmp_path, minutes=10)
    assert (cut_off / "records.jsonl").read_bytes() == whole
    assert tables.read_text() == first
