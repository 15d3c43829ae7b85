"""The report of a comparison or a sweep: groups side by side, never against rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dystop.folders.run_folder import RunData
from dystop.report.data.comparison.headline import rank_changes
from dystop.report.data.comparison.ranking import Ranking
from dystop.report.data.comparison.study_results import StudyResults, results_csv, study_results
from dystop.report.data.comparison.sweep_layout import curve_panels, sweep_layout
from dystop.report.data.groups import Group
from dystop.report.data.names import is_planned, law_summary, run_status
from dystop.report.data.notices import study_notes
from dystop.report.data.settings import Table, differing_settings, setting_rows
from dystop.report.figures.comparison import bars, curves
from dystop.report.figures.comparison.sweep import MAX_PANELS, draw_sweep
from dystop.report.figures.style import Plot, with_score_of
from dystop.report.pages.files import ReportFiles, check_arguments, write_files
from dystop.report.pages.html import DetailTable, fleet_rows, inline_figures, render_template
from dystop.studies.other_law import OtherLaw
from dystop.units import plural

MAX_CURVES = 12
"""Lines in one panel of a sweep."""
_NOT_SHARED = ("seed", "name", "mechanism.", "engine.timing")
"""Beginnings of keys that are shown elsewhere on the page."""


@dataclass(frozen=True)
class StudyReport:
    """The files of a written report, and the results that they show."""

    files: ReportFiles
    results: StudyResults


def write_study(  # noqa: PLR0913 (what a page shows beside the runs)
    runs: Sequence[RunData],
    out: Path,
    *,
    title: str,
    target: float | None = None,
    formats: Sequence[str] = ("png", "pdf"),
    over: Sequence[str] = (),
    notices: Sequence[str] = (),
    planned: OtherLaw | None = None,
) -> StudyReport:
    """Write the report of a study: `out/report.html`, `out/results.csv` and `out/figures/*`.

    Runs that differ only in their seed form one group.

    Args:
        runs: All runs of the study that exist.
        out: Folder to write to; created if missing.
        title: Heading of the page.
        target: Accuracy whose time and data are compared; see `choose_target` for the default.
        formats: Formats of the figure files: png, pdf, svg.
        over: The keys that a sweep varies.
        notices: Warnings that do not follow from the runs, such as missing runs.
        planned: The clock of the runs under another law, if it was planned.
    """
    check_arguments(runs, target, formats)
    results = study_results(runs, target, over, notices, planned)
    plots = [draw_ranking(results, ranking) for ranking in results.rankings]
    page = _render(title, results, plots)
    every = [plot for many in plots for plot in many]
    files = write_files(out, every, page, formats, {"results.csv": results_csv(results)})
    return StudyReport(files, results)


def draw_ranking(results: StudyResults, ranking: Ranking) -> list[Plot]:
    """Draw all figures under one timing law; with two laws, the file names contain the law."""
    plots = draw_groups(ranking.groups, results.target.accuracy, results.swept)
    plots = with_score_of(plots, [run for group in ranking.groups for run in group.runs])
    if len(results.rankings) == 1:
        return plots
    return [replace(plot, key=f"{plot.key}-{ranking.law}") for plot in plots]


def draw_groups(
    groups: Sequence[Group], target: float | None, swept: Sequence[str] = ()
) -> list[Plot]:
    """Draw the figures of ranked groups, in reading order; those of a sweep have panels."""
    is_trained = not all(is_planned(run) for group in groups for run in group.runs)
    return [
        *(draw_sweep(groups, swept, target, is_trained=is_trained) if swept else ()),
        *([bars.target_cost(groups, target)] if is_trained else ()),
        bars.time_shares(groups, target),
        *_draw_curves(groups, target, swept, is_trained=is_trained),
        bars.staleness(groups),
    ]


def _draw_curves(
    groups: Sequence[Group], target: float | None, swept: Sequence[str], *, is_trained: bool
) -> list[Plot]:
    """Draw what happens over time; a sweep with many settings shows the first of them."""
    shown = curves.in_one(groups)
    if swept:
        every = curve_panels(groups, sweep_layout(groups, swept))
        shown = [replace(p, groups=p.groups[:MAX_CURVES]) for p in every[:MAX_PANELS]]
    learning = [
        curves.accuracy_time(shown, target),
        curves.accuracy_data(shown, target),
        curves.accuracy_epochs(shown, target),
        curves.loss_time(shown),
    ]
    plots = [*(learning if is_trained else ()), curves.data_time(shown)]
    drawn = sum(len(panel.groups) for panel in shown)
    if drawn == len(groups):
        return plots
    note = f"The first {drawn} of {len(groups)} settings, in the order of the table."
    return [replace(plot, notes=(note, *plot.notes)) for plot in plots]


def _render(title: str, results: StudyResults, plots: Sequence[Sequence[Plot]]) -> str:
    groups, target = results.ranked_groups, results.target
    changes = rank_changes(results.rankings, target.accuracy, results.score)
    name = results.score.aim(target.accuracy)
    ranked_by = f"time to {name}" if target.accuracy is not None else f"final {results.score.name}"
    return render_template(
        "study.html.jinja",
        title=title,
        kind="sweep" if results.swept else "comparison",
        lead=_lead(groups, results.swept),
        headlines=[*results.headlines, *([results.order] if results.order else [])],
        notices=results.notices,
        notes=[target.reason, *study_notes(groups)],
        sections=list(zip(results.rankings, map(inline_figures, plots), strict=True)),
        laws={r.law: law_summary(r.law) for r in results.rankings},
        changes=changes,
        ranked_by=ranked_by,
        until_target="the end" if target.accuracy is None else name,
        cards=_cards(groups, results.swept),
        details=_details(groups),
    )


def _lead(groups: Sequence[Group], swept: Sequence[str]) -> str:
    """Return the sentence that says how much was run."""
    settings = len({group.label for group in groups})
    names = len({run.info["mechanism"]["name"] for group in groups for run in group.runs})
    seeds = sorted({len(group.runs) for group in groups})
    laws = len({group.law for group in groups})
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    parts = [
        plural(names, "mechanism") + (f" in {settings} settings" if settings > names else ""),
        f"{each} seed{'s' if seeds[-1] > 1 else ''} each",
        *(["both timing laws"] if laws > 1 else []),
    ]
    runs = sum(len(group.runs) for group in groups)
    keys = f" Over {', '.join(swept)}." if swept else ""
    return f"{', '.join(parts)}: {plural(runs, 'run')}.{keys}"


def _cards(groups: Sequence[Group], swept: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the page shows about each mechanism, once for all laws and swept values."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.mechanism.title if swept else group.label, []).append(group)
    return [
        {"title": title, "group": many[0], "facts": _facts(many, swept)}
        for title, many in found.items()
    ]


def _facts(groups: Sequence[Group], swept: Sequence[str]) -> Table:
    section = {"mechanism": groups[0].runs[0].config.get("mechanism") or {}}
    parameters = [
        f"{key.removeprefix('mechanism.')} = {'swept' if key in swept else value}"
        for key, value in setting_rows(section)
        if key != "mechanism.name"
    ]
    runs = [f"{run.name} ({run_status(run)})" for group in groups for run in group.runs]
    return [("parameters", ", ".join(parameters) or "none"), ("runs", ", ".join(runs))]


def _details(groups: Sequence[Group]) -> list[tuple[str, list[DetailTable]]]:
    """Return the settings that all runs share; the fleet is that of the first run."""
    first = groups[0].runs[0]
    differing = {key for key, _ in differing_settings([group.runs[0] for group in groups])}
    shared: Table = [
        row
        for row in setting_rows(first.config)
        if row[0] not in differing and not row[0].startswith(_NOT_SHARED)
    ]
    environment = [
        *setting_rows(first.info.get("versions") or {}),
        *setting_rows(first.info.get("machine") or {}),
    ]
    parts = [
        ("Configuration, fully resolved", shared),
        (f"Fleet and physics (seed {first.info.get('seed')})", fleet_rows(first)),
        ("Environment (of the first run)", environment),
    ]
    return [(title, [DetailTable("", rows)]) for title, rows in parts if rows]
