"""Benchmarks in processes of their own: a whole run, its memory, and the start of the command."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from dystop.errors import DystopError
from dystop_benchmarks.result import Line, spread
from dystop_benchmarks.settings import Settings, Work, experiment_words
from dystop_benchmarks.stopwatch import in_turns

Say = Callable[[str], None]
_EVERY = 5  # rounds between two evaluations, as in the paper's figures
_STARTS = 5  # of the command, at least
_MEGABYTE = 1e6
_CACHES = ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
NOTHING: Mapping[str, str] = MappingProxyType({})


def run_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure the paper's run on images of Fashion-MNIST's shape, and where its time goes."""
    rounds = settings.scale.rounds
    for model in settings.models:
        work = replace(settings.work(model), test_images=settings.scale.run_test_images)
        if not work.small:
            continue  # the paper's run is that of the small models
        name = f"{model}, {work.workers} workers, {rounds} rounds"
        say(f"{name}: caches of compiled code are filled")
        first = _run(settings, replace(work, images=work.batch), rounds=1)
        say(name)
        found = _run(settings, work, rounds)
        yield from _shares(name, found, first["wall_s"])
        if settings.starts_cold:
            say(f"{name}: with empty caches")
            yield _whole(f"{name}, nothing compiled", _run(settings, work, rounds, cold=True))


def _shares(name: str, found: dict[str, Any], warmup_s: float) -> Iterator[Line]:
    """Yield training, evaluation and the rest as shares of a run, and the whole process."""
    total = spread([found["rounds_s"]])
    parts = {
        "training": found["training_s"],
        "evaluation": found["evaluation_s"],
        "all else": found["other_s"],
    }
    for part, seconds in parts.items():
        yield Line(
            what="run",
            name=f"{name}: {part}",
            unit="s",
            value=spread([seconds]),
            reference="all rounds of that run",
            reference_value=total,
            better="lower" if part == "all else" else "near 1",
            warmup_s=warmup_s,
            detail=found,
        )
    yield _whole(name, found)


def _whole(name: str, found: dict[str, Any]) -> Line:
    """Compare the whole process with training and evaluation alone."""
    return Line(
        what="run",
        name=f"{name}: with start-up",
        unit="s",
        value=spread([found["wall_s"]]),
        reference="training and evaluation alone",
        reference_value=spread([found["training_s"] + found["evaluation_s"]]),
        better="near 1",
        detail=found,
    )


def memory_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Compare the memory estimate that a run prints with the measured peak."""
    for model in settings.models:
        work = replace(settings.work(model), test_images=settings.scale.run_test_images)
        say(f"{model}, {work.workers} workers")
        found = _run(settings, work, rounds=2)
        where = "on the GPU" if settings.device.type == "cuda" else "of the process"
        yield Line(
            what="memory",
            name=f"{model}, {work.workers} workers: printed estimate",
            unit="MB",
            value=spread([found["estimate_bytes"] / _MEGABYTE]),
            reference=f"measured peak {where}",
            reference_value=spread([found["peak_bytes"] / _MEGABYTE]),
            better="near 1",
            detail=found,
        )


def _run(settings: Settings, work: Work, rounds: int, *, cold: bool = False) -> dict[str, Any]:
    """Run DySTop in a child process, with the paper's default split."""
    words = [
        *experiment_words(settings, work),
        "mechanism.name=dystop",
        "data.partition=auto",
        f"stop.rounds={rounds}",
        f"evaluate.every_rounds={_EVERY}",
    ]
    caches = {name: str(settings.folder / f"cold-{name}") for name in _CACHES} if cold else {}
    began = time.perf_counter()
    done = python(["-m", "dystop_benchmarks.child", *words, *settings.words], caches)
    wall_s = time.perf_counter() - began
    found: dict[str, Any] = json.loads(done.splitlines()[-1])
    if "error" in found:
        raise DystopError(f"the measured run was refused: {found['error']}")
    return {**found, "wall_s": wall_s}


def python(words: Sequence[str], more: Mapping[str, str] = NOTHING) -> str:
    """Run a Python process with the module path of this one; return its output."""
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": places, **more},
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise DystopError(f"a measured process ended with code {done.returncode}:\n{tail}")
    return done.stdout


def startup_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure `dystop --help` beside an interpreter that does nothing."""
    say("dystop --help")
    command = ("-m", "dystop", "--help")
    python(command)  # the first start reads the disk and writes bytecode
    measures = [_seconds(command), _seconds(("-c", "pass"))]
    ours, beside = in_turns(measures, max(settings.repeat, _STARTS))
    yield Line(
        what="startup",
        name="dystop --help",
        unit="s",
        value=ours,
        reference="python -c pass",
        reference_value=beside,
        better="lower",
    )


def _seconds(words: Sequence[str]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        python(words)
        return time.perf_counter() - began

    return measure
