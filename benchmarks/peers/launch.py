"""Running one script as a child process: what it reports, what it needs, or why it failed."""

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import IO, Any

from child import LAUNCHED
from watch import Watch

QUIET = 0.1  # share of the machine that others may use in a round that counts
_ERROR_LINES = 8
_REPORTED = (
    "version", "mode", "workers", "images", "images_per_s", "loss", "startup_s", "ended"
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One child: what it reported, or the last lines of its error."""

    name: str
    version: str = ""
    mode: str = ""
    workers: int = 0
    images: list[int] = field(default_factory=list)
    images_per_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    startup_s: float = math.nan
    peak_bytes: int = 0
    ended: list[float] = field(default_factory=list)  # time.monotonic() of each round, warm-up too
    others_by_round: list[float] = field(default_factory=list)  # share of the machine they used
    error: str = ""

    @property
    def rates(self) -> list[float]:
        """Images per second of the rounds that count."""
        return [rate for rate, _ in self._quiet()]

    @property
    def rate(self) -> float:
        """Images per second of the median round that counts; NaN for a run that failed."""
        return math.nan if self.error else statistics.median(self.rates)

    @property
    def others(self) -> float:
        """Largest share of the machine that others used in a round that counts."""
        return max((share for _, share in self._quiet()), default=math.nan)

    def _quiet(self) -> list[tuple[float, float]]:
        """Rate and others' share of the quiet rounds; of the quietest one if none is quiet."""
        pairs = list(zip(self.images_per_s, self.others_by_round, strict=True))
        limit = max(QUIET, min((share for _, share in pairs), default=0.0))
        return [pair for pair in pairs if pair[1] <= limit]


def problem(report: dict[str, Any], images_per_worker: int) -> str:
    """Why a report cannot be used; empty if it can."""
    wanted = report["workers"] * images_per_worker
    if not report["images"] or set(report["images"]) != {wanted}:
        return f"trained on {report['images']} images a round; expected {wanted}"
    first, last = report["loss"]
    if not (math.isfinite(last) and last < first):
        return f"the loss went from {first:.3f} to {last:.3f}; expected it to fall"
    return ""


def parse(name: str, stdout: str, images_per_worker: int) -> Run:
    """The run that a child's output describes, as if nobody else had used the machine."""
    lines = [line for line in stdout.splitlines() if line.strip()]
    try:
        report = json.loads(lines[-1])
        alone = [0.0 for _ in report["images_per_s"]]
        run = Run(name, others_by_round=alone, **{key: report[key] for key in _REPORTED})
        return replace(run, error=problem(report, images_per_worker))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        shown = lines[-1][:200] if lines else "nothing"
        return Run(name, error=f"expected one line of JSON, it printed {shown} ({error!r})")


def launch(name: str, command: Sequence[str], images_per_worker: int, limit_s: float) -> Run:
    """Run a child to its end, in a folder that is thrown away with what it leaves there."""
    with tempfile.TemporaryFile("w+") as stderr, tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, LAUNCHED: str(time.monotonic())},
            cwd=folder,
            start_new_session=True,
        )
        watch = Watch(child.pid)
        watch.start()
        try:
            stdout, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Run(name, error=f"not done after {limit_s:.0f} s\n{_tail(stderr)}")
        finally:
            watch.stop()
            _end(child)
        if child.returncode:
            return Run(name, error=f"exit code {child.returncode}\n{_tail(stderr)}")
    run = parse(name, stdout, images_per_worker)
    others = [watch.others(begin, end) for begin, end in pairwise(run.ended)]
    return replace(run, peak_bytes=watch.peak_bytes, others_by_round=others)


def _end(child: subprocess.Popen[str]) -> None:
    """Stop whatever a child has left running, and the child itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # a session of its own: nobody else is in it
    with child:  # waits for it and closes its pipe
        pass


def _tail(stderr: IO[str]) -> str:
    stderr.seek(0)
    lines = [line.rstrip() for line in stderr.read().splitlines() if line.strip()]
    return "\n".join(lines[-_ERROR_LINES:])
