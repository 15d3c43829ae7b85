"""Runs as child processes of this machine, each on a GPU of its own where there are several."""

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dystop.errors import CapacityError
from dystop.runs.processes import ChildProcess
from dystop.studies.executors.executor import Ended, Job, Need, State, Submitted
from dystop.training.memory import human

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine."""

    name: str  # as CUDA_VISIBLE_DEVICES names it
    memory_bytes: int


def gpus_here() -> list[Gpu]:
    """Return the GPUs that this process may use."""
    import torch

    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    given = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    names = given[:count] if len(given) >= count else [str(k) for k in range(count)]
    sizes = [torch.cuda.get_device_properties(k).total_memory for k in range(count)]
    return [Gpu(name, int(size)) for name, size in zip(names, sizes, strict=True)]


class LocalExecutor:
    """Child processes of this machine.

    Args:
        jobs: Runs at the same time; None: one per GPU, or one.
        gpus: The GPUs that share the runs.
    """

    name, retries, fenced = "local", 0, False

    def __init__(self, jobs: int | None = None, gpus: Sequence[Gpu] = ()) -> None:
        self._gpus = tuple(gpus)
        self.capacity = jobs or max(1, len(self._gpus))
        self._held: dict[LocalProcess, tuple[Gpu, int]] = {}

    @property
    def estimates_memory(self) -> bool:
        """Whether runs are distributed over GPUs; on a CPU each run checks its memory itself."""
        return bool(self._gpus) and self.capacity > 1

    def _chooses_gpu(self, need: Need) -> bool:
        """Return whether this executor chooses the GPU of a run; "cuda:1" has one already."""
        return self.estimates_memory and need.device in ("auto", "cuda")

    def check(self, study: Path, needs: Sequence[Need]) -> None:
        """Refuse a run that fits on none of the GPUs."""
        largest = max((gpu.memory_bytes for gpu in self._gpus), default=0)
        for need in needs:
            if self._chooses_gpu(need) and need.memory_bytes > largest:
                raise CapacityError(
                    f"{need.run}: needs about {human(need.memory_bytes)} on a GPU, but the largest "
                    f"of {len(self._gpus)} GPUs has {human(largest)}; use fewer workers, a smaller "
                    "model, a smaller training.chunk or training.device=cpu. Nothing was started"
                )

    def submit(self, jobs: Sequence[Job]) -> list[Submitted]:
        """Start a child for each job."""
        return [self._start(job) for job in jobs]

    def _start(self, job: Job) -> "LocalProcess":
        if not self._chooses_gpu(job.need):
            return LocalProcess(job)
        gpu = self._freest(job.need)
        child = LocalProcess(job, {VISIBLE: gpu.name})
        self._held[child] = gpu, job.need.memory_bytes
        return child

    def has_room(self, need: Need) -> bool:
        """Return whether a GPU has memory left for this run."""
        if not self._chooses_gpu(need):
            return True
        free = self._free()
        return any(free[gpu] >= need.memory_bytes for gpu in self._gpus)

    def _freest(self, need: Need) -> Gpu:
        """Return the GPU with the fewest runs among those with room; then the one with most."""
        free, runs = self._free(), Counter(gpu for gpu, _ in self._held.values())
        fitting = [gpu for gpu in self._gpus if free[gpu] >= need.memory_bytes] or self._gpus
        return min(fitting, key=lambda gpu: (runs[gpu], -free[gpu]))

    def _free(self) -> dict[Gpu, int]:
        self._held = {child: held for child, held in self._held.items() if child.poll() is None}
        free = {gpu: gpu.memory_bytes for gpu in self._gpus}
        for gpu, held in self._held.values():
            free[gpu] -= held
        return free

    def find(self, job: Job, handle: str) -> None:
        """Return nothing: a child never outlives its driver."""

    def close(self) -> None:
        """Do nothing: children have been closed one by one."""


class LocalProcess:
    """A run in a child process."""

    handle = ""

    def __init__(self, job: Job, variables: Mapping[str, str] | None = None) -> None:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._child = ChildProcess(job.words, errors, job.cwd, variables)
        self._ended: Ended | None = None

    def state(self) -> State:
        """Return that it runs: a child waits for nothing."""
        return "running"

    def poll(self) -> Ended | None:
        """Return how it ended; None while it runs."""
        code = self._child.exit_code()
        if self._ended is None and code is not None:
            self._ended = Ended(code, self._child.error_text())
        return self._ended

    def cancel(self) -> None:
        """Ask it to save at the end of its round and to exit."""
        self._child.cancel()

    def kill(self) -> None:
        """End it now."""
        self._child.kill()

    def close(self) -> None:
        """Wait for its end."""
        self._child.wait()
        self.poll()
        self._child.close()
