"""The page of `dystop atlas`: which mechanism is best in which network."""

from collections.abc import Sequence
from pathlib import Path

from dystop.report.data.contests.winners import GOALS
from dystop.report.pages.files import ReportFiles, write_files
from dystop.report.pages.html import inline_figures, render_template
from dystop_paper.data.atlas import (
    POINT_COLUMNS,
    AtlasResults,
    mechanisms_csv,
    point_rows,
    winners_csv,
)
from dystop_paper.figures.winner_map import winner_map


def write_atlas(
    results: AtlasResults, out: Path, title: str, notices: Sequence[str], facts: Sequence[str]
) -> ReportFiles:
    """Write the page, the maps, `winners.csv` and `mechanisms.csv`.

    Args:
        results: The winners at every point.
        out: Folder to write to; created if missing.
        title: Heading of the page.
        notices: Warnings, such as missing runs.
        facts: How long the runs are, and other sentences about all of them.
    """
    plots = [winner_map(results, goal) for goal in GOALS]
    page = render_template(
        "atlas.html.jinja",
        package="dystop_paper",
        title=title,
        notices=notices,
        notes=[results.rule, *facts],
        axes=[results.x, results.y],
        columns=POINT_COLUMNS,
        rows=point_rows(results),
        charts=inline_figures(plots),
    )
    tables = {"winners.csv": winners_csv(results), "mechanisms.csv": mechanisms_csv(results)}
    return write_files(out, plots, page, ("png", "pdf"), tables)
