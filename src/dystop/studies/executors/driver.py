"""The driver of a study: it hands runs to an executor, follows them and publishes their results.

A child process or a node executes the `dystop` command on the plan file of its run, so its records
have the same bytes wherever it runs. The driver reads the records that the run writes.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dystop.config import Experiment, to_tree
from dystop.errors import DivergedError, DystopError
from dystop.folders.record_log import RECORDS, RecordTail
from dystop.folders.trust import words_of_trust
from dystop.record import RoundRecord
from dystop.runs.building import build_each_setting
from dystop.runs.interrupts import Interrupts
from dystop.runs.run import Started, resume_run, run_experiment
from dystop.studies.executors.attempts import Attempt, Attempts
from dystop.studies.executors.driver_lock import DriverLock
from dystop.studies.executors.executor import Ended, Executor, Job, Need, Submitted
from dystop.studies.executors.local import LocalExecutor
from dystop.studies.executors.node import describe
from dystop.studies.study import Study

POLL_S = 0.1
_FINISHED = (0, DivergedError.exit_code)
"""Exit codes of a finished run; the records of one that diverged count like all others."""


class StudyListener(Protocol):
    """Follows the progress of a study."""

    def on_wait(self, waiting: int) -> None:
        """So many runs wait in the queue of the engine."""

    def on_start(self, run: str, rounds: int) -> None:
        """A run starts or resumes."""

    def on_record(self, run: str, record: RoundRecord) -> None:
        """A round of a run has closed."""

    def on_retry(self, run: str, reason: str) -> None:
        """An attempt at a run has failed, and another one begins."""

    def on_finish(self, run: str) -> None:
        """A run has finished."""


def run_study(study: Study, executor: Executor, listener: StudyListener) -> None:
    """Run or resume everything in the study that is not finished."""
    with closing(executor), DriverLock(study.path) as lock:
        attempts = Attempts(study.path.absolute(), lock.check)
        driver = Driver(study, executor, listener, attempts)
        try:
            driver.take_over()
            if isinstance(executor, LocalExecutor) and executor.capacity == 1:
                for experiment in study.todo():
                    _run_here(study, experiment, listener)
            else:
                driver.run()
        finally:
            attempts.clean()


def _run_here(study: Study, experiment: Experiment, listener: StudyListener) -> None:
    """Run or resume one experiment in this process."""
    name, folder = experiment.name, study.folder(experiment)

    def on_start(started: Started) -> None:
        listener.on_start(name, started.rounds)

    def on_record(record: RoundRecord) -> None:
        listener.on_record(name, record)

    if folder.exists():
        resume_run(folder, on_start, on_record)
    else:
        run_experiment(experiment, study.path, name, on_start, on_record)
    listener.on_finish(name)


@dataclass
class _Run:
    """A run that an engine has."""

    experiment: Experiment
    job: Job
    attempt: Attempt | None  # None: the run writes its published folder
    submitted: Submitted
    tail: RecordTail
    shown: bool = False

    @property
    def name(self) -> str:
        return self.experiment.name


class Driver:
    """Runs the study on an executor.

    Args:
        study: The study.
        executor: The engine.
        listener: Follows the progress.
        attempts: The attempts at the runs of the study.
    """

    def __init__(
        self, study: Study, executor: Executor, listener: StudyListener, attempts: Attempts
    ) -> None:
        self._study, self._executor, self._listener = study, executor, listener
        self._attempts = attempts
        self._running: list[_Run] = []
        self._failures: dict[str, int] = {}  # by run, since it last got further
        self._errors: list[DystopError] = []
        self._waiting = 0

    def take_over(self) -> None:
        """Continue the work of a driver that is dead: find its jobs again, or keep their rounds."""
        for experiment in self._study.experiments:
            name = experiment.name
            attempts = self._attempts.of(name)
            if not attempts or self._attempts.publish_finished(name):
                continue
            found = [run for attempt in attempts if (run := self._found(experiment, attempt))]
            self._running += found[:1]
            if not found:
                self._attempts.keep_progress(name)

    def _found(self, experiment: Experiment, attempt: Attempt) -> "_Run | None":
        """Return the job of an attempt if the engine still has it."""
        handle = attempt.handle_on(self._executor.name)
        if not handle:
            return None
        job = self._job(experiment, attempt.folder, attempt, Need(experiment.name))
        submitted = self._executor.find(job, handle)
        if submitted is None:
            return None
        return _Run(experiment, job, attempt, submitted, RecordTail(job.folder / RECORDS))

    def run(self) -> None:
        """Run everything that is not finished; leave no job behind, however this ends."""
        busy = {run.name for run in self._running}
        waiting = deque(e for e in self._study.todo() if e.name not in busy)
        with Interrupts() as interrupts:
            try:
                needs = self._needs(waiting)
                if waiting or self._running:
                    self._executor.check(self._study.path, list(needs.values()))
                while waiting or self._running:
                    interrupts.check()
                    self._submit(waiting, needs)
                    time.sleep(POLL_S)
                    self._running = [run for run in self._running if self._follow(run, waiting)]
                    self._show_waiting()
            finally:
                self._stop()
        if self._errors:
            raise self._errors[0]

    def _needs(self, todo: Sequence[Experiment]) -> dict[str, Need]:
        memory: dict[str, int] = {}
        if self._executor.estimates_memory:
            memory = build_each_setting(todo, elsewhere=self._executor.fenced)
        return {e.name: Need(e.name, e.training.device, memory.get(e.name, 0)) for e in todo}

    def _submit(self, waiting: deque[Experiment], needs: dict[str, Need]) -> None:
        """Hand over as many runs as the engine takes."""
        limit = self._executor.capacity
        if limit is None:
            self._start(list(waiting), needs)
            waiting.clear()
        while waiting and limit is not None and len(self._running) < limit:
            if not self._executor.has_room(needs[waiting[0].name]):
                return
            self._start([waiting.popleft()], needs)

    def _start(self, experiments: Sequence[Experiment], needs: dict[str, Need]) -> None:
        """Start an attempt at each of these runs."""
        if not experiments:
            return
        begun: list[tuple[Experiment, Attempt | None, Job]] = []
        for experiment in experiments:
            attempt = self._attempts.begin(experiment.name) if self._executor.fenced else None
            folder = self._study.folder(experiment) if attempt is None else attempt.folder
            job = self._job(experiment, folder, attempt, needs[experiment.name])
            if attempt is not None:
                describe(job)
            begun.append((experiment, attempt, job))
        accepted = self._executor.submit([job for _, _, job in begun])
        for (experiment, attempt, job), submitted in zip(begun, accepted, strict=True):
            tail = RecordTail(job.folder / RECORDS)
            run = _Run(experiment, job, attempt, submitted, tail)
            self._running.append(run)
            if attempt is not None and submitted.handle:
                attempt.note_handle(self._executor.name, submitted.handle)

    def _job(
        self, experiment: Experiment, folder: Path, attempt: Attempt | None, need: Need
    ) -> Job:
        folder = folder.absolute()
        words = self._words(experiment, folder)
        return Job(need, words, folder, attempt.place if attempt else None, Path.cwd())

    def _words(self, experiment: Experiment, folder: Path) -> tuple[str, ...]:
        """Return the words after `dystop` that run or resume one experiment."""
        silent = ["--quiet", "--no-report"]
        if self._study.accepted:
            silent += words_of_trust(to_tree(experiment))
        if folder.exists():
            return ("resume", str(folder), *silent)
        plan = str(self._study.plan(experiment).absolute())
        return ("run", plan, "--out", str(folder.parent), "--name", experiment.name, *silent)

    def _follow(self, run: _Run, waiting: deque[Experiment]) -> bool:
        """Pass on the new records of a run; return whether its job still runs."""
        ended = run.submitted.poll()
        if not run.shown and (ended is not None or run.submitted.state() == "running"):
            self._listener.on_start(run.name, run.experiment.stop.rounds)
            run.shown = True
        if run.shown:  # a run that waits has the records of earlier attempts
            for record in run.tail.read():
                self._listener.on_record(run.name, record)
        if ended is None:
            return True
        run.submitted.close()
        done = ended.code in _FINISHED
        if done and (run.attempt is None or self._attempts.publish_finished(run.name)):
            self._listener.on_finish(run.name)
        else:
            self._failed(run, ended, waiting)
        return False

    def _failed(self, run: _Run, ended: Ended, waiting: deque[Experiment]) -> None:
        """Attempt a run again, or give it up."""
        got_further = run.attempt is not None and self._attempts.keep_progress(run.name)
        failures = 1 if got_further else self._failures.get(run.name, 0) + 1
        self._failures[run.name] = failures
        if ended.may_retry and failures <= self._executor.retries:
            self._listener.on_retry(run.name, ended.reason or f"code {ended.code}")
            waiting.append(run.experiment)
            return
        error = self._failure(run, ended)
        if self._executor.capacity is not None:
            raise error
        self._errors.append(error)  # the other jobs have waited for their turn: let them go on

    def _failure(self, run: _Run, ended: Ended) -> DystopError:
        reason = ended.reason or f"its process ended with code {ended.code}"
        resume = resume_command(self._study, self._executor)
        error = DystopError(
            f"{run.name}: {reason}\nFinished rounds are kept; resume with: {resume}"
        )
        error.exit_code = ended.code if ended.code > 0 and not ended.final else 1
        return error

    def _show_waiting(self) -> None:
        count = sum(not run.shown for run in self._running)
        if count != self._waiting:
            self._waiting = count
            self._listener.on_wait(count)

    def _stop(self) -> None:
        """Let every job save and exit; a second signal kills them at once."""
        left, self._running = self._running, []
        try:
            for run in left:
                run.submitted.cancel()
            for run in left:
                run.submitted.close()
        except BaseException:
            for run in left:
                run.submitted.kill()
            raise
        for run in left:
            if run.attempt is not None:
                self._attempts.keep_progress(run.name)


def resume_command(study: Study, executor: Executor) -> str:
    """Return the command that resumes the study on the same engine."""
    on = "" if executor.name == "local" else f" --on {executor.name}"
    return study.resume_command + on
