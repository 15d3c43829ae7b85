"""A coordinator in a thread: it can be closed before it is open, and while it opens."""

import threading
import time

from dystop.experiments.testbed.threads import Office


class SlowDesk:
    def __init__(self):
        self.interrupted = threading.Event()

    def run(self, transport, listen, on_seat):
        time.sleep(0.1)
        on_seat(self)
        self.interrupted.wait(10)

    def interrupt(self):
        self.interrupted.set()


def test_closing_before_it_opens():
    Office(SlowDesk(), None).close()


def test_closing_while_it_opens():
    desk = SlowDesk()
    office = Office(desk, None)
    office.thread.start()
    office.close()
    assert desk.interrupted.is_set()
    assert not office.is_open
