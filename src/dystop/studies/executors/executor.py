"""The interface between a study and the engine that starts its runs.

A study hands an executor jobs; a job is one attempt at one run. The executor starts the `dystop`
command of the job somewhere, says whether it waits, runs or has ended, and can cancel it. It knows
nothing about rounds or results: the study reads them from the folder that the attempt writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

State = Literal["waiting", "running"]
FINAL_CODES = frozenset({2, 4})
"""Exit codes after which a second attempt would end in the same way (see `dystop.errors`)."""


@dataclass(frozen=True)
class Need:
    """What a run needs of the machine that it runs on."""

    run: str
    device: str = "auto"  # training.device
    memory_bytes: int = 0  # estimated peak, on the device; 0: not estimated


@dataclass(frozen=True)
class Job:
    """One attempt at a run.

    All paths are absolute, and the same on every node.
    """

    need: Need
    words: tuple[str, ...]  # after `dystop`
    folder: Path  # the run folder that this attempt writes
    place: Path | None = None  # where an engine keeps its own files about this attempt
    cwd: Path = Path("/")  # where the command runs, because a configuration may hold relative paths

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.need.run


@dataclass(frozen=True)
class Ended:
    """How an attempt ended."""

    code: int  # exit code of the command; below 0 if there is none
    reason: str = ""  # what the command wrote to stderr, or what the engine says
    final: bool = False  # a second attempt makes no sense: somebody cancelled the job

    @property
    def may_retry(self) -> bool:
        """Whether another attempt could succeed."""
        return not self.final and self.code not in FINAL_CODES


class Submitted(Protocol):
    """A job that an engine has accepted."""

    @property
    def handle(self) -> str:
        """A text by which `Executor.find` finds the job again; empty if it ends with the driver."""

    def state(self) -> State:
        """Return whether the job waits for a place or runs."""

    def poll(self) -> Ended | None:
        """Return how the job ended; None as long as it waits or runs."""

    def cancel(self) -> None:
        """Ask the command to save at the end of its round and to exit; do not wait."""

    def kill(self) -> None:
        """End it now; it can be resumed from its last checkpoint."""

    def close(self) -> None:
        """Wait until it has ended, and release what belongs to it."""


class Executor(Protocol):
    """An engine that starts jobs."""

    @property
    def name(self) -> str:
        """The value of `--on` that chooses it."""

    @property
    def capacity(self) -> int | None:
        """How many jobs it takes at a time; None: all, because it has a queue of its own."""

    @property
    def retries(self) -> int:
        """How often a run that failed is attempted again, as long as it gets no further."""

    @property
    def fenced(self) -> bool:
        """Whether an attempt may outlive its driver, so that it needs a folder of its own."""

    @property
    def estimates_memory(self) -> bool:
        """Whether `Need.memory_bytes` is filled; the estimate builds each setting once."""

    def check(self, study: Path, needs: Sequence[Need]) -> None:
        """Refuse before anything starts: a dead engine, a folder that is not shared, a small GPU.

        Raises:
            DystopError: What is wrong, where, and what to do next.
        """

    def has_room(self, need: Need) -> bool:
        """Return whether this run could start now, besides those that run already."""

    def submit(self, jobs: Sequence[Job]) -> list[Submitted]:
        """Start these jobs, or put them into the engine's queue; one answer per job, in order."""

    def find(self, job: Job, handle: str) -> Submitted | None:
        """Return a job that an earlier driver submitted; None if the engine no longer has it."""

    def close(self) -> None:
        """Release what belongs to the executor; every job has been closed before."""
