"""Of several processes one compiles a function, and the others wait for its result.

A claim is a lock on one byte of a file in the folder of the machine code. The system drops it when
its holder ends, however that ends, so a claim never outlives the work on it. Nothing depends on a
claim but time: where there are no locks, everybody compiles alone. One exception is the index of
a function, which numba rewrites as a whole: two processes that add to it at the same moment could
exchange their entries, so that is done under a claim, too.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_locks: Any = None  # stays so on a system that has no such locks
with suppress(ImportError):
    _locks = import_module("fcntl")

FILE = "claims"
PATIENCE_S = 120.0
"""The longest that anybody waits; compiling takes seconds, but a holder may have been stopped."""

_LOOK_S = 0.005  # between two looks
_PLACES = 2**62  # of a byte: no two claims share one


class Claims:
    """Claims of this process in one folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = -1  # opened once: closing any handle of a file drops all claims

    def claim(self, what: str, patience_s: float = PATIENCE_S) -> bool:
        """Wait until nobody else holds this, and hold it; False if that took too long."""
        until = time.monotonic() + patience_s
        while not self._try(what):
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        return True

    def drop(self, what: str) -> None:
        """Let go of it, if it is held."""
        if _locks is not None and self._file >= 0:
            with suppress(OSError):
                _locks.lockf(self._file, _locks.LOCK_UN, 1, _place(what))

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Hold it for a while."""
        self.claim(what)
        try:
            yield
        finally:
            self.drop(what)

    def _try(self, what: str) -> bool:
        """Whether it is held now; also true where there are no locks."""
        if _locks is None:
            return True
        try:
            if self._file < 0:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            _locks.lockf(self._file, _locks.LOCK_EX | _locks.LOCK_NB, 1, _place(what))
        except (BlockingIOError, PermissionError):  # how systems say that another process has it
            return self._file < 0
        except OSError:
            return True
        return True


@cache
def claims_in(folder: Path) -> Claims:
    """The claims of this process; there must be only one object for a folder."""
    return Claims(folder)


def _place(what: str) -> int:
    return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big") % _PLACES
