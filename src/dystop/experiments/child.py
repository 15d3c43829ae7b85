"""One `dystop` command in a process of its own, followed by reading the records it writes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dystop.experiments.durable import RECORDS
from dystop.lifeline import LIFELINE
from dystop.record import RoundRecord, from_json


class Tail:
    """New whole lines of a record log, each time it is asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def news(self) -> list[RoundRecord]:
        """Records written since the last call; a log that was cut is read on from its new end."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            self._at = min(self._at, size)
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")[0]
        self._at += len(whole) + bool(whole)
        return [from_json(line.decode()) for line in whole.splitlines()]


class Child:
    """A run in a process of its own."""

    def __init__(self, name: str, folder: Path, words: Sequence[str]) -> None:
        self.name = name
        self._tail = Tail(folder / RECORDS)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        # A group of its own: Ctrl-C reaches the parent alone, which then tells each child once.
        self._process = subprocess.Popen(
            dystop_words(*words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=environment(),
            process_group=0,
        )

    def news(self) -> list[RoundRecord]:
        """Records that were written since the last call."""
        return self._tail.news()

    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.poll()

    def complaint(self) -> str:
        """What the command said on stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().removeprefix("Error: ")

    def ask_to_stop(self) -> None:
        """Let it save at the end of its round and leave."""
        if self.code() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it now; its last checkpoint is what it goes on from."""
        if self.code() is None:
            self._process.kill()

    def close(self) -> None:
        """Wait for its end and give back what it held."""
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()


def dystop_words(*words: str | Path) -> list[str]:
    """The `dystop` command of this installation, with these words."""
    return [sys.executable, "-P", "-m", "dystop", *map(str, words)]


def environment() -> dict[str, str]:
    """The child finds the modules that this process finds, a user's own models among them."""
    places = [os.path.abspath(place) for place in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), LIFELINE: "1"}
