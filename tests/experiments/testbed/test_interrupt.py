"""Ctrl-C and SIGTERM wait until nothing is half done, and are never lost."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from pydantic import TypeAdapter

from dystop import signals
from dystop.errors import DystopError
from dystop.experiments.testbed.interrupt import Interrupts, undisturbed
from dystop.experiments.testbed.threads import Office
from dystop.signals import Raising, Terminated, insistent, terminable


def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def interrupted(body):
    """What a block has done when it was interrupted."""
    done = []
    with pytest.raises(KeyboardInterrupt):
        body(done)
    return done


def test_a_signal_waits_for_the_next_look():
    def body(done):
        with Interrupts() as interrupts:
            interrupts.check()
            press()
            done.append(interrupts.noted)
            interrupts.check()
            done.append("never")

    assert interrupted(body) == [True]


def test_a_signal_at_which_nobody_looks_is_raised_at_the_end():
    def body(done):
        with undisturbed():
            press()
            done.append("all of it")
        done.append("never")

    assert interrupted(body) == ["all of it"]


def test_a_second_signal_is_raised_at_once():
    def body(done):
        with Interrupts():
            press()
            press()
            done.append("never")

    assert interrupted(body) == []


def test_sigterm_is_what_the_command_makes_of_it():
    with pytest.raises(Terminated), terminable(), undisturbed():
        press(signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_signal_that_python_drops_comes_again(number, kind):
    """As in the callback of a weak reference, and every import makes and drops one."""

    class Dropped:
        def __del__(self):
            press(number)
            time.sleep(0.01)  # the signal is raised here, at the latest

    def work():
        with insistent(), terminable():
            Dropped()
            time.sleep(30)

    with pytest.raises(kind):
        work()


def test_what_else_python_drops_is_told_as_usual(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)

    class Broken:
        def __del__(self):
            raise ValueError("lost")

    with insistent():
        Broken()
    assert [str(one.exc_value) for one in told] == ["lost"]


SWALLOWING = """
import os, signal, time
swallowed = False
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
except BaseException:
    swallowed = True
"""


@pytest.fixture
def raising():
    """Ctrl-C as the command hears it."""
    before = signal.signal(signal.SIGINT, Raising(KeyboardInterrupt))
    yield
    signal.signal(signal.SIGINT, before)


def imported(folder, monkeypatch, name):
    (folder / f"{name}.py").write_text(SWALLOWING)
    monkeypatch.syspath_prepend(folder)
    __import__(name)


@pytest.mark.usefixtures("raising")
def test_a_signal_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    def body(done):
        imported(tmp_path, monkeypatch, "swallows_interrupts")
        time.sleep(30)

    assert interrupted(body) == []
    assert not sys.modules["swallows_interrupts"].swallowed


@pytest.mark.usefixtures("raising")
def test_a_signal_that_is_held_back_is_noted_by_who_asks_next(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "AGAIN_S", 0.5)

    def body(done):
        imported(tmp_path, monkeypatch, "presses_in_an_import")
        with Interrupts() as interrupts:
            assert interrupts.noted
            done.append("noted")
            time.sleep(0.6)
            done.append("not heard again, which would be raised at once")
            interrupts.check()

    assert len(interrupted(body)) == 2


@pytest.mark.usefixtures("raising")
def test_another_handler_hears_once_what_is_held_back(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "AGAIN_S", 0.3)
    imported(tmp_path, monkeypatch, "presses_before_another_handler")
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    monkeypatch.setattr(signals, "AGAIN_S", 0.005)
    time.sleep(0.4)
    signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


@pytest.mark.usefixtures("raising")
def test_a_signal_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "PATIENCE_S", 0.1)
    imported(tmp_path, monkeypatch, "imports_for_ever")
    assert sys.modules["imports_for_ever"].swallowed


@pytest.mark.usefixtures("raising")
def test_a_signal_is_not_renamed_by_pydantic():
    class Pressing:
        @classmethod
        def __get_pydantic_core_schema__(cls, source, handler):
            press()
            time.sleep(0.01)  # the signal is raised here, if it is
            return handler(int)

    def body(done):
        done.append(TypeAdapter(list[Pressing]).validate_python([3]))
        time.sleep(30)

    assert interrupted(body) == [[3]]


def test_an_error_that_the_signal_has_caused_is_not_what_is_told():
    def body(done):
        with Interrupts():
            press()
            raise DystopError("a tool was interrupted, too")

    assert interrupted(body) == []


def test_blocks_within_blocks_hand_it_on():
    def body(done):
        with Interrupts() as outer:
            with undisturbed():
                press()
            done.append(outer.noted)
            outer.check()
            done.append("never")

    assert interrupted(body) == [True]


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before[0]
        assert signal.getsignal(signal.SIGTERM) == before[1]  # ends the process, as it did
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_threads_have_no_signals():
    thread = threading.Thread(target=lambda: undisturbed().__enter__())
    thread.start()
    thread.join()


@pytest.mark.parametrize("first", ["press()", "pass"])
def test_who_leaves_it_to_others_ends_by_itself_after_a_while(first):
    program = (
        "import os, signal, time\n"
        "from dystop.experiments.testbed.interrupt import Interrupts\n"
        "def press(): os.kill(os.getpid(), signal.SIGINT)\n"
        "with Interrupts() as interrupts:\n"
        f"    {first}\n"
        "    interrupts.leave_it_to_others(0.2)\n"
        "    if not interrupts.noted: press()\n"
        "    assert interrupts.noted\n"
        "    time.sleep(30)\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 130
    assert time.monotonic() - began < 25


@pytest.mark.parametrize("moment", ["before", "in it", "after"])
def test_a_call_that_hears_no_handler_is_ended_by_the_signal(moment):
    """`Condition.wait` would hear one: the C library's sleep in a child stands for MPI."""
    program = (
        "import ctypes, os, signal, threading, time\n"
        "from dystop.experiments.testbed.interrupt import Interrupts\n"
        "def press(): os.kill(os.getpid(), signal.SIGINT)\n"
        "with Interrupts() as interrupts:\n"
        f"    if {moment == 'before'}: press()\n"
        "    with interrupts.at_once():\n"
        f"        if {moment == 'in it'}: threading.Timer(0.1, press).start()\n"
        f"        if {moment != 'after'}: ctypes.CDLL(None).pause()\n"
        "    press()\n"
        "    print('noted', interrupts.noted, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGINT
    assert done.stdout == ("noted True\n" if moment == "after" else "")


def test_an_office_may_be_closed_before_and_while_it_opens():
    class SlowDesk:
        def __init__(self):
            self.interrupted = threading.Event()

        def run(self, transport, listen, on_seat):
            time.sleep(0.1)
            on_seat(self)
            self.interrupted.wait(10)

        def interrupt(self):
            self.interrupted.set()

    Office(SlowDesk(), None).close()
    desk = SlowDesk()
    office = Office(desk, None)
    office.thread.start()
    office.close()
    assert desk.interrupted.is_set()
    assert not office.is_open
