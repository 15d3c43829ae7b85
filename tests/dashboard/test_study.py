"""The page of a study: every run on it, compared at a time that all have reached."""

import json
import re
import shutil

import pytest

from dystop.dashboard.run_folders import curves as curves_module
from dystop.dashboard.run_folders.curves import CurveCache, thinned
from dystop.dashboard.run_folders.library import Library
from dystop.dashboard.views.study import MAX_LINES, study_view
from dystop.folders.run_folder import open_run
from dystop.report.data.comparison.ranking import rank_groups
from dystop.report.data.groups import group_runs
from support.dashboard_fixtures import ask, make_run, rename_score, serving
from support.fake_runs import changed


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of two mechanisms and two seeds; one run has not begun."""
    out = tmp_path_factory.mktemp("runs") / "trial"
    out.mkdir()
    rows = []
    for mechanism in ("dystop", "d-psgd"):
        for seed in (0, 1):
            folder = f"{mechanism}-s{seed}"
            rows.append({"folder": folder, "mechanism": mechanism, "provenance": "paper"})
            if folder != "d-psgd-s1":
                make_run(out, folder, f"mechanism.name={mechanism}", f"seed={seed}")
    (out / "study.json").write_text(json.dumps({"format": 1, "runs": rows}))
    return out


def view_of(folder, since="", cache=None):
    library = Library(folder.parent)
    out = study_view(library, cache or CurveCache(library), folder.name, since)
    json.dumps(out, allow_nan=False)
    return out


def test_every_run_has_a_line_and_every_group_a_row(study):
    shown = view_of(study)
    assert (shown["kind"], shown["summary"]) == ("comparison", "3 of 4 finished")
    assert [group["label"] for group in shown["groups"]] == ["dystop", "d-psgd"]
    assert [run["name"] for run in shown["runs"]] == ["dystop-s0", "dystop-s1", "d-psgd-s0"]
    assert [run["status"] for run in shown["groups"][1]["runs"]] == ["finished", "waiting"]
    records = [r for r in open_run(study / "dystop-s1").records if r.accuracy is not None]
    rows = [dict(zip(shown["columns"], row, strict=True)) for row in shown["runs"][1]["rows"]]
    assert [row["round"] for row in rows] == [r.round for r in records]
    assert [row["wire_bytes"] for row in rows] == [r.wire_bytes_total for r in records]
    assert [row["accuracy"] for row in rows] == pytest.approx([r.accuracy for r in records], 1e-5)


def test_colours_follow_mechanisms_and_dashes_tell_their_groups_apart(study, tmp_path):
    rows, folder = [], tmp_path / "sweep"
    for mechanism in ("dystop", "d-psgd"):
        for phi in ("0.4", "1.0"):
            name = f"{mechanism}-phi{phi}-s0"
            rows.append({"folder": name, "mechanism": mechanism})
            shutil.copytree(study / f"{mechanism}-s0", folder / name)
    content = {"format": 1, "over": ["mechanism.name", "data.phi"], "runs": rows}
    (folder / "study.json").write_text(json.dumps(content))
    shown = view_of(folder)
    assert shown["kind"] == "sweep"
    styles = {group["label"]: (group["colour"], group["dash"]) for group in shown["groups"]}
    assert styles == {
        "dystop-phi0.4": (0, 0),
        "dystop-phi1.0": (0, 1),
        "d-psgd-phi0.4": (1, 0),
        "d-psgd-phi1.0": (1, 1),
    }
    for name in ("d-psgd-phi0.4-s0", "d-psgd-phi1.0-s0"):
        shutil.rmtree(folder / name)
    (folder / "study.json").write_text(json.dumps({"runs": rows[:2]}))
    assert [group["colour"] for group in view_of(folder)["groups"]] == [0, 1]


def log_of(folder, clocks_and_scores, every_s=2.0):
    """Give a recorded run these evaluations, planned at an interval."""
    log, config = folder / "records.jsonl", folder / "config.toml"
    row = next(r for r in open_run(folder).records if r.accuracy is not None)
    rows = [
        changed(row, round=t, clock_s=clock_s, accuracy=score)
        for t, (clock_s, score) in enumerate(clocks_and_scores.items(), 1)
    ]
    log.write_text("".join(f"{r.to_json()}\n" for r in rows))
    config.write_text(re.sub("(?m)^every_s = .*", f"every_s = {every_s}", config.read_text()))


def fair_column(folder):
    """Title and cells of the accuracy at a common time, in the report and on the page."""
    (ranking,) = rank_groups(group_runs([open_run(f) for f in sorted(folder.glob("*-s0"))]), 0.99)
    names = [group.mechanism.name for group in ranking.groups]
    reported = [
        (column.title, dict(zip(names, [cell.text for cell in column.cells], strict=True)))
        for column in ranking.results
        if column.title.startswith("accuracy at")
    ]
    shown = view_of(folder)
    cells = {group["label"]: group["score_at"] for group in shown["groups"]}
    return reported, [(f"accuracy at {shown['at']}", cells)] if shown["at"] else []


def test_page_and_report_say_the_same_of_one_time(study, tmp_path):
    """The first run stops at 6.1 s; the test that the others had for 6 s counts, not a later."""
    ends = {
        "dystop": {2.0: 0.1, 4.5: 0.2, 6.1: 0.761},
        "d-psgd": {2.4: 0.2, 4.1: 0.3, 6.7: 0.771, 8.2: 0.9},
    }
    for name, scores in ends.items():
        log_of(shutil.copytree(study / f"{name}-s0", tmp_path / "trial" / f"{name}-s0"), scores)
    rows = [{"folder": f"{name}-s0", "mechanism": name} for name in ends]
    (tmp_path / "trial" / "study.json").write_text(json.dumps({"format": 1, "runs": rows}))
    reported, shown = fair_column(tmp_path / "trial")
    assert reported == shown == [("accuracy at 6.70 s", {"dystop": "76.1 %", "d-psgd": "77.1 %"})]
    log_of(tmp_path / "trial" / "d-psgd-s0", {2.4: 0.2, 6.2: 0.771})  # both end with this test
    assert fair_column(tmp_path / "trial") == ([], [])


def test_a_long_curve_is_compared_by_all_its_evaluations(study, tmp_path):
    """The page draws at most 250 points of a run, and knows all of them."""
    many = {2.0 * k: k / 1000 for k in range(1, 701)}
    for name, end in (("dystop", 333), ("d-psgd", 700)):
        folder = shutil.copytree(study / f"{name}-s0", tmp_path / "trial" / f"{name}-s0")
        log_of(folder, dict(list(many.items())[:end]))
    rows = [{"folder": f"{name}-s0", "mechanism": name} for name in ("dystop", "d-psgd")]
    (tmp_path / "trial" / "study.json").write_text(json.dumps({"format": 1, "runs": rows}))
    reported, shown = fair_column(tmp_path / "trial")
    assert reported == shown == [("accuracy at 666 s", {"dystop": "33.3 %", "d-psgd": "33.3 %"})]


def test_equal_curves_are_sent_once(study):
    library = Library(study.parent)
    cache = CurveCache(library)
    first = view_of(study, cache=cache)
    again = view_of(study, first["cursor"], cache)
    assert "runs" not in again
    assert again["groups"] == first["groups"]


def test_logs_are_read_once_and_again_when_they_grow(study, tmp_path, monkeypatch):
    folder = shutil.copytree(study, tmp_path / "trial")
    library = Library(tmp_path)
    cache, read = CurveCache(library), []
    original = CurveCache._read
    monkeypatch.setattr(CurveCache, "_read", lambda *a: read.append(1) or original(*a))
    assert view_of(folder, cache=cache)["read"] == 1
    view_of(folder, cache=cache)
    assert len(read) == 3
    log = folder / "dystop-s0" / "records.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-2]))
    shown = view_of(folder, cache=cache)
    assert len(read) == 4
    assert len(shown["runs"][0]["rows"]) < len(shown["runs"][1]["rows"])


def test_many_logs_are_read_by_several_requests(study, monkeypatch):
    monkeypatch.setattr(curves_module, "READING_S", -1.0)
    library = Library(study.parent)
    cache = CurveCache(library)
    shown = view_of(study, cache=cache)
    assert shown["read"] == 0
    assert [run["rows"] for run in shown["runs"]] == [(), (), ()]
    monkeypatch.setattr(curves_module, "READING_S", 5.0)
    assert view_of(study, cache=cache)["read"] == 1


def test_long_curves_keep_their_end():
    rows = [[k] for k in range(10_001)]
    assert len(thinned(rows)) <= curves_module.MAX_CURVE
    assert thinned(rows)[-1] == [10_000]
    assert thinned(rows[:5]) == rows[:5]


def test_too_many_runs_are_told(study, monkeypatch):
    monkeypatch.setattr("dystop.dashboard.views.study.MAX_LINES", 2)
    shown = view_of(study)
    assert (len(shown["runs"]), shown["left_out"]) == (2, 1)
    assert len(shown["groups"]) == 2
    assert MAX_LINES > 100


def test_another_score_keeps_its_name(study, tmp_path):
    folder = shutil.copytree(study, tmp_path / "trial")
    for run in ("dystop-s0", "dystop-s1", "d-psgd-s0"):
        rename_score(folder / run, "r2")
    shown = view_of(folder)
    assert shown["score_name"] == "r2"
    assert "%" not in shown["groups"][0]["score"]


def test_addresses_of_a_study(study):
    with serving(study.parent) as server:
        status, headers, page = ask(server, "/study/trial")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b"/static/study.js" in page
        status, _, body = ask(server, "/api/study/trial")
        assert status == 200
        assert json.loads(body)["summary"] == "3 of 4 finished"
        for path in ("/study/none", "/api/study/none", "/study/", "/api/study/../trial"):
            assert ask(server, path)[0] == 404
    with serving(study) as server:  # the folder is the study itself
        assert json.loads(ask(server, "/api/study/trial")[2])["groups"][0]["runs"][0]["key"]


def test_a_folder_of_runs_is_no_comparison(study, tmp_path):
    shutil.copytree(study / "dystop-s0", tmp_path / "mine" / "dystop-s0")
    shown = view_of(tmp_path / "mine")
    assert shown["kind"] == "folder of runs"
    assert [group["label"] for group in shown["groups"]] == ["dystop-s0"]
    assert study_view(Library(tmp_path), CurveCache(Library(tmp_path)), "none") is None
