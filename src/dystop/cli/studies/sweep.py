"""`dystop sweep`: one experiment with every combination of some values, with one report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import (
    Jobs,
    On,
    Out,
    Quiet,
    StudyName,
    Target,
    Trust,
    check_target,
    split_words,
)
from dystop.cli.results.report import report_study
from dystop.cli.studies.study import (
    check_file,
    choose_engine,
    find_or_create,
    plan_if_serialised,
    resume_study,
    run_remaining,
    study_named,
)
from dystop.cli.terminal import handle_errors

if TYPE_CHECKING:
    from dystop.studies.executors.choice import Choice
    from dystop.studies.study import Study

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
    target: Target = None,
    out: Out = Path("runs"),
    name: StudyName = None,
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
        study = resume_study(path, choice, quiet=quiet)
    else:
        study = _study_of_sweep(words, over or [], seeds or 1, choice, out, name)
        run_remaining(study, choice, quiet=quiet)
        path = study.path
    plan_if_serialised(study)
    report_study(path, target, quiet=quiet)


def _study_of_sweep(
    words: list[str],
    over: list[str],
    seeds: int,
    choice: "Choice",
    out: Path,
    name: str | None,
) -> "Study":
    from dystop.errors import ConfigError
    from dystop.studies.sweep import Sweep, default_name, grid, read_axes

    file, keys = split_words(words)
    check_file(file, "sweep", _EXAMPLE)
    if not over:
        raise ConfigError(
            f"command line: --over is missing, as in: dystop sweep {_EXAMPLE}; "
            "'dystop list keys' shows what can be varied"
        )
    axes = read_axes(over)
    every = grid(Sweep(file, keys, axes, seeds))
    over = [axis.key for axis in axes]
    return find_or_create(every, choice, out, name or default_name(axes), over)
