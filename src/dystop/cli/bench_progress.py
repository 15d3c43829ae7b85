"""Showing a benchmark while it goes: a bar for a person, plain lines for a log."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dystop.cli.progress import _new_bar
from dystop.cli.say import say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class BenchWatcher:
    """Shows which benchmark is going on: a bar for a person, plain lines for a log."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._quiet, self._total, self._done = quiet, total, 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def begins(self, what: str) -> None:
        """A benchmark starts."""
        self._show(what, "")

    def says(self, status: str) -> None:
        """What it is doing now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, status=status)

    def ends(self, what: str, seconds: float) -> None:
        """It is over."""
        self._done += 1
        self._show(what, "")
        if self._bar is None and not self._quiet:
            say(f"{what}: measured in {seconds:.1f} s")

    def _show(self, what: str, status: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what, completed=self._done, status=status)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Hold the screen while it goes, and give it back however it ends."""
        if not self._quiet and sys.stdout.isatty():
            self._bar = _new_bar()
            self._task = self._bar.add_task("bench", total=self._total, status="")
            self._bar.start()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()
