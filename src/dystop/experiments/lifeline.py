"""A child that does not outlive its parent, however the parent ends."""

import os
import signal
import sys
import threading

LIFELINE = "DYSTOP_LIFELINE"
"""Set in the environment of a child whose standard input is a pipe that its parent holds open."""


def hold_on() -> None:
    """Stop this process, as SIGTERM would, once the parent is gone; does nothing elsewhere."""
    if os.environ.pop(LIFELINE, None):
        threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    """The pipe carries nothing: reading ends when the kernel closes the parent's end."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
