"""A coordinator in a thread: it can be closed before and while it starts."""

import threading
import time

from dystop.experiments.testbed.threads import CoordinatorThread


class SlowCoordinatorRun:
    def __init__(self):
        self.interrupted = threading.Event()

    def run(self, transport, listen, on_process):
        time.sleep(0.1)
        on_process(self)
        self.interrupted.wait(10)

    def interrupt(self):
        self.interrupted.set()


def test_closing_before_it_starts():
    CoordinatorThread(SlowCoordinatorRun(), None).close()


def test_closing_while_it_starts():
    run = SlowCoordinatorRun()
    coordinator = CoordinatorThread(run, None)
    coordinator.thread.start()
    coordinator.close()
    assert run.interrupted.is_set()
    assert not coordinator.is_open
