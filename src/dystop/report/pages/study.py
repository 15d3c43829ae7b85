"""The page of a comparison or a sweep: groups side by side, never against rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dystop import __version__
from dystop.experiments.run_folder import RunData
from dystop.report.data.groups import Group, groups, shared_target
from dystop.report.data.names import TIMING, status
from dystop.report.data.notices import study_notes, study_notices
from dystop.report.data.ranking import Move, Ranked, moves, rank
from dystop.report.data.results_csv import results_csv
from dystop.report.data.summary import TARGETS
from dystop.report.figures import bars, curves
from dystop.report.figures.style import RUNS, Plot
from dystop.report.figures.sweep import draw_sweep
from dystop.report.garbage import spare_the_old
from dystop.report.pages.html import Folded, Table, differing, flat, fleet_rows, picture, templates
from dystop.report.pages.write import ReportFiles, check_request, write_files
from dystop.units import goal

MOST_CURVES = 8
"""Settings of a sweep that are drawn as lines over time."""
_OWN = ("seed", "name", "mechanism.", "engine.timing")


@dataclass(frozen=True)
class Aim:
    """The accuracy that the comparison is about, and who chose it."""

    target: float | None
    why: str


def choose_target(every: Sequence[Group], asked: float | None) -> Aim:
    """The target asked for, else the one that runs stop at, else one that half of them reached."""
    if asked is not None:
        return Aim(asked, f"The target accuracy is {goal(asked)}, as asked for.")
    stop = every[0].runs[0].config.get("stop") or {}
    if ends := stop.get("accuracy"):
        return Aim(ends, f"The target accuracy is {goal(ends)}, at which the runs stop.")
    target, rule = shared_target(every)
    if target is None:
        return Aim(None, "There is no target: none was given, and no run reached 50 %.")
    usual = ", ".join(f"{100 * t:.0f}" for t in TARGETS)
    return Aim(
        target,
        f"The target accuracy is {goal(target)}: none was given, and of the usual ones ({usual} %) "
        f"this is the highest that {rule}.",
    )


def draw_study(
    every: Sequence[Group], target: float | None, over: Sequence[str] = ()
) -> list[Plot]:
    """All figures under one timing law, in reading order; of a sweep the best settings as lines."""
    lines = every[:MOST_CURVES] if over else every
    plots = [
        bars.target_cost(every, target),
        curves.accuracy_time(lines, target),
        curves.accuracy_data(lines, target),
        curves.accuracy_epochs(lines, target),
        curves.loss_time(lines),
        curves.data_time(lines),
        bars.idle_share(every),
        bars.staleness(every),
    ]
    if len(lines) < len(every):
        note = f"The best {len(lines)} of {len(every)} settings, by the order of the table."
        plots[1:6] = [replace(plot, notes=(note, *plot.notes)) for plot in plots[1:6]]
    return [*(draw_sweep(every, over, target) if over else ()), *plots]


@spare_the_old()
def write_study(
    runs: Sequence[RunData],
    out: Path,
    *,
    title: str,
    target: float | None = None,
    formats: Sequence[str] = ("png", "pdf"),
    over: Sequence[str] = (),
    notices: Sequence[str] = (),
) -> ReportFiles:
    """Write the report of a study: `out/report.html`, `out/results.csv` and `out/figures/*`.

    Runs that differ only in their seed are taken together.

    Args:
        runs: Every run of the comparison that there is.
        out: Folder to write to; made where it is missing.
        title: Heading of the page.
        target: Accuracy whose time and data are compared; see `choose_target` for the default.
        formats: Of the figure files: png, pdf, svg.
        over: The keys that a sweep is over.
        notices: Warnings that the runs themselves do not give, such as what is missing.
    """
    check_request(runs, target, formats)
    every = groups(runs)
    aim = choose_target(every, target)
    rankings = rank(every, aim.target)
    plots = [
        _named(draw_study(r.groups, aim.target, over), r.timing, len(rankings)) for r in rankings
    ]
    page = _render(Heading(title, tuple(over), tuple(notices)), rankings, plots, aim)
    table = results_csv([g for r in rankings for g in r.groups], over, aim.target)
    return write_files(
        out, [plot for many in plots for plot in many], page, formats, {"results.csv": table}
    )


def _named(plots: Sequence[Plot], law: str, laws: int) -> list[Plot]:
    """File names say the law where there are two."""
    return [replace(p, key=f"{p.key}-{law}") if laws > 1 else p for p in plots]


@dataclass(frozen=True)
class Heading:
    """What the page is about."""

    title: str
    over: tuple[str, ...]  # the keys of a sweep
    notices: tuple[str, ...]  # before those about the runs


def _render(
    heading: Heading, rankings: Sequence[Ranked], plots: Sequence[Sequence[Plot]], aim: Aim
) -> str:
    every = [group for ranking in rankings for group in ranking.groups]
    moved = moves(rankings, aim.target)
    charts = [[(plot, picture(plot)) for plot in many] for many in plots]
    return templates().get_template("study.html.jinja").render(
        title=heading.title,
        kind="sweep" if heading.over else "comparison",
        version=__version__,
        lead=_lead(every, heading.over),
        notices=[*heading.notices, *study_notices(every)],
        notes=[aim.why, *study_notes(every)],
        parts_by_law=list(zip(rankings, charts, strict=True)),
        laws={ranking.timing: TIMING.get(ranking.timing, ranking.timing) for ranking in rankings},
        moves=moved,
        verdict=_verdict(moved),
        aim="time to target" if aim.target is None else f"time to {goal(aim.target)}",
        cards=_cards(every, heading.over),
        colors={color: f"var(--run{k})" for k, color in enumerate(RUNS)},
        folds=_folds(every),
    )  # fmt: skip


def _lead(every: Sequence[Group], over: Sequence[str]) -> str:
    settings = len({group.label for group in every})
    names = len({run.info["mechanism"]["name"] for group in every for run in group.runs})
    seeds = sorted({len(group.runs) for group in every})
    laws = len({group.timing for group in every})
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    told = [
        f"{names} mechanism{'s' if names > 1 else ''}"
        + (f" in {settings} settings" if settings > names else ""),
        f"{each} seed{'s' if seeds[-1] > 1 else ''} each",
        *(["both timing laws"] if laws > 1 else []),
    ]
    runs = sum(len(group.runs) for group in every)
    axes = f" Over {', '.join(over)}." if over else ""
    return f"{', '.join(told)}: {runs} run{'s' if runs > 1 else ''}.{axes}"


def _verdict(moved: Sequence[Move]) -> str:
    changed = [move for move in moved if move.change != "same place"]
    if not changed:
        return "No: every mechanism keeps its place under the other law."
    return (
        f"Yes: {len(changed)} of {len(moved)} mechanisms change places. Times under different laws "
        "do not compare with each other; places do."
    )


def _cards(every: Sequence[Group], over: Sequence[str]) -> list[dict[str, Any]]:
    """What is told about each mechanism, once for all timing laws and all points of a sweep."""
    together: dict[str, list[Group]] = {}
    for group in every:
        together.setdefault(group.mechanism.title if over else group.label, []).append(group)
    return [
        {"title": title, "group": many[0], "facts": _facts(many, over)}
        for title, many in together.items()
    ]


def _facts(groups: Sequence[Group], over: Sequence[str]) -> Table:
    own = flat({"mechanism": groups[0].runs[0].config.get("mechanism") or {}})
    knobs = [
        f"{key.removeprefix('mechanism.')} = {'swept' if key in over else value}"
        for key, value in own
        if key != "mechanism.name"
    ]
    runs = [f"{run.name} ({status(run)})" for group in groups for run in group.runs]
    return [("keys", ", ".join(knobs) or "none"), ("runs", ", ".join(runs))]


def _folds(every: Sequence[Group]) -> list[tuple[str, list[Folded]]]:
    """Tables that all runs share; the fleet is the one of the first seed."""
    first = every[0].runs[0]
    unlike = {key for key, _ in differing([group.runs[0] for group in every])}
    shared: Table = [
        row for row in flat(first.config) if row[0] not in unlike and not row[0].startswith(_OWN)
    ]
    seed = first.info.get("seed")
    environment = [
        *flat(first.info.get("versions") or {}), *flat(first.info.get("machine") or {})
    ]  # fmt: skip
    parts = [
        ("Configuration, fully resolved", shared),
        (f"Fleet and physics (seed {seed})", fleet_rows(first)),
        ("Environment (of the first run)", environment),
    ]
    return [(title, [Folded("", rows)]) for title, rows in parts if rows]
