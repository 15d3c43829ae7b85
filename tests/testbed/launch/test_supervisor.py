"""The process supervisor starts, restarts, gives up and always stops its children."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dystop.errors import DystopError
from dystop.testbed.launch import supervisor
from dystop.testbed.launch.supervisor import ProcessSupervisor


@pytest.fixture
def supervised(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    supervised = ProcessSupervisor(dict(os.environ))
    yield supervised
    supervised.stop(0.5)


def start(supervised, tmp_path, script, name="one", essential=True):
    command, log = [sys.executable, "-c", script], tmp_path / f"{name}.log"
    return supervised.start(name, command, log, essential=essential)


def until(supervised, holds, within_s=10.0):
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end
        supervised.poll()
        time.sleep(0.01)


def test_a_child_that_ends_well_is_not_started_again(supervised, tmp_path):
    child = start(supervised, tmp_path, "print('done')")
    until(supervised, lambda: child.done)
    supervised.poll()
    assert child.starts == 1
    assert child.last_log_line() == "done"


def test_a_killed_child_is_started_again(supervised, tmp_path):
    child = start(supervised, tmp_path, "import time; time.sleep(60)")
    assert child.running
    os.kill(child.process.pid, signal.SIGKILL)
    until(supervised, lambda: child.starts == 2 and child.running)
    assert child.crashes == 0  # a kill from outside is no crash


@pytest.mark.parametrize(
    ("code", "name"), [(signal.SIGABRT, "SIGABRT"), (signal.SIGSEGV, "SIGSEGV")]
)
def test_a_child_that_crashes_natively_is_given_up(supervised, tmp_path, monkeypatch, code, name):
    monkeypatch.setattr(supervisor, "MAX_CRASHES", 1)
    child = start(supervised, tmp_path, f"import os; os.kill(os.getpid(), {int(code)})")
    with pytest.raises(DystopError, match=rf"one .*{name} 2 times.*{child.log}"):
        until(supervised, lambda: False)
    assert child.starts == 2


def test_a_child_that_is_killed_again_and_again_is_given_up(supervised, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_KILLS", 2)
    start(supervised, tmp_path, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(DystopError, match=r"SIGKILL 3 times.*memory"):
        until(supervised, lambda: False)


def test_every_restart_is_reported(supervised, tmp_path):
    child = start(supervised, tmp_path, "import time; time.sleep(60)")
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()
    (notice,) = supervised.poll()
    assert all(fact in notice for fact in ("one ", "SIGKILL", str(child.log)))
    assert supervised.poll() == []


def test_a_child_in_quarantine_is_restarted_only_on_request(supervised, tmp_path):
    child = start(supervised, tmp_path, "import sys; sys.exit(6)")
    until(supervised, lambda: child.done)
    supervised.poll()
    assert child.starts == 1
    supervised.restart("unknown")
    supervised.restart("one")
    until(supervised, lambda: child.starts == 2 and child.done)


def test_the_error_of_wrong_input_is_passed_on(supervised, tmp_path):
    start(supervised, tmp_path, "import sys; print('Error: port 1 is taken'); sys.exit(2)")
    with pytest.raises(DystopError, match=r"one .*code 2: port 1 is taken") as error:
        until(supervised, lambda: False)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("print('Error: w00.crt has expired'); sys.exit(2)", "code 2: w00.crt has expired"),
        ("print('Error: model.py, line 3'); sys.exit(4)", "code 4: model.py, line 3"),
        ("print('Error: out of range'); sys.exit(1)", "code 1 2 times: out of range"),
        ("os.kill(os.getpid(), 9)", "SIGKILL 2 times"),
    ],
)
def test_a_party_that_cannot_go_on_is_left_behind(supervised, tmp_path, monkeypatch, script, fact):
    monkeypatch.setattr(supervisor, "MAX_CRASHES", 1)
    monkeypatch.setattr(supervisor, "MAX_KILLS", 1)
    other = start(supervised, tmp_path, "import time; time.sleep(9000)", "other")
    child = start(supervised, tmp_path, f"import os, sys; {script}", essential=False)
    notices = []
    end = time.monotonic() + 1200
    while not child.done:
        assert time.monotonic() < end
        notices += supervised.poll()
        time.sleep(0.01)
    assert fact in notices[-1]
    assert "continues without it" in notices[-1]
    assert fact in str(supervised.left_behind()["one"])
    assert other.running
    assert supervised.poll() == []
    starts = child.starts
    supervised.restart("one")  # it has a new certificate
    assert supervised.left_behind() == {}
    until(supervised, lambda: child.starts > starts)


def test_a_child_that_always_crashes_is_given_up(supervised, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_CRASHES", 2)
    child = start(supervised, tmp_path, "import sys; print('Error: out of range'); sys.exit(1)")
    with pytest.raises(DystopError, match="out of range"):
        until(supervised, lambda: False)
    assert child.starts == 3


def test_a_child_that_ignores_sigterm_is_killed(supervised, tmp_path):
    script = "import signal,time; signal.signal(15, lambda *a: None); print('up', flush=True)\n"
    child = start(supervised, tmp_path, script + "while True: time.sleep(1)")
    until(supervised, lambda: child.last_log_line() == "up")
    began = time.monotonic()
    supervised.stop(0.3)
    assert time.monotonic() - began < 2
    assert child.process is None


def test_children_end_when_the_launcher_is_killed(tmp_path):
    """A child that ignores SIGTERM still ends when its parent is killed with SIGKILL."""
    script = f"""
