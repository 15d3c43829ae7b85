"""A memory limit for one process, by a temporary control group."""

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
class GroupFiles:
    """The folder of the kernel's memory groups, and the names of their files."""

    root: Path
    limit: str
    used: str
    kills: str


VERSION_1 = GroupFiles(
    ROOT / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"
)
VERSION_2 = GroupFiles(ROOT, "memory.max", "memory.current", "memory.events")


def group_files() -> GroupFiles:
    """Return the files of this machine's kernel; skip the test if no group can be made."""
    for files in (VERSION_1, VERSION_2):
        own = files.root / f"dystop-{uuid.uuid4().hex[:8]}"
        with suppress(OSError):
            own.mkdir()
            has = (own / files.limit).exists()
            own.rmdir()
            if has:
                return files
    pytest.skip("no memory control group can be made here (Linux, root)")


class MemoryGroup:
    """A control group; only the memory of processes that start in the group counts."""

    def __init__(self, files: GroupFiles, path: Path) -> None:
        self._files, self._path = files, path

    @property
    def prefix(self) -> list[str]:
        """The words that run a command in the group if they precede it."""
        return ["sh", "-c", f'echo $$ > {self._path}/cgroup.procs; exec "$@"', "sh"]

    @property
    def used(self) -> int:
        """Bytes in use now."""
        return int((self._path / self._files.used).read_text())

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed because the limit was reached."""
        text = (self._path / self._files.kills).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    def limit(self, size: int) -> None:
        """Limit the group to this many bytes from now on."""
        (self._path / self._files.limit).write_text(str(size))


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Yield a group for processes started with its `prefix`; kill those that are left in it."""
    files = group_files()
    path = files.root / f"dystop-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    try:
        yield MemoryGroup(files, path)
    finally:
        for left in (path / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(left), signal.SIGKILL)
        until = time.monotonic() + _LEAVE_S
        while path.exists() and time.monotonic() < until:
            with suppress(OSError):
                path.rmdir()
            time.sleep(0.05)
