"""What `dystop compare` and `dystop sweep` share: reading words, carrying out, telling the end."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.handle_errors import Interrupted, code_of
from dystop.cli.output import echo, show_table
from dystop.cli.progress import StudyWatcher
from dystop.units import are, plural

if TYPE_CHECKING:
    from dystop.experiments.config import Experiment
    from dystop.experiments.study import Outline, Study
    from dystop.report.data.ranking import Ranking

Target = Annotated[
    float | None, typer.Option(help="Accuracy whose time and cost are compared, up to 1.")
]
Out = Annotated[Path, typer.Option(help="Folder of all runs.")]
Name = Annotated[str | None, typer.Option(help="Name of the study; the same name goes on with it.")]
Jobs = Annotated[
    int, typer.Option(min=1, metavar="J", help="Runs at the same time; pays off on a GPU.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def split_words(words: list[str]) -> tuple[Path | None, list[str]]:
    """The first word is a file unless it sets a key."""
    if words and ("=" not in words[0] or words[0].endswith(".toml")):
        return Path(words[0]), words[1:]
    return None, words


def check_file(file: Path | None, verb: str, options: str) -> None:
    """Say what the first word is, if it is neither a study nor a file."""
    from dystop.errors import ConfigError, RunFolderError, nearest
    from dystop.experiments.run_folder import CONFIG, INFO

    # os.path says no, and does not raise, where a name is too long or a folder is closed.
    if file is None or os.path.isfile(file):
        return
    if os.path.isfile(file / INFO):
        raise RunFolderError(
            f"{file}: is one run, not a study of several; use its settings by: "
            f"dystop {verb} {shlex.quote(str(file / CONFIG))} {options}"
        )
    if os.path.isdir(file):
        raise RunFolderError(f"{file}: a folder, but no study; name FILE.toml or a study")
    if not os.path.lexists(file):
        close = nearest(file.name, _usable_in(file.parent))
        raise ConfigError(f"{file}: no such file or folder{close}")


def _usable_in(folder: Path) -> list[str]:
    """What could have been meant: configurations and studies."""
    from dystop.experiments.run_folder import STUDY

    files = [p.name for p in folder.glob("*.toml") if p.is_file()]
    return files + [p.parent.name for p in folder.glob(f"*/{STUDY}")]


def check_target(target: float | None) -> None:
    """Refuse a target that is no accuracy."""
    from dystop.errors import ConfigError

    if target is not None and not 0.0 < target <= 1.0:
        raise ConfigError(
            f"command line: --target {target}; expected a share above 0 and at most 1, as in 0.8"
        )


def check_alone(path: Path, given: Sequence[object]) -> None:
    """A study that is gone on with has its settings already."""
    from dystop.errors import ConfigError

    if any(given):
        raise ConfigError(
            f"command line: {path} is a study with settings of its own; only --target, --jobs "
            "and --quiet go with it"
        )


def found_or_made(
    every: "Sequence[Experiment]", out: Path, name: str, over: Sequence[str] = ()
) -> "Study":
    """The study of this name; everything is validated before its folder is made."""
    from dystop.experiments.study import create_study, find_study

    if study := find_study(out, name, every):
        return study
    from dystop.experiments.jobs import try_out

    try_out(every)
    return create_study(out, name, every, over)


def carry_out(study: "Study", jobs: int, *, quiet: bool, way: str = "") -> None:
    """Run what is left, and turn an interruption into the line that says how to go on."""
    from dystop.experiments.jobs import run_study

    total, left = len(study.experiments), len(study.todo())
    if not quiet:
        _announce(study.path, total, left)
    watcher = StudyWatcher(total, total - left, quiet=quiet)
    try:
        with watcher.showing():
            run_study(study, jobs, watcher)
    except KeyboardInterrupt as interrupt:
        way = way or f"dystop {study.verb} {shlex.quote(str(study.path))}"
        done = f"{total - len(study.todo())} of {are(total, 'run')} finished"
        raise Interrupted(f"interrupted; {done}; go on with: {way}", code_of(interrupt)) from None


def _announce(path: Path, total: int, left: int) -> None:
    done = f", {total - left} finished before" if left < total else ""
    echo(f"study: {path} ({plural(total, 'run')}{done})")


def go_on(path: Path, jobs: int, *, quiet: bool) -> None:
    """Run what is left of a study; where nothing is, its mechanisms need not be installed."""
    from dystop.errors import ConfigError
    from dystop.experiments.study import open_study, outline

    try:
        study = open_study(path)
    except ConfigError:
        told = outline(path)
        if not told.done:
            raise
        if not quiet:
            _announce(path, len(told.folders), 0)
    else:
        carry_out(study, jobs, quiet=quiet)


def _begun(study: "Outline") -> tuple[list[Path], list[str]]:
    """The runs that there are, and what to say where some are not there yet."""
    from dystop.errors import RunFolderError

    begun, planned = study.begun, len(study.folders)
    way = f"dystop {study.verb} {shlex.quote(str(study.path))}"
    if not begun:
        raise RunFolderError(
            f"{study.path}: none of its {planned} runs has begun, so there is nothing to report; "
            f"run them by: {way}"
        )
    if len(begun) == planned:
        return begun, []
    told = f"{len(begun)} of {planned} runs have begun; the others are missing here"
    return begun, [f"{told}; go on with: {way}"]


def report_study(path: Path, target: float | None, *, out: Path | None = None, quiet: bool) -> None:
    """Write the page of a study, as far as it got, and show its ranking."""
    from dystop.experiments.run_folder import open_run
    from dystop.experiments.study import outline
    from dystop.report.pages.study import write_study

    study = outline(path)
    begun, missing = _begun(study)
    runs, title = [open_run(folder) for folder in begun], path.resolve().name
    report = write_study(
        runs, out or path / "report", title=title, target=target, over=study.over, notices=missing
    )
    if quiet:
        return
    for sentence in report.results.notices:
        echo(f"note: {sentence}", colour="yellow", err=True)
    for ranking in report.results.rankings:
        _show(ranking, "setting" if study.over else "mechanism")
    echo(report.results.target.reason)
    echo(f"report: {report.files.html}")


def _show(ranking: "Ranking", who: str) -> None:
    """One ranking as a table: a line per mechanism or setting, best first."""
    echo(f"timing law: {ranking.timing}; mean ± standard deviation over seeds")
    shown = ranking.results
    rows = [
        [group.label, *(_cell(c.cells[k].text, c.cells[k].note) for c in shown)]
        for k, group in enumerate(ranking.groups)
    ]
    show_table((who, *(c.title for c in shown)), rows)


def _cell(text: str, note: str) -> str:
    return f"{text}\n{note}" if note else text