import os, sys, time
from pathlib import Path
from dystop.testbed.launch.supervisor import ProcessSupervisor
supervised = ProcessSupervisor(dict(os.environ, DYSTOP_LIFELINE="2"))
child = '''
import signal, time
from dystop.runs.processes import exit_with_parent
signal.signal(signal.SIGTERM, lambda *a: None)
exit_with_parent()
print("up", flush=True)
while True: time.sleep(1)
'''
one = supervised.start("one", [sys.executable, "-c", child], Path({str(tmp_path / "one.log")!r}))
while one.last_log_line() != "up": time.sleep(0.05)
print(one.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).stdout
    pid = int(out)
    end = time.monotonic() + 1200
    while os.path.isdir(f"/proc/{pid}") and "Z" not in _state(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def orphan(script, tmp_path, *, wait_for=""):
    """Start a child, close its lifeline as the end of its parent does; return its exit code."""
    log = tmp_path / "orphan.log"
    with log.open("wb") as file:
        child = subprocess.Popen(
            script if isinstance(script, list) else [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env={**os.environ, "DYSTOP_LIFELINE": "60"},
        )
    try:
        while wait_for and wait_for not in log.read_text():
            assert child.poll() is None
            time.sleep(0.01)
        child.stdin.close()
        return child.wait(20.0)
    finally:
        child.kill()
        child.wait()


WATCH = "from dystop.runs.processes import exit_with_parent; exit_with_parent()\n"
IGNORE = "import signal; signal.signal(signal.SIGTERM, lambda *a: None)\n"


def test_a_child_that_starts_after_its_launcher_has_ended_ends_at_once(tmp_path):
    """It does not wait for the grace that a working child has."""
    script = f"import os, time\n{IGNORE}print('up', flush=True)\nos.read(0, 1)\n{WATCH}"
    assert orphan(f"{script}time.sleep(60)", tmp_path, wait_for="up") == 143


def test_a_child_ends_in_an_import_that_lets_no_other_thread_run(tmp_path):
    script = f"{WATCH}import ctypes\nprint('up', flush=True)\nctypes.PyDLL(None).sleep(60)"
    assert orphan(script, tmp_path, wait_for="up") == -signal.SIGTERM


def test_a_child_that_works_gets_one_signal_and_time_to_leave(tmp_path):
    script = f"""{WATCH}
import signal, threading, time
came = []
signal.signal(signal.SIGTERM, lambda *a: came.append(a))
print("up", flush=True)
while not came: time.sleep(0.01)
time.sleep(0.5)
raise SystemExit(10 + len(came))
"""
    assert orphan(script, tmp_path, wait_for="up") == 11


def test_a_command_looks_for_its_parent_before_it_imports_anything_large(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "dystop", "worker", "--help"]
    assert orphan(command, tmp_path) == 143
    assert "dystop.cli" not in (tmp_path / "orphan.log").read_text()


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_long_log_is_moved_while_the_child_writes(supervised, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 1000)
    log, older = tmp_path / "one.log", tmp_path / "one.log.1"
    script = (
        "import time\nfrom pathlib import Path\nprint('x' * 3000, flush=True)\n"
        f"while not Path({str(older)!r}).exists() or Path({str(log)!r}).stat().st_size:\n"
        "    time.sleep(0.01)\nprint('end')"
    )
    child = start(supervised, tmp_path, script)
    until(supervised, lambda: child.done, 60.0)
    assert older.read_text() == "x" * 3000 + "\n"
    assert log.read_text() == "end\n"
