"""`dystop compare`: several mechanisms on the same fleet, data and channel, with one report."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import (
    Jobs,
    MechanismSettings,
    On,
    Out,
    Quiet,
    StudyName,
    Target,
    Trust,
    check_target,
    name_left_out,
    names_of,
    split_names,
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
from dystop.cli.terminal import handle_errors, note

if TYPE_CHECKING:
    from dystop.studies.compare import Comparison
    from dystop.studies.executors.choice import Choice
    from dystop.studies.study import Study

_SEEDS = 3
_EXAMPLE = "dystop,fedavg"


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
        str | None,
        typer.Option(
            metavar="LAW",
            help="Timing law, of 'dystop list laws'; both: paper and overlap. "
            "[default: engine.timing]",
            autocompletion=names_of("laws"),
        ),
    ] = None,
    settings: MechanismSettings = None,
    target: Target = None,
    out: Out = Path("runs"),
    name: StudyName = None,
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
        study = resume_study(path, choice, quiet=quiet)
    else:
        comparison = _comparison(words, mechanisms, seeds, timing, settings or [])
        study = _study_of_comparison(comparison, choice, out, name, quiet=quiet)
        run_remaining(study, choice, quiet=quiet)
        path = study.path
    plan_if_serialised(study)
    report_study(path, target, quiet=quiet)


def _comparison(
    words: list[str],
    mechanisms: str | None,
    seeds: int | None,
    law: str | None,
    settings: list[str],
) -> "Comparison":
    from dystop.errors import ConfigError
    from dystop.studies.compare import ALL, Comparison

    file, keys = split_words(words)
    check_file(file, "compare", f"--mechanisms {_EXAMPLE}")
    if mechanisms is None:
        given = f"{shlex.quote(str(file))} " if file else ""
        raise ConfigError(
            f"command line: --mechanisms is missing, as in: dystop compare {given}--mechanisms "
            f"{_EXAMPLE}; 'dystop list mechanisms' shows them"
        )
    names = split_names(mechanisms)
    if names == [ALL]:
        name_left_out("mechanisms")
    return Comparison(file, keys, names, seeds or _SEEDS, law, settings)


def _study_of_comparison(
    comparison: "Comparison", choice: "Choice", out: Path, name: str | None, *, quiet: bool
) -> "Study":
    """Find or create the study, and say what would make the comparison fairer."""
    from dystop.studies.compare import advice, experiments
    from dystop.studies.study import default_name

    every = experiments(comparison)
    if not quiet:
        for sentence in advice(every[0]):
            note(sentence)
    name = name or default_name(every)
    return find_or_create(every, choice, out, name)
