"""A coordinator in a thread: it can be closed while it starts, and cleans up after another."""

import threading
import time

from dystop.config import read_experiment
from dystop.testbed.setup.launch import make_folder
from dystop.testbed.setup.threads import CoordinatorThread, run_threads
from support.testbed.ignored_progress import IgnoredProgress

TINY = [
    "data.name=synthetic", "data.train_limit=200", "model.name=softmax", "fleet.workers=3",
    "stop.rounds=2", "testbed.transport=memory", "testbed.links=free", "testbed.devices=free",
    "testbed.observer=false",
]  # fmt: skip


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


def test_half_written_status_files_of_a_killed_coordinator_are_removed(tmp_path):
    folder, _ = make_folder(read_experiment(None, TINY), tmp_path, "run")
    strays = [folder / f".{name}.json.tmp-99" for name in ("coordinator", "incidents")]
    other = folder / ".run.json.tmp-99"  # a launcher may be writing it
    for path in (*strays, other):
        path.write_text("{")
    run_threads(folder, IgnoredProgress())
    assert not any(path.exists() for path in strays)
    assert other.exists()
