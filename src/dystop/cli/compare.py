"""`dystop compare`: several mechanisms on the same fleet, split, channel and initial model."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli import studies
from dystop.cli.handle_errors import handle_errors
from dystop.cli.output import echo

if TYPE_CHECKING:
    from dystop.experiments.compare import Asked, Clock
    from dystop.experiments.study import Study

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

    file, keys = studies.split_words(words)
    studies.check_file(file, "compare", f"--mechanisms {_EXAMPLE}")
    _check_mechanisms(file, mechanisms)
    clock = None if timing is None else _LAWS[timing]
    return Asked(file, keys, _names(mechanisms), seeds or _SEEDS, clock, settings)


def _study_of(asked: "Asked", out: Path, name: str | None, *, quiet: bool) -> "Study":
    """The study as it was asked for, and what would make it fairer."""
    from dystop.experiments.compare import advice, experiments
    from dystop.experiments.study import default_name

    every = experiments(asked)
    if not quiet:
        for sentence in advice(every[0]):
            echo(f"note: {sentence}", colour="yellow", err=True)
    return studies.found_or_made(every, out, name or default_name(every))


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
    target: studies.Target = None,
    out: studies.Out = Path("runs"),
    name: studies.Name = None,
    jobs: studies.Jobs = 1,
    quiet: studies.Quiet = False,
) -> None:
    """Compare mechanisms: same fleet, split, channel draws and initial model, several seeds.

    Makes one ordinary run folder per mechanism, seed and timing law, and one report. The same
    command again, or 'dystop compare STUDY', goes on where it stopped.
    """
    from dystop.experiments.run_folder import is_study

    studies.check_target(target)
    words = words or []
    if words and is_study(Path(words[0])):
        path = Path(words[0])
        studies.check_alone(
            path, [words[1:], mechanisms, seeds, timing, settings, name is not None]
        )
        studies.go_on(path, jobs, quiet=quiet)
    else:
        asked = _asked(words, mechanisms, seeds, timing, settings or [])
        study = _study_of(asked, out, name, quiet=quiet)
        studies.carry_out(study, jobs, quiet=quiet)
        path = study.path
    studies.report_study(path, target, quiet=quiet)
