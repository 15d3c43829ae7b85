"""A study as one Ray job, submitted from a host outside the cluster.

The job is the command `dystop compare STUDY --on ray`, which drives the study inside the cluster.
This host only follows it: it reads the records that the runs write into the folder of the study,
which both sides share. The job goes on if this host is switched off; the same command follows it
again.
"""

import os
import shlex
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystop.errors import ConfigError, DystopError, TransportError
from dystop.experiments.config import Experiment
from dystop.experiments.executors.attempts import Attempt, Attempts
from dystop.experiments.executors.executor import Job, Need
from dystop.experiments.executors.node import started
from dystop.experiments.executors.processes import dystop_command
from dystop.experiments.executors.ray_cluster import PROBE_S, import_ray
from dystop.experiments.executors.shared_folder import Nonce, read_back, written_nonce
from dystop.experiments.folders.record_log import RECORDS, RecordTail
from dystop.experiments.folders.trust import TRUST
from dystop.experiments.interrupts import Interrupts
from dystop.experiments.studies.study import Study, finished, outline

if TYPE_CHECKING:
    from dystop.experiments.executors.driver import StudyListener

NAME = "ray-job"
_STUDY = "dystop-study"  # in the metadata of a job
_POLL_S = 0.5
_STOP_S = 30.0  # Ray kills the driver of a job three seconds after it has asked it to stop


class RayJob:
    """Runs a whole study as one job of a Ray cluster.

    Args:
        address: Of the job server: http://HOST:PORT.
        jobs: Runs at the same time; None: as many as the cluster has room for.
    """

    fenced = True

    def __init__(self, address: str, jobs: int | None = None) -> None:
        self.name = f"{NAME}:{address}"
        self._jobs = jobs
        self._client = job_client(address)

    def run(self, study: Study, listener: "StudyListener") -> None:
        """Run what is left of a study, or follow the job that does so already.

        The folder of the study is shared by this host and all nodes.
        """
        if not study.todo():
            return
        _refuse_part(study)
        with written_nonce(study.path) as nonce:
            job = _job_of(self._client, study) or _submit(self._client, study, self._jobs, nonce)
            info = _follow(self._client, job, Follower(study, listener))
        resume = f"resume with: {study.resume_command} --on {self.name}"
        if info.status.value == "STOPPED":
            raise DystopError(f"Ray job {job} was stopped from outside; {resume}")
        if info.status.value == "FAILED":
            raise _failure(self._client, job, info, resume)


def job_client(address: str) -> Any:
    """Return a client of a job server; refuse an address at which nothing answers."""
    import_ray()
    from ray.job_submission import JobSubmissionClient

    where = f"--on {NAME}:{address}"
    if not address.startswith(("http://", "https://")):
        raise ConfigError(
            f"command line: {where}; expected the address of a Ray job server, as in "
            f"--on {NAME}:http://HOST:8265"
        )
    try:
        urllib.request.urlopen(f"{address}/api/version", timeout=PROBE_S).close()
    except urllib.error.HTTPError:
        pass  # something answers; the client says what is wrong with it
    except (OSError, ValueError) as error:
        raise TransportError(
            f"{where}: no Ray job server answers ({getattr(error, 'reason', error)}); it belongs "
            "to the dashboard of the head node, which 'ray start --head --dashboard-host=0.0.0.0' "
            "opens to other hosts"
        ) from None
    try:
        return JobSubmissionClient(address)
    except (RuntimeError, ConnectionError) as error:
        raise TransportError(f"{where}: {error}") from None


def _refuse_part(study: Study) -> None:
    """Refuse a part of a study: the command of the job drives the whole of it."""
    left = sum(not finished(folder) for folder in outline(study.path).folders)
    if left > len(study.todo()):
        raise ConfigError(
            f"--on {NAME}: {len(study.todo())} of {left} runs are asked for, but a Ray job runs "
            "all that are left of a study; leave out --only, or use --on ray inside the cluster"
        )


def _job_of(client: Any, study: Study) -> str | None:
    """Return the job that drives this study now."""
    path = str(study.path.absolute())
    for job in client.list_jobs():
        if (job.metadata or {}).get(_STUDY) == path and not job.status.is_terminal():
            return str(job.submission_id)
    return None


