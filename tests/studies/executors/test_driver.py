"""The driver of a study on an engine: every run once, whatever happens to the attempts."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from dystop.errors import DystopError, RunFolderError
from dystop.studies.executors.attempts import ATTEMPTS
from dystop.studies.executors.driver import run_study
from dystop.studies.executors.driver_lock import LEASE
from dystop.studies.executors.executor import Ended
from dystop.studies.executors.local import LocalExecutor
from dystop.studies.study import finished
from support.tiny_study import FakeEngine, Listener, records, run, tiny_study


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The records of a study that ran here, without any engine."""
    study = tiny_study(tmp_path_factory.mktemp("local"))
    run_study(study, LocalExecutor(1), Listener())
    return records(study.path)


def die_after(rounds):
    """An attempt that is killed after so many rounds, as on a node that is switched off."""

    def attempt(job):
        from dystop.runs import run as runs

        def stop(record):
            if record.round == rounds:
                raise SystemExit(9)

        def nothing(started):
            pass

        with suppress(SystemExit):
            if job.words[0] == "resume":
                runs.resume_run(job.folder, nothing, stop)
            else:
                plan = runs.read_experiment(Path(job.words[1]))
                runs.run_experiment(plan, job.folder.parent, job.run, nothing, stop)
        return Ended(-9, "the node was lost")

    return attempt


def test_a_study_on_an_engine_has_the_bytes_of_a_local_one(tmp_path, expected):
    study, listener = tiny_study(tmp_path), Listener()
    run_study(study, FakeEngine(), listener)
    assert records(study.path) == expected
    assert sorted(listener.finished) == sorted(expected)
    assert sorted(os.listdir(study.path)) == [".lock", *sorted(expected), "plan", "study.json"]


def test_the_next_attempt_begins_at_the_last_checkpoint(tmp_path, expected):
    study, listener = tiny_study(tmp_path, seeds=1), Listener()
    engine = FakeEngine({"dystop-s0": [die_after(3), die_after(5)]})
    run_study(study, engine, listener)
    assert [job.words[0] for job in engine.jobs] == ["run", "resume", "resume"]
    assert len({job.folder for job in engine.jobs}) == 3
    assert [reason for _, reason in listener.retried] == ["the node was lost"] * 2
    assert records(study.path)["dystop-s0"] == expected["dystop-s0"]


@pytest.mark.parametrize("code", [2, 4])
def test_a_mistake_of_the_user_is_not_attempted_again(tmp_path, code):
    study = tiny_study(tmp_path)
    engine = FakeEngine({"dystop-s0": [lambda job: Ended(code, "stop.rounds = -1")]})
    with pytest.raises(DystopError, match=r"dystop-s0: stop\.rounds = -1") as caught:
        run_study(study, engine, Listener())
    assert caught.value.exit_code == code
    assert f"dystop compare {study.path} --on fake" in str(caught.value)
    assert [job.run for job in engine.jobs] == ["dystop-s0", "dystop-s1"]
    assert finished(study.path / "dystop-s1")  # its neighbour has waited for its turn, and goes on


def test_a_run_that_always_fails_is_given_up_after_three_more_attempts(tmp_path):
    study = tiny_study(tmp_path, seeds=1)
    engine = FakeEngine({"dystop-s0": [lambda job: Ended(1, "no luck")] * 9})
    with pytest.raises(DystopError, match="dystop-s0: no luck"):
        run_study(study, engine, Listener())
    assert len(engine.jobs) == 4
    assert not (study.path / ATTEMPTS).exists()


def test_a_job_that_somebody_cancelled_is_not_attempted_again(tmp_path):
    study = tiny_study(tmp_path, seeds=1)
    engine = FakeEngine({"dystop-s0": [lambda job: Ended(143, "was cancelled", final=True)]})
    with pytest.raises(DystopError, match="was cancelled"):
        run_study(study, engine, Listener())
    assert len(engine.jobs) == 1


def test_finished_runs_are_never_run_twice(tmp_path, expected):
    study = tiny_study(tmp_path)
    run_study(study, FakeEngine(), Listener())
    before = {p: p.stat().st_mtime_ns for p in study.path.rglob("records.jsonl")}
    engine = FakeEngine()
    run_study(study, engine, Listener())
    assert engine.jobs == []
    assert before == {p: p.stat().st_mtime_ns for p in study.path.rglob("records.jsonl")}


def test_an_exit_without_a_finished_run_is_no_success(tmp_path):
    study = tiny_study(tmp_path, seeds=1)
    engine = FakeEngine({"dystop-s0": [lambda job: Ended(0)]})
    run_study(study, engine, Listener())
    assert len(engine.jobs) == 2


class Impatient(Listener):
    """Presses Ctrl-C in the third round."""

    def on_record(self, run, record):
        super().on_record(run, record)
        if record.round == 4:
            os.kill(os.getpid(), signal.SIGINT)


