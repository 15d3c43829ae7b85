"""Runs as jobs of a Slurm cluster, through submitit.

All runs that are ready become one job array. The settings are the table `[slurm]` of the
configuration file, or words such as `slurm.partition=gpu`.

submitit hands a function and its arguments to the node in a pickle that this process writes. The
driver reads no pickle: it learns from the folder of an attempt how the attempt ended.
"""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from annotated_types import Ge, Gt

from dystop.config.validation import read_section
from dystop.errors import ConfigError, DystopError
from dystop.params import param
from dystop.studies.executors.attempts import ATTEMPTS
from dystop.studies.executors.choice import Choice
from dystop.studies.executors.executor import Ended, Job, Need, State, Submitted
from dystop.studies.executors.node import ended, run_attempt, started

INSTALL = "pip install 'dystop[slurm]'"
LOGS = ".slurm"
"""The folder among the attempts in which submitit keeps its scripts and logs."""

_ASK_S = 10.0  # between two questions to the cluster, which serves many users
_SETTLE_S = 60.0  # a job that the cluster no longer has may still be writing how it ended
_CLOSE_S = 120.0  # for a job that was cancelled
_SAVE_S = 90  # before the time limit, a run saves and exits
_MARGIN, _LEAST_GB = 1.5, 2.0  # of the memory that is asked for, over the estimate
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_ALIVE = _WAITING | {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
_SIGNALLED = frozenset({128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM})


@dataclass(frozen=True)
class SlurmParams:
    """What a job of a study asks Slurm for."""

    partition: str = param("", "partition; empty: the default of the cluster")
    account: str = param("", "account that is charged; empty: the default of the user")
    qos: str = param("", "quality of service; empty: the default")
    time_min: Annotated[int, Gt(0)] = param(
        60, "time limit of a job; a longer run gets another job"
    )
    gpus: Annotated[int, Ge(0)] | None = param(
        None, "GPUs per run; unset: 1 if training.device names a GPU, else 0"
    )
    cpus: Annotated[int, Gt(0)] = param(1, "cores per run")
    memory_gb: Annotated[float, Gt(0)] | None = param(
        None, "memory per run; unset: 1.5 times the estimate, at least 2"
    )
    at_once: Annotated[int, Gt(0)] = param(256, "runs of the job array at the same time")
    options: tuple[str, ...] = param((), "further options of sbatch, as in 'constraint=a100'")
    setup: tuple[str, ...] = param((), "shell lines before a run, as in 'module load cuda'")


class Engine(Protocol):
    """The part of submitit that this module uses; tests put a cluster of one machine here."""

    def submit(self, places: Sequence[str], wanted: Mapping[str, Any]) -> list[str]:
        """Submit `run_attempt` for each of these folders; return the numbers of the jobs."""

    def states(self, jobs: Sequence[str]) -> dict[str, str]:
        """Return the states of those jobs that the cluster has, in the words of Slurm."""

    def cancel(self, job: str) -> None:
        """Cancel a job."""

    def log_tail(self, job: str) -> str:
        """Return the last lines that a job wrote to stderr."""


def make_slurm(choice: Choice) -> "SlurmExecutor":
    """Return the executor of `--on slurm`."""
    if choice.address:
        raise ConfigError(
            f"command line: --on {choice.on}: Slurm has no address; give --on slurm on a machine "
            "of the cluster where sbatch works"
        )
    params = read_section(SlurmParams, choice.settings, "slurm", "[slurm]")
    return SlurmExecutor(params, choice.jobs)


class SlurmExecutor:
    """Jobs of a Slurm cluster.

    Args:
        params: What each job asks for.
        jobs: Runs at the same time; None: `params.at_once`.
        engine: Makes the cluster from the folder for its files; by default Slurm.
    """

    name, capacity, retries, fenced = "slurm", None, 3, True

    def __init__(
        self,
        params: SlurmParams,
        jobs: int | None = None,
        engine: "Callable[[Path], Engine] | None" = None,
    ) -> None:
        _require_submitit()
        self._params, self._at_once = params, jobs or params.at_once
        self._make = engine or SubmititEngine
        self._on_slurm = engine is None
        self._engine: Engine | None = None
        self._jobs: set[str] = set()
        self._states: dict[str, str] = {}
        self._asked_s = -_ASK_S

    @property
    def estimates_memory(self) -> bool:
        """Whether the memory of a job follows from the estimate."""
        return self._params.memory_gb is None

    def check(self, study: Path, needs: Sequence[Need]) -> None:
        """Refuse a machine from which no job can be submitted, and an unknown partition."""
        self._open(study)
        if self._on_slurm:
            _check_cluster(self._params.partition)

    def _open(self, study: Path) -> Engine:
        if self._engine is None:
            self._engine = self._make(study.absolute() / ATTEMPTS / LOGS)
        return self._engine

    def has_room(self, need: Need) -> bool:
        """Return true: Slurm has a queue."""
        return True

    def submit(self, jobs: Sequence[Job]) -> list[Submitted]:
        """Submit the jobs as one array."""
        engine = self._open(_study_of(jobs[0]))
        numbers = engine.submit([str(job.place) for job in jobs], self._asked_for(jobs))
        return [self._watched(job, number) for job, number in zip(jobs, numbers, strict=True)]

    def _asked_for(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Return the parameters of the array, as submitit names them."""
        params, needs = self._params, [job.need for job in jobs]
        gpus = params.gpus
        if gpus is None:
            gpus = int(any(need.device.startswith("cuda") for need in needs))
        estimated = max(need.memory_bytes for need in needs) * _MARGIN / 2**30
        wanted: dict[str, Any] = {
            "name": _study_of(jobs[0]).name,
            "timeout_min": params.time_min,
            "slurm_signal_delay_s": min(_SAVE_S, 15 * params.time_min),
            "cpus_per_task": params.cpus,
            "mem_gb": params.memory_gb or max(_LEAST_GB, estimated),
            "slurm_array_parallelism": self._at_once,
            "slurm_additional_parameters": {**_options(params.options), "no-requeue": True},
        }
        wanted |= {"gpus_per_node": gpus} if gpus else {}
        wanted |= {"slurm_setup": list(params.setup)} if params.setup else {}
        for key in ("partition", "account", "qos"):
            wanted |= {f"slurm_{key}": value} if (value := getattr(params, key)) else {}
        return wanted

    def find(self, job: Job, handle: str) -> "SlurmJob | None":
        """Return a job that still waits or runs, or that has noted how it ended."""
        self._open(_study_of(job))
        found = self._watched(job, handle)
        is_there = self.state_of(handle, now=True).partition(" ")[0] in _ALIVE
        if is_there or ended(job) is not None:
            return found
        self._jobs.discard(handle)
        return None

    def _watched(self, job: Job, number: str) -> "SlurmJob":
        self._jobs.add(number)
        return SlurmJob(self, job, number)

    def state_of(self, number: str, *, now: bool = False) -> str:
        """Return the state of a job in the words of Slurm; empty if it is not known yet."""
        if now or time.monotonic() - self._asked_s >= _ASK_S:
            self._asked_s = time.monotonic()
            self._states |= self._engine.states(sorted(self._jobs)) if self._engine else {}
        return self._states.get(number, "")

    def cancel(self, number: str) -> None:
        """Cancel a job."""
        if self._engine is not None:
            self._engine.cancel(number)

    def log_tail(self, number: str) -> str:
        """Return the last lines that a job wrote to stderr before its command began."""
        return self._engine.log_tail(number) if self._engine is not None else ""

    def forget(self, number: str) -> None:
        """Ask no more about a job."""
        self._jobs.discard(number)

    def close(self) -> None:
        """Do nothing: jobs have been closed one by one."""


class SlurmJob:
    """A job that was submitted."""

    def __init__(self, executor: SlurmExecutor, job: Job, handle: str) -> None:
        self.handle = handle
        self._executor, self._job = executor, job
        self._cancelled = False
        self._gone_s: float | None = None  # when the cluster no longer had it
        self._ended: Ended | None = None

    def state(self) -> State:
        """Return whether a node has begun it."""
        return "running" if started(self._job) else "waiting"

    def poll(self) -> Ended | None:
        """Return how it ended; None as long as it waits or runs."""
        if self._ended is None:
            self._ended = self._poll()
        return self._ended

    def _poll(self) -> Ended | None:
        noted = ended(self._job)
        if noted is not None and noted.code not in _SIGNALLED:
            return noted
        state = self._executor.state_of(self.handle)
        if not state or state.partition(" ")[0] in _ALIVE:
            return None  # a command that was asked to exit: the cluster will say why
        if state.startswith("CANCELLED") and not self._cancelled:
            why = f"Slurm job {self.handle} was cancelled outside of dystop ({state})"
            return Ended(noted.code if noted else -1, why, final=True)
        if noted is not None:
            why = f"Slurm stopped job {self.handle} at its time limit, or preempted it ({state})"
            return Ended(noted.code, why)
        if self._gone_s is None:
            self._gone_s = time.monotonic()
        if time.monotonic() - self._gone_s < _SETTLE_S:
            return None
        return Ended(-1, self._lost(state))

    def _lost(self, state: str) -> str:
        said = self._executor.log_tail(self.handle)
        if not said:
            place = self._job.folder.parent
            said = f"it wrote nothing into {place}; does the node share it, and has it dystop?"
        return f"Slurm job {self.handle} ended with state {state}: {said}"

    def cancel(self) -> None:
        """Cancel it; its command saves and exits."""
        self._cancelled = True
        if self.poll() is None:
            self._executor.cancel(self.handle)

    def kill(self) -> None:
        """Do nothing more: Slurm kills a cancelled job that does not exit."""
        self.cancel()

    def close(self) -> None:
        """Wait until it has ended, but not for ever: what it writes later, nobody publishes."""
        end = time.monotonic() + _CLOSE_S
        while self.poll() is None and ended(self._job) is None and time.monotonic() < end:
            time.sleep(0.1)
        self._executor.forget(self.handle)


class SubmititEngine:
    """Slurm, through submitit and squeue.

    Args:
        folder: For scripts and logs; all nodes share it.
    """

    cluster = "slurm"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def submit(self, places: Sequence[str], wanted: Mapping[str, Any]) -> list[str]:
        """Submit `run_attempt` for each folder, as one array."""
        return [job.job_id for job in self._submitted(places, wanted)]

    def _submitted(self, places: Sequence[str], wanted: Mapping[str, Any]) -> list[Any]:
        import submitit

        try:
            executor = submitit.AutoExecutor(folder=self._folder, cluster=self.cluster)
            executor.update_parameters(**wanted)
            with executor.batch():
                return [executor.submit(run_attempt, place) for place in places]
        except (RuntimeError, ValueError, submitit.core.utils.FailedJobError) as error:
            raise DystopError(f"--on slurm: the jobs were not accepted: {error}") from error

    def states(self, jobs: Sequence[str]) -> dict[str, str]:
        """Ask squeue, and sacct for those that squeue has forgotten; without an answer, nothing."""
        if not jobs:
            return {}
        listed = ",".join(jobs)
        queue = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%N"]
        code, out, errors = _answer([*queue, f"--jobs={listed}"])
        if code != 0 and "Invalid job id" not in errors:
            return {}  # the controller does not answer now
        known = _rows(out)
        if forgotten := [job for job in jobs if job not in known]:
            account = ["sacct", "--noheader", "--allocations", "--parsable2"]
            asked = ["--format=JobID,State,NodeList", f"--jobs={','.join(forgotten)}"]
            known |= _rows(_answer([*account, *asked])[1])
        return {job: known.get(job, "unknown to Slurm") for job in jobs}

    def cancel(self, job: str) -> None:
        """Call scancel."""
        _answer(["scancel", job])

    def log_tail(self, job: str) -> str:
        """Return the end of the log that submitit names."""
        with suppress(OSError):
            lines = (self._folder / f"{job}_0_log.err").read_text(errors="replace").splitlines()
            return "\n".join(line for line in lines if line.strip())[-800:]
        return ""


def _rows(output: str) -> dict[str, str]:
    """Return state and node by job.

    >>> _rows("7_0|RUNNING|n1"), _rows("7_1|PENDING|"), _rows("8|CANCELLED by 1000|n2")
    ({'7_0': 'RUNNING on n1'}, {'7_1': 'PENDING'}, {'8': 'CANCELLED by 1000 on n2'})
    """
    rows = [line.split("|") for line in output.splitlines() if line.count("|") == 2]
    return {job: f"{state} on {node}" if node else state for job, state, node in rows}


def _answer(command: Sequence[str]) -> tuple[int, str, str]:
    """Return exit code and output of a command of Slurm."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, "", str(error)
    return done.returncode, done.stdout, done.stderr


def _require_submitit() -> None:
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise ConfigError(f"--on slurm: needs submitit; install it with: {INSTALL}") from None


def _check_cluster(partition: str) -> None:
    """Refuse a machine without Slurm, a controller that does not answer, an unknown partition."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise ConfigError(
            "--on slurm: sbatch and srun are not on this machine; give the command on a login node "
            "of the cluster, or use --on local"
        )
    code, out, errors = _answer(["sinfo", "--noheader", "--format=%R"])
    if code != 0:
        raise DystopError(f"--on slurm: the cluster does not answer: {errors.strip() or out}")
    known = sorted(set(out.split()))
    if partition and not set(partition.split(",")) <= set(known):
        raise ConfigError(f"slurm.partition = {partition!r}; this cluster has {', '.join(known)}")


def _options(given: Sequence[str]) -> dict[str, Any]:
    """Return further options of sbatch by name.

    >>> _options(["constraint=a100", "--exclusive"])
    {'constraint': 'a100', 'exclusive': True}
    """
    pairs = [option.removeprefix("--").partition("=") for option in given]
    return {name: value if equals else True for name, equals, value in pairs}


def _study_of(job: Job) -> Path:
    """Return the folder of the study: STUDY/.attempts/RUN.K/RUN is the folder of an attempt."""
    return job.folder.parents[2]
