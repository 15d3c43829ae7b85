"""Progress of runs and studies: bars on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dystop.cli.terminal import complain, console, echo, note
from dystop.record import RoundRecord
from dystop.runs.progress_text import slowdown_text, status_line
from dystop.units import are, plural

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_S = 5.0
SLOW_AFTER = 10  # rounds with trainings, before a machine is called too slow
WARM_AFTER = 2.0  # passes over the data; first trainings load libraries and are slow anywhere


class Started(Protocol):
    """What is known when a run starts or resumes."""

    @property
    def folder(self) -> Path:
        """The run folder."""

    @property
    def physics(self) -> dict[str, str]:
        """Facts about the simulated world."""

    @property
    def partition(self) -> list[str]:
        """Lines of the label distribution."""

    @property
    def memory(self) -> str:
        """Estimated memory, in words."""

    @property
    def rounds(self) -> int:
        """Rounds planned."""

    @property
    def done(self) -> int:
        """Rounds that are not repeated."""


def not_finite_line(record: RoundRecord) -> str:
    """Return what to say about the first training losses that are not finite."""
    workers = list(record.get("not_finite") or ())
    others = f" and {len(workers) - 1} more" if len(workers) > 1 else ""
    return (
        f"round {record.round}: the training loss of worker {workers[0]}{others} is not finite. "
        "The run goes on until an evaluation finds such a model (stop.diverged). Use a smaller "
        "training.learning_rate, or look for infinite values in the data or in a loss of your own"
    )


class Watcher:
    """Shows a run: its facts at the start, its progress, and its last record."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.folder: Path | None = None
        self.last: RoundRecord | None = None
        self._scored: RoundRecord | None = None
        self._has_complained = False  # about a training loss that is not finite
        self._trained: dict[int, RoundRecord] = {}  # the first rounds with emulated trainings
        self._quiet = quiet
        self._rounds = 0
        self._done = 0  # rounds of an earlier session, which are not printed again
        self._printed_s = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def on_start(self, started: Started) -> None:
        """Show what is about to run."""
        self.folder = started.folder
        self._done = started.done
        if not self._quiet:
            show_start(started)
        self.expect(started.rounds)

    def expect(self, rounds: int) -> None:
        """Show progress towards this many rounds."""
        self._rounds = rounds
        if self._bar is not None:
            self._task = self._bar.add_task("round", total=rounds, status="")
            self._bar.start()

    def say(self, text: str) -> None:
        """Show a short text before the first round."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, status=text)
        elif not self._quiet:
            echo(text)

    def on_record(self, record: RoundRecord) -> None:
        """Show one finished round; an older one comes again when its score was late."""
        if record.accuracy is not None:
            self._scored = record
        if self.last is not None and record.round < self.last.round:
            return
        self.last = record
        if record.get("not_finite") and not self._has_complained:
            self._has_complained = True
            complain(not_finite_line(record), colour="yellow")
        self._name_slow_machine(record)
        if self._quiet:
            return
        if self._bar is not None and self._task is not None:
            shown = status_line(record, self._scored)
            self._bar.update(self._task, completed=record.round, status=shown)
        elif record.round > self._done:
            self._line(record)

    def _name_slow_machine(self, record: RoundRecord) -> None:
        """Say once, early in a testbed run, that trainings take longer than on its devices."""
        if self._quiet or record.get("emulated_s") is None or record.epochs_total < WARM_AFTER:
            return
        if len(self._trained) >= SLOW_AFTER:
            return
        from dystop.recorders.emulated_trainings import TOO_SLOW, training_slowdown  # with numpy

        self._trained[record.round] = record
        slowdown = training_slowdown(self._trained.values())
        if len(self._trained) == SLOW_AFTER and slowdown and slowdown > TOO_SLOW:
            complain(slowdown_text(slowdown), colour="yellow")

    def _line(self, record: RoundRecord) -> None:
        """Print a line every few seconds, and always for the last round."""
        now = time.monotonic()
        if record.round < self._rounds and now - self._printed_s < LINE_EVERY_S:
            return
        self._printed_s = now
        echo(f"round {record.round}/{self._rounds}  {status_line(record, self._scored)}")

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the bar while the run works."""
        if not self._quiet and sys.stdout.isatty():
            self._bar = new_bar()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()


class TestbedWatcher(Watcher):
    """Follows a testbed run: first who joins, then the rounds."""

    _joined = -1
    _remark = ""

    def on_start(self, started: Started) -> None:
        """Show what is about to run, and the remark on its settings."""
        super().on_start(started)
        if self._remark and not self._quiet:
            note(self._remark)

    def on_joining(self, joined: int, workers: int) -> None:
        """Show how many workers have joined, until the first round has closed."""
        if joined == self._joined or self.last is not None:
            return
        self._joined = joined
        self.say(f"workers joining {joined}/{workers}")

    def on_restart(self, message: str) -> None:
        """Print which party has crashed and is started again."""
        if self._bar is not None:
            self._bar.console.print(message, markup=False, highlight=False)
        elif not self._quiet:
            echo(message, err=True)

    def remark(self, sentence: str) -> None:
        """Take a remark on the settings, which is shown when the run starts."""
        self._remark = sentence


