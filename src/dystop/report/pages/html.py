"""The page: one self-contained HTML file without scripts and without requests."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dystop import __version__
from dystop.experiments.run_folder import RunData
from dystop.report.data.names import (
    UNSET,
    command,
    identity,
    labels,
    publish_words,
    status,
    timing_words,
)
from dystop.report.data.notices import notices
from dystop.report.data.summary import Metric, Summary, metrics, summarise
from dystop.report.figures.style import RUNS, Plot
from dystop.report.figures.svg import inline_svg
from dystop.units import NOTHING, goal, known, seconds

Table = list[tuple[str, str]]
_MECHANISM = "mechanism.name"

TILES = ("final accuracy", "time to", "data to", "rounds",
         "simulated time", "measured time", "data, wire")  # fmt: skip
"""Metrics that head the report of a single run."""


@dataclass(frozen=True)
class Cell:
    """A value of the summary table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class LegendLine:
    """A metric with its value for every run."""

    title: str
    meaning: str
    cells: list[Cell]


@dataclass(frozen=True)
class Folded:
    """A table that several runs may share."""

    runs: str
    rows: Table


def render(runs: Sequence[RunData], plots: Sequence[Plot], target: float | None = None) -> str:
    """The whole page as text."""
    summaries = summarise(runs, target)
    table = lines(summaries)
    return (
        templates()
        .get_template("report.html.jinja")
        .render(
            title=labels(runs)[0] if len(runs) == 1 else f"{len(runs)} runs compared",
            version=__version__,
            notices=notices(runs),
            cards=cards(runs),
            shared=shared_rules(runs),
            lines=table,
            tiles=[line for line in table if line.title.startswith(TILES)],
            names=[s.label for s in summaries],
            target=target_words(summaries, given=target is not None),
            charts=[(plot, picture(plot)) for plot in plots],
            differing=differing(runs),
            folds=folds(runs),
        )
    )


def templates() -> Environment:
    """Where pages come from; whatever a page is filled with is escaped."""
    return Environment(
        loader=PackageLoader("dystop.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def picture(plot: Plot) -> Markup | None:
    """The figure of a plot, ready for the page."""
    return None if plot.figure is None else inline_svg(plot.figure, plot.key, plot.alt)


def lines(summaries: Sequence[Summary]) -> list[LegendLine]:
    """The summary table, metric by metric; the best run of each is marked."""
    return [_line(m, summaries) for m in metrics(summaries)]


def _line(metric: Metric, summaries: Sequence[Summary]) -> LegendLine:
    values = [metric.value(s) for s in summaries]
    present = [v for v in values if v is not None]
    pick = max if metric.better == "high" else min
    best = pick(present) if metric.better and len(summaries) > 1 and present else None
    cells = [
        Cell(metric.show(s), best is not None and v == best)
        for s, v in zip(summaries, values, strict=True)
    ]
    return LegendLine(metric.title, metric.meaning, cells)


def target_words(summaries: Sequence[Summary], given: bool) -> str:
    """Says which target was used and who chose it."""
    target = summaries[0].target
    if target is None:
        return "No target accuracy was given, and no run reached 50 %, the lowest default target."
    if given:
        return f"The target accuracy is {goal(target)}, as asked for."
    return (
        f"The target accuracy is {goal(target)}: none was given, and this is the highest of the "
        "default targets that a run reached."
    )


def cards(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """What the page says about each run."""
    return [
        {
            "label": label,
            "color": f"var(--run{k % len(RUNS)})",
            "mechanism": identity(run),
            "status": status(run),
            "facts": _facts(run),
            "command": command(run),
            "wording": [("timing", timing_words(run)), ("publish", publish_words(run))],
        }
        for k, (run, label) in enumerate(zip(runs, labels(runs), strict=True))
    ]


def _facts(run: RunData) -> Table:
    info = run.info
    wall = known(info.get("wall_s"))
    facts = {
        "stopped": info.get("stop_reason"),
        "seed": info.get("seed"),
        "versions": _versions(info),
        "wall-clock time": None if wall is None else seconds(wall),
        "folder": run.path,
    }
    return [(key, str(value)) for key, value in facts.items() if value not in (None, "")]


def _versions(info: Mapping[str, Any]) -> str:
    found = {**info, **(info.get("versions") or {})}
    told = [(name, found.get(name)) for name in ("dystop", "python", "torch", "numpy")]
    return ", ".join(f"{name} {value}" for name, value in told if value)


def shared_rules(runs: Sequence[RunData]) -> Table:
    """Timing law and publish rule, said once where all runs share them."""
    told = [("timing", timing_words), ("publish", publish_words)]
    found = [(name, {words(run) for run in runs}) for name, words in told]
    return [(name, values.pop()) for name, values in found if len(values) == 1]


def flat(tree: Mapping[str, Any], prefix: str = "") -> Table:
    """Nested tables as dotted keys.

    >>> flat({"seed": 1, "mechanism": {"name": "dystop", "V": 10.0}})
    [('seed', '1'), ('mechanism.name', '"dystop"'), ('mechanism.V', '10.0')]
    """
    rows: Table = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + str(key), json.dumps(value, default=str, ensure_ascii=False)))
    return rows


def differing(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Settings on which the runs do not agree, with the value of each run."""
    tables = [dict(flat(run.config)) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = [(key, [_value(key, table, tables) for table in tables]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _value(key: str, table: Mapping[str, str], tables: Sequence[Mapping[str, str]]) -> str:
    """A setting of one run: its value, or unset, or a dash where its mechanism has no such key."""
    if key in table:
        return table[key]
    owners = {other.get(_MECHANISM) for other in tables if key in other}
    foreign = key.startswith("mechanism.") and table.get(_MECHANISM) not in owners
    return NOTHING if foreign else UNSET


def folds(runs: Sequence[RunData]) -> list[tuple[str, list[Folded]]]:
    """Configuration, physics and environment, each distinct table once."""
    parts = [
        ("Configuration, fully resolved", [flat(run.config) for run in runs]),
        ("Fleet and physics", [fleet_rows(run) for run in runs]),
        ("Environment", [flat(run.info) for run in runs]),
    ]
    names = labels(runs)
    return [(title, _once(names, tables)) for title, tables in parts if any(tables)]


def _once(names: Sequence[str], tables: Sequence[Table]) -> list[Folded]:
    groups: dict[str, tuple[list[str], Table]] = {}
    for name, table in zip(names, tables, strict=True):
        groups.setdefault(str(table), ([], table))[0].append(name)
    alone = len(groups) == 1 and len(names) > 1
    return [Folded("all runs" if alone else ", ".join(who), t) for who, t in groups.values()]


def fleet_rows(run: RunData) -> Table:
    """What the fleet is made of, then the physics in the words of the run folder."""
    fleet = run.fleet
    sizes = fleet.get("data_size") or []
    area, parameters = fleet.get("area_m"), fleet.get("model_parameters")
    told = {
        "workers": f"{len(sizes):,}" if sizes else None,
        "training samples": f"{sum(sizes):,}" if sizes else None,
        "classes": ", ".join(map(str, fleet.get("class_names") or [])),
        "model parameters": f"{parameters:,}" if parameters else None,
        "model size": f"{fleet['model_bytes']:,} bytes" if fleet.get("model_bytes") else None,
        "area": f"{area[0]:g} m x {area[1]:g} m" if area else None,
        "radio range": f"{fleet['range_m']:g} m" if fleet.get("range_m") else None,
    }
    physics = fleet.get("physics") or {}
    return [(k, str(v)) for k, v in [*told.items(), *physics.items()] if v]
