"""`dystop compare` and `dystop sweep`: studies, which are several runs with one report."""

import os
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.progress import StudyWatcher
from dystop.cli.report import report_study
from dystop.cli.run import Out, Quiet, Trust, split_words
from dystop.cli.terminal import Interrupted, echo, exit_code_of, handle_errors, note
from dystop.units import are, plural

if TYPE_CHECKING:
    from dystop.experiments.config import Experiment
    from dystop.experiments.executors import Choice
    from dystop.experiments.studies.compare import Comparison, Timings
    from dystop.experiments.studies.study import Study

Target = Annotated[
    float | None, typer.Option(help="Accuracy whose time and cost are compared, up to 1.")
]
Name = Annotated[
    str | None, typer.Option(help="Name of the study; an existing study of this name is resumed.")
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, metavar="J", help="Runs at the same time. [default: one per GPU, or 1]"),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="ENGINE",
        help="Where the runs run: local (processes of this machine), slurm, ray or ray-job:URL. "
        "Keys such as slurm.partition=gpu set what a cluster is asked for.",
    ),
]
_SEEDS = 3
_COMPARE_EXAMPLE = "dystop,fedavg"
_SWEEP_EXAMPLE = "--over mechanism.V=1,10,50"


class Timing(StrEnum):
    """The timing laws of a comparison."""

    paper = "paper"
    overlap = "overlap"
    both = "both"


_TIMINGS: "dict[Timing, Timings]" = {
    Timing.paper: "paper",
    Timing.overlap: "overlap",
    Timing.both: "both",
}


@handle_errors
def compare(  # noqa: PLR0913 - every parameter is an option of the command
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE.toml|KEY=VALUE|STUDY", show_default=False),
    ] = None,
    mechanisms: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Mechanisms to compare, or 'all'.", show_default=False),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help=f"Seeds: seed, seed+1, ... [default: {_SEEDS}]"),
    ] = None,
    timing: Annotated[
        Timing | None, typer.Option(help="Timing law, or both. [default: engine.timing]")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="MECHANISM.KEY=VALUE", help="A key of one mechanism; repeatable."
        ),
    ] = None,
    target: Target = None,
    out: Out = Path("runs"),
    name: Name = None,
    jobs: Jobs = None,
    on: On = "local",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Compare mechanisms on the same fleet, split, channel draws and initial model.

    Makes one ordinary run folder per mechanism, seed and timing law, and one report. Rerun the
    command, or call 'dystop compare STUDY', to resume.
    """
    check_target(target)
    words, choice = choose_engine(words or [], on, jobs)
    if path := study_named(words, [mechanisms, seeds, timing, settings, name is not None]):
        resume_study(path, choice, quiet=quiet, trust=trust)
    else:
        comparison = _comparison(words, mechanisms, seeds, timing, settings or [], trust=trust)
        study = _study_of_comparison(comparison, choice, out, name, quiet=quiet)
        run_remaining(study, choice, quiet=quiet)
        path = study.path
    report_study(path, target, quiet=quiet)


@handle_errors
def sweep(  # noqa: PLR0913 - every parameter is an option of the command
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE.toml|KEY=VALUE|SWEEP", show_default=False),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2,...", help="A key and its values; repeatable: a grid."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Seeds: seed, seed+1, ... [default: 1]")
    ] = None,
    target: Target = None,
    out: Out = Path("runs"),
    name: Name = None,
    jobs: Jobs = None,
    on: On = "local",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Run one experiment with every combination of some values, and show what they change.

    Makes one ordinary run folder per combination and seed, and one report with a table, figures
    over the values, and results.csv. Rerun the command, or call 'dystop sweep SWEEP', to resume.
    """
    check_target(target)
    words, choice = choose_engine(words or [], on, jobs)
    if path := study_named(words, [over, seeds, name is not None]):
        resume_study(path, choice, quiet=quiet, trust=trust)
    else:
        study = _study_of_sweep(words, over or [], seeds or 1, choice, out, name, trust=trust)
        run_remaining(study, choice, quiet=quiet)
        path = study.path
    report_study(path, target, quiet=quiet)


def study_named(
    words: list[str],
    options: Sequence[object],
    kind: str = "a study",
    allowed: str = "--target, --jobs, --on, --trust and --quiet",
) -> Path | None:
    """Return the study that the first word names, if it names one; it has its own settings."""
    from dystop.errors import ConfigError
    from dystop.experiments.folders.run_folder import is_study

    if not words or not is_study(Path(words[0])):
        return None
    if any([words[1:], *options]):
        raise ConfigError(
            f"command line: {words[0]} is {kind} with its own settings; only {allowed} can be "
            "given with it"
        )
    return Path(words[0])


