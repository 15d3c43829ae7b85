"""Imports begun early: only where they help, never fatal, never in the way of an early end."""

import subprocess
import sys
import threading

import pytest

from dystop import ahead


@pytest.fixture
def tasks(monkeypatch):
    """Names imported, in order; nothing is really imported."""
    found = []
    monkeypatch.setattr(ahead, "_threads", [])
    monkeypatch.setattr(ahead, "_compile", lambda words: found.append("compiled"))
    monkeypatch.setattr(ahead, "import_module", found.append)
    monkeypatch.setattr(ahead, "_triton", lambda: found.append("kernels"))
    return found


def wait():
    for thread in ahead._threads:
        thread.join(10)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], []),
        (["--help"], []),
        (["list", "models"], []),
        (["run", "--help"], []),
        (["report", "run"], []),
        (["verify", "runs/a"], ["torch", "kernels"]),
        (["run", "--no-report"], ["torch", "kernels"]),
        (["run", "seed=1"], ["torch", "kernels", *ahead.DRAWING]),
        (["resume", "runs/a"], ["torch", "kernels", *ahead.DRAWING]),
    ],
)
def test_what_is_imported(tasks, words, wanted):
    ahead.prepare(words)
    ahead.prepare(["run"] if wanted else [])  # not again
    wait()
    assert [task for task in tasks if task != "compiled"] == wanted


@pytest.mark.parametrize(
    ("words", "helped"),
    [
        (["list", "models"], 0),
        (["run", "--help"], 0),
        *(([name], 1) for name in ("compare", "testbed", "reproduce", "coordinator", "run")),
    ],
)
def test_who_is_helped_by_compilers(tasks, words, helped):
    ahead.prepare(words)
    wait()
    assert tasks.count("compiled") == helped


def test_what_compiles_is_not_loaded_for_nothing():
    script = (
        "import sys, dystop.ahead as a; a.prepare(['list']); print('subprocess' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30)
    assert done.stdout == b"False\n"


def test_a_failure_is_left_to_those_who_need_it(tasks, monkeypatch):
    def missing(name):
        tasks.append(name)
        raise ImportError(name)

    monkeypatch.setattr(ahead, "import_module", missing)
    ahead.prepare(["run", "--no-report"])
    wait()
    assert [task for task in tasks if task != "compiled"] == ["torch", "kernels"]


def test_every_name_is_there():
    for name in ahead.DRAWING:
        assert __import__(name)


def test_leaving_when_nothing_is_under_way(monkeypatch):
    monkeypatch.setattr(ahead, "_threads", [threading.Thread()])
    ahead.leave(2)


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("5", 5), ("None", 0), ("'why'", 1)])
def test_leaving_while_a_library_is_loaded(code, status):
    script = (
        "import threading, time\nfrom dystop import ahead\n"
        "ahead._threads.append(threading.Thread(target=time.sleep, args=(60,)))\n"
        f"ahead._threads[0].start()\nprint('said')\nahead.leave({code})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (status, b"said\n")


def test_a_wrong_word_ends_a_command_as_before():
    words = [sys.executable, "-m", "dystop", "run", "nonsense=1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: command line: unknown key 'nonsense'")
    assert "Traceback" not in done.stderr
