"""Run a study: one run after another in this process, or several at once in child processes.

A child process executes the `dystop` command on the plan file of its run, so its records have the
same bytes. The parent reads the records that the child writes.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dystop.errors import DystopError
from dystop.exit_with_parent import LIFELINE
from dystop.experiments.build import Built, build
from dystop.experiments.config import Experiment, to_tree
from dystop.experiments.interrupts import Interrupts
from dystop.experiments.late_scores import LATE_SCORES, parse_late_score, with_late_score
from dystop.experiments.record_log import RECORDS
from dystop.experiments.run import Started, resume_run, run_experiment
from dystop.experiments.run_folder import RunLock
from dystop.experiments.study import Study
from dystop.record import RoundRecord, from_json


class RecordTail:
    """Reads the records that were appended to a log since the last call.

    Args:
        path: The record log; late scores are read from the same folder.
    """

    def __init__(self, path: Path) -> None:
        self._records, self._scores = _LineTail(path), _LineTail(path.with_name(LATE_SCORES))
        self._late: dict[int, dict[str, Any]] = {}  # all late scores, by round
        self._unscored: dict[int, RoundRecord] = {}

    def read(self) -> list[RoundRecord]:
        """Return the new records, and once more the older ones whose score has come since."""
        new = dict(map(parse_late_score, self._scores.read()))
        self._late |= new
        lines = self._records.read()
        records = [with_late_score(from_json(line.decode()), self._late) for line in lines]
        late = [with_late_score(self._unscored.pop(k), new) for k in new if k in self._unscored]
        self._unscored |= {r.round: r for r in records if r.no_score is not None}
        return [*records, *late]


class _LineTail:
    """Reads the whole lines that were appended to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[bytes]:
        """Return the new lines; a file that was cut is read from its new end on."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            self._offset = min(self._offset, size)
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        self._offset += len(whole) + bool(whole)
        return whole.splitlines()


class RunProcess:
    """A run in a child process."""

    def __init__(self, name: str, folder: Path, words: Sequence[str]) -> None:
        self.name = name
        self._tail = RecordTail(folder / RECORDS)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        # A process group of its own: only the parent receives Ctrl-C and cancels each child once.
        self._process = subprocess.Popen(
            dystop_command(*words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=child_environment(),
            process_group=0,
        )

    def new_records(self) -> list[RoundRecord]:
        """Return the records written since the last call."""
        return self._tail.read()

    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.poll()

    def error_text(self) -> str:
        """Return what the command wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().removeprefix("Error: ")

    def cancel(self) -> None:
        """Ask it to save at the end of its round and to exit."""
        if self.exit_code() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it now; it can be resumed from its last checkpoint."""
        if self.exit_code() is None:
            self._process.kill()

    def close(self) -> None:
        """Wait for its end and release its resources."""
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()


def dystop_command(*words: str | Path) -> list[str]:
    """Return the command line that runs `dystop` of this installation with these words."""
    return [sys.executable, "-P", "-m", "dystop", *map(str, words)]


def child_environment() -> dict[str, str]:
    """Return an environment in which a child finds the modules that this process finds."""
    folders = [os.path.abspath(folder) for folder in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), LIFELINE: "1"}


POLL_S = 0.1


class StudyListener(Protocol):
    """Follows the progress of a study."""

    def on_start(self, run: str, rounds: int) -> None:
        """A run starts or resumes."""

    def on_record(self, run: str, record: RoundRecord) -> None:
        """A round of a run has closed."""

    def on_finish(self, run: str) -> None:
        """A run has finished."""


def build_each_setting(experiments: Sequence[Experiment]) -> None:
    """Build every setting once, without training, so that mistakes are refused before any run.

    Settings that differ only in the mechanism or the timing law share one build.
    """
    built: dict[str, Built] = {}
    for experiment in _settings(experiments):
        able = experiment.mechanism.capabilities()
        alike = f"{able.server} {able.deltas} {_without(experiment, 'mechanism', 'engine')}"
        if alike not in built:
            built[alike] = build(experiment)
        experiment.mechanism.init(built[alike].components.fleet)


def _settings(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return one experiment of each setting, whatever its seed."""
    return list({_without(experiment): experiment for experiment in reversed(experiments)}.values())


def _without(experiment: Experiment, *sections: str) -> str:
    """Return the configuration without name, seed and some sections, as text to compare."""
    left_out = {"name", "seed", *sections}
    return str({key: part for key, part in to_tree(experiment).items() if key not in left_out})


def run_study(study: Study, jobs: int, listener: StudyListener) -> None:
    """Run or resume everything in the study that is not finished."""
    with RunLock(study.path):
        if jobs == 1:
            for experiment in study.todo():
                _run_here(study, experiment, listener)
        else:
            _run_in_children(study, study.todo(), jobs, listener)


def _run_here(study: Study, experiment: Experiment, listener: StudyListener) -> None:
    """Run or resume one experiment in this process."""
    name, folder = experiment.name, study.folder(experiment)

    def on_start(started: Started) -> None:
        listener.on_start(name, started.rounds)

    def on_record(record: RoundRecord) -> None:
        listener.on_record(name, record)

    if folder.exists():
        resume_run(folder, on_start, on_record, trust=study.trust)
    else:
        run_experiment(experiment, study.path, name, on_start, on_record)
    listener.on_finish(name)


def _words(study: Study, experiment: Experiment) -> list[str]:
    """Return the words after `dystop` that run or resume one experiment."""
    folder, silent = study.folder(experiment), ["--quiet", "--no-report"]
    if study.trust and ":" in experiment.model.name:
        silent.append("--trust")
    if folder.exists():
        return ["resume", str(folder), *silent]
    plan = str(study.plan(experiment))
    return ["run", plan, "--out", str(study.path), "--name", experiment.name, *silent]


def _run_in_children(
    study: Study, todo: Sequence[Experiment], jobs: int, listener: StudyListener
) -> None:
    """Run up to `jobs` children at a time; leave none behind, however this ends."""
    waiting, running = deque(todo), list[RunProcess]()
    with Interrupts() as interrupts:
        try:
            while waiting or running:
                interrupts.check()
                while waiting and len(running) < jobs:
                    running.append(_start(study, waiting.popleft(), listener))
                time.sleep(POLL_S)
                running = [child for child in running if _is_running(child, study, listener)]
        finally:
            _stop(running)


def _start(study: Study, experiment: Experiment, listener: StudyListener) -> RunProcess:
    child = RunProcess(experiment.name, study.folder(experiment), _words(study, experiment))
    listener.on_start(experiment.name, experiment.stop.rounds)
    return child


def _is_running(child: RunProcess, study: Study, listener: StudyListener) -> bool:
    """Pass on the new records of a child; return False once it has finished, raise if it failed."""
    code = child.exit_code()
    for record in child.new_records():
        listener.on_record(child.name, record)
    if code is None:
        return True
    if code != 0:
        raise _failure(child, code, study)
    child.close()
    listener.on_finish(child.name)
    return False


def _failure(child: RunProcess, code: int, study: Study) -> DystopError:
    reason = child.error_text() or f"its process ended with code {code}"
    error = DystopError(
        f"{child.name}: {reason}\nFinished rounds are kept; resume with: {study.resume_command}"
    )
    error.exit_code = code if code > 0 else 1
    return error


def _stop(children: Sequence[RunProcess]) -> None:
    """Let every child save and exit; a second signal kills them at once."""
    try:
        for child in children:
            child.cancel()
        for child in children:
            child.close()
    except BaseException:
        for child in children:
            child.kill()
        raise
