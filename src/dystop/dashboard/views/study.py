"""One study as JSON for its page: a curve for each run, and a table of its groups.

A group holds the runs that differ in their seed only. Colours follow the mechanisms; in a study of
one mechanism they follow the groups.
"""

import hashlib
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dystop.control.stopping import has_diverged
from dystop.dashboard.run_folders.curves import Curve, CurveCache
from dystop.dashboard.run_folders.discovery import RunGroup
from dystop.dashboard.run_folders.files import as_number, report_file
from dystop.dashboard.run_folders.history import EVALUATIONS
from dystop.dashboard.run_folders.library import Library, RunFiles
from dystop.dashboard.run_folders.log_reader import LogTail
from dystop.dashboard.views.index import group_view, row_of
from dystop.dashboard.views.summary import score_text, section
from dystop.record import ACCURACY
from dystop.runs.common_time import Evaluations, common_time_s, tells_more
from dystop.units import NOTHING, data, number, seconds

MAX_LINES = 240
"""Most runs whose curves one page shows."""
_SEED = re.compile(r"-s\d+$")


@dataclass(frozen=True)
class DrawnRun:
    """A run whose curve is on the page."""

    row: dict[str, Any]  # of the list of runs
    curve: Curve
    tail: LogTail
    files: RunFiles

    @property
    def evaluations(self) -> Evaluations:
        """Every evaluation of the run."""
        every_s = as_number(section(self.files, "evaluate").get("every_s")) or 0.0
        limit = as_number(section(self.files, "stop").get("diverged")) or 0.0
        last = None if self.row["testbed"] else self.tail.last  # no evaluation ends a testbed
        ended = last is not None and has_diverged(limit, last)
        return Evaluations(self.curve.tested_s, self.curve.scores, every_s, ended)


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
    chosen = [places[row["name"]] for row in shown]
    curves = cache.curves(chosen)
    drawn = [
        DrawnRun(row, curve, library.tail(place), library.files(place))
        for row, curve, place in zip(shown, curves, chosen, strict=True)
    ]
    out = {
        "name": name,
        "kind": "sweep" if group.over else "comparison" if group.planned else "folder of runs",
        "over": list(group.over),
        "summary": listed["summary"],
        "report": report_file(group.folder) is not None,
        "running": sum(row["status"] == "running" for row in shown),
        "score_name": _score_name(shown),
        "laws": sorted({row["law"] for row in shown}),
        "read": sum(curve.is_complete for curve in curves) / len(curves) if curves else 1,
        "left_out": max(0, len(places) - MAX_LINES),
        "columns": list(EVALUATIONS),
    }
    out |= _groups(group, listed["rows"], drawn)
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
    group: RunGroup, every: Sequence[dict[str, Any]], drawn: Sequence[DrawnRun]
) -> dict[str, Any]:
    """Return the groups with their numbers, the time of the comparison, and a curve per run."""
    planned = {row["folder"] for row in group.planned}
    label = {row["name"]: group_label(row["name"], row["name"] in planned) for row in every}
    labels = list(dict.fromkeys(label.values()))
    mechanism = {label[row["name"]]: row["mechanism"] for row in every}
    times = _common_times(drawn)
    groups = []
    for name, colour, dash in zip(labels, *_styles(labels, mechanism), strict=True):
        here = [row for row in every if label[row["name"]] == name]
        law = next((row["law"] for row in here if row.get("law")), "")
        runs = [run for run in drawn if label[run.row["name"]] == name]
        groups.append(
            {
                "label": name,
                "mechanism": mechanism[name],
                "law": law,
                "colour": colour,
                "dash": dash,
                "runs": [{key: row[key] for key in ("key", "name", "status")} for row in here],
                **_numbers(runs, times.get(law)),
            }
        )
    index = {name: k for k, name in enumerate(labels)}
    curves = [
        {"group": index[label[run.row["name"]]], "name": run.row["name"], "rows": run.curve.rows}
        for run in drawn
    ]
    at = " / ".join(dict.fromkeys(map(seconds, times.values())))
    return {"groups": groups, "at": at, "runs": curves}


def _common_times(drawn: Sequence[DrawnRun]) -> dict[str, float]:
    """Return the time of the comparison under each law; empty where it tells nothing new.

    Scores at the common time tell nothing new where all of them are the last ones.
    """
    found, is_new = {}, False
    for law in dict.fromkeys(run.row["law"] for run in drawn):
        tests = [run.evaluations for run in drawn if run.row["law"] == law]
        if (at_s := common_time_s(tests)) is not None:
            found[law] = at_s
            is_new |= tells_more(tests, at_s)
    return found if is_new else {}


def _styles(
    labels: Sequence[str], mechanism: dict[str, dict[str, Any]]
) -> tuple[list[int], list[int]]:
    """Return a colour for each group, and a dash that tells groups of one colour apart."""
    names = list(dict.fromkeys(mechanism[label]["name"] for label in labels))
    if len(names) == 1:
        return list(range(len(labels))), [0] * len(labels)
    colours = [names.index(mechanism[label]["name"]) for label in labels]
    return colours, [colours[:k].count(colour) for k, colour in enumerate(colours)]


def _numbers(runs: Sequence[DrawnRun], at_s: float | None) -> dict[str, str]:
    """Return the numbers of a group: means over its runs, and the spread of scores."""
    lasts = [run.tail.last for run in runs if run.tail.last is not None]
    tested = [run.tail.evaluated for run in runs if run.tail.evaluated is not None]
    name = next(
        (r.get("score_name") for r in tested if isinstance(r.get("score_name"), str)), ACCURACY
    )
    common = [] if at_s is None else [run.evaluations.score_at(at_s) for run in runs]
    return {
        "score_at": _spread(common, name),
        "score": _spread([as_number(r.accuracy) for r in tested], name),
        "global": _spread([as_number(r.get("accuracy_global")) for r in tested], name),
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
