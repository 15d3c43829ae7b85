"""A memory limit for one process, by a control group that is made and removed again."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
_LEAVE_S = 5.0


@dataclass(frozen=True)
class Layout:
    """Where the kernel keeps memory groups, and what it calls their files."""

    root: Path
    limit: str
    used: str
    kills: str


OLD = Layout(ROOT / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
             "memory.oom_control")  # fmt: skip
NEW = Layout(ROOT, "memory.max", "memory.current", "memory.events")


def layout() -> Layout:
    """The one of this machine; skips the test where there is none, or it may not be used."""
    for one in (OLD, NEW):
        own = one.root / f"dystop-{uuid.uuid4().hex[:8]}"
        with suppress(OSError):
            own.mkdir()
            has = (own / one.limit).exists()
            own.rmdir()
            if has:
                return one
    pytest.skip("no memory control group can be made here (Linux, root)")


class Group:
    """A control group; what a process has taken counts only if it began in the group."""

    def __init__(self, one: Layout, path: Path) -> None:
        self._layout, self._path = one, path

    @property
    def prefix(self) -> list[str]:
        """Words before a command that is to run in the group."""
        return ["sh", "-c", f'echo $$ > {self._path}/cgroup.procs; exec "$@"', "sh"]

    @property
    def used(self) -> int:
        """Bytes at the moment."""
        return int((self._path / self._layout.used).read_text())

    @property
    def kills(self) -> int:
        """How often the kernel has killed for want of memory."""
        text = (self._path / self._layout.kills).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    def limit(self, size: int) -> None:
        """Allow so many bytes from now on."""
        (self._path / self._layout.limit).write_text(str(size))


@contextmanager
def a_group() -> Iterator[Group]:
    """A group for processes that are started by its `prefix`; whoever is left in it is ended."""
    one = layout()
    path = one.root / f"dystop-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    try:
        yield Group(one, path)
    finally:
        for left in (path / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(left), signal.SIGKILL)
        until = time.monotonic() + _LEAVE_S
        while path.exists() and time.monotonic() < until:
            with suppress(OSError):
                path.rmdir()
            time.sleep(0.05)
