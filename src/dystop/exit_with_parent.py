"""A child that does not outlive its parent, however the parent ends."""

import os
import signal
import sys
import threading
import time

LIFELINE = "DYSTOP_LIFELINE"
"""Set in the environment of a child whose standard input is a pipe that its parent holds open.

A number above 1 is how many seconds the child has for leaving in good order.
"""

_ORPHANED = 143  # as if SIGTERM had ended the process at once


def exit_with_parent() -> None:
    """Stop this process, as SIGTERM would, once the parent is gone; does nothing elsewhere."""
    if given := os.environ.pop(LIFELINE, None):
        grace_s = float(given) if given.isdecimal() else 0.0
        threading.Thread(target=_wait, args=(grace_s,), daemon=True).start()


def _wait(grace_s: float) -> None:
    """The pipe carries nothing: reading ends when the kernel closes the parent's end."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    if grace_s > 1:
        time.sleep(grace_s)
        os._exit(_ORPHANED)
