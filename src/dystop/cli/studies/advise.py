"""`dystop advise`: short trials on the user's own world say which mechanism to take."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
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
    Words,
    check_target,
    name_left_out,
    split_names,
    split_words,
)
from dystop.cli.studies.study import (
    check_file,
    choose_engine,
    find_or_create,
    run_remaining,
)
from dystop.cli.terminal import echo, handle_errors, note, show_table
from dystop.units import plural, seconds

if TYPE_CHECKING:
    from dystop.config import Experiment
    from dystop.report.data.contests.advice import Advice
    from dystop.report.data.contests.winners import Goal
    from dystop.report.data.groups import Group
    from dystop.studies.executors.choice import Choice
    from dystop.studies.study import Study
    from dystop.studies.trials import Stage, Trials

_ALL = "all"
_SEEDS = 3


class GoalOption(StrEnum):
    """What the best mechanism spends least of."""

    time = "time"
    traffic = "traffic"
    compute = "compute"


_GOALS: "dict[GoalOption, Goal]" = {
    GoalOption.time: "time",
    GoalOption.traffic: "traffic",
    GoalOption.compute: "compute",
}


@dataclass(frozen=True)
class Request:
    """What is asked for, and how the trials run."""

    trials: "Trials"
    goal: "Goal"
    folder: Path
    target: float | None
    choice: "Choice"
    command: str  # resumes it
    quiet: bool


@handle_errors
def advise(  # noqa: PLR0913 - every parameter is an option of the command
    words: Words = None,
    goal: Annotated[
        GoalOption, typer.Option(help="What the best mechanism spends least of.")
    ] = GoalOption.time,
    mechanisms: Annotated[
        str, typer.Option(metavar="A,B,C", help="Mechanisms to try, or 'all'.")
    ] = _ALL,
    limit_s: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="S",
            help="Simulated seconds of the longest trials. [default: 40 times one training and "
            "one transfer, at most stop.seconds]",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Seeds of the longest trials.")
    ] = _SEEDS,
    server: Annotated[
        bool,
        typer.Option(help="Whether to try mechanisms that need a base station."),
    ] = True,
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy that is enough, up to 1. [default: what half of them reach]"),
    ] = None,
    settings: MechanismSettings = None,
    out: Out = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the folder; existing trials are resumed.")
    ] = None,
    jobs: Jobs = None,
    on: On = "local",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Say which mechanism to take for a fleet, and why, after short trials on it.

    All mechanisms run for a short time, the best of them longer and with more seeds. The advice
    names the runner-up, says how sure the order is, and calls a tie a tie. Every stage is an
    ordinary comparison. Rerun the command to resume.
    """
    from dystop.studies.trials import Trials

    check_target(target)
    given = list(words or [])
    words, choice = choose_engine(given, on, jobs)
    file, keys = split_words(words)
    check_file(file, "advise", "")
    trials = Trials(file, keys, settings or [])
    names = split_names(mechanisms)
    plan, names = _plan(trials, names, limit_s, seeds, server=server)
    base = trials.experiments(plan[-1], names[:1])[0]
    folder = out / (name or _default_name(base))
    options = _options(goal, mechanisms, limit_s, seeds, target, settings or [])
    options += [] if server else ["--no-server"]
    place = [*(["--out", str(out)] if out != Path("runs") else []), *_named(name), *_engine(on)]
    command = shlex.join(["dystop", "advise", *given, *options, *place])
    request = Request(trials, _GOALS[goal], folder, target, choice, command, quiet)
    _report(request, *_run_stages(request, plan, names))


def _options(
    goal: GoalOption,
    mechanisms: str,
    limit_s: float | None,
    seeds: int,
    target: float | None,
    settings: Sequence[str],
) -> list[str]:
    """Return the options that repeat these trials."""
    found = [] if goal is GoalOption.time else ["--goal", str(goal)]
    found += [] if mechanisms == _ALL else ["--mechanisms", mechanisms]
    found += [] if limit_s is None else ["--seconds", f"{limit_s:g}"]
    found += [] if seeds == _SEEDS else ["--seeds", str(seeds)]
    found += [] if target is None else ["--target", f"{target:g}"]
    return found + [part for word in settings for part in ("--set", word)]


def _named(name: str | None) -> list[str]:
    return ["--name", name] if name else []


def _engine(on: str) -> list[str]:
    return ["--on", on] if on != "local" else []


def _default_name(experiment: "Experiment") -> str:
    from dystop.studies.study import default_name

    return default_name([experiment]).replace("compare-", "advise-", 1)


