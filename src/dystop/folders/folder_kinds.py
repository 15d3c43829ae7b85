"""Kinds of output folders, recognised by their files, and the commands that resume them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystop.errors import StorageError, shell_command
from dystop.storage import try_read_json, write_failure

INFO = "run.json"  # of every run, simulated or real
STUDY = "study.json"  # of every comparison, sweep and atlas
POINTS = "atlas.json"  # of an atlas: which of its runs belong to which point
TESTBED = "testbed"  # value of "kind" in the run.json of a testbed run


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder, and the commands for it."""

    noun: str
    start: str  # starts a new one from a configuration
    resume: tuple[str, ...]
    check: str = ""

    def resume_command(self, folder: Path) -> str:
        """Return the command that resumes it."""
        return shell_command(*self.resume, folder)


RUN = FolderKind("run", "run", ("resume",), "verify")
TESTBED_RUN = FolderKind("testbed run", "testbed", ("testbed", "--resume"), "check")
COMPARISON = FolderKind("comparison", "compare", ("compare",))
SWEEP = FolderKind("sweep", "sweep", ("sweep",))
ATLAS = FolderKind("atlas", "atlas", ("atlas",))


def study_kind(folder: Path) -> FolderKind | None:
    """Return whether a folder is a comparison, a sweep or an atlas; None if it is none of them."""
    content = _read(folder / STUDY)
    if content is not None and os.path.isfile(folder / POINTS):
        return ATLAS
    return None if content is None else SWEEP if content.get("over") else COMPARISON


def kind_of(folder: Path) -> FolderKind | None:
    """Return the kind of a folder, even if its files are damaged; None for a foreign folder."""
    if study := study_kind(folder):
        return study
    content = _read(folder / INFO)
    return None if content is None else TESTBED_RUN if content.get("kind") == TESTBED else RUN


def _read(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; empty if the file is damaged, None if it is missing."""
    # Unlike Path.is_file, os.path.isfile never raises.
    return try_read_json(file) if os.path.isfile(file) else None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write into a `StorageError` that says what to do and which command resumes."""
    try:
        yield
    except Exception as error:
        failure = write_failure(error, folder)
        if failure is None:
            raise
        resume = (kind_of(folder) or RUN).resume_command(folder)
        raise StorageError(f"{failure}, then: {resume}") from error
