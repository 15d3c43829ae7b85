"""One `dystop` command in a process of its own, followed by reading the records it writes."""

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dystop.errors import DystopError
from dystop.exit_with_parent import LIFELINE
from dystop.experiments.build import Built, build
from dystop.experiments.config import Experiment, to_tree
from dystop.experiments.interrupts import Interrupts
from dystop.experiments.record_log import RECORDS
from dystop.experiments.run import Started, resume_run, run_experiment
from dystop.experiments.run_folder import RunLock
from dystop.experiments.study import Study
from dystop.record import RoundRecord, from_json


class Tail:
    """New whole lines of a record log, each time it is asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def news(self) -> list[RoundRecord]:
        """Records written since the last call; a log that was cut is read on from its new end."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            self._at = min(self._at, size)
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")[0]
        self._at += len(whole) + bool(whole)
        return [from_json(line.decode()) for line in whole.splitlines()]


class Child:
    """A run in a process of its own."""

    def __init__(self, name: str, folder: Path, words: Sequence[str]) -> None:
        self.name = name
        self._tail = Tail(folder / RECORDS)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        # A group of its own: Ctrl-C reaches the parent alone, which then tells each child once.
        self._process = subprocess.Popen(
            dystop_words(*words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=environment(),
            process_group=0,
        )

    def news(self) -> list[RoundRecord]:
        """Records that were written since the last call."""
        return self._tail.news()

    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.poll()

    def complaint(self) -> str:
        """What the command said on stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().removeprefix("Error: ")

    def ask_to_stop(self) -> None:
        """Let it save at the end of its round and leave."""
        if self.code() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it now; its last checkpoint is what it goes on from."""
        if self.code() is None:
            self._process.kill()

    def close(self) -> None:
        """Wait for its end and give back what it held."""
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()


def dystop_words(*words: str | Path) -> list[str]:
    """The `dystop` command of this installation, with these words."""
    return [sys.executable, "-P", "-m", "dystop", *map(str, words)]


def environment() -> dict[str, str]:
    """The child finds the modules that this process finds, a user's own models among them."""
    places = [os.path.abspath(place) for place in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), LIFELINE: "1"}


# MERGED: Carrying out a study: one run after another in this process, or several at once in
#   children. A child is the `dystop` command itself on the same plan file, so its records are the
#   same bytes.


POLL_S = 0.1


class Watch(Protocol):
    """Whoever follows a study."""

    def begins(self, run: str, rounds: int) -> None:
        """A run starts or goes on."""

    def record(self, run: str, record: RoundRecord) -> None:
        """A round of a run has closed."""

    def ends(self, run: str) -> None:
        """A run has finished."""


def build_each_setting(experiments: Sequence[Experiment]) -> None:
    """Load data, build models, size memory and start every mechanism once, without training.

    What can be refused is refused here, before hours of computing and not after them.
    """
    built: dict[str, Built] = {}
    for experiment in _settings(experiments):
        able = experiment.mechanism.capabilities()
        alike = f"{able.server} {able.deltas} {_without(experiment, 'mechanism', 'engine')}"
        if alike not in built:
            built[alike] = build(experiment)
        experiment.mechanism.init(built[alike].parts.fleet)


def _settings(experiments: Sequence[Experiment]) -> list[Experiment]:
    """One experiment of each setting, whatever its seed."""
    return list({_without(experiment): experiment for experiment in reversed(experiments)}.values())


def _without(experiment: Experiment, *blocks: str) -> str:
    """The configuration, less what tells seeds apart and some blocks."""
    left_out = {"name", "seed", *blocks}
    return str({key: part for key, part in to_tree(experiment).items() if key not in left_out})


def run_study(study: Study, jobs: int, watch: Watch) -> None:
    """Run, or go on with, everything in the study that is not finished."""
    with RunLock(study.path):
        if jobs == 1:
            for experiment in study.todo():
                _here(study, experiment, watch)
        else:
            _apart(study, study.todo(), jobs, watch)


def _here(study: Study, experiment: Experiment, watch: Watch) -> None:
    """One run in this process."""
    name, folder = experiment.name, study.folder(experiment)

    def on_start(started: Started) -> None:
        watch.begins(name, started.rounds)

    def on_record(record: RoundRecord) -> None:
        watch.record(name, record)

    if folder.exists():
        resume_run(folder, on_start, on_record)
    else:
        run_experiment(experiment, study.path, name, on_start, on_record)
    watch.ends(name)


def _words(study: Study, experiment: Experiment) -> list[str]:
    """The command of a child, without the program."""
    folder, silent = study.folder(experiment), ["--quiet", "--no-report"]
    if folder.exists():
        return ["resume", str(folder), *silent]
    plan = str(study.plan(experiment))
    return ["run", plan, "--out", str(study.path), "--name", experiment.name, *silent]


def _apart(study: Study, todo: Sequence[Experiment], jobs: int, watch: Watch) -> None:
    """Up to `jobs` children at a time; on the way out, however it is taken, none is left."""
    waiting, running = deque(todo), list[Child]()
    with Interrupts() as interrupts:
        try:
            while waiting or running:
                interrupts.check()
                while waiting and len(running) < jobs:
                    running.append(_start(study, waiting.popleft(), watch))
                time.sleep(POLL_S)
                running = [child for child in running if _goes_on(child, study, watch)]
        finally:
            _stop(running)


def _start(study: Study, experiment: Experiment, watch: Watch) -> Child:
    child = Child(experiment.name, study.folder(experiment), _words(study, experiment))
    watch.begins(experiment.name, experiment.stop.rounds)
    return child


def _goes_on(child: Child, study: Study, watch: Watch) -> bool:
    """Pass on news of a child; False once it has finished, an error if it failed."""
    code = child.code()
    for record in child.news():
        watch.record(child.name, record)
    if code is None:
        return True
    if code != 0:
        raise _failure(child, code, study)
    child.close()
    watch.ends(child.name)
    return False


def _failure(child: Child, code: int, study: Study) -> DystopError:
    said = child.complaint() or f"its process ended with code {code}"
    error = DystopError(
        f"{child.name}: {said}\nFinished rounds are kept; resume with: {study.resume_command}"
    )
    error.exit_code = code if code > 0 else 1
    return error


def _stop(children: Sequence[Child]) -> None:
    """Let every child save and end; a second interruption does not wait for that."""
    try:
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.close()
    except BaseException:
        for child in children:
            child.kill()
        raise
