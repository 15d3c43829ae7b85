"""`dystop` commands as child processes, which never outlive their parent.

A child ends when its parent has ended for any reason, even by SIGKILL: the kernel then closes the
pipe that is the standard input of the child.
"""

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

LIFELINE = "DYSTOP_LIFELINE"
"""Set in the environment of a child whose standard input is a pipe that its parent holds open.

A value above 1 is the number of seconds that the child has to exit after SIGTERM.
"""

_LOOK_S = 0.05
_ORPHANED = 143  # the exit code after SIGTERM


def exit_with_parent() -> None:
    """Send SIGTERM to this process once its parent has ended; do nothing if LIFELINE is not set.

    Where the kernel can, it sends the signal itself: a process that is starting has no handler yet
    and ends, even in an import during which no other thread of Python runs. A process whose parent
    has ended before this call ends here.
    """
    if given := os.environ.pop(LIFELINE, None):
        pipe = sys.stdin.fileno()
        by_kernel = _signal_at_end(pipe)
        if _is_closed(pipe):
            os._exit(_ORPHANED)
        grace_s = float(given) if given.isdecimal() else 0.0
        waits = threading.Thread(target=_wait_for_end, args=(pipe, grace_s, by_kernel), daemon=True)
        waits.start()


def _signal_at_end(pipe: int) -> bool:
    """Let the kernel send SIGTERM when the pipe is closed; return whether it can."""
    set_signal = getattr(fcntl, "F_SETSIG", None)  # Linux only
    if set_signal is None:
        return False
    fcntl.fcntl(pipe, set_signal, signal.SIGTERM)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | fcntl.FASYNC)
    return True


def _is_closed(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))  # nobody writes into it


def _wait_for_end(pipe: int, grace_s: float, by_kernel: bool) -> None:
    """Wait until the kernel closes the pipe, then end this process."""
    os.read(pipe, 1)
    if not by_kernel:
        os.kill(os.getpid(), signal.SIGTERM)
    if grace_s > 1:
        time.sleep(grace_s)
        os._exit(_ORPHANED)


def dystop_command(*words: str | Path) -> list[str]:
    """Return the command line that runs `dystop` of this installation with these words."""
    return [sys.executable, "-P", "-m", "dystop", *map(str, words)]


def child_environment() -> dict[str, str]:
    """Return an environment in which a child finds the modules that this process finds."""
    folders = [os.path.abspath(folder) for folder in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), LIFELINE: "1"}


class ChildProcess:
    """A `dystop` command in a child process.

    Args:
        words: The words after `dystop`.
        errors: A file, open for reading and writing, that gets what the command writes to stderr.
        cwd: The folder in which the command runs.
        variables: Environment variables for this child only.
    """

    def __init__(
        self,
        words: Sequence[str],
        errors: BinaryIO,
        cwd: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = errors
        # A process group of its own: only the parent receives Ctrl-C and cancels each child once.
        self._process = subprocess.Popen(
            dystop_command(*words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=cwd,
            env={**child_environment(), **(variables or {})},
            process_group=0,
        )

    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Return the exit code as soon as there is one.

        It looks again and again, because Ray interrupts a task only between two instructions.
        """
        while (code := self.exit_code()) is None:
            time.sleep(_LOOK_S)
        return code

    def error_text(self) -> str:
        """Return what the command wrote to stderr."""
        self._errors.seek(0)
        return error_text(self._errors.read())

    def cancel(self) -> None:
        """Ask it to save at the end of its round and to exit."""
        if self.exit_code() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it now; it can be resumed from its last checkpoint."""
        if self.exit_code() is None:
            self._process.kill()

    def close(self) -> None:
        """Wait for its end and release its resources."""
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()


def error_text(written: bytes) -> str:
    """Return an error message without the word that the command puts in front of it.

    >>> error_text(b"Error: no such file")
    'no such file'
    """
    return written.decode(errors="replace").strip().removeprefix("Error: ")
