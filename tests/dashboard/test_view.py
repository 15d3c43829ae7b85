"""What the page shows, from recorded runs: nothing is invented, nothing breaks it."""

import json
import re
import shutil
from pathlib import Path

import pytest

from dystop.dashboard.run_folders import log_reader as log_reader_module
from dystop.dashboard.run_folders.discovery import RunLocation
from dystop.dashboard.run_folders.library import Library, RunFiles
from dystop.dashboard.run_folders.log_reader import LogFollower
from dystop.dashboard.views import last_round_map as map_module
from dystop.dashboard.views import run as view_module
from dystop.dashboard.views import workers as workers_module
from dystop.dashboard.views.index import index_view
from dystop.dashboard.views.last_round_map import last_round_map
from dystop.dashboard.views.run import cursor, round_view, run_view
from dystop.dashboard.views.workers import (
    ACTIVE_NOT_RECORDED,
    STALENESS_DIFFERS,
    workers_state,
    workers_view,
)
from dystop.folders.run_folder import RunLock, open_run, update_info
from dystop.units import number
from support.dashboard_fixtures import make_run, rename_score
from support.fake_runs import changed


def view_of(folder: Path, since: str = "", follower: LogFollower | None = None):
    library = Library(folder.parent)
    place = library.find(folder.name)
    follower = follower or library.follower(place)[0]
    follower.update()
    out = run_view(place, library.files(place), follower, since)
    json.dumps(out, allow_nan=False)
    return out


def workers_in(folder: Path):
    library = Library(folder.parent)
    follower = LogFollower(folder)
    follower.update()
    return workers_state(library.files(library.find(folder.name)), follower.history)


def rewrite(folder: Path, change) -> None:
    """Change every record of a run."""
    records = open_run(folder).records
    rows = [change({**vars(r), **r.added}) for r in records]
    for row in rows:
        del row["added"]
    pairs = zip(records, rows, strict=True)
    text = "".join(changed(record, **row).to_json() + "\n" for record, row in pairs)
    (folder / "records.jsonl").write_text(text)


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# A run


def test_a_finished_run(run):
    data, shown = open_run(run), view_of(run)
    last = data.records[-1]
    assert (shown["status"], shown["end"]) == ("finished", "Finished: 5 rounds are over")
    assert shown["mechanism"]["name"] == "dystop"
    assert shown["mechanism"]["provenance"] == "paper"
    assert dict(shown["facts"])["timing law"] == "paper"
    assert dict(shown["facts"])["data"].startswith("synthetic")
    tiles = {label: (value, more) for value, label, more in shown["tiles"]}
    assert tiles["round"] == ("5", "of at most 5")
    assert tiles["test accuracy"][0].startswith(f"{100 * last.accuracy:.1f} ± ")
    assert f"global {100 * last.get('accuracy_global'):.1f} %, round 5" in tiles["test accuracy"][1]
    assert tiles["staleness"][1] == "mean / largest, bound 2"
    assert tiles["active / alive"] == (f"{last.active} / 6", "of 6 workers")
    assert shown["progress"] == 1.0
    assert shown["notices"] == []
    assert not shown["report"]


def test_another_score_keeps_its_name(run):
    last = open_run(run).records[-1]
    rename_score(run, "r2")
    shown = view_of(run)
    tiles = {label: (value, more) for value, label, more in shown["tiles"]}
    assert shown["score_name"] == "r2"
    assert tiles["test r2"][0] == f"{number(last.accuracy)} ± {last.get('accuracy_std'):.2g}"
    assert f"global {number(last.get('accuracy_global'))}, round 5" in tiles["test r2"][1]
    assert "accuracy" not in json.dumps(shown["tiles"])


def test_every_round_can_be_replayed(run, tmp_path):
    """The map of a round is the map that the page showed when that round was the last one."""
    log = run / "records.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    library = Library(run.parent)
    place = library.find("one")
    assert view_of(run)["replay"] == 5
    then = Path(shutil.copytree(run, tmp_path / "then" / "one"))
    for k in range(1, 6):
        (then / "records.jsonl").write_bytes(b"".join(lines[:k]))
        assert round_view(place, library.files(place), k) == view_of(then)["map"]
    for k in (0, 6):
        assert round_view(place, library.files(place), k) is None
    log.unlink()
    assert round_view(place, library.files(place), 1) is None


