"""One run as JSON for its page; what the page already has is left out."""

from collections.abc import Sequence
from typing import Any

from dystop.dashboard.run_folders.discovery import RunLocation
from dystop.dashboard.run_folders.downsample import DownsampledSeries
from dystop.dashboard.run_folders.files import as_count, as_number, as_text, report_file
from dystop.dashboard.run_folders.history import EVALUATIONS, ROUNDS, History
from dystop.dashboard.run_folders.library import RunFiles
from dystop.dashboard.run_folders.log_reader import MAX_REPLAY_BYTES, LogFollower, history_until
from dystop.dashboard.views.last_round_map import last_round_map
from dystop.dashboard.views.summary import (
    age_s,
    end_text,
    facts,
    is_testbed,
    mechanism,
    notices,
    progress,
    score_name,
    section,
    tiles,
)
from dystop.dashboard.views.workers import workers_state, workers_view
from dystop.units import seconds

MAX_INCIDENTS = 100


def cursor(follower: LogFollower, run: RunFiles) -> str:
    """Return what a page has after this view; sent back, it gets only what is new."""
    history = follower.history
    points = f"{len(history.rounds.points)}.{len(history.evaluations.points)}"
    round_ = history.last.round if history.last else 0
    return f"{follower.version}.{points}.{round_}.{run.status}"


def _points_to_keep(follower: LogFollower, since: str) -> tuple[int, int]:
    """Return how many points of both series a page may keep; the last ones may have changed."""
    parts = since.split(".")
    if len(parts) != 5 or parts[0] != follower.version:
        return 0, 0
    counts = [int(p) if p.isascii() and p.isdigit() and len(p) < 9 else 0 for p in parts[1:3]]
    return max(0, counts[0] - 1), max(0, counts[1] - 1)


def series_view(series: DownsampledSeries, columns: Sequence[str], start: int) -> dict[str, Any]:
    """Return the points of a series from `start` on."""
    start = min(start, len(series.points))
    rows = [p.row() for p in series.points[start:]]
    return {"columns": list(columns), "from": start, "rows": rows, "group": series.group}


def run_view(
    location: RunLocation, run: RunFiles, follower: LogFollower, since: str = ""
) -> dict[str, Any]:
    """Return everything that the page of a run needs and does not have yet.

    Args:
        location: The run.
        run: Its small files.
        follower: Its record log, as far as it was read.
        since: The `cursor` of the view that the page shows; empty for a new page.
    """
    history, now = follower.history, cursor(follower, run)
    rounds, evaluations = _points_to_keep(follower, since)
    out: dict[str, Any] = {
        "key": location.key,
        "name": location.name,
        "group": location.group,
        "status": run.status,
        "end": end_text(run),
        "age_s": age_s(run),
        "testbed": is_testbed(run),
        "report": report_file(location.folder) is not None,
        "mechanism": mechanism(run),
        "facts": facts(run),
        "tiles": tiles(run, history),
        "score_name": score_name(history.evaluated),
        "progress": progress(run, history.last),
        "bound": as_number(section(run, "mechanism").get("staleness_bound")),
        "notices": notices(run, follower),
        "incidents": _incidents(run),
        "read": round(follower.offset / follower.size, 3) if follower.is_behind else 1,
        "replay": _rounds_to_replay(run, follower),
        "cursor": now,
        "rounds": series_view(history.rounds, ROUNDS, rounds),
        "evaluations": series_view(history.evaluations, EVALUATIONS, evaluations),
    }
    if since != now:
        workers = workers_state(run, history)
        out |= {"map": last_round_map(run, workers), "workers": workers_view(workers)}
        out["histogram"] = _histogram(history)
    return out


def _rounds_to_replay(run: RunFiles, follower: LogFollower) -> int | None:
    """Return the last round if the map can show every round of a run that has ended."""
    last = follower.history.last
    if run.status == "running" or last is None or follower.is_behind:
        return None
    if last.get("link_pairs") is None:
        return None
    return last.round if follower.size <= MAX_REPLAY_BYTES else None


def round_view(location: RunLocation, run: RunFiles, round_: int) -> dict[str, Any] | None:
    """Return the map of one round, as the page showed it then; None where it cannot be read."""
    history = history_until(location.folder, round_)
    return None if history is None else last_round_map(run, workers_state(run, history))


def _histogram(history: History) -> list[int]:
    """Return the workers at staleness 0, 1, 2, ... when the last round opened."""
    found = history.last.staleness_histogram if history.last else None
    counts = [as_number(n) for n in found] if isinstance(found, list) else []
    return [] if None in counts else [int(n) for n in counts if n is not None]


def _incidents(run: RunFiles) -> list[list[Any]]:
    """Return what went wrong with members of a testbed, as its coordinator wrote it, newest first.

    A row has member, kind, count, time of the last one, reporter and text.
    """
    found = (run.incidents or {}).get("incidents")
    rows = found if isinstance(found, list) else []
    return [_incident(row) for row in rows[:MAX_INCIDENTS] if isinstance(row, dict)]


def _incident(row: dict[str, Any]) -> list[Any]:
    return [
        as_text(row.get("member"), "?"),
        as_text(row.get("kind")).replace("_", " "),
        as_count(row.get("count")),
        seconds(as_number(row.get("last_s"))),
        as_text(row.get("reporter")) or "coordinator",
        as_text(row.get("text")),
    ]