def _comparison(
    words: list[str],
    mechanisms: str | None,
    seeds: int | None,
    timing: Timing | None,
    settings: list[str],
    *,
    trust: bool,
) -> "Comparison":
    from dystop.errors import ConfigError
    from dystop.experiments.studies.compare import Comparison

    file, keys = split_words(words)
    check_file(file, "compare", f"--mechanisms {_COMPARE_EXAMPLE}")
    if mechanisms is None:
        given = f"{shlex.quote(str(file))} " if file else ""
        raise ConfigError(
            f"command line: --mechanisms is missing, as in: dystop compare {given}--mechanisms "
            f"{_COMPARE_EXAMPLE}; 'dystop list mechanisms' shows them"
        )
    names = [name.strip() for name in mechanisms.split(",") if name.strip()]
    timings = None if timing is None else _TIMINGS[timing]
    return Comparison(file, keys, names, seeds or _SEEDS, timings, settings, trust)


def _study_of_comparison(
    comparison: "Comparison", choice: "Choice", out: Path, name: str | None, *, quiet: bool
) -> "Study":
    """Find or create the study, and say what would make the comparison fairer."""
    from dystop.experiments.studies.compare import advice, experiments
    from dystop.experiments.studies.study import default_name

    every = experiments(comparison)
    if not quiet:
        for sentence in advice(every[0]):
            note(sentence)
    name = name or default_name(every)
    return find_or_create(every, choice, out, name, trust=comparison.trust)


def _study_of_sweep(
    words: list[str],
    over: list[str],
    seeds: int,
    choice: "Choice",
    out: Path,
    name: str | None,
    *,
    trust: bool,
) -> "Study":
    from dystop.errors import ConfigError
    from dystop.experiments.studies.sweep import Sweep, default_name, grid, read_axes

    file, keys = split_words(words)
    check_file(file, "sweep", _SWEEP_EXAMPLE)
    if not over:
        raise ConfigError(
            f"command line: --over is missing, as in: dystop sweep {_SWEEP_EXAMPLE}; "
            "'dystop list keys' shows what can be varied"
        )
    axes = read_axes(over)
    every = grid(Sweep(file, keys, axes, seeds, trust))
    over = [axis.key for axis in axes]
    return find_or_create(every, choice, out, name or default_name(axes), over, trust=trust)


def check_file(file: Path | None, command: str, options: str) -> None:
    """Refuse a first word that is neither a file nor a study, and say what it is."""
    from dystop.errors import ConfigError, RunFolderError, nearest
    from dystop.experiments.folders.run_folder import CONFIG, INFO

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
    from dystop.experiments.folders.run_folder import STUDY

    files = [p.name for p in folder.glob("*.toml") if p.is_file()]
    return files + [p.parent.name for p in folder.glob(f"*/{STUDY}")]


def check_target(target: float | None) -> None:
    """Refuse a target that is not an accuracy."""
    from dystop.errors import ConfigError

    if target is not None and not 0.0 < target <= 1.0:
        raise ConfigError(
            f"command line: --target {target}; expected a share above 0 and at most 1, as in 0.8"
        )


def choose_engine(words: list[str], on: str, jobs: int | None) -> "tuple[list[str], Choice]":
    """Return the words about the experiments, and the engine that the others choose."""
    from dystop.experiments.config.tables import is_executor_word
    from dystop.experiments.executors import choose

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
    *,
    trust: bool = False,
) -> "Study":
    """Return the study of this name; build all its settings before its folder is created."""
    from dystop.experiments.studies.study import create_study, find_study

    if study := find_study(out, name, every, trust=trust):
        return study
    from dystop.experiments.building import build_each_setting
    from dystop.experiments.executors import make_executor

    executor = make_executor(choice)  # refuses before anything is written
    build_each_setting(every, elsewhere=executor.fenced)
    return create_study(out, name, every, over)


def run_remaining(study: "Study", choice: "Choice", *, quiet: bool, resume: str = "") -> None:
    """Run what is left of a study; on an interrupt, say which command resumes it."""
    from dystop.experiments.executors import make_executor, remember
    from dystop.experiments.executors.driver import resume_command, run_study

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


def resume_study(path: Path, choice: "Choice", *, quiet: bool, trust: bool = False) -> None:
    """Run what is left of a study; if nothing is, its mechanisms need not be installed."""
    from dystop.errors import ConfigError, TrustError
    from dystop.experiments.studies.study import open_study, outline

    try:
        study = open_study(path, trust=trust)
    except (ConfigError, TrustError):
        known = outline(path)
        if not known.done:
            raise
        if not quiet:
            _announce(path, len(known.folders), 0)
    else:
        run_remaining(study, choice, quiet=quiet)
