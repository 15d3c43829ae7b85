"""Attempts: why a run that two nodes work on is still written by one.

An engine may lose a node that still works, and start the same run elsewhere. So every attempt has a
folder of its own, in which it starts from a copy of the newest checkpoint of the run. Only the
driver of the study publishes an attempt, by renaming its folder. Whatever an abandoned attempt
writes later, it writes into a folder that nobody publishes.

    STUDY/RUN                       the published run
    STUDY/.attempts/RUN.K/RUN       the run folder of attempt K
    STUDY/.attempts/RUN.K/replaced  the run that publishing attempt K replaces, for a moment

K is a random number that is never used again: an abandoned attempt must not find its folder in use
by its successor.

A crash at any point loses nothing: the newest intact checkpoint among all these folders is found
again, and any finished attempt is as good as another, because a run has one result.
"""

import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from dystop.errors import DystopError
from dystop.folders.record_log import RECORDS, RunLock, check_start
from dystop.folders.run_folder import (
    CHECKPOINTS,
    CONFIG,
    FLEET,
    INFO,
    log_was_changed,
    open_run,
    writing,
)
from dystop.simulator.checkpoint import checked_mark, checkpoints, round_of
from dystop.storage import fsync, try_read_json, write_atomic
from dystop.studies.study import finished

ATTEMPTS = ".attempts"
_REPLACED, _HANDLE = "replaced", "handle"
_COPIED = (CONFIG, INFO, FLEET, RECORDS)


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run."""

    run: str
    place: Path  # what belongs to this attempt

    @property
    def folder(self) -> Path:
        """The run folder that the attempt writes."""
        return self.place / self.run

    def note_handle(self, on: str, handle: str) -> None:
        """Note by which text the engine finds the job of this attempt again."""
        write_atomic(self.place / _HANDLE, f"{on}\n{handle}".encode())

    def handle_on(self, on: str) -> str:
        """Return the noted text if this engine has the job; else nothing."""
        try:
            engine, _, handle = (self.place / _HANDLE).read_text(encoding="utf-8").partition("\n")
        except OSError:
            return ""
        return handle if engine == on else ""


class Attempts:
    """The attempts at the runs of one study.

    Args:
        study: The folder of the study; absolute.
        check_owner: Raises if this process no longer is the driver of the study.
        on_step: Called with `copied`, `replaced`, `renamed` and `withdrawn`; tests crash there.
    """

    def __init__(
        self,
        study: Path,
        check_owner: Callable[[], object],
        on_step: Callable[[str], object] = lambda step: None,
    ) -> None:
        self._study = study
        self._check_owner = check_owner
        self._on_step = on_step

    def of(self, run: str) -> list[Attempt]:
        """Return the attempts at a run that are there."""
        places = (self._study / ATTEMPTS).glob("[!.]*")
        return [Attempt(run, place) for place in places if place.name.rpartition(".")[0] == run]

    def begin(self, run: str) -> Attempt:
        """Make the folder of a new attempt; it starts where the published run has got to.

        The run folder is missing if nothing can be copied; then the run starts anew.
        """
        published = self._study / run
        with writing(self._study), ExitStack() as stack:
            attempt = self._new(run)
            if published.is_dir():
                stack.enter_context(RunLock(published))  # nobody else writes it now
                _copy_newest(published, attempt.folder)
            self._on_step("copied")
        return attempt

    def _new(self, run: str) -> Attempt:
        place = self._study / ATTEMPTS / f"{run}.{secrets.token_hex(4)}"
        place.mkdir(parents=True)
        return Attempt(run, place)

    def publish_finished(self, run: str) -> bool:
        """Publish an attempt that has finished the run; return whether there is one."""
        for attempt in self.of(run):
            if _is_whole(attempt.folder):
                self._publish(attempt)
                self.withdraw(run)
                return True
        return False

    def keep_progress(self, run: str) -> bool:
        """Publish the newest intact checkpoint of all attempts at a run, then withdraw them.

        The attempts may still be written by nodes that were given up: a copy is published.

        Returns:
            Whether an attempt got further than the published run.
        """
        if self.publish_finished(run):
            return True
        reached = {self._study / run: _rounds(self._study / run)}
        for attempt in self.of(run):
            for folder in (attempt.folder, attempt.place / _REPLACED):
                reached[folder] = _rounds(folder)
        best = max(reached, key=lambda folder: reached[folder])
        got_further = reached[best] > reached[self._study / run]
        if got_further:
            copy = self._new(run)
            if _copy_newest(best, copy.folder):
                self._on_step("copied")
                self._publish(copy)
        self.withdraw(run)
        return got_further

    def _publish(self, attempt: Attempt) -> None:
        """Put the run folder of an attempt in the place of the published one."""
        final = self._study / attempt.run
        self._check_owner()
        with writing(self._study), ExitStack() as stack:
            if final.is_dir():
                stack.enter_context(RunLock(final))  # nobody resumes it by hand
                final.rename(attempt.place / _REPLACED)
                self._on_step("replaced")
            attempt.folder.rename(final)
            fsync(self._study)
        self._on_step("renamed")

    def withdraw(self, run: str) -> None:
        """Remove all attempts at a run; a node that still works on one can write it no longer."""
        for attempt in self.of(run):
            hidden = attempt.place.with_name(f".{attempt.place.name}-{secrets.token_hex(4)}")
            with suppress(FileNotFoundError):
                attempt.place.rename(hidden)  # in one step, whatever is still open inside
            self._on_step("withdrawn")
            shutil.rmtree(hidden, ignore_errors=True)

    def clean(self) -> None:
        """Remove what is left of withdrawn attempts, and the folder if it is empty."""
        for hidden in (self._study / ATTEMPTS).glob(".*"):
            shutil.rmtree(hidden, ignore_errors=True)
        with suppress(OSError):
            (self._study / ATTEMPTS).rmdir()


def _is_whole(folder: Path) -> bool:
    """Return whether a run has finished and its records are those that were written."""
    try:
        return finished(folder) and not log_was_changed(open_run(folder))
    except DystopError:
        return False


def _newest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run that is intact, and whose records are."""
    for path in checkpoints(folder / CHECKPOINTS):
        with suppress(DystopError, ValueError, OSError):
            check_start(folder, checked_mark(path), round_of(path))
            return path
    return None


def _rounds(folder: Path) -> int:
    """Return the rounds of the newest intact checkpoint; 0 without one."""
    newest = _newest(folder)
    return 0 if newest is None else round_of(newest)


def _copy_newest(source: Path, target: Path) -> bool:
    """Copy a run with its newest intact checkpoint; return False if there is none.

    The source may be written at the same time: it only grows, and a checkpoint is whole. If the
    copied one is not, because it was removed meanwhile, the next is tried.
    """
    while (newest := _newest(source)) is not None:
        shutil.rmtree(target, ignore_errors=True)
        (target / CHECKPOINTS).mkdir(parents=True)
        try:
            shutil.copyfile(newest, target / CHECKPOINTS / newest.name)
            for name in _COPIED:
                shutil.copyfile(source / name, target / name)
        except FileNotFoundError:
            if newest.exists():
                break
            continue
        if _rounds(target) == round_of(newest) and try_read_json(target / INFO):
            return True
    shutil.rmtree(target, ignore_errors=True)
    return False
