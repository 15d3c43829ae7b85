"""One study as JSON for its page: a curve for each run, and a table of its groups.

A group holds the runs that differ in their seed only. Colours follow the mechanisms; in a study of
one mechanism they follow the groups.
"""

import hashlib
import re
import statistics
from collections.abc import Sequence
from typing import Any

from dystop.dashboard.run_folders.curves import Curve, CurveCache
from dystop.dashboard.run_folders.discovery import RunGroup
from dystop.dashboard.run_folders.files import as_number, report_file
from dystop.dashboard.run_folders.history import EVALUATIONS
from dystop.dashboard.run_folders.library import Library
from dystop.dashboard.run_folders.log_reader import LogTail
from dystop.dashboard.views.index import group_view, row_of
from dystop.dashboard.views.summary import score_text
from dystop.record import ACCURACY
from dystop.units import NOTHING, data, number, seconds

MAX_LINES = 240
"""Most runs whose curves one page shows."""
_SEED = re.compile(r"-s\d+$")
_CLOCK, _SCORE = EVALUATIONS.index("clock_s"), EVALUATIONS.index("accuracy")


def study_view(
    library: Library, cache: CurveCache, name: str, since: str = ""
) -> dict[str, Any] | None:
    """Return everything that the page of a study needs; None if there is no such study.

    Args:
        library: All runs.
        cache: Their curves.
        name: Of the study, or of any other folder of runs.
        since: The `cursor` of the view that the page shows: then equal curves are left out.
    """
    found = library.found()
    group = found.groups.get(name)
    if group is None:
        return None
    places = {place.name: place for place in found.locations.values() if place.group == name}
    rows = [row_of(library, place) for place in places.values()]
    listed = group_view(found, name, rows)
    shown = [row for row in listed["rows"] if row["key"]][:MAX_LINES]
    curves = cache.curves([places[row["name"]] for row in shown])
    tails = [library.tail(places[row["name"]]) for row in shown]
    out = {
        "name": name,
        "kind": "sweep" if group.over else "comparison" if group.planned else "folder of runs",
        "over": list(group.over),
        "summary": listed["summary"],
        "report": report_file(group.folder) is not None,
        "running": sum(row["status"] == "running" for row in shown),
        "score_name": _score_name(shown),
        "timing": sorted({row["timing"] for row in shown}),
        "read": sum(curve.is_complete for curve in curves) / len(curves) if curves else 1,
        "left_out": max(0, len(places) - MAX_LINES),
        "columns": list(EVALUATIONS),
    }
    out |= _groups(group, listed["rows"], shown, curves, tails)
    out["cursor"] = hashlib.sha256(repr((out["groups"], curves)).encode()).hexdigest()[:16]
    if since == out["cursor"]:
        del out["runs"]
    return out


def _score_name(rows: Sequence[dict[str, Any]]) -> str:
    names = {row["score_name"] for row in rows if row["score_name"]}
    return names.pop() if len(names) == 1 else ACCURACY if not names else "score"


def group_label(folder: str, planned: bool) -> str:
    """Return the name that runs share which differ in their seed only.

    >>> group_label("dystop-phi0.4-s12", True), group_label("trial-s1", False)
    ('dystop-phi0.4', 'trial-s1')
    """
    return _SEED.sub("", folder) if planned else folder


