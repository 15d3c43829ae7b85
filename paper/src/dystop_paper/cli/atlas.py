"""`dystop atlas`: maps that show which mechanism wins in which network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import (
    Jobs,
    MechanismSettings,
    On,
    Out,
    Quiet,
    Trust,
    check_target,
    split_names,
    split_words,
)
from dystop.cli.packages import command
from dystop.cli.studies.study import (
    check_file,
    choose_engine,
    find_or_create,
    resume_study,
    run_remaining,
    study_named,
)
from dystop.cli.terminal import echo, handle_errors, note, show_table
from dystop.units import plural

if TYPE_CHECKING:
    from dystop.studies.executors.choice import Choice
    from dystop_paper.atlas import Atlas

_EXAMPLE = "--x spread=0,0.4,0.8 --y communication=0.1,1,10 --mechanisms dystop,matcha,ad-psgd"


@handle_errors
def atlas(  # noqa: PLR0913 - every parameter is an option of the command
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE.toml|KEY=VALUE|ATLAS", show_default=False),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="AXIS=V1,V2,...",
            help="Horizontal axis: spread, communication, skew, density, churn, or any key.",
            show_default=False,
        ),
    ] = None,
    y: Annotated[
        str | None,
        typer.Option("--y", metavar="AXIS=V1,V2,...", help="Vertical axis.", show_default=False),
    ] = None,
    mechanisms: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Mechanisms. [default: all]", show_default=False),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Seeds: seed, seed+1, ... [default: 1]")
    ] = None,
    turns: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Length of every run: so many times one training and one transfer in its own "
            "network, at most stop.seconds. [default: 80]",
        ),
    ] = None,
    settings: MechanismSettings = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Accuracy to which costs are counted. [default: at each point the highest "
            "multiple of 5 % that enough mechanisms reach]"
        ),
    ] = None,
    reached: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many mechanisms must reach a target that is not given. [default: half]",
        ),
    ] = None,
    out: Out = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the atlas; an existing one is resumed.")
    ] = None,
    jobs: Jobs = None,
    on: On = "local",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Draw maps of networks: at each point, which mechanism reaches the target first, or cheapest.

    Two axes span a grid of networks. Every mechanism runs in each of them. A map for each goal
    (time, traffic, compute) shows the winner and by how much; the table names everybody who did
    not reach the target. Rerun the command, or call 'dystop atlas ATLAS', to resume.
    """
    check_target(target)
    words, choice = choose_engine(words or [], on, jobs)
    options = [x, y, mechanisms, seeds, turns, settings, name]
    allowed = "--target, --reached, --jobs, --on, --trust and --quiet"
    folder = study_named(words, options, "an atlas", allowed)
    if folder is not None:
        resume_study(folder, choice, quiet=quiet)
    else:
        asked = _asked(words, x, y, mechanisms, seeds, turns, settings or [])
        folder = _run(asked, choice, out, name, quiet=quiet)
    report_atlas(folder, target, reached, quiet=quiet)


def _asked(
    words: list[str],
    x: str | None,
    y: str | None,
    mechanisms: str | None,
    seeds: int | None,
    turns: float | None,
    settings: list[str],
) -> "Atlas":
    from dystop.errors import ConfigError
    from dystop.studies.worlds import AXES
    from dystop_paper.atlas import SEEDS, TURNS, Atlas, read_axis

    file, keys = split_words(words)
    check_file(file, "atlas", _EXAMPLE)
    if x is None or y is None:
        missing = "--x" if x is None else "--y"
        raise ConfigError(
            f"command line: {missing} is missing, as in: dystop atlas {_EXAMPLE}; the axes are "
            f"{', '.join(AXES)}, or any key of 'dystop list keys'"
        )
    names = split_names(mechanisms or "all")
    turns = TURNS if turns is None else turns
    axes = read_axis("--x", x), read_axis("--y", y)
    return Atlas(file, keys, *axes, names, seeds or SEEDS, turns, settings)


def _run(asked: "Atlas", choice: "Choice", out: Path, name: str | None, *, quiet: bool) -> Path:
    from dystop_paper.atlas import chart, default_name, write_points

    every = chart(asked)
    name = name or default_name(asked.x, asked.y)
    study = find_or_create(every.experiments, choice, out, name, every.over)
    write_points(study.path, every.content)
    run_remaining(study, choice, quiet=quiet)
    return study.path


def report_atlas(
    folder: Path,
    target: float | None,
    least: int | None = None,
    *,
    out: Path | None = None,
    quiet: bool,
) -> None:
    """Write the page of the runs that have finished, and show the maps."""
    from dystop.errors import RunFolderError
    from dystop.folders.run_folder import open_run
    from dystop.report.data.contests.winners import FIRST, GOALS
    from dystop.report.data.notices import readings_note, serialised_by_law
    from dystop.studies.study import finished, outline
    from dystop_paper.atlas import read_points
    from dystop_paper.data.atlas import atlas_results, map_columns, map_rows
    from dystop_paper.pages.atlas import write_atlas

    points = read_points(folder)
    study = outline(folder)
    done = [open_run(path) for path in study.folders if finished(path)]
    if not done:
        raise RunFolderError(
            f"{folder}: none of its {len(study.folders)} runs has finished, so there is nothing to "
            f"draw; run them with: {study.resume_command}"
        )
    notices = serialised_by_law(done)
    if left := len(study.folders) - len(done):
        notices.insert(
            0,
            f"{left} of {plural(len(study.folders), 'run')} missing here: not finished; resume "
            f"with: {study.resume_command}",
        )
    results = atlas_results(points, done, target, least)
    facts = [
        f"Every run lasts {points.turns:g} turns of its own network, at most stop.seconds; a turn "
        "is one local training and one transfer over the median link.",
        readings_note(done),
    ]
    files = write_atlas(results, out or folder / "report", folder.resolve().name, notices, facts)
    if quiet:
        return
    for sentence in notices:
        note(sentence)
    for goal in GOALS:
        echo(f"who reaches the target {FIRST[goal]}:")
        show_table(map_columns(results), map_rows(results, goal))
    if names := results.reconstructions:
        echo(f"* reconstruction, no code was published: {', '.join(names)}")
    echo(results.rule)
    echo(f"report: {files.html}")


app = command(
    atlas,
    "dystop atlas --x spread=0,0.4,0.8 --y communication=0.1,1,10 --mechanisms dystop,matcha",
    "dystop atlas fleet.toml --x skew=0.1,0.4,1 --y density=4,8,16 --seeds 3 --jobs 4",
    "dystop atlas --x churn=0,0.2,0.4 --y world.range_m=30,60 --target 0.7 --name churn",
    "dystop atlas runs/churn --reached 3          resume, or draw the maps again",
)
