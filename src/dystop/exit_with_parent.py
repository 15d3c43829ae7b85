"""Ends a child process when its parent has ended for any reason, even by SIGKILL."""

import os
import signal
import sys
import threading
import time

LIFELINE = "DYSTOP_LIFELINE"
"""Set in the environment of a child whose standard input is a pipe that its parent holds open.

A value above 1 is the number of seconds that the child has to exit after SIGTERM.
"""

_ORPHANED = 143  # the exit code after SIGTERM


def exit_with_parent() -> None:
    """Send SIGTERM to this process once its parent has ended; do nothing if LIFELINE is not set."""
    if given := os.environ.pop(LIFELINE, None):
        grace_s = float(given) if given.isdecimal() else 0.0
        threading.Thread(target=_wait, args=(grace_s,), daemon=True).start()


def _wait(grace_s: float) -> None:
    """Wait for the end of the pipe: the kernel closes it when the parent ends."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    if grace_s > 1:
        time.sleep(grace_s)
        os._exit(_ORPHANED)
