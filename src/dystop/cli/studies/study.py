"""What the commands that run a study share: find it or create it, run what is left, resume it."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dystop.cli.options import split_words
from dystop.cli.progress import StudyWatcher
from dystop.cli.terminal import Interrupted, echo, exit_code_of
from dystop.units import are, plural

if TYPE_CHECKING:
    from dystop.config import Experiment
    from dystop.studies.executors.choice import Choice
    from dystop.studies.study import Study


def study_named(
    words: list[str],
    options: Sequence[object],
    kind: str = "a study",
    allowed: str = "--target, --jobs, --on, --trust and --quiet",
) -> Path | None:
    """Return the study that the first word names, if it names one; it has its own settings."""
    from dystop.errors import ConfigError
    from dystop.folders.run_folder import is_study

    if not words or not is_study(Path(words[0])):
        return None
    if any([words[1:], *options]):
        raise ConfigError(
            f"command line: {words[0]} is {kind} with its own settings; only {allowed} can be "
            "given with it"
        )
    return Path(words[0])


def check_file(file: Path | None, command: str, options: str) -> None:
    """Refuse a first word that is neither a file nor a study, and say what it is."""
    from dystop.errors import ConfigError, RunFolderError, nearest
    from dystop.folders.run_folder import CONFIG, INFO

    # os.path returns False, and raises nothing, for a name that is too long or a closed folder.
    if file is None or os.path.isfile(file):
        return
    if os.path.isfile(file / INFO):
        raise RunFolderError(
            f"{file}: is one run, not a study of several; to use its settings: "
            f"dystop {command} {shlex.quote(str(file / CONFIG))} {options}"
        )
    if os.path.isdir(file):
        raise RunFolderError(f"{file}: a folder, but no study; name FILE.toml or a study")
    if not os.path.lexists(file):
        close = nearest(file.name, _configurations_and_studies(file.parent))
        raise ConfigError(f"{file}: no such file or folder{close}")


def _configurations_and_studies(folder: Path) -> list[str]:
    from dystop.folders.run_folder import STUDY

    files = [p.name for p in folder.glob("*.toml") if p.is_file()]
    return files + [p.parent.name for p in folder.glob(f"*/{STUDY}")]


def choose_engine(words: list[str], on: str, jobs: int | None) -> "tuple[list[str], Choice]":
    """Return the words about the experiments, and the engine that the others choose."""
    from dystop.config.tables import is_executor_word
    from dystop.studies.executors.choice import choose

    own = [word for word in words if not is_executor_word(word)]
    file, study = split_words(own)[0], None
    if file is not None and not os.path.isfile(file):
        file, study = None, file  # a study, or a mistake that is refused later
    settings = [word for word in words if is_executor_word(word)]
    return own, choose(on, jobs, file, settings, study)


def find_or_create(
    every: "Sequence[Experiment]",
    choice: "Choice",
    out: Path,
    name: str,
    over: Sequence[str] = (),
) -> "Study":
    """Return the study of this name; build all its settings before its folder is created."""
    from dystop.studies.study import create_study, find_study

    if study := find_study(out, name, every):
        return study
    from dystop.runs.building import build_each_setting
    from dystop.studies.executors.choice import make_executor

    executor = make_executor(choice)  # refuses before anything is written
    build_each_setting(every, elsewhere=executor.fenced)
    return create_study(out, name, every, over)


def run_remaining(study: "Study", choice: "Choice", *, quiet: bool, resume: str = "") -> None:
    """Run what is left of a study; on an interrupt, say which command resumes it."""
    from dystop.studies.executors.choice import make_executor, remember
    from dystop.studies.executors.driver import resume_command, run_study

    executor = make_executor(choice)
    remember(study.path, choice)
    total, left = len(study.experiments), len(study.todo())
    if not quiet:
        _announce(study.path, total, left)
    watcher = StudyWatcher(total, total - left, quiet=quiet)
    try:
        with watcher.showing():
            run_study(study, executor, watcher)
    except KeyboardInterrupt as interrupt:
        done = f"{total - len(study.todo())} of {are(total, 'run')} finished"
        resume = resume or resume_command(study, executor)
        message = f"interrupted; {done}; resume with: {resume}"
        raise Interrupted(message, exit_code_of(interrupt)) from None


def _announce(path: Path, total: int, left: int) -> None:
    done = f", {total - left} finished before" if left < total else ""
    echo(f"study: {path} ({plural(total, 'run')}{done})")


def resume_study(path: Path, choice: "Choice", *, quiet: bool) -> "Study | None":
    """Run what is left of a study; if nothing is, its mechanisms need not be installed.

    None is returned where they are not, or where the code of somebody else is not trusted.
    """
    from dystop.errors import ConfigError, TrustError
    from dystop.studies.study import open_study, outline

    try:
        study = open_study(path)
    except (ConfigError, TrustError):
        known = outline(path)
        if not known.done:
            raise
        if not quiet:
            _announce(path, len(known.folders), 0)
        return None
    run_remaining(study, choice, quiet=quiet)
    return study


def plan_if_serialised(study: "Study | None") -> None:
    """Plan the runs under the other law where the paper's one makes a mechanism wait."""
    from dystop.folders.run_folder import open_run
    from dystop.report.data.notices import serialised_by_law
    from dystop.studies.other_law import plan_other_law

    runs = [] if study is None else [open_run(study.folder(e)) for e in study.experiments]
    if study is not None and serialised_by_law(runs):
        plan_other_law(study)
