"""The list of runs as JSON: one row per run, studies together."""

from typing import Any

from dystop.dashboard.run_folders.discovery import FoundRuns, RunLocation
from dystop.dashboard.run_folders.files import as_number, as_text, report_file
from dystop.dashboard.run_folders.library import Library
from dystop.dashboard.views.summary import (
    age_s,
    data_text,
    is_testbed,
    law_name,
    mechanism,
    progress,
    score_name,
    score_text,
    section,
)
from dystop.record import ACCURACY
from dystop.units import number, seconds


def index_view(library: Library) -> dict[str, Any]:
    """Return the list: groups in the order of their last change, the newest first."""
    found = library.found()
    rows = [row_of(library, location) for location in found.locations.values()]
    groups = [group_view(found, name, rows) for name in found.groups]
    single = [row for row in rows if not row["group"]]
    groups += [{"name": "", "rows": [row], "age_s": row["age_s"]} for row in single]
    groups.sort(key=lambda g: (g["age_s"] is None, g["age_s"] or 0.0, g["name"]))
    scores = {row["score_name"] for row in rows if row["score_name"]} or {ACCURACY}
    return {
        "title": library.root.resolve().name,
        "score_name": scores.pop() if len(scores) == 1 else "score",
        "groups": groups,
        "left_out": found.left_out,
    }


def group_view(found: FoundRuns, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a study with its runs in the planned order; those that have not begun are waiting."""
    planned = found.groups[name].planned
    here = [row for row in rows if row["group"] == name]
    order = {row["folder"]: k for k, row in enumerate(planned)}
    here.sort(key=lambda row: order.get(row["name"], len(order)))
    started = {row["name"] for row in here}
    waiting = [_waiting(row) for row in planned if row["folder"] not in started]
    ages = [row["age_s"] for row in here if row["age_s"] is not None]
    done = sum(row["status"] == "finished" for row in here)
    return {
        "name": name,
        "report": report_file(found.groups[name].folder) is not None,
        "rows": here + waiting,
        "age_s": min(ages, default=None),
        "summary": f"{done} of {len(here) + len(waiting)} finished",
    }


def _waiting(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a planned run that has not started."""
    described = {
        "name": as_text(row.get("mechanism")),
        "provenance": as_text(row.get("provenance")),
    }
    return {
        "key": None,
        "name": as_text(row["folder"]),
        "status": "waiting",
        "mechanism": described,
    }


def row_of(library: Library, location: RunLocation) -> dict[str, Any]:
    """Return the line of one run."""
    files, tail = library.files(location), library.tail(location)
    last, evaluated = tail.last, tail.evaluated
    limit = as_number(section(files, "stop").get("rounds"))
    return {
        "key": location.key,
        "name": location.name,
        "group": location.group,
        "status": files.status,
        "mechanism": mechanism(files),
        "data": data_text(files),
        "testbed": is_testbed(files),
        "law": law_name(files),
        "round": number(last.round if last else None),
        "rounds": number(limit),
        "clock": seconds(as_number(last.clock_s) if last else None),
        "score": score_text(evaluated.accuracy if evaluated else None, score_name(evaluated)),
        "score_name": score_name(evaluated) if evaluated else "",
        "progress": progress(files, last),
        "age_s": age_s(files),
    }
