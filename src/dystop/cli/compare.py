"""`dystop compare`: several mechanisms on the same fleet, split, channel and initial model."""

import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.guard import Interrupted, code_of, guarded
from dystop.cli.study_progress import StudyWatcher
from dystop.cli.tables import show_table

if TYPE_CHECKING:
    from dystop.experiments.compare import Asked, Clock
    from dystop.experiments.study import Study
    from dystop.report.ranking import Ranked

_SEEDS = 3
_EXAMPLE = "dystop,fedavg"


class Timing(StrEnum):
    """The timing laws to run under."""

    paper = "paper"
    overlap = "overlap"
    both = "both"


_LAWS: "dict[Timing, Clock]" = {
    Timing.paper: "paper",
    Timing.overlap: "overlap",
    Timing.both: "both",
}


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _split(words: list[str]) -> tuple[Path | None, list[str]]:
    """The first word is a file unless it sets a key."""
    if words and ("=" not in words[0] or words[0].endswith(".toml")):
        return Path(words[0]), words[1:]
    return None, words


def _check_file(file: Path | None) -> None:
    """Say what the first word is, if it is neither a comparison nor a file."""
    from dystop.errors import ConfigError, RunFolderError, nearest
    from dystop.experiments.store import CONFIG, INFO

    # os.path says no, and does not raise, where a name is too long or a folder is closed.
    if file is None or os.path.isfile(file):
        return
    if os.path.isfile(file / INFO):
        raise RunFolderError(
            f"{file}: is a run, not a comparison; compare mechanisms with its settings by: "
            f"dystop compare {shlex.quote(str(file / CONFIG))} --mechanisms {_EXAMPLE}"
        )
    if os.path.isdir(file):
        raise RunFolderError(f"{file}: a folder, but not a comparison; name FILE.toml or a study")
    if not os.path.lexists(file):
        close = nearest(file.name, _usable_in(file.parent))
        raise ConfigError(f"{file}: no such file or folder{close}")


def _usable_in(folder: Path) -> list[str]:
    """What could have been meant: configurations and comparisons."""
    from dystop.experiments.store import STUDY

    files = [p.name for p in folder.glob("*.toml") if p.is_file()]
    return files + [p.parent.name for p in folder.glob(f"*/{STUDY}")]


def _check_mechanisms(file: Path | None, mechanisms: str | None) -> None:
    from dystop.errors import ConfigError

    if mechanisms is None:
        words = f"{shlex.quote(str(file))} " if file else ""
        raise ConfigError(
            f"command line: --mechanisms is missing, as in: dystop compare {words}--mechanisms "
            f"{_EXAMPLE}; 'dystop list mechanisms' shows them"
        )


def _asked(
    words: list[str],
    mechanisms: str | None,
    seeds: int | None,
    timing: Timing | None,
    settings: list[str],
) -> "Asked":
    from dystop.experiments.compare import Asked

    file, keys = _split(words)
    _check_file(file)
    _check_mechanisms(file, mechanisms)
    clock = None if timing is None else _LAWS[timing]
    return Asked(file, keys, _names(mechanisms), seeds or _SEEDS, clock, settings)


def _study_of(asked: "Asked", out: Path, name: str | None, *, quiet: bool) -> "Study":
    """The study as it was asked for; everything is validated before its folder is made."""
    from dystop.experiments.compare import advice, experiments
    from dystop.experiments.study import create_study, default_name, find_study

    every = experiments(asked)
    if not quiet:
        for sentence in advice(every[0]):
            typer.secho(f"note: {sentence}", fg="yellow", err=True)
    chosen = name or default_name(every)
    if study := find_study(out, chosen, every):
        return study
    from dystop.experiments.jobs import try_out

    try_out(every)
    return create_study(out, chosen, every)


def _check_target(target: float | None) -> None:
    from dystop.errors import ConfigError

    if target is not None and not 0.0 < target <= 1.0:
        raise ConfigError(
            f"command line: --target {target}; expected a share above 0 and at most 1, as in 0.8"
        )


def _check_alone(path: Path, given: list[bool]) -> None:
    """A study that is gone on with has its settings already."""
    from dystop.errors import ConfigError

    if any(given):
        raise ConfigError(
            f"command line: {path} is a comparison with settings of its own; only --target, --jobs "
            "and --quiet go with it"
        )


def carry_out(study: "Study", jobs: int, *, quiet: bool, way: str = "") -> None:
    """Run what is left, and turn an interruption into the line that says how to go on."""
    from dystop.experiments.jobs import run_study

    total, left = len(study.experiments), len(study.todo())
    if not quiet:
        done = f", {total - left} finished before" if left < total else ""
        typer.echo(f"study: {study.path} ({total} runs{done})")
    watcher = StudyWatcher(total, total - left, quiet=quiet)
    try:
        with watcher.showing():
            run_study(study, jobs, watcher)
    except KeyboardInterrupt as interrupt:
        way = way or f"dystop compare {shlex.quote(str(study.path))}"
        done = f"{total - len(study.todo())} of {total} runs are finished"
        raise Interrupted(f"interrupted; {done}; go on with: {way}", code_of(interrupt)) from None


def report_study(study: "Study", target: float | None, *, quiet: bool) -> None:
    """Write the page of a comparison and show its ranking."""
    from dystop.experiments.store import open_run
    from dystop.report.caveats import study_notices
    from dystop.report.groups import groups
    from dystop.report.ranking import rank
    from dystop.report.study import choose_target, write_study

    runs = [open_run(study.folder(experiment)) for experiment in study.experiments]
    files = write_study(runs, study.path / "report", title=study.path.resolve().name, target=target)
    if quiet:
        return
    every = groups(runs)
    aim = choose_target(every, target)
    for sentence in study_notices(every):
        typer.secho(f"note: {sentence}", fg="yellow", err=True)
    for ranking in rank(every, aim.target):
        _show(ranking)
    typer.echo(aim.why)
    typer.echo(f"report: {files.html}")


def _show(ranking: "Ranked") -> None:
    """One ranking as a table: a line per mechanism, best first."""
    typer.echo(f"timing law: {ranking.timing}; mean ± standard deviation over seeds")
    shown = ranking.results
    rows = [
        [group.label, *(_cell(c.cells[k].text, c.cells[k].small) for c in shown)]
        for k, group in enumerate(ranking.groups)
    ]
    show_table(("mechanism", *(c.title for c in shown)), rows)


def _cell(text: str, small: str) -> str:
    return f"{text}\n{small}" if small else text


@guarded
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
    target: Annotated[
        float | None, typer.Option(help="Accuracy whose time and cost are compared, up to 1.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the study; the same name goes on with it.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="J", help="Runs at the same time; pays off on a GPU.")
    ] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Compare mechanisms: same fleet, split, channel draws and initial model, several seeds.

    Makes one ordinary run folder per mechanism, seed and timing law, and one report. The same
    command again, or 'dystop compare STUDY', goes on where it stopped.
    """
    from dystop.experiments.store import is_study
    from dystop.experiments.study import open_study

    _check_target(target)
    words = words or []
    if words and is_study(Path(words[0])):
        path = Path(words[0])
        _check_alone(path, [len(words) > 1, bool(mechanisms), bool(seeds), bool(timing),
                            bool(settings), name is not None])  # fmt: skip
        study = open_study(path)
    else:
        asked = _asked(words, mechanisms, seeds, timing, settings or [])
        study = _study_of(asked, out, name, quiet=quiet)
    carry_out(study, jobs, quiet=quiet)
    report_study(study, target, quiet=quiet)
