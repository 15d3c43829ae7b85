"""Run folders that grow as a test says, for exports."""

import json
from dataclasses import replace
from pathlib import Path

from dystop.folders.record_log import RECORDS, RecordLog
from dystop.folders.run_folder import create_run, update_info
from dystop.format import FORMAT
from dystop.record import SCORE
from dystop.storage import FileLock
from dystop.world.trace import TRACE
from support.fake_runs import record_of_round

CONFIG = 'seed = 3\n\n[mechanism]\nname = "dystop"\nV = 10.0\n\n[data]\nphi = 0.4\n'


def rich_record(t: int, **more):
    """Return a record with all that a table can hold; every second round is tested."""
    tested = {
        "accuracy": 0.1 * t, "accuracy_std": 0.05, "accuracy_global": 0.1 * t + 0.01,
        "test_loss": 1.5, "test_loss_global": 1.4, "diverged": 0,
        "worker_accuracy": [0.1 * t, None, 0.2 * t], "worker_loss": [1.0, None, 2.0],
    }  # fmt: skip
    return record_of_round(t, **{
        "active_ids": [0], "link_pairs": [[0, 2]], "notes": {"phase": 1.0}, "energy_j": 30.0,
        "compute_j": 20.0, "idle_j": 8.0, "transmit_j": 1.5, "receive_j": 0.5,
        "worker_energy_j": [12.0, 10.0, 8.0],
        **(tested if t % 2 == 0 else {}), **more,
    })  # fmt: skip


class GrowingRun:
    """A run folder; each `write` adds records, `end` ends the run."""

    def __init__(self, out: Path, name: str = "trial", **info) -> None:
        first = {"format": FORMAT, "status": "running", "timing": "paper", "seed": 3, **info}
        self.folder = create_run(out, name, CONFIG, first, {"data_size": [5, 5, 5]})
        self._log = RecordLog(self.folder)

    def write(self, *records) -> None:
        for record in records:
            self._log.append(record)

    def trace(self, t: int) -> None:
        """Add the line of a trace: one link arrived, one was lost."""
        links = {"dst": [0, 1], "src": [2, 2], "stage": [0, 0], "seconds": [0.5, None],
                 "bytes": [100, 0], "lost": [False, True], "stale": [False, False]}  # fmt: skip
        with (self.folder / TRACE).open("a") as file:
            file.write(json.dumps({"round": t, "links": links}) + "\n")

    def end(self, status: str = "finished") -> None:
        update_info(self.folder, status=status)

    def die(self) -> None:
        """Leave the folder as a killed process does: running, and its lock free."""
        lock = FileLock(self.folder / ".lock")
        lock.acquire()
        lock.release()


def without_score(record):
    """Return the record of a testbed whose score comes late."""
    added = {name: value for name, value in record.added.items() if name not in SCORE}
    return replace(record, added=added, no_score="late")


__all__ = ["RECORDS", "GrowingRun", "rich_record", "without_score"]
