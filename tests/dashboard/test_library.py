"""Which runs the dashboard finds, and what it reads of them."""

import json
import os
import shutil
import time

from dystop.dashboard.run_folders import discovery as discovery_module
from dystop.dashboard.run_folders import library as library_module
from dystop.dashboard.run_folders.discovery import find_runs
from dystop.dashboard.run_folders.library import Library
from dystop.dashboard.views.index import index_view
from dystop.folders.run_folder import open_run, update_info
from support.dashboard_fixtures import rename_score, simple_record


def test_runs_studies_and_folders(recorded, tmp_path):
    root = tmp_path / "all"
    shutil.copytree(recorded, root / "single")
    shutil.copytree(recorded, root / "study" / "b-s0")
    shutil.copytree(recorded, root / "study" / "a-s0")
    shutil.copytree(recorded, root / "loose" / "inside")
    shutil.copytree(recorded, root / ".hidden")
    (root / "empty").mkdir()
    (root / "file").touch()
    rows = [
        {"folder": n, "mechanism": "dystop", "provenance": "paper"} for n in ("b-s0", "a-s0", "c")
    ]
    (root / "study" / "study.json").write_text(json.dumps({"runs": [*rows, 3, {"folder": 1}]}))
    assert sorted(find_runs(root).locations) == [
        "loose/inside",
        "single",
        "study/a-s0",
        "study/b-s0",
    ]
    shown = index_view(Library(root))
    groups = {g["name"]: g for g in shown["groups"]}
    assert [r["name"] for r in groups["study"]["rows"]] == ["b-s0", "a-s0", "c"]
    assert [r["status"] for r in groups["study"]["rows"]] == ["finished", "finished", "waiting"]
    assert groups["study"]["summary"] == "2 of 3 finished"
    row = groups[""]["rows"][0]
    assert (row["key"], row["round"], row["rounds"]) == ("single", "5", "5")
    assert (row["law"], row["score_name"], shown["score_name"]) == ("paper", *["accuracy"] * 2)
    assert row["score"] == f"{100 * open_run(recorded).records[-1].accuracy:.1f} %"
    assert list(find_runs(root / "single").locations) == ["single"]
    assert sorted(find_runs(root / "study").locations) == ["a-s0", "b-s0"]
    json.dumps(shown, allow_nan=False)


def test_the_list_names_timing_and_score(recorded, tmp_path):
    """The law of the clock tells runs apart; a score that is no accuracy is no percentage."""
    for name in ("paper", "overlap", "real", "table"):
        shutil.copytree(recorded, tmp_path / name)
    update_info(tmp_path / "overlap", timing="overlap")
    update_info(tmp_path / "real", kind="testbed")
    rename_score(tmp_path / "table", "r2")
    shown = index_view(Library(tmp_path))
    rows = {row["name"]: row for group in shown["groups"] for row in group["rows"]}
    laws = {"paper": "paper", "overlap": "overlap", "real": "testbed", "table": "paper"}
    assert {name: row["law"] for name, row in rows.items()} == laws
    assert (shown["score_name"], rows["table"]["score_name"]) == ("score", "r2")
    assert "%" not in rows["table"]["score"]
    assert rows["paper"]["score"].endswith(" %")
    assert index_view(Library(tmp_path / "table"))["score_name"] == "r2"


def test_the_newest_come_first(recorded, tmp_path):
    for k, name in enumerate(("old", "new", "middle")):
        folder = shutil.copytree(recorded, tmp_path / name)
        age = [3000, 10, 500][k]
        os.utime(folder / "records.jsonl", (time.time() - age,) * 2)
    names = [g["rows"][0]["name"] for g in index_view(Library(tmp_path))["groups"]]
    assert names == ["new", "middle", "old"]


def test_links_that_lead_out_are_not_followed(recorded, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(recorded, root / "testbed")
    (root / "inside").symlink_to(root / "testbed")
    (root / "outside").symlink_to(recorded)
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    (root / "study").mkdir()
    (root / "study" / "out").symlink_to(recorded)
    assert sorted(find_runs(root).locations) == ["inside", "testbed"]
    half = root / "half"
    half.mkdir()
    (half / "run.json").symlink_to(recorded / "run.json")
    assert "half" not in find_runs(root).locations


def test_odd_names_are_listed_or_left_out(recorded, tmp_path):
    plain = "<img src=x onerror=alert(1)>"
    for name in (plain, "new\nline"):
        shutil.copytree(recorded, tmp_path / name)
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    shutil.copy(recorded / "run.json", os.fsencode(tmp_path) + b"/bad\xff/run.json")
    assert list(find_runs(tmp_path).locations) == [plain]


def test_a_folder_that_is_not_there_yet(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(library_module, "LISTING_S", 0.0)
    library = Library(tmp_path / "runs")
    assert index_view(library)["groups"] == []
    shutil.copytree(recorded, tmp_path / "runs" / "first")
    place = library.find("first")
    assert place is not None
    library.files(place)
    library.tail(place)
    library.follower(place)
    shutil.rmtree(tmp_path / "runs")
    assert library.find("first") is None
    assert not library._followers
    assert not library._read
    assert not library._tails


def test_too_many_runs_are_counted(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery_module, "MAX_RUNS", 1)
    for name in "abc":
        shutil.copytree(recorded, tmp_path / name)
    assert index_view(Library(tmp_path))["left_out"] == 2


def test_only_some_runs_are_followed_at_once(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(library_module, "MAX_FOLLOWERS", 2)
    library = Library(tmp_path)
    for name in "abc":
        shutil.copytree(recorded, tmp_path / name)
    first = library.follower(library.find("a"))[0]
    assert library.follower(library.find("a"))[0] is first
    for name in "bc":
        library.follower(library.find(name))
    assert library.follower(library.find("a"))[0] is not first


def test_files_are_read_again_only_where_they_changed(run, monkeypatch):
    library = Library(run.parent)
    place = library.find("one")
    card, before = library.files(place), library.tail(place)
    monkeypatch.setattr(library_module, "read_toml", None)  # would raise
    monkeypatch.setattr(library_module, "read_tail", None)
    assert library.files(place).config == card.config
    assert library.tail(place) is before
    monkeypatch.undo()
    with (run / "records.jsonl").open("a") as file:
        file.write(simple_record(6).to_json() + "\n")
    assert library.tail(place).last.round == 6
