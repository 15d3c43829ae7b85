"""What can be measured, and measuring it."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from dystop.bench.evaluation import evaluation_lines
from dystop.bench.machine import facts
from dystop.bench.mixing import mixing_lines
from dystop.bench.planner import planner_lines
from dystop.bench.processes import memory_lines, run_lines, startup_lines
from dystop.bench.result import FORMAT, Line, Sweep
from dystop.bench.settings import Settings
from dystop.bench.sweeps import cost_of_models, cost_of_workers
from dystop.bench.testbed import testbed_lines
from dystop.bench.training import training_lines
from dystop.bench.wire import wire_lines
from dystop.experiments.config import read_experiment

Say = Callable[[str], None]
BENCHES: dict[str, Callable[[Settings, Say], Iterator[Line]]] = {
    "trainer": training_lines,
    "planner": planner_lines,
    "mixing": mixing_lines,
    "evaluation": evaluation_lines,
    "run": run_lines,
    "startup": startup_lines,
    "memory": memory_lines,
    "wire": wire_lines,
    "testbed": testbed_lines,
}
SWEEPS = "sweeps"  # name of what the figures need


class Watcher(Protocol):
    """Someone who follows the measuring."""

    def begins(self, what: str) -> None:
        """A benchmark starts."""

    def says(self, status: str) -> None:
        """What it is doing now."""

    def ends(self, what: str, seconds: float) -> None:
        """It is over."""


@dataclass
class Measured:
    """What has been measured so far; good to be written at any moment."""

    settings: Settings
    about: dict[str, Any]  # machine and versions
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    lines: list[Line] = field(default_factory=list)
    sweeps: dict[str, list[Sweep]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # by benchmark
    failed: dict[str, str] = field(default_factory=dict)  # why, by benchmark

    def document(self) -> dict[str, Any]:
        """Everything as plain values: what the JSON file holds."""
        return {
            "format": FORMAT,
            "date": self.date,
            "seconds": self.seconds,
            "settings": self.settings.tree(),
            **self.about,
            "lines": [line.tree() for line in self.lines],
            "sweeps": {name: [asdict(one) for one in some] for name, some in self.sweeps.items()},
            "failed": self.failed,
        }


def prepare(settings: Settings) -> Measured:
    """Check what was asked for, and look at the machine before it is busy with us."""
    for model in settings.models:
        read_experiment(None, [f"model.name={model}", *settings.words])
    return Measured(settings, facts(settings.device))


def measure(done: Measured, whats: Sequence[str], watcher: Watcher, *, sweep: bool = False) -> None:
    """Measure everything that is named, and note it in `done`.

    A benchmark that this machine cannot do is noted as failed, and the others still count.

    Args:
        done: From `prepare`.
        whats: Keys of `BENCHES`.
        watcher: Is told what is going on.
        sweep: Also measure cost against workers and against model size, for the figures.
    """
    settings = done.settings
    for what in whats:
        with _noted(done, what, watcher):
            for line in BENCHES[what](settings, watcher.says):
                done.lines.append(line)
    if sweep:
        with _noted(done, SWEEPS, watcher):
            done.sweeps["workers"] = cost_of_workers(settings, watcher.says)
            done.sweeps["model_size"] = cost_of_models(settings, watcher.says)


@contextmanager
def _noted(done: Measured, what: str, watcher: Watcher) -> Iterator[None]:
    """Keep the seconds of a block, and its error if it has one."""
    began = time.perf_counter()
    watcher.begins(what)
    try:
        yield
    except Exception as error:  # whatever it is, the other benchmarks need not suffer
        if os.environ.get("DYSTOP_DEBUG") == "1":
            raise
        done.failed[what] = f"{type(error).__name__}: {error}"
    done.seconds[what] = round(time.perf_counter() - began, 2)
    watcher.ends(what, done.seconds[what])
