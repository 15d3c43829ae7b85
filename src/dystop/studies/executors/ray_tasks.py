"""Runs as tasks of a Ray cluster, one process each.

A task only starts the `dystop` command of its attempt and waits for its end. So a run has the same
bytes as on one machine, and a GPU is free as soon as the process has ended.

Ray would start a task again by itself after it has lost a node. But the node may still work, and
two processes would write one folder. So Ray never retries; the driver makes a new attempt, with a
folder of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt

from dystop.config.validation import read_section
from dystop.params import param
from dystop.studies.executors.choice import Choice
from dystop.studies.executors.executor import Ended, Job, Need, State, Submitted
from dystop.studies.executors.node import run_attempt, started
from dystop.studies.executors.ray_cluster import (
    Node,
    checked_nodes,
    cluster_address,
    connect,
    import_ray,
    last_line,
    refuse_too_small,
    wants_gpu,
)

_REASONS = {  # in place of Ray's long explanations
    "NodeDiedError": "its node has left the Ray cluster",
    "WorkerCrashedError": "the process of its Ray task has died",
    "OutOfMemoryError": "Ray has ended it, because its node ran out of memory",
}
_LOST = -1  # no exit code: the process of the task, or its node, is gone


@dataclass(frozen=True)
class RayParams:
    """What a run of a study asks Ray for."""

    cpus: Annotated[int, Gt(0)] = param(1, "cores per run")


def make_ray(choice: Choice) -> "RayExecutor":
    """Return the executor of `--on ray`."""
    import_ray()
    params = read_section(RayParams, choice.settings, "ray", "[ray]")
    return RayExecutor(params, choice.jobs, cluster_address(choice.address))


class RayExecutor:
    """Tasks of the Ray cluster that this host belongs to.

    Args:
        params: What each run asks for.
        jobs: Runs at the same time; None: as many as the cluster has room for.
        address: HOST:PORT of the cluster.
    """

    name, retries, fenced, estimates_memory = "ray", 3, True, True

    def __init__(self, params: RayParams, jobs: int | None, address: str) -> None:
        self._ray = import_ray()
        self.capacity = jobs
        self._params, self._address = params, address
        self._nodes: list[Node] = []

    def check(self, study: Path, needs: Sequence[Need]) -> None:
        """Connect to the cluster; refuse nodes that cannot work, and runs without room."""
        connect(self._ray, self._address)
        self._nodes = checked_nodes(self._ray, study)
        refuse_too_small(needs, self._nodes, self._params.cpus)

    def has_room(self, need: Need) -> bool:
        """Return that it has: Ray has a queue."""
        return True

    def submit(self, jobs: Sequence[Job]) -> list[Submitted]:
        """Put a task for each job into Ray's queue."""
        return [self._submit(job) for job in jobs]

    def _submit(self, job: Job) -> "RayTask":
        on_gpu = wants_gpu(job.need, self._nodes)
        memory = 0 if on_gpu else job.need.memory_bytes  # on a GPU, the estimate is about the GPU
        task = self._ray.remote(run_attempt).options(
            name=f"dystop {job.run}",
            num_cpus=self._params.cpus,
            num_gpus=int(on_gpu),
            memory=memory or None,
            max_retries=0,
        )
        return RayTask(self._ray, job, task.remote(str(job.place)))

    def find(self, job: Job, handle: str) -> None:
        """Return nothing: Ray ends the tasks of a driver with it."""

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


class RayTask:
    """An attempt in a Ray task."""

    handle = ""

    def __init__(self, ray: Any, job: Job, reference: Any) -> None:
        self._ray, self._job, self._reference = ray, job, reference
        self._ended: Ended | None = None

    def state(self) -> State:
        """Return whether a node has begun."""
        return "running" if started(self._job) else "waiting"

    def poll(self) -> Ended | None:
        """Return how the command ended; None before."""
        if self._ended is None and self._ray.wait([self._reference], timeout=0)[0]:
            self._ended = self._outcome()
        return self._ended

    def _outcome(self) -> Ended:
        try:
            return Ended(*self._ray.get(self._reference))
        except self._ray.exceptions.TaskCancelledError:
            return Ended(_LOST, "the task was cancelled", final=True)
        except self._ray.exceptions.RayError as error:
            return Ended(_LOST, _REASONS.get(type(error).__name__) or last_line(error))

    def cancel(self) -> None:
        """Ask the command to save and exit; a task that still waits is dropped."""
        self._ray.cancel(self._reference, force=False)

    def kill(self) -> None:
        """End the process of the task, and the command with it."""
        self._ray.cancel(self._reference, force=True)

    def close(self) -> None:
        """Wait for its end."""
        self._ray.wait([self._reference])
        self.poll()
