"""The health of one party: a file that it keeps current, and the check that reads it.

A container engine or a service manager on the same host calls the check (`dystop health`). Ages
are measured with the monotonic clock, which all processes of a host share, so that a clock that
jumps makes nobody ill.
"""

import json
import logging
import math
import socket
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dystop.errors import TransportError
from dystop.storage import try_read_json, write_atomic

_LOG = logging.getLogger(__name__)
HealthState = Literal["waiting", "joined", "coordinating", "over"]
WRITE_S = 1.0  # between two updates of the file, if nothing has changed
STALE_S = 15.0  # age after which the loop of a party counts as stuck
CONNECT_S = 3.0  # for a port of this host to answer

_TEXTS: dict[str, str] = {
    "waiting": "has no session with the coordinator",
    "joined": "has joined the run",
    "coordinating": "coordinates the run",
    "over": "has ended, because the run is over",
}


@dataclass(frozen=True)
class Health:
    """What a party says about itself."""

    party: str
    state: HealthState
    alive_s: float  # monotonic time at which the loop of the party turned last
    address: str = ""  # where it listens; empty: it does not listen


class HealthFile:
    """Writes the health of a party into a file; without a path it writes nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last: Health | None = None
        self._has_failed = False

    def write(self, health: Health) -> None:
        """Update the file, if something has changed or the last update is `WRITE_S` old."""
        last = self._last
        if self._path is None or (
            last is not None
            and (last.state, last.address) == (health.state, health.address)
            and health.alive_s - last.alive_s < WRITE_S
        ):
            return
        self._last = health
        try:
            write_atomic(self._path, json.dumps(asdict(health)).encode(), durable=False)
        except OSError as error:  # the run is more important than its health check
            if not self._has_failed:
                _LOG.warning("%s: cannot be written: %s", self._path, error.strerror or error)
            self._has_failed = True

    def over(self, party: str) -> None:
        """Note that the run is over: the party has nothing more to do, which is healthy."""
        self.write(Health(party, "over", time.monotonic()))


def check_health(path: Path, *, alive_only: bool = False) -> str:
    """Return in one sentence that a party is healthy.

    Args:
        path: The file of the party.
        alive_only: Accept a party that has no session with the coordinator.

    Raises:
        TransportError: The party has not started, is stuck, does not answer on its port, or has no
            session with the coordinator.
    """
    found, writable = try_read_json(path), _is_writable(path.parent)
    party, state, address = (str(found.get(key, "")) for key in ("party", "state", "address"))
    if state not in _TEXTS:
        if alive_only and not writable:
            return f"{path}: cannot be written, which says nothing about the party"
        raise TransportError(f"{path}: no party has written its health there; did it start?")
    sentence = f"{party} {_TEXTS[state]}"
    if state == "over":
        return sentence
    if writable:  # a full disk is not a dead party; its port is
        _check_age(party, found.get("alive_s"))
    if address:
        _check_port(party, address)
    if state == "waiting" and not alive_only:
        raise TransportError(f"{sentence}; is the coordinator running, and can it be reached?")
    return sentence


def _is_writable(folder: Path) -> bool:
    """Return whether a party could update its file: try to write another one beside it."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return file.write(b"0") == 1
    except OSError:
        return not folder.exists()  # a party makes its folder


def _check_age(party: str, alive_s: object) -> None:
    age_s = time.monotonic() - alive_s if isinstance(alive_s, float) else math.inf
    if not 0 <= age_s <= STALE_S:  # the clock begins anew with each start of the host
        raise TransportError(
            f"{party} has given no sign of life for {age_s:.0f} s, allowed are {STALE_S:.0f}; "
            "its log says what it did last"
        )


def _check_port(party: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            pass
    except (OSError, ValueError) as error:
        raise TransportError(f"{party} does not answer on {address}: {error}") from None
