"""The right to drive a study: one process at a time, on whichever host.

A file lock keeps other processes of this host away. Not every network file system passes such locks
on to other hosts, so the driver also keeps a lease: a file that it rewrites every few seconds. A
driver on another host that finds the lease changing is refused. A lease that stays as it is belongs
to a driver that is dead, and is replaced.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from dystop.errors import RunFolderError
from dystop.folders.folder_kinds import writing
from dystop.folders.record_log import RunLock
from dystop.storage import try_read_json, write_atomic

LEASE = ".driver.json"
BEAT_S = 4.0
STALE_S = 20.0  # a lease that has not changed for so long belongs to a dead driver
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DriverLock:
    """The exclusive right to drive a study, for as long as the `with` block lasts.

    Args:
        study: The folder of the study.
        machine: Tells one running kernel from another; file locks work within one.
        wait: Waits for some seconds.
    """

    def __init__(
        self,
        study: Path,
        machine: str | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._study, self._path = study, study / LEASE
        self._machine = machine or _this_machine()
        self._wait = wait
        self._lock = RunLock(study)
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def check(self) -> None:
        """Raise if another driver has replaced this one, which it took for dead."""
        lease = try_read_json(self._path)
        if lease.get("token") != self._token:
            raise RunFolderError(
                f"{self._study}: {_who(lease)} drives this study now, because this process did not "
                "answer; nothing more is written here"
            )

    def __enter__(self) -> Self:
        self._lock.acquire()
        try:
            self._refuse_living()
            with writing(self._study):
                self._write()
        except BaseException:
            self._lock.release()
            raise
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        with suppress(OSError, RunFolderError):
            self.check()
            self._path.unlink()
        self._lock.release()

    def _refuse_living(self) -> None:
        """Refuse if a driver on another machine keeps its lease."""
        lease = try_read_json(self._path)
        if not lease or lease.get("machine") == self._machine:
            return  # here the file lock has already told that it is dead
        for _ in range(int(STALE_S / BEAT_S)):
            self._wait(BEAT_S)
            now = try_read_json(self._path)
            if now and now != lease:
                raise RunFolderError(
                    f"{self._study}: {_who(now)} drives this study; wait for it to end, or stop "
                    "it, then try again"
                )

    def _write(self) -> None:
        self._beats += 1
        lease = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "machine": self._machine,
            "token": self._token,
            "beats": self._beats,
        }
        write_atomic(self._path, json.dumps(lease).encode(), durable=False)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            with suppress(OSError):  # a full disk: the next beat may fit
                if try_read_json(self._path).get("token") != self._token:
                    return
                self._write()


def _who(lease: dict[str, Any]) -> str:
    return f"process {lease.get('pid', 'unknown')} on {lease.get('host', 'another host')}"


def _this_machine() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()
