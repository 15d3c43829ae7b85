"""What runs on a node: one attempt, once; and the proof that the node shares the folder."""

import json
import os
import signal
import threading
import time

import pytest

from dystop.errors import RunFolderError
from dystop.studies.executors.executor import Job, Need
from dystop.studies.executors.node import REFUSED, describe, ended, run_attempt, started
from dystop.studies.executors.shared_folder import read_back, refuse_unshared, written_nonce


@pytest.fixture
def job(tmp_path):
    place = tmp_path / "a.00000000"
    place.mkdir()
    job = Job(Need("a"), ("run", "none.toml"), place / "a", place, tmp_path)
    describe(job)
    return job


def test_an_attempt_runs_once_and_notes_how_it_ended(job):
    assert (started(job), ended(job)) == (False, None)
    code, reason = run_attempt(str(job.place))
    assert (code, "none.toml: no such file" in reason) == (2, True)
    assert started(job)
    noted = ended(job)
    assert (noted.code, noted.reason, noted.may_retry) == (2, reason, False)
    code, reason = run_attempt(str(job.place))  # an engine that starts the same job again
    assert (code, "was started before" in reason) == (REFUSED, True)


def test_an_attempt_that_was_withdrawn_does_not_start(job):
    job.place.rename(job.place.with_name(".gone"))
    code, reason = run_attempt(str(job.place))
    assert (code, "is not there" in reason) == (REFUSED, True)
    assert not job.place.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_lets_the_command_save_and_exit(job, number, monkeypatch, tmp_path):
    """SIGUSR2 is what Slurm sends before the time limit."""
    from dystop.runs import processes

    script = "import time, pathlib\npathlib.Path('up').touch()\ntime.sleep(600)\n"
    monkeypatch.setattr(processes, "dystop_command", lambda *words: ["python", "-c", script])

    def send():
        while not (tmp_path / "up").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=send).start()
    code, _ = run_attempt(str(job.place))
    assert code == -signal.SIGTERM
    assert json.loads((job.place / "ended.json").read_text())["code"] == code
    assert signal.getsignal(number) == before


def test_a_node_reads_back_what_the_driver_wrote(tmp_path):
    with written_nonce(tmp_path) as nonce:
        host, problem = read_back(str(nonce.path), nonce.text)
        assert (bool(host), problem) == (True, "")
        assert "another folder" in read_back(str(nonce.path), "other")[1]
        assert "cannot be read" in read_back(str(tmp_path / "none" / "x"), nonce.text)[1]
        refuse_unshared(tmp_path, {"n1": ""})
        with pytest.raises(RunFolderError, match="node n2: /x is another folder there") as why:
            refuse_unshared(tmp_path, {"n1": "", "n2": "/x is another folder there"})
        assert "--out" in str(why.value)
    assert os.listdir(tmp_path) == []