def _groups(
    group: RunGroup,
    every: Sequence[dict[str, Any]],
    shown: Sequence[dict[str, Any]],
    curves: Sequence[Curve],
    tails: Sequence[LogTail],
) -> dict[str, Any]:
    """Return the groups with their numbers, the time of the comparison, and a curve per run."""
    planned = {row["folder"] for row in group.planned}
    label = {row["name"]: group_label(row["name"], row["name"] in planned) for row in every}
    labels = list(dict.fromkeys(label.values()))
    mechanism = {label[row["name"]]: row["mechanism"] for row in every}
    at_s = common_time(curves)
    at = {row["name"]: k for k, row in enumerate(shown)}
    groups = []
    for name, colour, dash in zip(labels, *_styles(labels, mechanism), strict=True):
        here = [row for row in every if label[row["name"]] == name]
        chosen = [at[row["name"]] for row in here if row["name"] in at]
        numbers = _numbers([curves[k] for k in chosen], [tails[k] for k in chosen], at_s)
        groups.append(
            {
                "label": name,
                "mechanism": mechanism[name],
                "timing": next((row["timing"] for row in here if row.get("timing")), ""),
                "colour": colour,
                "dash": dash,
                "runs": [{key: row[key] for key in ("key", "name", "status")} for row in here],
                **numbers,
            }
        )
    index = {name: k for k, name in enumerate(labels)}
    runs = [
        {"group": index[label[row["name"]]], "name": row["name"], "rows": curve.rows}
        for row, curve in zip(shown, curves, strict=True)
    ]
    return {"groups": groups, "at": None if at_s is None else seconds(at_s), "runs": runs}


def _styles(
    labels: Sequence[str], mechanism: dict[str, dict[str, Any]]
) -> tuple[list[int], list[int]]:
    """Return a colour for each group, and a dash that tells groups of one colour apart."""
    names = list(dict.fromkeys(mechanism[label]["name"] for label in labels))
    if len(names) == 1:
        return list(range(len(labels))), [0] * len(labels)
    colours = [names.index(mechanism[label]["name"]) for label in labels]
    return colours, [colours[:k].count(colour) for k, colour in enumerate(colours)]


def common_time(curves: Sequence[Curve]) -> float | None:
    """Return the time up to which every run that has begun was evaluated; None if one was not."""
    ends = [as_number(curve.rows[-1][_CLOCK]) if curve.rows else None for curve in curves]
    known = [end for end in ends if end is not None]
    return min(known) if known and len(known) == len(ends) else None


def score_at(curve: Curve, at_s: float) -> float | None:
    """Return the score at the last evaluation that was not after this time."""
    scores = [row[_SCORE] for row in curve.rows if (as_number(row[_CLOCK]) or 0.0) <= at_s]
    return as_number(scores[-1]) if scores else None


def _numbers(
    curves: Sequence[Curve], tails: Sequence[LogTail], at_s: float | None
) -> dict[str, str]:
    """Return the numbers of a group: means over its runs, and the spread of scores."""
    lasts = [tail.last for tail in tails if tail.last is not None]
    tested = [tail.evaluated for tail in tails if tail.evaluated is not None]
    name = next((r.score_name for r in tested if isinstance(r.score_name, str)), ACCURACY)
    common = [] if at_s is None else [score_at(curve, at_s) for curve in curves]
    return {
        "score_at": _spread(common, name),
        "score": _spread([as_number(r.accuracy) for r in tested], name),
        "global": _spread([as_number(r.accuracy_global) for r in tested], name),
        "clock": seconds(_mean([as_number(r.clock_s) for r in lasts])),
        "rounds": number(_mean([float(r.round) for r in lasts])),
        "wire": data(_mean([as_number(r.wire_bytes_total) for r in lasts])),
        "epochs": number(_mean([as_number(r.epochs_total) for r in lasts])),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _spread(values: Sequence[float | None], name: str) -> str:
    """Return mean and standard deviation of scores as text.

    >>> _spread([0.5, 0.7], "accuracy"), _spread([0.5], "accuracy"), _spread([], "accuracy")
    ('60.0 ± 14.1 %', '50.0 %', '–')
    """
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    if len(known) == 1:
        return score_text(known[0], name)
    mean, std = statistics.fmean(known), statistics.stdev(known)
    if name == ACCURACY:
        return f"{100 * mean:.1f} ± {100 * std:.1f} %"
    return f"{number(mean)} ± {std:.2g}"
