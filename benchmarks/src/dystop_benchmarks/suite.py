"""The benchmarks of `dystop bench` by name, and how they are run."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from dystop.config import read_experiment
from dystop_benchmarks.machine import facts
from dystop_benchmarks.mixing import mixing_lines
from dystop_benchmarks.planning import planner_lines
from dystop_benchmarks.processes import memory_lines, run_lines, startup_lines
from dystop_benchmarks.result import FORMAT, Line, Sweep
from dystop_benchmarks.scaling import cost_of_models, cost_of_workers
from dystop_benchmarks.settings import Settings
from dystop_benchmarks.testbed.coordinator import coordinator_lines
from dystop_benchmarks.testbed.serving import serving_lines
from dystop_benchmarks.testbed.wire import wire_lines
from dystop_benchmarks.training import evaluation_lines, optimiser_lines, training_lines
from dystop_benchmarks.waves import wave_lines

Say = Callable[[str], None]


def testbed_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure the coordinator, then a worker whose model is pulled while it trains."""
    yield from coordinator_lines(settings, say)
    yield from serving_lines(settings, say)


BENCHES: dict[str, Callable[[Settings, Say], Iterator[Line]]] = {
    "trainer": training_lines,
    "optimisers": optimiser_lines,
    "planner": planner_lines,
    "mixing": mixing_lines,
    "evaluation": evaluation_lines,
    "waves": wave_lines,
    "run": run_lines,
    "startup": startup_lines,
    "memory": memory_lines,
    "wire": wire_lines,
    "testbed": testbed_lines,
}
SWEEPS = "sweeps"  # the measurements behind the figures


class Watcher(Protocol):
    """Progress of the benchmarks, shown to the user."""

    def begins(self, what: str) -> None:
        """Show that a benchmark starts."""

    def says(self, status: str) -> None:
        """Show what the benchmark does now."""

    def ends(self, what: str, seconds: float) -> None:
        """Show that a benchmark has ended."""


@dataclass
class Measured:
    """The results so far. They can be written at any moment."""

    settings: Settings
    about: dict[str, Any]  # machine and versions
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    lines: list[Line] = field(default_factory=list)
    sweeps: dict[str, list[Sweep]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # by benchmark
    failed: dict[str, str] = field(default_factory=dict)  # why, by benchmark

    def document(self) -> dict[str, Any]:
        """Return everything as plain values, as the JSON file holds it."""
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
    """Check the settings, and describe the machine before it is busy."""
    for model in settings.models:
        read_experiment(None, [f"model.name={model}", *settings.words])
    return Measured(settings, facts(settings.device))


def measure(done: Measured, whats: Sequence[str], watcher: Watcher, *, sweep: bool = False) -> None:
    """Run the named benchmarks and add their results to `done`.

    A benchmark that fails on this machine is recorded as failed; the others still run.

    Args:
        done: Return value of `prepare`.
        whats: Keys of `BENCHES`.
        watcher: Receives progress.
        sweep: Also measure cost against workers and against model size, for the figures.
    """
    settings = done.settings
    for what in whats:
        with _recorded(done, what, watcher):
            for line in BENCHES[what](settings, watcher.says):
                done.lines.append(line)
    if sweep:
        with _recorded(done, SWEEPS, watcher):
            done.sweeps["workers"] = cost_of_workers(settings, watcher.says)
            done.sweeps["model_size"] = cost_of_models(settings, watcher.says)


@contextmanager
def _recorded(done: Measured, what: str, watcher: Watcher) -> Iterator[None]:
    """Record the seconds of a block, and its error if it raises one."""
    began = time.perf_counter()
    watcher.begins(what)
    try:
        yield
    except Exception as error:  # the other benchmarks still run
        if os.environ.get("DYSTOP_DEBUG") == "1":
            raise
        done.failed[what] = f"{type(error).__name__}: {error}"
    done.seconds[what] = round(time.perf_counter() - began, 2)
    watcher.ends(what, done.seconds[what])
