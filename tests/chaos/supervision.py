"""The launcher's process supervisor with what fault tests need: delays, failpoints, samples."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dystop.testbed.audit.check import MAX_DESCRIPTORS, MAX_THREADS, Finding
from dystop.testbed.launch.failpoints import VARIABLE
from dystop.testbed.launch.supervisor import Child, ProcessSupervisor
from dystop.testbed.names import COORDINATOR

NEVER_S = 1e9
SAMPLE_S = 2.0


@dataclass
class ChaosSupervisor(ProcessSupervisor):
    """A supervisor that restarts killed children after a delay, with failpoints if armed."""

    __test__ = False

    restart_s: float = 2.0
    expendable: set[str] = field(default_factory=set)  # are not restarted after an error
    held: set[str] = field(default_factory=set)  # are not restarted for now
    armed: dict[str, list[str]] = field(default_factory=dict)  # failpoints of the next starts

    def _spawn(self, child: Child) -> None:
        plain, failpoints = self.environment, self.armed.get(child.name)
        if failpoints:
            self.environment = {**plain, VARIABLE: failpoints.pop(0)}
        try:
            super()._spawn(child)
        finally:
            self.environment = plain

    def _poll_child(self, child: Child) -> str:
        if child.process is None and child.name in self.held:
            return ""
        return super()._poll_child(child)

    def _pause_s(self, child: Child, code: int) -> float | None:
        if child.name in self.expendable and code > 0:
            child.done = True
            return NEVER_S
        child.kills = 0  # they are the test's: a launcher gives up after twenty in a row
        pause_s = super()._pause_s(child, code)
        return None if pause_s is None else max(self.restart_s, pause_s)

    def pid(self, name: str) -> int | None:
        """Return the process number of a child, if it runs."""
        child = self.children.get(name)
        return child.process.pid if child and child.process and child.running else None

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to one child; return whether it runs."""
        pid = self.pid(name)
        if pid is None:
            return False
        os.kill(pid, number)
        return True


class Freezer:
    """Stops processes for a while. A helper continues them, even if this process has ended."""

    def __init__(self) -> None:
        self._helpers: list[subprocess.Popen[bytes]] = []

    def freeze(self, pid: int, seconds: float) -> None:
        """Stop a process now; it continues after this many seconds."""
        script = f"kill -STOP {pid}; sleep {seconds:g}; kill -CONT {pid}"
        words = ["sh", "-c", script]
        self._helpers.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))

    def close(self) -> None:
        """End the helpers; the processes that they would continue are ended anyway."""
        for helper in self._helpers:
            helper.kill()
            helper.wait()


class Sampler:
    """Writes memory, descriptors and threads of every child to a file every two seconds (I8)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._due_s = 0.0
        self._began_s = time.monotonic()
        self.most: dict[str, dict[str, int]] = {}

    def sample(self, supervisor: ChaosSupervisor) -> None:
        """Take a sample if one is due."""
        now = time.monotonic()
        if now < self._due_s:
            return
        self._due_s = now + SAMPLE_S
        for name in supervisor.children:
            pid = supervisor.pid(name)
            taken = resources_of(pid) if pid else None
            if not taken:
                continue
            line = {"at_s": round(now - self._began_s, 2), "name": name, "pid": pid, **taken}
            self._file.write(json.dumps(line) + "\n")
            self._update_most(name, taken)
        self._file.flush()

    def _update_most(self, name: str, taken: dict[str, int]) -> None:
        most = self.most.setdefault(name, dict(taken))
        for what, value in taken.items():
            most[what] = max(most[what], value)

    def findings(self) -> list[Finding]:
        """Return violations of I8: bounds on descriptors and threads.

        A coordinator has two threads for every session, one of which reads.
        """
        sessions = {COORDINATOR: 2 * len(self.most)}
        return [
            Finding("I8", f"{name} reached {most[what]} {what}, allowed are {bound}")
            for name, most in sorted(self.most.items())
            for what, bound in (
                ("descriptors", MAX_DESCRIPTORS),
                ("threads", MAX_THREADS + sessions.get(name, 0)),
            )
            if most[what] > bound
        ]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def resources_of(pid: int) -> dict[str, int] | None:
    """Return what a process uses now; None if it has ended."""
    base = Path(f"/proc/{pid}")
    with suppress(OSError, ValueError, IndexError, StopIteration):
        pages = int((base / "statm").read_text().split()[1])
        status = (base / "status").read_text().splitlines()
        threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
        return {
            "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "descriptors": len(os.listdir(base / "fd")),
            "threads": threads,
        }
    return None
