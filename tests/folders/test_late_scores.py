"""Scores that came after their record: the file, and the readers that join it."""

import pytest

import dystop
from dystop.dashboard.run_folders.log_reader import LogFollower, read_tail
from dystop.errors import RunFolderError
from dystop.folders.late_scores import (
    LATE_SCORES,
    LateScoreLog,
    read_late_scores,
    with_late_scores,
)
from dystop.folders.record_log import RECORDS, RecordTail
from dystop.folders.run_folder import (
    create_run,
    log_was_changed,
    open_run,
    record_fingerprints,
    update_info,
)
from dystop.format import FORMAT
from support.dashboard_fixtures import simple_record
from support.fake_runs import changed

LATE = simple_record(4, no_score="late")
SCORED = changed(LATE, no_score=None, accuracy=0.25, accuracy_global=0.5, tested=2)


@pytest.fixture
def folder(tmp_path):
    info = {"format": FORMAT, "status": "running"}
    return create_run(tmp_path, "run", "seed = 1\n", info, {"data_size": [1] * 10})


def plain(t):
    return simple_record(t)


def append(folder, *records):
    with (folder / RECORDS).open("a") as file:
        file.writelines(record.to_json() + "\n" for record in records)


def add_score(folder, record=SCORED):
    with LateScoreLog(folder) as log:
        log.append(record)
        log.sync()


def test_a_run_without_late_scores_has_no_such_file(folder):
    with LateScoreLog(folder) as log:
        log.sync()
    assert not (folder / LATE_SCORES).exists()
    assert read_late_scores(folder) == {}


def test_readers_of_a_folder_join_late_scores(folder):
    append(folder, plain(3), LATE, plain(5))
    add_score(folder)
    before = (folder / RECORDS).read_bytes()
    records = open_run(folder).records
    assert [r.accuracy for r in records] == [None, 0.25, None]
    assert (records[1].get("tested"), records[1].no_score) == (2, None)
    assert dystop.load_run(folder).accuracy == 0.25
    assert (folder / RECORDS).read_bytes() == before


def test_a_score_joins_only_a_record_that_lacks_one():
    scored, unknown = simple_record(4, accuracy=0.9), plain(9)
    scores = {4: {"accuracy": 0.25}}
    assert with_late_scores([scored, unknown], scores) == [scored, unknown]


def test_a_line_that_a_crash_cut_off_is_removed_and_a_repeated_one_is_harmless(folder):
    append(folder, LATE)
    add_score(folder)
    whole = (folder / LATE_SCORES).read_bytes()
    (folder / LATE_SCORES).write_bytes(whole + whole[:9])
    assert open_run(folder).records == [SCORED]
    add_score(folder)
    assert (folder / LATE_SCORES).read_bytes() == 2 * whole
    assert open_run(folder).records == [SCORED]


@pytest.mark.parametrize("line", ["{", "[]", '{"round":"4","accuracy":1}', '{"round":4}'])
def test_a_damaged_line_is_named(folder, line):
    (folder / LATE_SCORES).write_text(line + "\n")
    with pytest.raises(RunFolderError, match=LATE_SCORES):
        open_run(folder)
    append(folder, LATE)
    follower = LogFollower(folder)
    follower.update()
    assert follower.history.last == LATE


def test_a_changed_file_of_a_finished_run_is_noticed(folder):
    append(folder, LATE)
    add_score(folder)
    update_info(folder, status="finished", **record_fingerprints(folder))
    assert not log_was_changed(open_run(folder))
    add_score(folder, changed(SCORED, accuracy=1.0))
    assert log_was_changed(open_run(folder))


def test_a_live_view_gets_a_record_again_when_its_score_comes(folder):
    tail = RecordTail(folder / RECORDS)
    append(folder, plain(3), LATE, plain(5))
    assert [r.round for r in tail.read()] == [3, 4, 5]
    add_score(folder)
    append(folder, plain(6))
    assert tail.read() == [plain(6), SCORED]
    assert tail.read() == []
    assert RecordTail(folder / RECORDS).read() == [plain(3), SCORED, plain(5), plain(6)]


def test_the_dashboard_shows_late_scores(folder):
    append(folder, plain(3), LATE, plain(5))
    follower = LogFollower(folder)
    follower.update()
    assert follower.history.evaluated is None
    add_score(folder)
    follower.update()
    assert follower.history.evaluated == SCORED
    assert follower.history.last == plain(5)
    assert read_tail(folder).evaluated == SCORED


def test_the_dashboard_keeps_evaluations_in_order(folder):
    append(folder, plain(3), LATE, simple_record(5, accuracy=0.3))
    follower = LogFollower(folder)
    follower.update()
    version = follower.version
    add_score(folder)
    follower.update()
    assert [p.at[0] for p in follower.history.evaluations.points] == [4, 5]
    assert follower.version != version
