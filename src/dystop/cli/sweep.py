"""`dystop sweep`: one experiment over a grid of values."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli import studies
from dystop.cli.handle_errors import handle_errors

if TYPE_CHECKING:
    from dystop.experiments.study import Study

_EXAMPLE = "--over mechanism.V=1,10,50"


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
    target: studies.Target = None,
    out: studies.Out = Path("runs"),
    name: studies.Name = None,
    jobs: studies.Jobs = 1,
    quiet: studies.Quiet = False,
) -> None:
    """Run one experiment with every combination of some values, and show what they change.

    Makes one ordinary run folder per combination and seed, and one report with a table, figures
    over the values, and results.csv. The same command again, or 'dystop sweep SWEEP', goes on where
    it stopped.
    """
    from dystop.experiments.run_folder import is_study

    studies.check_target(target)
    words = words or []
    if words and is_study(Path(words[0])):
        path = Path(words[0])
        studies.check_alone(path, [words[1:], over, seeds, name is not None])
        studies.go_on(path, jobs, quiet=quiet)
    else:
        study = _study_of(words, over or [], seeds or 1, out, name)
        studies.carry_out(study, jobs, quiet=quiet)
        path = study.path
    studies.report_study(path, target, quiet=quiet)


def _study_of(
    words: list[str], over: list[str], seeds: int, out: Path, name: str | None
) -> "Study":
    """The sweep as it was asked for."""
    from dystop.errors import ConfigError
    from dystop.experiments.sweep import Sweep, default_name, grid, read_axes

    file, keys = studies.split_words(words)
    studies.check_file(file, "sweep", _EXAMPLE)
    if not over:
        raise ConfigError(
            f"command line: --over is missing, as in: dystop sweep {_EXAMPLE}; "
            "'dystop list keys' shows what can be varied"
        )
    axes = read_axes(over)
    every = grid(Sweep(file, keys, axes, seeds))
    return studies.found_or_made(every, out, name or default_name(axes), [a.key for a in axes])