class CoordinatorWatcher(Watcher):
    """Follows a coordinator on its own host: who joins and leaves, then the rounds."""

    def __init__(self) -> None:
        super().__init__()
        self._workers = 0
        self._joined: frozenset[str] = frozenset()
        self._address = ""

    def on_opening(self, workers: int, rounds: int, done: int) -> None:
        """Show progress towards the rounds of the run."""
        self._workers, self._done = workers, done
        self.expect(rounds)

    def on_members(self, address: str, joined: frozenset[str]) -> None:
        """Show the address once, and every worker that joins or leaves."""
        if not self._address:
            self._address = address
            self._above(f"listening on {address}; waiting for {plural(self._workers, 'worker')}")
        for verb, names in (("joined", joined - self._joined), ("left", self._joined - joined)):
            if names:
                who = ", ".join(sorted(names))
                self._above(f"{who} {verb} ({len(joined)} of {plural(self._workers, 'worker')})")
        self._joined = joined

    def _above(self, text: str) -> None:
        """Print a line that stays: above the bar on a terminal, or into the log."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            echo(text)


def new_bar() -> "Progress":
    """Return a bar with a name, a count, a status and a clock."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
    )


def show_start(started: Started) -> None:
    """Print physics, label distribution, memory and folder."""
    from dystop.world.describe import start_notices

    width = max((len(name) for name in started.physics), default=0)
    for name, fact in started.physics.items():
        echo(f"  {name:<{width}}  {fact}")
    for line in [*started.partition, *started.memory.splitlines()]:
        echo(f"  {line}")
    echo(f"  folder: {started.folder}")
    for notice in start_notices(started.physics):
        note(notice)
    if started.done:
        left = started.rounds - started.done
        echo(f"  {are(started.done, 'round')} done, {left} to go")


class StudyWatcher:
    """Shows a study: a bar for the study and one per current run, or plain lines."""

    def __init__(self, total: int, done: int, *, quiet: bool = False) -> None:
        self._total = total
        self._done = done
        self._quiet = quiet
        self._rounds: dict[str, int] = {}
        self._scored: dict[str, RoundRecord] = {}
        self._printed_s = 0.0
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def on_wait(self, waiting: int) -> None:
        """Show how many runs wait in the queue of an engine."""
        if self._bar is not None:
            shown = f"runs, {waiting} waiting" if waiting else "runs"
            self._bar.update(self._tasks[""], status=shown)
        elif waiting and not self._quiet:
            echo(f"{plural(waiting, 'run')} waiting")

    def on_retry(self, run: str, reason: str) -> None:
        """Show why a run is attempted again."""
        if self._bar is not None:
            self._bar.remove_task(self._tasks.pop(run))
        if not self._quiet:
            note(f"{run}: attempted again: {reason}")

    def on_start(self, run: str, rounds: int) -> None:
        """Show that a run starts or resumes."""
        self._rounds[run] = rounds
        if self._bar is not None:
            self._tasks[run] = self._bar.add_task(run, total=rounds, status="")
        elif not self._quiet:
            self._printed_s = time.monotonic()
            echo(f"{run}: starts ({self._done} of {plural(self._total, 'run')} done)")

    def on_record(self, run: str, record: RoundRecord) -> None:
        """Show a closed round of a run."""
        if record.accuracy is not None:
            self._scored[run] = record
        shown = status_line(record, self._scored.get(run))
        if self._bar is not None:
            self._bar.update(self._tasks[run], completed=record.round, status=shown)
        elif not self._quiet and time.monotonic() - self._printed_s >= LINE_EVERY_S:
            self._printed_s = time.monotonic()
            echo(f"{run}: round {record.round}/{self._rounds[run]}  {shown}")

    def on_finish(self, run: str) -> None:
        """Show that a run has finished."""
        self._done += 1
        if self._bar is not None:
            self._bar.remove_task(self._tasks.pop(run))
            self._bar.update(self._tasks[""], completed=self._done)
        elif not self._quiet:
            scored = self._scored.get(run)
            end = "" if scored is None else f", {status_line(scored, scored)}"
            echo(f"{run}: finished{end}")

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the bars while the study runs."""
        if not self._quiet and sys.stdout.isatty():
            self._bar = new_bar()
            self._tasks[""] = self._bar.add_task(
                "study", total=self._total, completed=self._done, status="runs"
            )
            self._bar.start()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()


@contextmanager
def round_bars(quiet: bool, *tasks: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar over the rounds for each task, on a terminal only.

    Yields a function that takes a task, the rounds done and the rounds planned.
    """
    from rich.progress import Progress

    is_hidden = quiet or not sys.stdout.isatty()
    with Progress(console=console(), transient=True, disable=is_hidden) as bar:
        ids = {task: bar.add_task(task, total=None) for task in tasks}
        yield lambda task, done, total: bar.update(ids[task], completed=done, total=total)
