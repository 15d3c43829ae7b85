"""Following a record log: only what is new, half lines, logs that are cut back or replaced."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.dashboard.run_folders import downsample, log_reader
from dystop.dashboard.run_folders.downsample import DownsampledSeries, merged, round_point
from dystop.dashboard.run_folders.history import History, worker_ids
from dystop.dashboard.run_folders.log_reader import LogFollower
from dystop.dashboard.run_folders.log_reader import read_tail as end_of
from support.dashboard_fixtures import simple_record


def line(t, **more) -> bytes:
    return simple_record(t, **more).to_json().encode() + b"\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "records.jsonl"
    path.touch()
    return path


def append(path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def rounds(follower):
    return [p.at[0] for p in follower.history.rounds.points]


def test_only_what_is_new_is_read(log, monkeypatch):
    follower = LogFollower(log.parent)
    append(log, line(1) + line(2))
    follower.update()
    reads = []
    monkeypatch.setattr(
        os, "pread", lambda fd, n, at, do=os.pread: reads.append(at) or do(fd, n, at)
    )
    append(log, line(3))
    follower.update()
    assert rounds(follower) == [1, 2, 3]
    assert max(reads) == len(line(1) + line(2))
    assert all(at == max(reads) - log_reader._OVERLAP for at in reads if at != max(reads))


def test_a_half_written_line_is_waited_for(log):
    follower = LogFollower(log.parent)
    whole = line(2)
    append(log, line(1) + whole[:40])
    follower.update()
    follower.update()
    assert rounds(follower) == [1]
    assert follower.history.damaged == 0
    append(log, whole[40:])
    follower.update()
    assert rounds(follower) == [1, 2]


def test_a_resumed_run_cuts_its_log_back(log):
    follower = LogFollower(log.parent)
    append(log, line(1) + line(2) + line(3))
    follower.update()
    before = follower.version
    log.write_bytes(line(1))
    follower.update()
    assert rounds(follower) == [1]
    assert follower.version != before


def test_a_log_that_was_cut_and_has_grown_past_the_old_end_is_known(log):
    follower = LogFollower(log.parent)
    append(log, line(1) + line(2))
    follower.update()
    with log.open("r+b") as file:
        file.truncate(len(line(1)))
        file.seek(0, os.SEEK_END)
        file.write(b"".join(line(t, clock_s=9.0 + t) for t in (2, 3, 4)))
    follower.update()
    assert [p.at[:2] for p in follower.history.rounds.points] == [
        (1, 1.5),
        (2, 11.0),
        (3, 12.0),
        (4, 13.0),
    ]


def test_the_same_lines_again_change_nothing(log):
    """A simulated run that is resumed writes the very same lines."""
    follower = LogFollower(log.parent)
    append(log, line(1) + line(2))
    follower.update()
    before = follower.version
    log.write_bytes(line(1) + line(2) + line(3))
    follower.update()
    assert (rounds(follower), follower.version) == ([1, 2, 3], before)


def test_a_log_that_is_replaced_by_another_is_read_anew(log):
    follower = LogFollower(log.parent)
    append(log, line(1) + line(2))
    follower.update()
    other = log.with_name("other")
    other.write_bytes(line(1, clock_s=7.0))
    other.replace(log)
    follower.update()
    assert [p.at[1] for p in follower.history.rounds.points] == [7.0]
    log.unlink()
    follower.update()
    assert rounds(follower) == []


def test_a_long_log_comes_in_pieces(log, monkeypatch):
    monkeypatch.setattr(log_reader, "MAX_READ", 3 * len(line(1)) + 10)
    append(log, b"".join(map(line, range(1, 9))))
    follower, seen = LogFollower(log.parent), []
    for _ in range(10):
        follower.update()
        seen.append((rounds(follower)[-1], follower.is_behind))
        if not follower.is_behind:
            break
    assert [t for t, _ in seen] == sorted({t for t, _ in seen})
    assert seen[-1] == (8, False)
    assert len(seen) > 2


def test_a_line_without_end_is_told(log, monkeypatch):
    monkeypatch.setattr(log_reader, "MAX_READ", 1000)
    append(log, line(1) + b"x" * 5000)
    follower = LogFollower(log.parent)
    follower.update()
    follower.update()
    assert follower.is_stuck
    assert not follower.is_behind
    assert rounds(follower) == [1]


def test_damage_is_counted_and_passed_over(log):
    bad = [b"{}", b"[1]", b"no", b"\xff\xfe", b"", b"[" * 100_000]
    odd = json.dumps({**json.loads(line(2)), "round": "<b>"}).encode()
    infinite = line(2).replace(b'"clock_s":3.0', b'"clock_s":NaN').strip()
    append(log, line(1) + b"".join(b + b"\n" for b in [*bad, odd, infinite]) + line(3))
    follower = LogFollower(log.parent)
    follower.update()
    assert rounds(follower) == [1, 3]
    assert follower.history.damaged == len(bad) + 2


def test_links_and_pipes_are_not_opened(tmp_path):
    (tmp_path / "elsewhere").write_bytes(line(1))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "records.jsonl").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "records.jsonl")
    for name in ("run", "pipe", "nothing"):
        follower = LogFollower(tmp_path / name)
        follower.update()
        assert rounds(follower) == []


def test_a_disk_that_fails_is_asked_again(log, monkeypatch):
    follower = LogFollower(log.parent)
    append(log, line(1))

    def broken(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        follower.update()
        assert end_of(log.parent).last is None
    follower.update()
    assert rounds(follower) == [1]


# Curves


@given(st.integers(1, 400), st.integers(1, 40))
def test_lines_stay_short_and_exact(count, most):
    before, downsample.MAX_POINTS = downsample.MAX_POINTS, most
    try:
        out = DownsampledSeries()
        for t in range(1, count + 1):
            out.add(round_point((t,), (float(t), None), (float(t),)))
    finally:
        downsample.MAX_POINTS = before
    assert len(out.points) <= most
    assert sum(p.rounds for p in out.points) == count
    assert all(p.rounds == out.group for p in out.points[:-1])
    assert out.points[-1].at == (count,)
    total = sum(p.sums[0][0] for p in out.points)
    assert total == count * (count + 1) / 2
    assert [p.largest[0] for p in out.points] == [float(p.at[0]) for p in out.points]


def test_unknown_values_do_not_pull_a_mean():
    both = merged(round_point((1,), (None, 4.0)), round_point((2,), (2.0, 6.0)))
    assert both.row() == [2, 2.0, 5.0]
    assert merged(
        round_point((1,), (None,), (None,)), round_point((2,), (None,), (None,))
    ).row() == [
        2,
        None,
        None,
    ]


def test_points_are_kept_until_they_are_put_together(monkeypatch):
    monkeypatch.setattr(downsample, "MAX_POINTS", 4)
    out, epochs = DownsampledSeries(), []
    for t in range(1, 12):
        out.add(round_point((t,), (1.0,)))
        epochs.append(out.version)
    assert epochs == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


# Who was active


def test_staleness_follows_from_who_was_active():
    history = History()
    for t, active in enumerate([[0], [1, 2], [0, 1], [2]], 1):
        history.add(simple_record(t, active_ids=active, link_pairs=[]))
    # eq:staleness by hand, when round 4 opened: 0 and 1 were active in round 3, 2 in round 2
    assert history.staleness(4) == [0, 0, 1, 3]
    assert history.times_active == {0: 2, 1: 2, 2: 2}


def test_staleness_is_unknown_where_a_round_is_silent():
    history = History()
    history.add(simple_record(1, active_ids=[0]))
    history.add(simple_record(2))
    assert history.staleness(2) is None
    assert History().staleness(2) is None


def test_numbers_of_workers():
    assert worker_ids([2, 2, True, "1", -3, 1.0, None, 10**30, 5]) == [2, 5]
    assert worker_ids("12") == []


# The end of a log


def test_the_end_of_a_long_log_is_found(log, monkeypatch):
    monkeypatch.setattr(log_reader, "TAIL_BYTES", 500)
    lines = [line(t, accuracy=0.5 if t == 4 else None) for t in range(1, 40)]
    append(log, b"".join(lines) + b'{"round":')
    found = end_of(log.parent)
    assert (found.last.round, found.evaluated.round) == (39, 4)
    monkeypatch.setattr(log_reader, "MAX_TAIL_BYTES", 1000)
    found = end_of(log.parent)
    assert (found.last.round, found.evaluated) == (39, None)


def test_the_end_of_nothing(log, tmp_path):
    assert end_of(log.parent).last is None
    assert end_of(tmp_path / "missing").last is None
    append(log, b"damage\n")
    assert end_of(log.parent).last is None
