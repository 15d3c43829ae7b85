"""Ctrl-C and SIGTERM: deferred where work must not stop half-way, never lost, exit code 128 + n.

The tests of the class send signals to this process. The others start the `dystop` command, send it
signals at chosen moments, and look at the exit code, at the status of the run, and at whether the
run can be resumed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import pytest

from dystop.config import read_experiment
from dystop.errors import DystopError
from dystop.folders.run_folder import open_run
from dystop.runs.interrupts import Interrupts, Terminated, signals_kill, sigterm_raises
from dystop.runs.run import resume_run, run_experiment, verify_run
from support.crashing_child import CONFIG

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def run_interrupted(work, kind=KeyboardInterrupt):
    """Return what the work noted until the signal was raised."""
    noted = []
    with pytest.raises(kind):
        work(noted.append)
    return noted


def test_the_first_signal_waits_until_it_is_checked():
    def work(note):
        with Interrupts() as interrupts:
            interrupts.check()
            note(interrupts.pending_s)
            send()
            time.sleep(0.01)
            note(interrupts.pending)
            assert interrupts.pending_s > 0.0
            interrupts.check()
            note("after the check")

    assert run_interrupted(work) == [0.0, signal.SIGINT]


def test_a_signal_that_nobody_checks_is_raised_when_the_block_ends():
    def work(note):
        with Interrupts():
            send()
            note("in the block")
        note("after the block")

    assert run_interrupted(work) == ["in the block"]


def test_a_signal_that_nobody_checks_can_be_dropped():
    with Interrupts(raise_at_exit=False) as interrupts:
        send()
    assert interrupts.pending == signal.SIGINT


def test_a_second_signal_raises_at_once():
    def work(note):
        with Interrupts():
            send()
            send()
            note("after the second signal")

    assert run_interrupted(work) == []


@pytest.mark.parametrize("handler", [sigterm_raises, nullcontext])
def test_sigterm_raises_an_exception_of_its_own(handler):
    """Also in a program that uses the library and has set no handler."""

    def work(note):
        with handler(), Interrupts():
            send(signal.SIGTERM)
            note("in the block")

    assert run_interrupted(work, Terminated) == ["in the block"]


def test_outside_a_block_sigterm_raises_at_once():
    def work(note):
        with sigterm_raises():
            send(signal.SIGTERM)
            note("after the signal")

    assert run_interrupted(work, Terminated) == []


def test_the_signal_is_raised_in_place_of_an_error_that_it_caused():
    def work(note):
        with Interrupts():
            send()
            raise DystopError("a tool was interrupted as well")

    assert run_interrupted(work) == []


def test_an_inner_block_hands_the_signal_to_the_outer_one():
    def work(note):
        with Interrupts() as outer:
            with Interrupts():
                send()
            note(outer.pending)
            outer.check()
            note("after the check")

    assert run_interrupted(work) == [signal.SIGINT]


def test_handlers_are_restored():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before[0]
        assert signal.getsignal(signal.SIGTERM) != before[1]
        with signals_kill():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts, signals_kill():
            send()
        assert interrupts.pending is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone():
    passed = []

    def work():
        with Interrupts() as interrupts, sigterm_raises():
            interrupts.check()
            passed.append("checked")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert passed == ["checked"]


@pytest.mark.parametrize("moment", ["during the call", "after the call"])
def test_a_call_without_handlers_is_ended_by_the_signal(moment):
    """`pause` of the C library stands for MPI_Init: Python runs no handler while it waits."""
    program = (
        "import ctypes, os, signal, threading\n"
        "from dystop.runs.interrupts import Interrupts, signals_kill\n"
        "def send(): os.kill(os.getpid(), signal.SIGINT)\n"
        "with Interrupts(raise_at_exit=False) as interrupts:\n"
        "    with signals_kill():\n"
        f"        if {moment == 'during the call'}:\n"
        "            threading.Timer(0.1, send).start()\n"
        "            ctypes.CDLL(None).pause()\n"
        "    send()\n"
        "    print('pending', interrupts.pending, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=1200, check=False, capture_output=True, text=True
    )
    if moment == "during the call":
        assert (done.returncode, done.stdout) == (-signal.SIGINT, "")
    else:
        assert (done.returncode, done.stdout) == (0, "pending 2\n")


def test_an_error_that_the_signal_may_have_caused_does_not_fail_the_run(tmp_path):
    def interrupted(record):
        send()
        raise DystopError("the process of an app was ended")

    with pytest.raises(KeyboardInterrupt):
        run_experiment(read_experiment(None, CONFIG), tmp_path, "it", lambda _: None, interrupted)
    assert open_run(tmp_path / "it").info["status"] == "interrupted"


LONG = [*CONFIG, "stop.rounds=100000", "output.checkpoint_every=7"]
SHORT_ENOUGH = "stop.rounds=40"


@pytest.fixture
def command(tmp_path):
    """Starts `dystop` with a signal of its own at a chosen moment; ends what is left."""
    started = []

    def start(*words, hook=""):
        program = f"import sys\n{hook}\nfrom dystop.__main__ import main\nmain()"
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def sending_at(function, number):
    """Code that wraps a function of dystop: its first call sends the process a signal."""
    module, _, name = function.rpartition(".")
    return (
        f"import importlib, os\nmodule = importlib.import_module({module!r})\n"
        f"usual = module.{name}\n"
        "def wrapped(*args, **keys):\n"
        f"    module.{name} = usual\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return usual(*args, **keys)\n"
        f"module.{name} = wrapped\n"
    )


def lines_of(folder):
    path = folder / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_rounds(folder, process, rounds):
    until = time.monotonic() + 1200
    while lines_of(folder) < rounds:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.slow
@BOTH
def test_before_there_is_a_folder_nothing_is_written(tmp_path, command, number):
    hook = sending_at("dystop.runs.building.simulation.load_data", number)
    process = command("run", *LONG, "--out", tmp_path / "runs", "--name", "x", hook=hook)
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert "nothing was written" in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    "moment",
    [
        "dystop.folders.run_folder._fill",  # the folder is half made
        "dystop.runs.run.begin",  # before the first round
        "dystop.simulator.checkpoint.save",  # while round 7 is saved
    ],
)
def test_a_signal_at_any_moment_leaves_a_run_that_can_be_resumed(tmp_path, command, number, moment):
    folder = tmp_path / "runs" / "x"
    process = command("run", *LONG, "--out", folder.parent, "--name", "x",
                      hook=sending_at(moment, number))  # fmt: skip
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 128 + number, errors
    assert f"dystop resume {folder}" in errors
    assert "Traceback" not in errors
    check_interrupted_and_resumable(folder)


@pytest.mark.slow
@BOTH
def test_two_signals_end_a_run_at_once(tmp_path, command, number):
    folder = tmp_path / "runs" / "x"
    process = command("run", *LONG, "--out", folder.parent, "--name", "x", "--quiet")
    wait_for_rounds(folder, process, 10)
    process.send_signal(number)
    process.send_signal(number)
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 128 + number, errors
    check_interrupted_and_resumable(folder)


def check_interrupted_and_resumable(folder):
    """Resume the run in this process for a few rounds."""
    assert open_run(folder).info["status"] == "interrupted"
    done = lines_of(folder)

    def send_after_two_rounds(record):
        if record.round == done + 2:
            send()

    with pytest.raises(KeyboardInterrupt):
        resume_run(folder, lambda started: None, send_after_two_rounds)
    assert lines_of(folder) >= done + 2  # rounds that are decided already are carried out
    assert open_run(folder).info["status"] == "interrupted"
    assert verify_run(folder, done + 2, lambda record: None).identical


@pytest.mark.slow
def test_a_signal_after_the_last_round_leaves_a_finished_run(tmp_path, command):
    folder = tmp_path / "runs" / "x"
    words = [*CONFIG, "stop.rounds=5", "--out", folder.parent, "--name", "x"]
    process = command("run", *words, hook=sending_at("dystop.runs.run.keep_models", 2))
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 130, errors
    info = json.loads((folder / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["records_sha256"]
    resume_run(folder, lambda started: None, lambda record: None)  # there is nothing left to do
    assert lines_of(folder) == 5


@pytest.mark.slow
def test_the_command_ignores_what_its_shell_ignores(tmp_path, command):
    """As under `nohup`, or in the background of a script."""
    folder = tmp_path / "runs" / "x"
    hook = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    words = ["run", *CONFIG, SHORT_ENOUGH, "--out", folder.parent, "--name", "x", "--quiet"]
    words.append("--no-report")
    process = command(*words, hook=hook)
    wait_for_rounds(folder, process, 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    assert lines_of(folder) == 40
