"""The report of one run, or of several side by side."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dystop.folders.run_folder import RunData
from dystop.report.data.names import (
    is_planned,
    law_text,
    mechanism_of,
    publish_text,
    readings_text,
    rerun_command,
    run_labels,
    run_status,
)
from dystop.report.data.notices import different_experiments, notices
from dystop.report.data.scores import Score, score_of
from dystop.report.data.settings import Table, differing_settings, setting_rows
from dystop.report.data.summary import (
    NO_TARGET_PLANNED,
    TARGETS,
    RunSummary,
    default_target,
    summarise,
)
from dystop.report.data.summary_table import summary_table
from dystop.report.figures.single_runs import labels, learning, maps, rounds
from dystop.report.figures.style import Plot, css_color, styled_runs, with_score_of
from dystop.report.pages.files import ReportFiles, check_arguments, write_files
from dystop.report.pages.html import DetailTable, fleet_rows, inline_figures, render_template
from dystop.units import known, seconds

HEADLINE_METRICS = ("final accuracy", "time to", "data to", "rounds",
                    "simulated time", "measured time", "data, wire")  # fmt: skip
"""Metrics at the top of the report of a single run."""

_RULES: tuple[tuple[str, Callable[[RunData], str]], ...] = (
    ("timing", law_text),
    ("publish", publish_text),
    ("readings", lambda run: readings_text([run])),
)


def write_report(
    runs: Sequence[RunData],
    out: Path,
    *,
    target: float | None = None,
    formats: Sequence[str] = ("png", "pdf"),
) -> ReportFiles:
    """Write `out/report.html`, a self-contained page, and every figure as `out/figures/*`.

    Args:
        runs: One run for its own report, several for a comparison.
        out: Folder to write to; created if missing.
        target: Accuracy whose time and data are reported, in (0, 1]; by default the largest of
            the default targets that a run reached.
        formats: Formats of the figure files: png, pdf, svg.

    Raises:
        ConfigError: No run, an unknown format, or a target that is no accuracy.
        RunFolderError: A file exists where a folder is needed.
        StorageError: The folder could not be written.
    """
    check_arguments(runs, target, formats)
    chosen = default_target(runs) if target is None else target
    plots = draw_runs(runs, chosen)
    page = render_runs(runs, summarise(runs, chosen), plots, requested=target is not None)
    return write_files(out, plots, page, formats)


def draw_runs(runs: Sequence[RunData], target: float | None = None) -> list[Plot]:
    """Draw all figures of a report, in reading order."""
    styled = styled_runs(runs)
    is_trained = not all(map(is_planned, runs))
    plots = [
        learning.accuracy_time(styled, target) if is_trained else None,
        learning.loss_time(styled) if is_trained else None,
        learning.data_time(styled),
        learning.accuracy_data(styled, target) if is_trained else None,
        rounds.staleness_rounds(styled),
        rounds.staleness_histogram(styled),
        rounds.active_workers(styled),
        rounds.round_duration(styled),
        rounds.alive_workers(styled),
        labels.label_distribution(styled),
        maps.link_map(styled),
    ]
    return with_score_of([plot for plot in plots if plot is not None], runs)


def render_runs(
    runs: Sequence[RunData],
    summaries: Sequence[RunSummary],
    plots: Sequence[Plot],
    *,
    requested: bool = False,
) -> str:
    """Return the page as text.

    Args:
        runs: The runs.
        summaries: Their numbers, in the same order.
        plots: The figures, in reading order.
        requested: Whether the target was requested, and not chosen by default.
    """
    score, comparable = score_of(runs), not different_experiments(runs)
    table = summary_table(summaries, score, mark=comparable)
    headline = (*HEADLINE_METRICS, f"final {score.name}")
    return render_template(
        "report.html.jinja",
        title=summaries[0].label if len(runs) == 1 else f"{len(runs)} runs compared",
        notices=notices(runs),
        cards=_cards(runs),
        shared=_shared_rules(runs),
        lines=table,
        tiles=[line for line in table if line.title.startswith(headline)],
        starred=comparable and len(runs) > 1,
        names=[s.label for s in summaries],
        target=_target_sentence(summaries, score, requested=requested),
        charts=inline_figures(plots),
        differing=differing_settings(runs),
        details=_details(runs),
    )


def _target_sentence(summaries: Sequence[RunSummary], score: Score, *, requested: bool) -> str:
    target = summaries[0].target
    if all(s.planned for s in summaries):
        return NO_TARGET_PLANNED
    if target is None:
        least = score.goal(TARGETS[0])
        return f"There is no target: none was requested, and no run reached {least}."
    begin = f"The target {score.name} is {score.goal(target)}"
    if requested:
        return f"{begin}, as requested."
    return (
        f"{begin}: none was requested, and this is the highest default target that a run reached."
    )


def _cards(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return what the page shows about each run."""
    return [
        {
            "label": label,
            "color": css_color(k),
            "mechanism": mechanism_of(run),
            "status": run_status(run),
            "facts": _facts(run),
            "command": rerun_command(run),
            "rules": [(name, text(run)) for name, text in _RULES],
        }
        for k, (run, label) in enumerate(zip(runs, run_labels(runs), strict=True))
    ]


def _facts(run: RunData) -> Table:
    info = run.info
    wall_s = known(info.get("wall_s"))
    facts = {
        "stopped": info.get("stop_reason"),
        "seed": info.get("seed"),
        "versions": _versions(info),
        "wall-clock time": None if wall_s is None else seconds(wall_s),
        "folder": run.path,
    }
    return [(key, str(value)) for key, value in facts.items() if value not in (None, "")]


def _versions(info: Mapping[str, Any]) -> str:
    found = {**info, **(info.get("versions") or {})}
    pairs = [(name, found.get(name)) for name in ("dystop", "python", "torch", "numpy")]
    return ", ".join(f"{name} {value}" for name, value in pairs if value)


def _shared_rules(runs: Sequence[RunData]) -> Table:
    """Return timing law, publish rule and readings where all runs share them."""
    found = [(name, {text(run) for run in runs}) for name, text in _RULES]
    return [(name, values.pop()) for name, values in found if len(values) == 1]


def _details(runs: Sequence[RunData]) -> list[tuple[str, list[DetailTable]]]:
    """Return configuration, physics and environment; runs with equal tables share one."""
    parts = [
        ("Configuration, fully resolved", [setting_rows(run.config) for run in runs]),
        ("Fleet and physics", [fleet_rows(run) for run in runs]),
        ("Environment", [setting_rows(run.info) for run in runs]),
    ]
    names = run_labels(runs)
    return [(title, _distinct_tables(names, tables)) for title, tables in parts if any(tables)]


def _distinct_tables(names: Sequence[str], tables: Sequence[Table]) -> list[DetailTable]:
    found: dict[str, tuple[list[str], Table]] = {}
    for name, table in zip(names, tables, strict=True):
        found.setdefault(str(table), ([], table))[0].append(name)
    shared_by_all = len(found) == 1 and len(names) > 1
    return [
        DetailTable("all runs" if shared_by_all else ", ".join(owners), rows)
        for owners, rows in found.values()
    ]
