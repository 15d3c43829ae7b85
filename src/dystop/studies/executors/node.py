"""What an engine runs on a node: one attempt, once, on behalf of a driver elsewhere.

The driver describes the attempt in a file of the shared folder. The node starts the command that
the file names, and notes there how it ended. An engine that starts the same attempt a second time,
for example after it lost a node that still works, is refused: only one process ever writes the
folder of an attempt.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from dystop.runs.processes import ChildProcess, error_text
from dystop.storage import try_read_json, write_atomic
from dystop.studies.executors.executor import Ended, Job

_JOB, _CLAIM, _ERRORS, _ENDED = "job.json", "claimed", "errors.txt", "ended.json"
REFUSED = 75
"""Exit code of `run_attempt` if the attempt is not there, or has been started before."""


def describe(job: Job) -> None:
    """Write down what `run_attempt` has to do; the folder of the attempt exists."""
    content = {"words": job.words, "cwd": str(job.cwd)}
    write_atomic(_place(job) / _JOB, json.dumps(content).encode())


def run_attempt(place: str) -> tuple[int, str]:
    """Run the attempt that this folder describes; return exit code and what went wrong.

    The engine calls this on a node. SIGTERM, SIGINT and SIGUSR2 let the command save and exit.
    """
    folder, host = Path(place), socket.gethostname()
    try:
        os.close(os.open(folder / _CLAIM, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        job = json.loads((folder / _JOB).read_bytes())
    except FileNotFoundError:
        return REFUSED, f"{host}: {folder} is not there; the folder of the study is not shared"
    except FileExistsError:
        return REFUSED, f"{host}: this attempt was started before"
    with (folder / _ERRORS).open("w+b") as errors, _Signals() as signals:
        child = signals.start(lambda: ChildProcess(job["words"], errors, Path(job["cwd"])))
        code, reason = child.wait(), child.error_text()
        child.close()
    with suppress(OSError):  # the driver has withdrawn the attempt: nobody asks any more
        write_atomic(folder / _ENDED, json.dumps({"code": code, "host": host}).encode())
    return code, reason


def started(job: Job) -> bool:
    """Return whether a node has begun the attempt."""
    return (_place(job) / _CLAIM).exists()


def ended(job: Job) -> Ended | None:
    """Return how the command of an attempt ended, as its node noted it; None before."""
    noted = try_read_json(_place(job) / _ENDED)
    if "code" not in noted:
        return None
    written = b""
    with suppress(OSError):
        written = (_place(job) / _ERRORS).read_bytes()
    return Ended(int(noted["code"]), error_text(written))


def _place(job: Job) -> Path:
    if job.place is None:
        raise ValueError(f"{job.run}: has no folder for its attempt")
    return job.place


class _Signals:
    """Lets a command save and exit when this process is asked to.

    Slurm sends SIGUSR2 before a time limit, and sends every signal to all processes of a job. The
    command ignores SIGUSR2, which would end it at once; this process turns it into SIGTERM.
    """

    def __init__(self) -> None:
        self._child: ChildProcess | None = None
        self._arrived = False
        self._before: dict[int, Any] = {}

    def start(self, make: Callable[[], ChildProcess]) -> ChildProcess:
        """Start the command; it ignores what this process ignores at that moment."""
        if self._before:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        self._child = make()
        if self._before:
            signal.signal(signal.SIGUSR2, self._on_signal)
        if self._arrived:
            self._child.cancel()
        return self._child

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._child is not None and not self._arrived:
            self._child.cancel()
        self._arrived = True

    def __enter__(self) -> Self:
        with suppress(ValueError):  # not the main thread, which receives the signals
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *rest: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
