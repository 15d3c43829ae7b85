"""The crew: children are started, healed, given up and always stopped."""

import os
import signal
import sys
import time

import pytest

from dystop.errors import DystopError
from dystop.testbed.launch import supervisor
from dystop.testbed.launch.supervisor import ProcessSupervisor


@pytest.fixture
def crew(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    crew = ProcessSupervisor(dict(os.environ))
    yield crew
    crew.stop(0.5)


def hire(crew, tmp_path, script, name="one"):
    return crew.hire(name, [sys.executable, "-c", script], tmp_path / f"{name}.log")


def until(crew, holds, within_s=10.0):
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end
        crew.look()
        time.sleep(0.01)


def test_a_child_that_ends_well_is_not_started_again(crew, tmp_path):
    child = hire(crew, tmp_path, "print('done')")
    until(crew, lambda: child.done)
    crew.look()
    assert child.starts == 1
    assert child.complaint() == "done"


def test_a_killed_child_is_started_again(crew, tmp_path):
    child = hire(crew, tmp_path, "import time; time.sleep(60)")
    assert child.running
    os.kill(child.process.pid, signal.SIGKILL)
    until(crew, lambda: child.starts == 2 and child.running)
    assert child.crashes == 0  # it was not its fault


@pytest.mark.parametrize(
    ("code", "name"), [(signal.SIGABRT, "SIGABRT"), (signal.SIGSEGV, "SIGSEGV")]
)
def test_a_child_that_crashes_natively_is_given_up(crew, tmp_path, monkeypatch, code, name):
    monkeypatch.setattr(supervisor, "MOST_CRASHES", 1)
    child = hire(crew, tmp_path, f"import os; os.kill(os.getpid(), {int(code)})")
    with pytest.raises(DystopError, match=rf"one was ended by {name} 2 times: it said nothing"):
        until(crew, lambda: False)
    assert child.starts == 2


def test_a_child_that_is_killed_again_and_again_is_given_up(crew, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MOST_KILLS", 2)
    hire(crew, tmp_path, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(DystopError, match="SIGKILL 3 times; perhaps memory is short"):
        until(crew, lambda: False)


def test_every_new_start_is_told_of(crew, tmp_path):
    child = hire(crew, tmp_path, "import time; time.sleep(60)")
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()
    (told,) = crew.look()
    assert told == f"one was ended by SIGKILL; started again (log: {child.log})"
    assert crew.look() == []


def test_who_was_sent_away_stays_away_until_it_is_called_back(crew, tmp_path):
    child = hire(crew, tmp_path, "import sys; sys.exit(6)")
    until(crew, lambda: child.done)
    crew.look()
    assert child.starts == 1
    crew.call_back("nobody")
    crew.call_back("one")
    until(crew, lambda: child.starts == 2 and child.done)


def test_wrong_input_is_passed_on(crew, tmp_path):
    hire(crew, tmp_path, "import sys; print('Error: port 1 is taken'); sys.exit(2)")
    with pytest.raises(DystopError, match=r"one ended with code 2: port 1 is taken") as error:
        until(crew, lambda: False)
    assert error.value.exit_code == 2


def test_a_child_that_always_crashes_is_given_up(crew, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "MOST_CRASHES", 2)
    child = hire(crew, tmp_path, "import sys; print('Error: bad luck'); sys.exit(1)")
    with pytest.raises(DystopError, match="bad luck"):
        until(crew, lambda: False)
    assert child.starts == 3


def test_a_child_that_will_not_leave_is_killed(crew, tmp_path):
    script = "import signal,time; signal.signal(15, lambda *a: None); print('up', flush=True)\n"
    child = hire(crew, tmp_path, script + "while True: time.sleep(1)")
    until(crew, lambda: child.complaint() == "up")
    began = time.monotonic()
    crew.stop(0.3)
    assert time.monotonic() - began < 2
    assert child.process is None


def test_children_end_when_the_launcher_is_killed(tmp_path):
    """kill -9 of the parent closes the lifeline; a child that ignores SIGTERM ends all the same."""
    script = f"""
import os, sys, time
from pathlib import Path
from dystop.testbed.launch.supervisor import ProcessSupervisor
crew = ProcessSupervisor(dict(os.environ, DYSTOP_LIFELINE="2"))
child = '''
import signal, time
from dystop.exit_with_parent import exit_with_parent
signal.signal(signal.SIGTERM, lambda *a: None)
exit_with_parent()
print("up", flush=True)
while True: time.sleep(1)
'''
one = crew.hire("one", [sys.executable, "-c", child], Path({str(tmp_path / "one.log")!r}))
while one.complaint() != "up": time.sleep(0.05)
print(one.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    import subprocess

    out = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).stdout
    pid = int(out)
    end = time.monotonic() + 8
    while os.path.isdir(f"/proc/{pid}") and "Z" not in _state(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