def _submit(client: Any, study: Study, jobs: int | None, nonce: Nonce) -> str:
    """Submit the command that drives the study inside the cluster."""
    path = str(study.path.absolute())
    words = ["sweep" if study.over else "compare", path, "--on", "ray", "--quiet"]
    words += [] if jobs is None else ["--jobs", str(jobs)]
    words += [TRUST] if study.accepted else []
    command = ["python", "-P", "-m", __name__, str(nonce.path), nonce.text, *words]
    return str(client.submit_job(entrypoint=shlex.join(command), metadata={_STUDY: path}))


def _follow(client: Any, job: str, follower: "Follower") -> Any:
    """Show the progress of a job; return how it ended."""
    with Interrupts() as interrupts:
        while not (info := client.get_job_info(job)).status.is_terminal():
            if interrupts.pending is not None:
                _stop(client, job)
                interrupts.check()
            follower.read()
            time.sleep(_POLL_S)
    follower.read()
    return info


def _stop(client: Any, job: str) -> None:
    """Stop a job and wait for its end."""
    client.stop_job(job)
    until = time.monotonic() + _STOP_S
    while not client.get_job_status(job).is_terminal() and time.monotonic() < until:
        time.sleep(_POLL_S)


def _failure(client: Any, job: str, info: Any, resume: str) -> DystopError:
    """Return the error that the command of the job has printed."""
    _, found, printed = str(client.get_job_logs(job)).rpartition("Error: ")
    reason = printed.strip() if found else info.message
    error = DystopError(f"Ray job {job}: {reason}\nFrom here, {resume}")
    error.exit_code = info.driver_exit_code or 1
    return error


class Follower:
    """Reads the progress of a study that another process drives.

    Args:
        study: The study.
        listener: Is told what the runs have written.
    """

    def __init__(self, study: Study, listener: "StudyListener") -> None:
        self._study, self._listener = study, listener
        self._attempts = Attempts(study.path.absolute(), check_owner=lambda: None)
        self._left = {experiment.name: experiment for experiment in study.todo()}
        self._tails: dict[str, tuple[Path, RecordTail]] = {}  # with the folder that it reads
        self._waiting = 0

    def read(self) -> None:
        """Tell the listener what is new."""
        waiting = 0
        for run, experiment in list(self._left.items()):
            newest = max(self._attempts.of(run), key=_age, default=None)
            if finished(self._study.folder(experiment)):
                self._read(experiment, self._study.folder(experiment))
                self._listener.on_finish(run)
                del self._left[run]
            elif newest is not None and _has_begun(newest):
                self._read(experiment, newest.folder)
            else:
                waiting += newest is not None
        if waiting != self._waiting:
            self._waiting = waiting
            self._listener.on_wait(waiting)

    def _read(self, experiment: Experiment, folder: Path) -> None:
        run = experiment.name
        if run not in self._tails:
            self._listener.on_start(run, experiment.stop.rounds)
        if run not in self._tails or self._tails[run][0] != folder:
            self._tails[run] = folder, RecordTail(folder / RECORDS)
        for record in self._tails[run][1].read():
            self._listener.on_record(run, record)


def _age(attempt: Attempt) -> float:
    """Return a number that is larger for a later attempt; 0 if it has been withdrawn."""
    try:
        return attempt.place.stat().st_mtime
    except OSError:
        return 0.0


def _has_begun(attempt: Attempt) -> bool:
    return started(Job(Need(attempt.run), (), attempt.folder, attempt.place))


def main(words: Sequence[str]) -> None:
    """Drive the study, inside the cluster, if this node sees the nonce of the other host."""
    path, text, *command = words
    host, problem = read_back(path, text)
    if problem:
        sys.exit(
            f"Error: {host}: {problem}. The host that submits a job and all nodes must share the "
            "folder of the study, at the same path"
        )
    Path(path).unlink(missing_ok=True)
    os.execv(sys.executable, dystop_command(*command))


if __name__ == "__main__":
    main(sys.argv[1:])