def test_what_cannot_be_replayed(run, monkeypatch):
    """A run that goes on, links that were not recorded, and a log that is too long."""
    with RunLock(run):
        update_info(run, status="running")
        assert view_of(run)["replay"] is None
    assert view_of(run)["replay"] == 5  # interrupted
    monkeypatch.setattr(log_reader_module, "MAX_REPLAY_BYTES", 1000)
    monkeypatch.setattr(view_module, "MAX_REPLAY_BYTES", 1000)
    assert view_of(run)["replay"] is None
    library = Library(run.parent)
    place = library.find("one")
    assert round_view(place, library.files(place), 1) is None
    monkeypatch.undo()
    rewrite(run, lambda row: {**row, "link_pairs": None})
    assert view_of(run)["replay"] is None


def test_curves_are_the_records(run):
    data, shown = open_run(run), view_of(run)
    columns = shown["rounds"]["columns"]
    assert [row[0] for row in shown["rounds"]["rows"]] == [1, 2, 3, 4, 5]
    for row, r in zip(shown["rounds"]["rows"], data.records, strict=True):
        named = dict(zip(columns, row, strict=True))
        assert named["clock_s"] == pytest.approx(r.clock_s, rel=1e-5)
        assert named["wire_bytes"] == r.wire_bytes_total
        assert named["loss"] == pytest.approx(r.loss, rel=1e-5)
        assert named["staleness_max"] == r.staleness_max
    scored = [r for r in data.records if r.accuracy is not None]
    tested = [
        dict(zip(shown["evaluations"]["columns"], t, strict=True))
        for t in shown["evaluations"]["rows"]
    ]
    assert [t["round"] for t in tested] == [r.round for r in scored]
    assert [t["accuracy_global"] for t in tested] == pytest.approx(
        [r.get("accuracy_global") for r in scored], rel=1e-5
    )


def test_the_map_has_every_worker_and_link_of_the_last_round(run):
    data, shown = open_run(run), view_of(run)["map"]
    last, at = data.records[-1], data.fleet["positions"]
    assert [dot[:2] for dot in shown["dots"]] == at
    assert [dot[3] for dot in shown["dots"] if dot[2]] == sorted(last.get("active_ids"))
    assert shown["links"] == [[*at[src], *at[dst]] for dst, src in last.get("link_pairs")]
    assert (shown["round"], shown["range_m"], shown["notes"]) == (5, data.fleet["range_m"], [])


def test_staleness_of_workers_is_what_the_run_wrote_down(run):
    workers, last = workers_in(run), open_run(run).records[-1]
    assert workers.note == ""
    counted = [workers.staleness.count(k) for k in range(last.staleness_max + 1)]
    assert counted == list(last.staleness_histogram)
    rows = workers_view(workers)["rows"]
    assert [row[1] for row in rows] == sorted(workers.staleness, reverse=True)
    assert sum(row[3] for row in rows) == sum(r.active for r in open_run(run).records)
    assert view_of(run)["histogram"] == list(last.staleness_histogram)


@pytest.mark.parametrize("name", ["d-psgd", "fedavg", "ad-psgd"])
def test_other_mechanisms_agree_too(tmp_path, name):
    folder = make_run(tmp_path, "other", f"mechanism.name={name}", "stop.rounds=8")
    shown = view_of(folder)
    assert shown["map"]["notes"] == []
    assert len(shown["map"]["servers"]) == (1 if name == "fedavg" else 0)


def test_a_page_is_told_only_what_is_new(run):
    log = run / "records.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]))
    follower = LogFollower(run)
    first = view_of(run, "", follower)
    same = view_of(run, first["cursor"], follower)
    assert "map" not in same
    assert "workers" not in same
    assert same["rounds"]["from"] == 2  # the last point may still grow
    log.write_bytes(b"".join(lines))
    more = view_of(run, same["cursor"], follower)
    assert [row[0] for row in more["rounds"]["rows"]] == [3, 4, 5]
    assert more["map"]["round"] == 5
    log.write_bytes(b"".join(lines[:1]))
    again = view_of(run, more["cursor"], follower)
    assert (again["rounds"]["from"], len(again["rounds"]["rows"])) == (0, 1)