def _plan(
    trials: "Trials", names: list[str], limit_s: float | None, seeds: int, *, server: bool
) -> "tuple[list[Stage], list[str]]":
    """Return the stages and the mechanisms that can run in this world."""
    from dystop.errors import ConfigError
    from dystop.mechanisms import MECHANISMS
    from dystop.studies.compare import chosen_mechanisms
    from dystop.studies.trials import TURNS, horizon_s, stages

    if limit_s is not None and not limit_s > 0:
        raise ConfigError(f"command line: --seconds {limit_s:g}; expected a number above 0")
    chosen = [
        name
        for name in chosen_mechanisms(names)
        if server or not MECHANISMS[name]().capabilities().server
    ]
    if not chosen:
        raise ConfigError(
            f"command line: --mechanisms {','.join(names)}: all of them need a base station, and "
            "--no-server leaves such mechanisms out"
        )
    base = trials.base(chosen)
    if not base.engine.train:
        raise ConfigError(
            "engine.train = false is planning only and trains no model, but trials compare what "
            "models learn; set engine.train=true"
        )
    if names == [_ALL]:
        name_left_out("mechanisms")
    usable = _usable(trials, chosen, skip=names == [_ALL])
    limit_s = limit_s or horizon_s(base, TURNS)
    plan = stages(len(usable), limit_s, seeds)
    return plan, usable


def _usable(trials: "Trials", chosen: Sequence[str], *, skip: bool) -> list[str]:
    """Return the mechanisms that can run in this world; refuse the others, or skip them.

    One build checks all of them; only if it fails, each is built alone.
    """
    from dystop.errors import ConfigError
    from dystop.runs.building import build_each_setting
    from dystop.studies.trials import Stage

    try:
        build_each_setting(trials.experiments(Stage(1, 1.0, 1), chosen), elsewhere=True)
        return list(chosen)
    except ConfigError:
        if not skip:
            raise
    found = []
    for name in chosen:
        try:
            build_each_setting(trials.experiments(Stage(1, 1.0, 1), [name]), elsewhere=True)
        except ConfigError as error:
            note(f"{name} is left out: {error}")
        else:
            found.append(name)
    if not found:
        raise ConfigError("no mechanism can run with these settings; 'dystop run' says why")
    return found


def _run_stages(
    request: Request, plan: "Sequence[Stage]", names: list[str]
) -> "tuple[Advice, list[Group], list[Group]]":
    """Run every stage, and let the best go on; return who took part in the last, and who did not.

    Of a mechanism that was dropped, the group of its last stage is returned.
    """
    from dystop.report.data.contests.advice import Advice, judge

    results, groups, dropped = [], [], []
    for index, stage in enumerate(plan):
        if not request.quiet:
            echo(
                f"stage {index + 1} of {len(plan)}: {plural(len(names), 'mechanism')}, "
                f"{plural(stage.seeds, 'seed')}, {seconds(stage.seconds)} simulated"
            )
        study = _study(request, index + 1, stage, names)
        groups = _groups(study)
        keep = plan[index + 1].size if index + 1 < len(plan) else 0
        results.append(judge(groups, request.goal, stage.seconds, keep, request.target))
        names = [name for name in names if name in results[-1].kept]
        if names:
            dropped += [group for group in groups if group.mechanism.name not in names]
    return Advice(request.goal, tuple(results)), groups, dropped


def _study(request: Request, number: int, stage: "Stage", names: Sequence[str]) -> "Study":
    """Run one stage, as a comparison."""
    every = request.trials.experiments(stage, names)
    study = find_or_create(every, request.choice, request.folder, f"trials-{number}")
    run_remaining(study, request.choice, quiet=request.quiet, resume=request.command)
    return study


def _groups(study: "Study") -> "list[Group]":
    from dystop.folders.run_folder import open_run
    from dystop.report.data.groups import group_runs

    return group_runs([open_run(study.folder(e)) for e in study.experiments])


def _report(
    request: Request, advice: "Advice", groups: "Sequence[Group]", dropped: "Sequence[Group]"
) -> None:
    from dystop.report.data.contests.advice import COLUMNS, table
    from dystop.report.data.notices import serialised_by_law
    from dystop.report.pages.advice import runs_of, write_advice

    facts = groups[0].runs[0].fleet.get("physics") or {}
    title = request.folder.resolve().name
    files = write_advice(advice, groups, dropped, facts, request.folder, title)
    if request.quiet:
        return
    for sentence in serialised_by_law(runs_of([*groups, *dropped])):
        note(sentence)
    show_table(COLUMNS, table(advice))
    for sentence in advice.sentences:
        echo(sentence)
    echo(f"report: {files.html}")
