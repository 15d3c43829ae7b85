"""`dystop report` on folders of all kinds: studies, half of one, and whatever lies in runs/."""

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.folders.run_folder import open_run
from dystop.studies.compare import Comparison, experiments
from dystop.studies.study import create_study, finished

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=6", "stop.rounds=3", "evaluate.every_rounds=1",
]  # fmt: skip


def call(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def made(out, *words):
    result = call(*words, *SMALL, "--out", out, "--quiet")
    assert result.exit_code == 0, result.output


def page_of(folder):
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with one run, a comparison and a sweep."""
    out = tmp_path_factory.mktemp("work") / "runs"
    made(out, "run", "--name", "alone", "--no-report")
    made(out, "compare", "--mechanisms", "dystop,fedavg", "--seeds", "2", "--name", "both")
    over = ["--over", "mechanism.V=1,5,10", "--over", "data.phi=1.0,0.7,0.4"]
    made(out, "sweep", *over, "--name", "grid")
    return out


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of a study to spoil."""

    def copied(name):
        path = tmp_path / name
        shutil.copytree(runs / name, path, ignore=shutil.ignore_patterns("report"))
        return path

    return copied


@pytest.mark.parametrize("name", ["both", "grid"])
def test_a_study_goes_where_it_is_told_to(copy, tmp_path, name):
    path, out = copy(name), tmp_path / "some" / "page"
    result = call("report", path, "--out", out, "--target", "0.3")
    assert result.exit_code == 0, result.output
    assert f"report: {out / 'report.html'}" in result.stdout
    assert sorted(os.listdir(out)) == ["figures", "report.html", "results.csv"]
    assert not (path / "report").exists()


def test_a_comparison_under_both_laws_says_whether_its_order_depends_on_them(tmp_path, monkeypatch):
    monkeypatch.setattr("dystop.report.pages.study.draw_ranking", lambda *_: [])
    words = ["--mechanisms", "dystop,ad-psgd", "--timing", "both", "--seeds", "1", "--name", "laws"]
    many = ["fleet.workers=30", "stop.rounds=100", "model.wire_bytes=87360"]
    result = call("compare", *words, *SMALL[:4], *many, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    (headline,) = [line for line in result.stdout.splitlines() if "rank" in line and "row" in line]
    assert f'class="lead">{headline}</p>' in page_of(tmp_path / "laws" / "report")
    assert "note: ad-psgd waits for rounds" in result.stderr
    assert "note: dystop waits for rounds" not in result.stderr


def test_where_the_papers_law_serialises_the_other_law_is_planned(tmp_path, monkeypatch):
    monkeypatch.setattr("dystop.report.pages.study.draw_ranking", lambda *_: [])
    many = ["fleet.workers=15", "stop.rounds=60", "model.wire_bytes=87360", "stop.seconds=3"]
    words = [*SMALL[:4], *many, "evaluate.every_rounds=1", "--target", "0.2", "--out", tmp_path]
    law = ["--mechanisms", "d-psgd,ad-psgd", "--seeds", "2", "--name", "law"]
    result = call("compare", *words, *law)
    assert result.exit_code == 0, result.output
    assert "note: ad-psgd waits for rounds" in result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "Under the overlap law" in line]
    page = page_of(tmp_path / "law" / "report").replace("\N{NO-BREAK SPACE}", " ")
    assert f'class="lead">{line}</p>' in page
    kept = json.loads((tmp_path / "law" / "other-law.json").read_text())
    assert set(kept["clocks_s"]) == {"d-psgd-s0", "d-psgd-s1", "ad-psgd-s0", "ad-psgd-s1"}
    run = open_run(tmp_path / "law" / "ad-psgd-s0")
    tested = [r.clock_s for r in run.records if r.accuracy is not None]
    assert kept["clocks_s"][run.name][-1] < 0.5 * tested[-1]  # it waits no longer
    again = call("report", tmp_path / "law", "--target", "0.2")
    assert line in again.stdout
    free = call("compare", *words, "--mechanisms", "d-psgd", "--seeds", "1", "--name", "free")
    assert "Under the overlap law" not in free.stdout
    assert not (tmp_path / "free" / "other-law.json").exists()


def test_a_sweep_is_planned_under_the_other_law_too(tmp_path, monkeypatch):
    monkeypatch.setattr("dystop.report.pages.study.draw_ranking", lambda *_: [])
    many = ["fleet.workers=15", "stop.rounds=60", "model.wire_bytes=87360", "stop.seconds=3"]
    words = [*SMALL[:4], *many, "evaluate.every_rounds=1", "--target", "0.2", "--out", tmp_path]
    mechanisms = ["--over", "mechanism.name=d-psgd,ad-psgd"]
    result = call("sweep", *words, *mechanisms, "--name", "law")
    assert result.exit_code == 0, result.output
    assert "note: ad-psgd waits for rounds" in result.stderr
    assert "Under the overlap law" in result.stdout
    again = call("sweep", tmp_path / "law", "--target", "0.2")
    assert "Under the overlap law" in again.stdout
    panels = call("sweep", *words, *mechanisms, "--over", "data.phi=0.5,1", "--name", "panels")
    assert panels.exit_code == 0, panels.output
    assert "Under the overlap law" not in panels.stdout  # each panel has a first place of its own


def test_a_large_comparison_is_not_planned_again(tmp_path, monkeypatch):
    monkeypatch.setattr("dystop.report.pages.study.draw_ranking", lambda *_: [])
    monkeypatch.setattr("dystop.studies.other_law.MOST_S", 0.001)
    many = ["fleet.workers=15", "stop.rounds=60", "model.wire_bytes=87360"]
    words = [*SMALL[:4], *many, "--mechanisms", "ad-psgd", "--seeds", "1", "--name", "large"]
    result = call("compare", *words, "--out", tmp_path)
    assert "note: ad-psgd waits for rounds" in result.stderr
    assert not (tmp_path / "large" / "other-law.json").exists()


def test_half_a_comparison_is_shown_as_far_as_it_got(copy):
    path = copy("both")
    shutil.rmtree(path / "fedavg-s1")
    (path / "dystop-s1" / "records.jsonl").write_text("")
    result = call("report", path)
    assert result.exit_code == 0, result.output
    page = page_of(path / "report")
    for fact in ("3 of 4 runs", f"dystop compare {path}"):
        assert fact in result.stderr
        assert fact in page
    assert "dystop-s1 has not closed a round" in page
    assert "1 to 2 seeds each" in page
    assert "3 runs" in page


def test_half_a_sweep_is_shown_as_far_as_it_got(copy):
    path = copy("grid")
    gone = ["V1-phi1.0-s0", "V5-phi0.4-s0", "V10-phi0.7-s0"]
    for name in gone:
        shutil.rmtree(path / name)
    result = call("report", path)
    assert result.exit_code == 0, result.output
    page = page_of(path / "report")
    assert "6 of 9 runs" in page
    assert f"dystop sweep {path}" in page
    assert (path / "report" / "figures" / "sweep-map.png").is_file()


def test_a_whole_study_has_nothing_missing(copy):
    path = copy("both")
    assert "have begun" not in call("report", path).stderr
    assert "have begun" not in page_of(path / "report")


def test_a_study_that_has_not_begun_has_no_report(tmp_path):
    every = experiments(Comparison(None, SMALL, ["dystop", "fedavg"], seeds=3))
    path = create_study(tmp_path, "new", every).path
    result = call("report", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path}: none of its 6 runs " in result.stderr
    assert f"dystop compare {path}" in result.stderr
    assert not (path / "report").exists()


def test_studies_among_run_folders_are_skipped_with_a_note(runs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = call("report", *sorted(runs.iterdir()), "--out", "page")  # as a shell spells runs/*
    assert result.exit_code == 0, result.output
    (note,) = [x for x in result.stderr.splitlines() if "studies are skipped" in x]
    assert f": {runs / 'both'}, {runs / 'grid'}; " in note
    assert note.endswith(f"dystop report {runs / 'both'}")
    assert "alone" in page_of(tmp_path / "page")


def test_several_studies_have_no_page_in_common(runs):
    result = call("report", runs / "both", runs / "grid")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {runs / 'both'}, {runs / 'grid'}: ")
    assert result.stderr.endswith(f"dystop report {runs / 'both'}\n")


def test_a_folder_that_is_no_run_is_refused_beside_studies_too(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    for words in ([runs / "both", runs / "alone"], [runs / "both"]):
        result = call("report", *words, tmp_path / "empty", "--out", tmp_path / "page")
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{tmp_path / 'empty'}: not a run folder" in result.stderr
    assert not (tmp_path / "page").exists()


def uninstalled(path, name="fedavg"):
    """The study as it would be if this mechanism had come from a plug-in that is gone."""
    for file in [*path.glob("plan/*.toml"), *path.glob("*/config.toml"), *path.glob("*/run.json")]:
        file.write_text(file.read_text().replace(f'"{name}"', '"gone-idea"'))
    return path


@pytest.mark.parametrize("verb", ["report", "compare"])
def test_a_finished_study_needs_no_mechanism_to_be_reported(copy, verb):
    path = uninstalled(copy("both"))
    result = call(verb, path)
    assert result.exit_code == 0, result.output
    assert "gone-idea (reference)" in result.stdout
    assert "gone-idea (reference)" in page_of(path / "report")
    if verb == "compare":
        assert f"study: {path} (4 runs, 4 finished before)" in result.stdout


def test_a_finished_sweep_needs_none_either(copy):
    assert call("sweep", uninstalled(copy("grid"), "dystop"), "--quiet").exit_code == 0


def test_an_unfinished_study_needs_its_mechanisms_to_be_resumed(copy):
    path = uninstalled(copy("both"))
    info = path / "fedavg-s1" / "run.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "status": "interrupted"}))
    assert not finished(info.parent)
    result = call("compare", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'mechanism.name = "gone-idea"; expected one of' in result.stderr
    assert call("report", path).exit_code == 0


@pytest.mark.parametrize("place", ["report", "report/figures"])
def test_a_report_follows_no_link(copy, tmp_path, place):
    path, elsewhere = copy("alone"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (path / place).parent.mkdir(exist_ok=True)
    (path / place).symlink_to(elsewhere)
    result = call("report", path)
    assert (result.exit_code, list(elsewhere.iterdir())) == (2, [])
    assert str(path / place) in result.output
    assert "link" in result.output


@pytest.mark.parametrize("name", [".lock", "records.jsonl"])
def test_a_run_is_not_resumed_through_a_link(copy, tmp_path, name):
    path, precious = copy("alone"), tmp_path / "precious"
    precious.write_text("precious\n")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(precious)
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**info, "status": "interrupted"}))
    result = call("resume", path)
    assert (result.exit_code, precious.read_text()) == (2, "precious\n")
    assert str(path / name) in result.output


def test_the_report_of_an_atlas_names_its_command(copy):
    folder = copy("grid")
    (folder / "atlas.json").write_text("{}")
    result = call("report", folder)
    assert result.exit_code == 2
    assert f"dystop atlas {folder}" in result.stderr
    assert "dystop-paper" in result.stderr