@pytest.mark.parametrize("since", ["x", "....", "a.b.c.d.e", "9" * 400, "\N{SUPERSCRIPT TWO}"])
def test_any_cursor_will_do(run, since):
    follower = LogFollower(run)
    assert len(view_of(run, since, follower)["rounds"]["rows"]) == 5
    epoch = follower.version
    assert view_of(run, f"{epoch}.{since}.{since}.5.x", follower)["rounds"]["from"] == 0
    assert view_of(run, f"{epoch}.99999999.99999999.5.x", follower)["rounds"]["rows"] == []


def test_a_run_without_rounds(run):
    (run / "records.jsonl").write_bytes(b"")
    shown = view_of(run)
    assert [tile[:2] for tile in shown["tiles"]] == [("–", "round")]
    assert (shown["histogram"], shown["progress"]) == ([], None)
    assert len(shown["map"]["dots"]) == 6
    assert [row[1:4] for row in shown["workers"]["rows"]] == [[None, None, None]] * 6


def test_a_run_that_goes_on_and_one_whose_process_is_gone(run):
    update_info(run, status="running", stop_reason=None)
    with RunLock(run):
        assert view_of(run)["status"] == "running"
    shown = view_of(run)
    assert shown["status"] == "interrupted"
    assert shown["end"].endswith("dystop resume RUN")
    update_info(run, kind="testbed")
    assert "dystop testbed --resume RUN" in view_of(run)["end"]
    shown = view_of(run)
    assert ("runs on", "testbed: real processes, measured seconds") in shown["facts"]
    (row,) = index_view(Library(run.parent))["groups"][0]["rows"]
    assert dict(shown["facts"])["timing law"] == row["law"] == "testbed"
    update_info(run, status="failed", stop_reason="ValueError: no")
    assert view_of(run)["end"] == "Failed: ValueError: no"


# What is not there


def test_links_that_were_not_recorded_are_told(run):
    rewrite(run, lambda row: {**row, "active_ids": None, "link_pairs": None})
    shown = view_of(run)
    assert shown["map"]["notes"] == [
        ACTIVE_NOT_RECORDED,
        "The links of the last round were not recorded.",
    ]
    assert (shown["map"]["links"], shown["map"]["active"]) == ([], None)
    assert {dot[5] for dot in shown["map"]["dots"]} == {None}
    assert [row[1:4] for row in shown["workers"]["rows"]] == [[None, None, None]] * 6
    assert shown["histogram"] != []


def test_orders_that_failed_are_told(run):
    rewrite(run, lambda row: {**row, "staleness_histogram": [0, 0, 0, 6]})
    assert view_of(run)["workers"]["notes"] == [STALENESS_DIFFERS]
    # with a worker down, the histogram counts those that are up
    rewrite(run, lambda row: {**row, "alive": 5})
    assert view_of(run)["workers"]["notes"] == [STALENESS_DIFFERS]


def test_a_worker_that_is_down_is_no_contradiction(run):
    last = open_run(run).records[-1]
    fewer = list(last.staleness_histogram)
    fewer[next(k for k, n in enumerate(fewer) if n)] -= 1
    rewrite(run, lambda row: {**row, "alive": 5, "staleness_histogram": fewer})
    assert view_of(run)["workers"]["notes"] == []


def test_no_positions_no_map(run):
    edit(run / "fleet.json", positions=None)
    assert "no map" in view_of(run)["map"]["missing"]


def test_workers_that_move_are_where_they_are(run):
    there = [[float(i), 2.0] for i in range(6)]
    rewrite(run, lambda row: {**row, "positions": there})
    assert [dot[:2] for dot in view_of(run)["map"]["dots"]] == there


def test_files_that_cannot_be_read_are_told(run):
    for name in ("run.json", "config.toml", "fleet.json"):
        (run / name).write_bytes(b"\xff{")
    shown = view_of(run)
    (notice,) = shown["notices"]
    assert all(name in notice for name in ("run.json", "config.toml", "fleet.json"))
    assert shown["status"] == "unknown"
    assert shown["mechanism"]["name"] == "not recorded"
    assert "no map" in shown["map"]["missing"]


