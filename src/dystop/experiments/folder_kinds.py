"""What a folder holds, told by its files alone, and the command that goes on with it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystop.errors import StorageError, shell_command
from dystop.storage import try_read_json, write_failure

INFO = "run.json"  # of every run, simulated or real
STUDY = "study.json"  # of every comparison and sweep
TESTBED = "testbed"  # what run.json calls a real run


@dataclass(frozen=True)
class FolderKind:
    """What something is, and the words of the commands for it."""

    noun: str
    begin: str  # one like it, from a configuration
    go_on: tuple[str, ...]
    check: str = ""

    def way_on(self, folder: Path) -> str:
        """The command that goes on with it."""
        return shell_command(*self.go_on, folder)


RUN = FolderKind("run", "run", ("resume",), "verify")
REAL = FolderKind("run of the testbed", "testbed", ("testbed", "--resume"), "check")
COMPARISON = FolderKind("comparison", "compare", ("compare",))
SWEEP = FolderKind("sweep", "sweep", ("sweep",))


def study_kind(folder: Path) -> FolderKind | None:
    """Comparison or sweep; None where a folder is neither."""
    told = _told(folder / STUDY)
    return None if told is None else SWEEP if told.get("over") else COMPARISON


def kind_of(folder: Path) -> FolderKind | None:
    """What a folder holds, whatever state its files are in; None where it is nothing of ours."""
    if study := study_kind(folder):
        return study
    told = _told(folder / INFO)
    return None if told is None else REAL if told.get("kind") == TESTBED else RUN


def _told(file: Path) -> dict[str, Any] | None:
    """What a file says: nothing where it is damaged, None where it is not there."""
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
        resume = (kind_of(folder) or RUN).way_on(folder)
        raise StorageError(f"{failure}, then: {resume}") from error
