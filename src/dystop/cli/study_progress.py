"""Showing a study while it goes: a bar for the study and one per current run, or plain lines."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dystop.cli.progress import LINE_EVERY_S, _new_bar, status_line
from dystop.cli.say import say
from dystop.record import RoundRecord
from dystop.units import plural

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class StudyWatcher:
    """Follows a study, whichever process its runs are in."""

    def __init__(self, total: int, done: int, *, quiet: bool = False) -> None:
        self._total = total
        self._done = done
        self._quiet = quiet
        self._rounds: dict[str, int] = {}
        self._scored: dict[str, RoundRecord] = {}
        self._said_s = 0.0
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def begins(self, run: str, rounds: int) -> None:
        """A run starts or goes on."""
        self._rounds[run] = rounds
        if self._bar is not None:
            self._tasks[run] = self._bar.add_task(run, total=rounds, status="")
        elif not self._quiet:
            self._said_s = time.monotonic()
            say(f"{run}: begins ({self._done} of {plural(self._total, 'run')} done)")

    def record(self, run: str, record: RoundRecord) -> None:
        """A round of a run has closed."""
        if record.accuracy is not None:
            self._scored[run] = record
        shown = status_line(record, self._scored.get(run))
        if self._bar is not None:
            self._bar.update(self._tasks[run], completed=record.round, status=shown)
        elif not self._quiet and time.monotonic() - self._said_s >= LINE_EVERY_S:
            self._said_s = time.monotonic()
            say(f"{run}: round {record.round}/{self._rounds[run]}  {shown}")

    def ends(self, run: str) -> None:
        """A run has finished."""
        self._done += 1
        if self._bar is not None:
            self._bar.remove_task(self._tasks.pop(run))
            self._bar.update(self._tasks[""], completed=self._done)
        elif not self._quiet:
            scored = self._scored.get(run)
            end = "" if scored is None else f", {status_line(scored, scored)}"
            say(f"{run}: finished{end}")

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Hold the screen while the study goes, and give it back however it ends."""
        if not self._quiet and sys.stdout.isatty():
            self._bar = _new_bar()
            self._tasks[""] = self._bar.add_task(
                "study", total=self._total, completed=self._done, status="runs"
            )
            self._bar.start()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()
