"""The page of `dystop advise`: which mechanism is best in one world."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dystop.folders.run_folder import RunData
from dystop.report.data.contests.advice import COLUMNS, Advice, advice_csv, table
from dystop.report.data.groups import Group
from dystop.report.data.notices import readings_note, serialised_by_law, study_notices
from dystop.report.figures.comparison import bars, curves
from dystop.report.pages.files import ReportFiles, write_files
from dystop.report.pages.html import inline_figures, render_template
from dystop.units import goal as target_text
from dystop.units import plural, seconds


def stage_sentences(advice: Advice) -> list[str]:
    """Return what every stage ran, and who went on."""
    said = []
    for index, stage in enumerate(advice.stages, 1):
        target = stage.target(advice.goal)
        aim = "no target" if target is None else target_text(target)
        goes_on = f" On to the next stage: {', '.join(stage.kept)}." if stage.kept else ""
        said.append(
            f"Stage {index}: {plural(stage.size, 'mechanism')}, "
            f"{plural(stage.seeds, 'seed')}, {seconds(stage.seconds)} simulated; target {aim}."
            f"{goes_on}"
        )
    return said


def runs_of(groups: Sequence[Group]) -> list[RunData]:
    """Return the runs of several groups."""
    return [run for group in groups for run in group.runs]


def write_advice(
    advice: Advice,
    groups: Sequence[Group],
    dropped: Sequence[Group],
    facts: Mapping[str, str],
    out: Path,
    title: str,
) -> ReportFiles:
    """Write the page, its figures and `advice.csv`.

    Args:
        advice: The advice.
        groups: The runs of the last stage, one group per mechanism.
        dropped: The runs of the mechanisms that an earlier stage dropped.
        facts: Facts about the fleet.
        out: Folder to write to; created if missing.
        title: Heading of the page.
    """
    target = advice.contest.target
    plots = [bars.target_cost(groups, target), curves.accuracy_time(curves.in_one(groups), target)]
    page = render_template(
        "advice.html.jinja",
        title=title,
        sentences=advice.sentences,
        notices=[*study_notices(groups), *serialised_by_law(runs_of(dropped))],
        stages=[*stage_sentences(advice), readings_note(runs_of([*groups, *dropped]))],
        columns=COLUMNS,
        rows=table(advice),
        facts=list(facts.items()),
        charts=inline_figures(plots),
    )
    return write_files(out, plots, page, ("png", "pdf"), {"advice.csv": advice_csv(advice)})
