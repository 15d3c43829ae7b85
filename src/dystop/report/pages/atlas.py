"""The page of `dystop atlas`: a map for each goal, and a table that leaves nobody out."""

from collections.abc import Sequence
from pathlib import Path

from dystop.report.data.atlas import (
    POINT_COLUMNS,
    AtlasResults,
    mechanisms_csv,
    point_rows,
    winners_csv,
)
from dystop.report.data.winners import GOALS
from dystop.report.figures.winner_map import winner_map
from dystop.report.pages.files import ReportFiles, write_files
from dystop.report.pages.html import inline_figures, render_template


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
