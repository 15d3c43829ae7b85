"""Supervision of child processes: start, restart after a crash, stop all at the end.

A child that cannot go on is left behind: it is not started again, and the others continue. Only
the end of an essential child ends the run.

Every child exits with this process, however this process ends: the kernel then closes the write end
of the child's standard input (`dystop.runs.processes.exit_with_parent`).
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dystop.errors import DystopError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.3, 5.0  # before a crashed child is started again
STEADY_S = 20.0  # after a life of this length the pause is the first one again
MAX_CRASHES = 5  # in a row, each before STEADY_S
MAX_KILLS = 20  # by a signal from outside, in a row: a user's test, or short memory
WRONG_INPUT, BROKEN_PLAN = 2, 4  # exit codes after which a restart would fail, too
QUARANTINED = 6  # exit code of a worker in quarantine: the run continues without it
_KILLED = (-signal.SIGKILL, -signal.SIGTERM, 137)  # 137: killed by a failpoint
GRACE_S = 3.5  # for a child to save and leave
MAX_LOG_BYTES = 10 << 20  # of a child's log; then it is moved to `.1`
_QUOTED_BYTES = 2000


@dataclass
class Child:
    """One party and the process that runs it now."""

    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    began_s: float = 0.0
    crashes: int = 0  # in a row
    kills: int = 0  # in a row
    starts: int = 0
    restart_at_s: float = 0.0  # monotonic time of the next start
    done: bool = False  # it needs no restart
    essential: bool = False  # the run cannot go on without it
    failure: DystopError | None = None  # why it is left behind

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self.process is not None and self.process.poll() is None

    def last_log_line(self) -> str:
        """Return the last line of its log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _QUOTED_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].removeprefix("Error: ") if lines else ""


@dataclass
class ProcessSupervisor:
    """Child processes by name. For one thread; call `stop` in a `finally` block."""

    environment: Mapping[str, str]
    children: dict[str, Child] = field(default_factory=dict)

    def start(
        self, name: str, command: Sequence[str], log: Path, *, essential: bool = False
    ) -> Child:
        """Start a child; an essential one is never left behind."""
        child = self.children[name] = Child(name, list(command), log, essential=essential)
        self._spawn(child)
        return child

    def _spawn(self, child: Child) -> None:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log:
            # Its own process group: Ctrl-C reaches only the launcher, which stops the children.
            child.process = subprocess.Popen(
                list(child.command),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(self.environment),
                process_group=0,
            )
        child.began_s = time.monotonic()
        child.starts += 1

    def restart(self, name: str) -> None:
        """Let the next `poll` start a child again that was in quarantine or left behind."""
        child = self.children.get(name)
        if child is not None and child.done:
            child.done, child.failure, child.restart_at_s = False, None, 0.0
            child.crashes = child.kills = 0

    def left_behind(self) -> dict[str, DystopError]:
        """Return the children that cannot go on, and why."""
        return {c.name: c.failure for c in self.children.values() if c.failure is not None}

    def poll(self) -> list[str]:
        """Reap children that have ended and restart those that crashed.

        Returns one sentence per child that will be restarted or is left behind. Raises DystopError
        if an essential child cannot go on.
        """
        return [notice for child in self.children.values() if (notice := self._poll_child(child))]

    def _poll_child(self, child: Child) -> str:
        now = time.monotonic()
        _shorten(child.log)
        if child.process is None:
            if not child.done and now >= child.restart_at_s:
                self._spawn(child)
            return ""
        code = child.process.poll()
        if code is None:
            return ""
        _release(child.process)
        child.process = None
        if code in (0, QUARANTINED):
            child.done = True
            return ""
        pause_s = self._pause_s(child, code)
        if pause_s is None:
            return self._give_up(child, code)
        child.restart_at_s = now + pause_s
        return f"{child.name} {_describe_exit(code)}; started again (log: {child.log})"

    def _give_up(self, child: Child, code: int) -> str:
        failure = _failure(child, code)
        if child.essential:
            raise failure
        child.done, child.failure = True, failure
        return f"{failure}; the run continues without it"

    def _pause_s(self, child: Child, code: int) -> float | None:
        """Return the pause before the next start; None: another start would fail, too.

        A kill from outside is no crash of the child.
        """
        if time.monotonic() - child.began_s > STEADY_S:
            child.crashes = child.kills = 0
        if code in _KILLED:
            child.kills += 1
            return FIRST_PAUSE_S if child.kills <= MAX_KILLS else None
        child.crashes += 1
        if code in (WRONG_INPUT, BROKEN_PLAN) or child.crashes > MAX_CRASHES:
            return None
        return min(FIRST_PAUSE_S * 2.0 ** (child.crashes - 1), LONGEST_PAUSE_S)

    def wait(self, names: Iterable[str], within_s: float) -> bool:
        """Wait for children to exit by themselves; False if some still run after `within_s`."""
        until = time.monotonic() + within_s
        wanted = [self.children[name] for name in names]
        while any(child.running for child in wanted):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask every child to exit, and kill what has not exited in time; none is left."""
        running = [child for child in self.children.values() if child.running]
        try:
            for child in running:
                _process(child).terminate()
            self.wait([child.name for child in running], grace_s)
        finally:
            for child in running:
                if child.running:
                    _process(child).kill()
            for child in self.children.values():
                if child.process is not None:
                    child.process.wait()
                    _release(child.process)
                    child.process = None


def _process(child: Child) -> "subprocess.Popen[bytes]":
    assert child.process is not None  # it is running
    return child.process


def _release(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()


def _shorten(log: Path) -> None:
    """Move the content of a long log to `.1`, in place of what was moved there before.

    The child keeps the file open and appends to it, so it continues at the start of the empty file.
    A line that it writes at this very moment may be lost.
    """
    with suppress(OSError):  # there is none yet, or the disk is full: the next poll is soon
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, f"{log}.1")
            os.truncate(log, 0)


def _describe_exit(code: int) -> str:
    """Return how a process has ended.

    >>> _describe_exit(1), _describe_exit(-6), _describe_exit(-9)
    ('ended with code 1', 'was ended by SIGABRT', 'was ended by SIGKILL')
    """
    if code >= 0:
        return f"ended with code {code}"
    known = {int(s): s.name for s in signal.Signals}
    return f"was ended by {known.get(-code, f'signal {-code}')}"


def _failure(child: Child, code: int) -> DystopError:
    reason = child.last_log_line() or "it wrote no message"
    often = f" {child.starts} times" if child.starts > 1 else ""
    hint = "; perhaps memory is short" if code == -signal.SIGKILL else ""
    error = DystopError(
        f"{child.name} {_describe_exit(code)}{often}{hint}: {reason} (log: {child.log})"
    )
    error.exit_code = code if code in (WRONG_INPUT, BROKEN_PLAN) else 1
    return error