def test_warnings(run):
    mechanism = open_run(run).info["mechanism"]
    update_info(run, mechanism={**mechanism, "provenance": "reconstruction"})
    rewrite(run, lambda row: {**row, "diverged": 2 if row.get("accuracy") is not None else None})
    with (run / "records.jsonl").open("a") as file:
        file.write("{}\n")
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(
        re.sub(r"^wire_bytes = .*$", "wire_bytes = 1e6", text, flags=re.M)
    )
    shown = view_of(run)
    assert shown["mechanism"]["inexact"]
    facts = [["1 line", "records.jsonl"], ["dystop", "reconstruction"], ["2 models", "diverged"],
             ["1 MB", "model.wire_bytes"]]  # fmt: skip
    for notice, words in zip(shown["notices"], facts, strict=True):
        assert all(word in notice for word in words), notice


def test_damaged_values_break_nothing(run):
    odd = ["<script>", None, True, -1, 2.5, float("inf"), [], {}, [[1, 2, 3]], [["x", 1]], 10**400]
    good = json.loads((run / "records.jsonl").read_text().splitlines()[-1])
    for name in good:
        for value in odd:
            text = json.dumps({**good, name: value}) + "\n"
            (run / "records.jsonl").write_text(text)
            view_of(run)
    fleet = json.loads((run / "fleet.json").read_text())
    for name in fleet:
        for value in odd:
            (run / "fleet.json").write_text(json.dumps({**fleet, name: value}))
            view_of(run)
    for value in odd:
        (run / "enrolment.json").write_text(json.dumps({"workers": value}))
        (run / "run.json").write_text(json.dumps(dict.fromkeys(("mechanism", "status"), value)))
        view_of(run)


def test_large_fleets_are_thinned_and_say_so(run, monkeypatch):
    monkeypatch.setattr(map_module, "MAX_DOTS", 4)
    monkeypatch.setattr(map_module, "MAX_LINKS", 1)
    monkeypatch.setattr(workers_module, "MAX_ROWS", 2)
    rewrite(run, lambda row: {**row, "link_pairs": [[0, 1], [1, 2], [2, 3]]})
    shown = view_of(run)
    assert len(shown["map"]["dots"]) == 3
    assert len(shown["map"]["links"]) == 1
    links, dots = shown["map"]["notes"]
    assert "1 of 3 links" in links
    assert "One of 2 workers" in dots
    assert len(shown["workers"]["rows"]) == 2
    assert shown["workers"]["notes"] == ["2 of 6 workers are listed."]


def test_names_of_real_workers(run):
    rows = [{"name": "<script>alert(1)</script>"}, {"name": "w01"}, 7]
    (run / "enrolment.json").write_text(json.dumps({"workers": rows}))
    workers = workers_in(run)
    assert [workers.name(i) for i in range(4)] == ["<script>alert(1)</script>", "w01", "2", "3"]


def test_a_map_without_any_file():
    empty = RunFiles(None, None, None, None)
    follower = LogFollower(Path("/nonexistent"))
    workers = workers_state(empty, follower.history)
    assert "missing" in last_round_map(empty, workers)
    assert workers_view(workers) == {"rows": [], "notes": []}
    place = RunLocation("x", Path("x"))
    assert run_view(place, empty, follower)["cursor"] == cursor(follower, empty)


def test_incidents_of_members(run):
    assert view_of(run)["incidents"] == []
    row = {"member": "w03", "kind": "half_open", "count": 40, "last_s": 12.0, "reporter": "w01"}
    bad = {"member": ["x"], "kind": 3, "count": -1, "last_s": "soon", "text": "y" * 1000}
    (run / "incidents.json").write_text(json.dumps({"incidents": [row, bad, "no", *[row] * 200]}))
    first, second, *others = view_of(run)["incidents"]
    assert first == ["w03", "half open", 40, "12 s", "w01", ""]
    assert second[:5] == ["?", "3", None, "–", "coordinator"]
    assert len(others) < 100