def slow_job(job):
    """Rounds 1 to 5, then nothing: the job still runs."""
    die_after(5)(job)


def test_a_run_goes_on_where_another_engine_left_it(tmp_path, expected):
    study = tiny_study(tmp_path)
    engine = FakeEngine({name: [slow_job] for name in expected})
    with pytest.raises(KeyboardInterrupt):
        run_study(study, engine, Impatient())
    assert sorted(engine.cancelled) == sorted(expected)
    assert not (study.path / ATTEMPTS).exists()
    kept = records(study.path)
    assert {name: lines.count(b"\n") >= 4 for name, lines in kept.items()} == dict.fromkeys(
        expected, True
    )
    listener = Listener()
    run_study(study, LocalExecutor(1), listener)  # and back on this machine
    assert records(study.path) == expected


def test_a_run_begun_here_goes_on_on_an_engine(tmp_path, expected):
    study = tiny_study(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, LocalExecutor(1), Impatient())
    engine = FakeEngine()
    run_study(study, engine, Listener())
    assert engine.jobs[0].words[0] == "resume"
    assert records(study.path) == expected


def abandoned(study, attempt):
    """A driver that submits the first run, and dies like a process that is killed."""
    engine = FakeEngine({"dystop-s0": [attempt]})

    class Killed(BaseException):
        pass

    def killed(job):
        attempt(job)
        raise Killed

    engine.faults["dystop-s0"] = [killed]
    from dystop.studies.executors import driver

    stop, driver.Driver._stop = driver.Driver._stop, lambda self: None
    clean, driver.Attempts.clean = driver.Attempts.clean, lambda self: None
    try:
        with pytest.raises(Killed):
            run_study(study, engine, Listener())
    finally:
        driver.Driver._stop, driver.Attempts.clean = stop, clean


@pytest.mark.parametrize("attempt", [run, die_after(3)])
def test_a_dead_driver_is_replaced_by_the_same_command(tmp_path, expected, attempt):
    study = tiny_study(tmp_path)
    abandoned(study, attempt)
    assert not (study.path / "dystop-s0").exists()
    engine, listener = FakeEngine(), Listener()
    run_study(study, engine, listener)
    words = {job.run: job.words[0] for job in engine.jobs}
    assert words == (
        {"dystop-s1": "run"} if attempt is run else {"dystop-s0": "resume", "dystop-s1": "run"}
    )
    assert records(study.path) == expected
    assert not (study.path / ATTEMPTS).exists()


def test_a_job_of_a_dead_driver_is_found_again(tmp_path, expected):
    study = tiny_study(tmp_path)
    abandoned(study, die_after(3))
    assert len(list((study.path / ATTEMPTS).glob("[!.]*"))) == 2

    engine = FakeEngine(known=expected)
    run_study(study, engine, Listener())
    assert engine.jobs == []  # nothing was submitted a second time
    assert records(study.path) == expected


def test_a_second_driver_is_refused(tmp_path):
    study = tiny_study(tmp_path, seeds=1)

    def second(job):
        with pytest.raises(RunFolderError, match=f"process {os.getpid()}"):
            run_study(study, FakeEngine(), Listener())
        return run(job)

    run_study(study, FakeEngine({"dystop-s0": [second]}), Listener())
    assert finished(study.path / "dystop-s0")


def test_a_driver_that_was_replaced_publishes_nothing(tmp_path):
    study = tiny_study(tmp_path, seeds=1)

    def replaced(job):
        (study.path / LEASE).write_text('{"token": "other", "host": "there", "pid": 7}')
        return run(job)

    with pytest.raises(RunFolderError, match="process 7 on there"):
        run_study(study, FakeEngine({"dystop-s0": [replaced]}), Listener())
    assert not (study.path / "dystop-s0").exists()


def test_what_an_abandoned_node_writes_later_is_never_published(tmp_path, expected):
    """A node that was given up writes on after its successor was published."""
    study, folders, still_open = tiny_study(tmp_path, seeds=1), [], []

    def lost(job):
        ended = die_after(3)(job)
        folders.append(job.folder)
        still_open.append(os.open(job.folder / "records.jsonl", os.O_WRONLY | os.O_APPEND))
        return ended

    def successor(job):
        assert job.folder != folders[0]
        os.write(still_open[0], b"later\n")
        with pytest.raises(FileNotFoundError):
            (folders[0] / "run.json").write_text("{}")
        return run(job)

    run_study(study, FakeEngine({"dystop-s0": [lost, successor]}), Listener())
    os.write(still_open[0], b"much later\n")
    os.close(still_open[0])
    assert records(study.path)["dystop-s0"] == expected["dystop-s0"]
    assert finished(study.path / "dystop-s0")
    assert not folders[0].exists()
