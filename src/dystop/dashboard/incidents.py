"""What went wrong with which member of a testbed run, as its coordinator wrote it."""

from typing import Any

from dystop.dashboard.library import RunFiles
from dystop.dashboard.values import as_count, as_number, as_text
from dystop.units import seconds

MAX_ROWS = 100


def incidents_view(run: RunFiles) -> list[list[Any]]:
    """Return member, kind, count, time of the last one, reporter and text, the newest first."""
    found = (run.incidents or {}).get("incidents")
    rows = found if isinstance(found, list) else []
    return [_row(row) for row in rows[:MAX_ROWS] if isinstance(row, dict)]


def _row(row: dict[str, Any]) -> list[Any]:
    return [
        as_text(row.get("member"), "?"),
        as_text(row.get("kind")).replace("_", " "),
        as_count(row.get("count")),
        seconds(as_number(row.get("last_s"))),
        as_text(row.get("reporter")) or "coordinator",
        as_text(row.get("text")),
    ]
