"""Looking at a child from outside: its memory, and how busy others keep the machine (Linux)."""

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

_SAMPLE_S = 0.5
_PROC = Path("/proc")


class Process(NamedTuple):
    """What is read of one process."""

    parent: int
    ticks: int  # processor time used so far


def processes() -> dict[int, Process]:
    """Every process that runs now; none where there is no /proc."""
    found = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(")")  # the name may hold anything
        except OSError:  # it has just ended
            continue
        words = rest.split()
        found[int(stat.parent.name)] = Process(int(words[1]), int(words[11]) + int(words[12]))
    return found


def family(pid: int, running: dict[int, Process]) -> set[int]:
    """A process and everything it started that still runs."""
    members, new = {pid}, {pid}
    while new:
        new = {p for p, process in running.items() if process.parent in new} - members
        members |= new
    return members & running.keys()


def busy_ticks() -> int:
    """Processor time used by everybody since the machine started, all cores together."""
    try:
        words = (_PROC / "stat").read_text().split()[1:9]
    except OSError:
        return 0
    user, nice, system, _idle, _waiting, *rest = map(int, words)
    return user + nice + system + sum(rest)


def capacity_ticks(seconds: float) -> float:
    """Processor time that there is in so many seconds."""
    return seconds * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)


def wait_for_quiet(patience_s: float, share: float = 0.1, look_s: float = 3.0) -> None:
    """Return when others use less than this share of the machine, or patience is at its end."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        before = busy_ticks()
        time.sleep(look_s)
        if busy_ticks() - before < share * capacity_ticks(look_s):
            return


class Watch(threading.Thread):
    """Follows a child and its descendants; cheap enough not to disturb what is measured."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak_bytes = pid, 0
        self._own: dict[int, int] = {}  # ticks of each process that ever belonged to the child
        self._busy = busy_ticks()
        self._trace = [(time.monotonic(), 0)]  # when, and what others had used since the start
        self._done = threading.Event()

    def run(self) -> None:
        """Look twice a second."""
        while not self._done.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        running = processes()
        members = family(self.pid, running)
        self._own.update({p: running[p].ticks for p in members})
        others = busy_ticks() - self._busy - sum(self._own.values())
        self._trace.append((time.monotonic(), others))
        if len(self._trace) % 3 == 0:  # the dearer look
            self.peak_bytes = max(self.peak_bytes, sum(map(resident_bytes, members)))

    def stop(self) -> None:
        """Look no more."""
        self._done.set()
        self.join()

    def others(self, begin_s: float, end_s: float) -> float:
        """Share of the machine that others used between two readings of time.monotonic()."""
        when, used = zip(*self._trace, strict=True)
        ticks = np.diff(np.interp([begin_s, end_s], when, used))[0]
        return float(max(0.0, ticks / capacity_ticks(end_s - begin_s)))


def resident_bytes(pid: int) -> int:
    """Proportional set size: a page that k processes share counts 1/k for each."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
