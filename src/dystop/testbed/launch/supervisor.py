"""A crew of child processes: started, started again after a crash, and all stopped at the end.

Every child hangs on a lifeline, the write end of its standard input: when this process ends,
however it ends, the kernel closes it and the child ends too (`dystop.exit_with_parent`).
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dystop.errors import DystopError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.3, 5.0  # before a crashed child is started again
STEADY_S = 20.0  # a child that lived this long starts afresh with the first pause
MOST_CRASHES = 5  # by itself, in a row, none of them steady
MOST_KILLS = 20  # from outside, likewise: somebody tries what happens, or memory is short
WRONG_INPUT, BROKEN = 2, 4  # exit codes: starting again is no use
SENT_AWAY = 6  # exit code of a worker in quarantine: the others go on without it
_KILLED = (-signal.SIGKILL, -signal.SIGTERM, 137)  # the last: as a failpoint ends a process
GRACE_S = 3.5  # for a child to save and leave
_QUOTED_BYTES = 2000


@dataclass
class Child:
    """One role and the process that plays it now."""

    name: str
    words: Sequence[str]  # the command
    log: Path
    process: subprocess.Popen[bytes] | None = None
    began_s: float = 0.0
    crashes: int = 0  # in a row
    kills: int = 0  # in a row
    starts: int = 0
    again_s: float = 0.0  # when to start it again
    done: bool = False  # it has ended for good

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def complaint(self) -> str:
        """The end of what it wrote."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _QUOTED_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].removeprefix("Error: ") if lines else ""


@dataclass
class ProcessSupervisor:
    """Children by name. Used from one thread; `stop` must be reached, so use it in `finally`."""

    environment: Mapping[str, str]
    children: dict[str, Child] = field(default_factory=dict)

    def hire(self, name: str, words: Sequence[str], log: Path) -> Child:
        """Start a child."""
        child = self.children[name] = Child(name, list(words), log)
        self._start(child)
        return child

    def _start(self, child: Child) -> None:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log:
            # A group of its own: Ctrl-C reaches the launcher alone, which then stops the children.
            child.process = subprocess.Popen(
                list(child.words),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(self.environment),
                process_group=0,
            )
        child.began_s = time.monotonic()
        child.starts += 1

    def call_back(self, name: str) -> None:
        """Start a child again that was sent away, with the next look."""
        child = self.children.get(name)
        if child is not None and child.done:
            child.done, child.crashes, child.again_s = False, 0, 0.0

    def look(self) -> list[str]:
        """Reap what has ended, and start again what has crashed; raises where that is no use.

        Returns a sentence for every child that will be started again.
        """
        return [told for child in self.children.values() if (told := self._look_after(child))]

    def _look_after(self, child: Child) -> str:
        now = time.monotonic()
        if child.process is None:
            if not child.done and now >= child.again_s:
                self._start(child)
            return ""
        code = child.process.poll()
        if code is None:
            return ""
        _release(child.process)
        child.process = None
        if code in (0, SENT_AWAY):
            child.done = True
            return ""
        child.again_s = now + self._pause_s(child, code)
        return f"{child.name} {_how(code)}; started again (log: {child.log})"

    def _pause_s(self, child: Child, code: int) -> float:
        """Before the next start; what was killed from outside is not the child's own fault."""
        if time.monotonic() - child.began_s > STEADY_S:
            child.crashes = child.kills = 0
        if code in _KILLED:
            child.kills += 1
            if child.kills > MOST_KILLS:
                raise _hopeless(child, code)
            return FIRST_PAUSE_S
        child.crashes += 1
        if code in (WRONG_INPUT, BROKEN) or child.crashes > MOST_CRASHES:
            raise _hopeless(child, code)
        return min(FIRST_PAUSE_S * 2.0 ** (child.crashes - 1), LONGEST_PAUSE_S)

    def wait(self, names: Iterable[str], within_s: float) -> bool:
        """Let children leave by themselves; False if some are still there after `within_s`."""
        until = time.monotonic() + within_s
        wanted = [self.children[name] for name in names]
        while any(child.running for child in wanted):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask every child to leave; kill what has not left in time. None is left afterwards."""
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
    assert child.process is not None  # it runs
    return child.process


def _release(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()


def _how(code: int) -> str:
    """How a process has ended.

    >>> _how(1), _how(-6), _how(-9)
    ('ended with code 1', 'was ended by SIGABRT', 'was ended by SIGKILL')
    """
    if code >= 0:
        return f"ended with code {code}"
    known = {int(s): s.name for s in signal.Signals}
    return f"was ended by {known.get(-code, f'signal {-code}')}"


def _hopeless(child: Child, code: int) -> DystopError:
    said = child.complaint() or "it said nothing"
    often = f" {child.starts} times" if child.starts > 1 else ""
    hint = "; perhaps memory is short" if code == -signal.SIGKILL else ""
    error = DystopError(f"{child.name} {_how(code)}{often}{hint}: {said} (log: {child.log})")
    error.exit_code = code if code in (WRONG_INPUT, BROKEN) else 1
    return error
