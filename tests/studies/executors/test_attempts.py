"""Attempts: killed between any two steps, a driver loses nothing and publishes nothing twice."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dystop.folders.run_folder import CHECKPOINTS, RunLock
from dystop.studies.executors.attempts import ATTEMPTS, Attempts
from dystop.studies.executors.driver import run_study
from dystop.studies.executors.local import LocalExecutor
from dystop.studies.study import finished
from support.tiny_study import Listener, records, tiny_study

RUN = "dystop-s0"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run after 6 of 6 rounds, and the same one after 2 and 4 rounds."""
    study = tiny_study(tmp_path_factory.mktemp("made"), seeds=1)
    run_study(study, LocalExecutor(1), Listener())
    whole = study.path / RUN
    half = tiny_study(study.path.parent, seeds=1, name="half", words=["stop.rounds=2"])
    run_study(half, LocalExecutor(1), Listener())
    shutil.copytree(half.path / RUN, study.path / "after-2")
    shutil.copytree(whole, study.path / "after-4")
    max((study.path / "after-4" / CHECKPOINTS).iterdir()).unlink()
    for part in ("after-2", "after-4"):
        info = study.path / part / "run.json"
        info.write_text(info.read_text().replace('"finished"', '"running"'))
        assert rounds_of(study.path / part) == int(part[-1])
    return study


def at(study, tmp_path, published=None, attempts=()):
    """A study with a published run and some attempts, each in a state of `made`."""
    folder = tmp_path / "x"
    shutil.copytree(study.path, folder, ignore=shutil.ignore_patterns(RUN, "after-*"))
    if published:
        shutil.copytree(study.path / published, folder / RUN)
    for number, state in enumerate(attempts):
        shutil.copytree(study.path / state, folder / ATTEMPTS / f"{RUN}.{number:08x}" / RUN)
    return folder


def rounds_of(folder):
    files = (folder / CHECKPOINTS).glob("*.safetensors")
    return max((int(p.stem.rpartition("-")[2]) for p in files), default=0)


class Killed(BaseException):
    """The end of the driver: nothing that comes later is executed."""


def dies(folder, call, at_step):
    """Call a method of `Attempts` in a driver that dies at a step; return whether it got there."""

    def on_step(step):
        if step == at_step:
            raise Killed

    try:
        getattr(Attempts(folder, lambda: None, on_step), call)(RUN)
    except Killed:
        return True
    return False


def test_kill_9_between_the_two_renames(made, tmp_path):
    """The same with a process that is really killed, at the one step where no run is published."""
    folder = at(made, tmp_path, "after-4", [RUN])
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from dystop.studies.executors.attempts import Attempts\n"
        "def on_step(step):\n"
        "    if step == 'replaced': os.kill(os.getpid(), signal.SIGKILL)\n"
        "Attempts(Path(sys.argv[1]), lambda: None, on_step).publish_finished(sys.argv[2])\n"
    )
    driver = subprocess.run([sys.executable, "-c", code, str(folder), RUN], check=False)
    assert driver.returncode == -signal.SIGKILL
    assert not (folder / RUN).exists()
    assert Attempts(folder, lambda: None).keep_progress(RUN)
    assert (folder / RUN / "records.jsonl").read_bytes() == records(made.path)[RUN]


@pytest.mark.parametrize("step", ["replaced", "renamed", "withdrawn"])
@pytest.mark.parametrize("published", [None, "after-4"])
def test_a_driver_killed_while_it_publishes_a_finished_run(made, tmp_path, step, published):
    folder = at(made, tmp_path, published, ["after-2", RUN])
    assert dies(folder, "publish_finished", step) == (published is not None or step != "replaced")
    again = Attempts(folder, lambda: None)
    again.keep_progress(RUN)
    again.clean()
    assert finished(folder / RUN)
    assert (folder / RUN / "records.jsonl").read_bytes() == records(made.path)[RUN]
    assert not (folder / ATTEMPTS).exists()


@pytest.mark.parametrize("step", ["copied", "replaced", "renamed", "withdrawn"])
def test_a_driver_killed_while_it_keeps_the_progress_of_an_attempt(made, tmp_path, step):
    folder = at(made, tmp_path, "after-2", ["after-4"])
    assert dies(folder, "keep_progress", step)
    again = Attempts(folder, lambda: None)
    again.keep_progress(RUN)
    again.clean()
    assert rounds_of(folder / RUN) == 4
    assert not (folder / ATTEMPTS).exists()


def test_a_driver_killed_while_it_begins_an_attempt(made, tmp_path):
    folder = at(made, tmp_path, "after-4")
    assert dies(folder, "begin", "copied")
    again = Attempts(folder, lambda: None)
    again.keep_progress(RUN)
    assert rounds_of(folder / RUN) == 4
    assert rounds_of(again.begin(RUN).folder) == 4


def test_an_attempt_begins_with_the_newest_intact_checkpoint(made, tmp_path):
    folder = at(made, tmp_path, "after-4")
    newest = max((folder / RUN / CHECKPOINTS).iterdir())
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    attempt = Attempts(folder, lambda: None).begin(RUN)
    assert rounds_of(attempt.folder) < 4  # one bit is wrong, so the one before is copied


def test_an_attempt_of_a_run_without_checkpoints_starts_anew(made, tmp_path):
    folder = at(made, tmp_path, "after-4")
    shutil.rmtree(folder / RUN / CHECKPOINTS)
    assert not Attempts(folder, lambda: None).begin(RUN).folder.exists()


def test_records_that_were_cut_make_a_checkpoint_useless(made, tmp_path):
    folder = at(made, tmp_path, "after-4")
    (folder / RUN / "records.jsonl").write_text("")
    assert not Attempts(folder, lambda: None).begin(RUN).folder.exists()


def test_a_finished_attempt_whose_records_were_changed_is_not_published(made, tmp_path):
    folder = at(made, tmp_path, None, [RUN])
    log = folder / ATTEMPTS / f"{RUN}.00000000" / RUN / "records.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    assert not Attempts(folder, lambda: None).publish_finished(RUN)
    assert not (folder / RUN).exists()


def test_older_progress_replaces_nothing(made, tmp_path):
    folder = at(made, tmp_path, "after-4", ["after-2"])
    before = (folder / RUN).stat().st_ino
    Attempts(folder, lambda: None).keep_progress(RUN)
    assert (folder / RUN).stat().st_ino == before
    assert not Attempts(folder, lambda: None).of(RUN)


def test_a_run_that_somebody_resumes_by_hand_is_not_replaced(made, tmp_path):
    folder = at(made, tmp_path, "after-2", [RUN])
    attempts = Attempts(folder, lambda: None)
    with RunLock(folder / RUN):
        for call in (attempts.publish_finished, attempts.begin):
            with pytest.raises(Exception, match=f"process {os.getpid()}"):
                call(RUN)
    assert attempts.publish_finished(RUN)
    assert finished(folder / RUN)


def test_attempts_of_runs_with_similar_names_are_told_apart(tmp_path):
    attempts = Attempts(tmp_path, lambda: None)
    one, two = attempts.begin("V1"), attempts.begin("V1.5")
    assert attempts.of("V1") == [one]
    assert attempts.of("V1.5") == [two]
    assert Path(one.place).parent == tmp_path / ATTEMPTS
