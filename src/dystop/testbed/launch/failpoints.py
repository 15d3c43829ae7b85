"""Named places where a test makes a process crash, hang, fail or wait.

`DYSTOP_FAILPOINT=site:action[@n]` arms one or more places, separated by commas. The action happens
when the place is reached for the n-th time (default: the first time), and only then.

=============  ===========================================
crash          the process ends at once, as by kill -9
hang           this thread never returns
error          `FailpointError` is raised
delay:SECONDS  this thread sleeps
=============  ===========================================

Without the variable, `reach` costs one lookup in an empty table.
"""

import os
import re
import threading
import time
from dataclasses import dataclass, field

from dystop.errors import ConfigError

VARIABLE = "DYSTOP_FAILPOINT"
CRASH_CODE = 137
_RULE = re.compile(
    r"(?P<site>[a-z0-9_.]+):(?P<action>crash|hang|error|delay:(?P<seconds>\d+(\.\d+)?))(@(?P<n>\d+))?"
)


class FailpointError(OSError):
    """Raised by `error`; an OSError, because real failures at such places are OSErrors."""


@dataclass
class Failpoint:
    """An armed place."""

    action: str
    seconds: float
    at: int  # acts when it is reached for the at-th time
    reached: int = field(default=0)


def parse(text: str) -> dict[str, Failpoint]:
    """Parse the variable; raise ConfigError if it is malformed.

    >>> parse("vault.after_rename:delay:0.5@3")
    {'vault.after_rename': Failpoint(action='delay', seconds=0.5, at=3, reached=0)}
    """
    points = {}
    for rule in filter(None, (part.strip() for part in text.split(","))):
        found = _RULE.fullmatch(rule)
        if not found or found["n"] == "0":
            raise ConfigError(
                f"{VARIABLE}: {rule[:80]!r} is not site:action[@n] with action crash, hang, error "
                "or delay:SECONDS and n from 1; unset it outside of tests"
            )
        action = found["action"].partition(":")[0]
        points[found["site"]] = Failpoint(
            action, float(found["seconds"] or 0.0), int(found["n"] or 1)
        )
    return points


_armed: dict[str, Failpoint] = parse(os.environ.get(VARIABLE, ""))
_lock = threading.Lock()


def arm(text: str) -> None:
    """Use these failpoints instead of those in the environment; an empty text disarms all."""
    global _armed
    _armed = parse(text)


def reach(site: str) -> None:
    """Mark that a place is reached; acts only if the place is armed."""
    if not _armed:
        return
    point = _armed.get(site)
    if point is None:
        return
    with _lock:
        point.reached += 1
        due = point.reached == point.at
    if due:
        _act(site, point)


def _act(site: str, point: Failpoint) -> None:
    if point.action == "crash":
        os._exit(CRASH_CODE)
    if point.action == "hang":
        while True:
            time.sleep(3600)
    if point.action == "error":
        raise FailpointError(f"failpoint {site}")
    time.sleep(point.seconds)
