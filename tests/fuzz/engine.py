"""Draws hostile inputs for a target and reports every input that the target may not end on.

The sequence of inputs follows from the seed and from what the target did so far, so the same seed
finds the same input again, with the same number. Inputs that end in a new place of the code are
kept and mutated further. Each target runs in a process of its own with a limit on its memory; the
input it works on lies in memory that both processes share, so that it survives a crash.
"""

import json
import logging
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.mutations import Mutation, of_bytes, pick

MEMORY_BYTES = 3 << 29
SLOW_S = 10.0
_MOST_BYTES = 1 << 22  # a longer input is cut
_MOST_KEPT = 400
_SHOWN = 2000


@dataclass(frozen=True)
class Target:
    """A parser of foreign bytes.

    Args:
        name: For the command line.
        read: Parses bytes; a file target writes them into its folder first.
        seeds: Valid inputs.
        refusals: Errors that say that the input is bad. Any other one is a finding.
        mutate: Changes an input in a way that knows its format.
        mend: Makes digests and lengths right again, so that an input gets further.
    """

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    refusals: tuple[type[BaseException], ...]
    mutate: Mutation = of_bytes
    mend: Callable[[bytes], bytes] = field(default=lambda data: data)


@dataclass(frozen=True)
class Finding:
    """An input that a target may not end on."""

    target: str
    seed: int
    number: int  # of the input
    data: bytes
    why: str

    def __str__(self) -> str:
        shown = repr(self.data[:_SHOWN]) + ("..." if len(self.data) > _SHOWN else "")
        return (
            f"{self.target}: input {self.number} of seed {self.seed}, {len(self.data)} bytes:\n"
            f"{shown}\n{self.why}\n"
            f"to repeat: python -m fuzz {self.target} --seed {self.seed} --inputs {self.number + 1}"
        )


class TooSlow(BaseException):
    """An input takes longer than `SLOW_S`; no parser catches this."""


def inputs_of(target: Target, seed: int, seen: set[str]) -> Iterator[bytes]:
    """Yield inputs without end; the caller adds to `seen` where the last one ended."""
    rng = np.random.default_rng([seed, *target.name.encode()])
    kept, known = list(target.seeds), 0
    yield from target.seeds
    while True:
        data = pick(rng, kept)
        for _ in range(1 + int(rng.random() < 0.3)):
            change = target.mutate if rng.random() < 0.75 else of_bytes
            data = change(rng, data)[:_MOST_BYTES]
        data = target.mend(data)
        yield data
        if len(seen) > known and len(kept) < _MOST_KEPT:
            known = len(seen)
            kept.append(data)


def run(
    target: Target,
    seed: int,
    *,
    inputs: int | None = None,
    seconds: float | None = None,
    before: Callable[[int, bytes], object] = lambda number, data: None,
) -> tuple[int, list[Finding]]:
    """Run a target until it has had so many inputs or so many seconds; return what it did wrong.

    A place in the code counts once, however many inputs end there.
    """
    seen: set[str] = set()
    findings: list[Finding] = []
    until = None if seconds is None else time.monotonic() + seconds
    number = -1
    for number, data in enumerate(inputs_of(target, seed, seen)):
        if number == inputs or (until is not None and time.monotonic() > until):
            return number, findings
        before(number, data)
        error = _error_of(target, data)
        place = "" if error is None else _place(error)
        is_new = place not in seen
        seen.add(place)
        if error is not None and is_new and not isinstance(error, target.refusals):
            why = "".join(traceback.format_exception(error)[-6:])
            findings.append(Finding(target.name, seed, number, data, why))
    return number + 1, findings


def _error_of(target: Target, data: bytes) -> BaseException | None:
    try:
        with _alarm(SLOW_S):
            target.read(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def _place(error: BaseException) -> str:
    """Return the type of an error and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "dystop" in f.filename] or frames
    last = inside[-1] if inside else None
    return f"{type(error).__name__} {last.filename if last else ''}:{last.lineno if last else 0}"


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooSlow(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_in_child(
    make: Callable[[str, Path], Target], name: str, seed: int, **limits: Any
) -> tuple[int, list[Finding]]:
    """Run a target as `run` does, in a process with a limit on its memory."""
    shared = mmap.mmap(-1, _MOST_BYTES + 16)
    reader, writer = os.pipe()
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os.close(reader)
        _child(make, name, seed, shared, writer, limits)
    os.close(writer)
    with os.fdopen(reader) as answers:
        said = answers.read()
    _, status = os.waitpid(child, 0)
    if said:
        inputs, found = json.loads(said)
        made = [{**each, "data": bytes.fromhex(each["data"])} for each in found]
        return inputs, [Finding(**each) for each in made]
    number, length = np.frombuffer(shared, np.int64, 2).tolist()
    data = bytes(shared[16 : 16 + length])
    return number + 1, [Finding(name, seed, number, data, f"the process ended: status {status}")]


def _child(
    make: Callable[[str, Path], Target],
    name: str,
    seed: int,
    shared: mmap.mmap,
    writer: int,
    limits: dict[str, Any],
) -> None:
    def note(number: int, data: bytes) -> None:
        shared[16 : 16 + len(data)] = data
        shared[:16] = np.array([number, len(data)]).tobytes()

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        with tempfile.TemporaryDirectory() as folder:
            target = make(name, Path(folder))
            resource.setrlimit(resource.RLIMIT_AS, (_used() + MEMORY_BYTES,) * 2)
            inputs, findings = run(target, seed, before=note, **limits)
        found = [{**vars(each), "data": each.data.hex()} for each in findings]
        with os.fdopen(writer, "w") as answers:
            json.dump([inputs, found], answers)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _used() -> int:
    """Return the address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
