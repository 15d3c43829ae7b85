"""The results of an atlas: at every point of a map, who wins by which goal, and by how much."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dystop.folders.run_folder import RunData
from dystop.report.data.contests.winners import (
    GOALS,
    SHOW,
    STEP,
    Contest,
    Goal,
    all_contests,
    best_of,
    common_target,
    contenders_of,
)
from dystop.report.data.groups import group_runs
from dystop.units import goal as target_text
from dystop.units import number, plural
from dystop_paper.atlas import MapAxis, Points

Place = tuple[int, int]
"""Index on x, index on y."""
NOBODY = "nobody"
RECONSTRUCTED = "*"
_WINNERS = (
    "x", "y", "goal", "target", "winner", "provenance", "cost", "tied", "runner_up", "factor",
    "ahead", "seeds", "not_reached",
)  # fmt: skip
_MECHANISMS = (
    "x", "y", "target", "mechanism", "provenance", "seeds", "reached", "time_s", "traffic_bytes",
    "compute_epochs", "best_accuracy",
)  # fmt: skip


@dataclass(frozen=True)
class AtlasResults:
    """Everything that the maps, the tables and the terminal show."""

    x: MapAxis
    y: MapAxis
    points: Mapping[Place, Mapping[Goal, Contest]]  # of those at which every run has finished
    rule: str  # how the target is chosen
    incomplete: Mapping[Place, str] = field(default_factory=dict)  # what has run at the others

    @property
    def mechanisms(self) -> list[str]:
        """All mechanisms, in alphabetical order."""
        every = (c for contests in self.points.values() for c in contests["time"].ranked)
        return sorted({contender.name for contender in every})

    @property
    def reconstructions(self) -> list[str]:
        """The mechanisms without published code or full description."""
        every = (c for contests in self.points.values() for c in contests["time"].ranked)
        return sorted({c.name for c in every if c.is_reconstruction})


def atlas_results(
    points: Points, runs: Sequence[RunData], target: float | None, least: int | None
) -> AtlasResults:
    """Compute the winners at every point at which all runs have finished.

    Elsewhere a mechanism could seem to win because a better one has not finished.

    Args:
        points: The axes, and the place of every run.
        runs: The runs that exist.
        target: The accuracy to which costs are counted; None: chosen at each point.
        least: How many mechanisms must reach a chosen target; None: half of them.
    """
    at: dict[Place, list[RunData]] = {}
    for run in runs:
        at.setdefault(points.runs[run.path.name], []).append(run)
    planned = Counter(points.runs.values())
    partly = {
        place: f"{len(at.get(place, []))} of {plural(count, 'run')}"
        for place, count in sorted(planned.items())
        if len(at.get(place, [])) < count
    }
    whole = {place: many for place, many in sorted(at.items()) if place not in partly}
    found = {place: _contests(many, target, least) for place, many in whole.items()}
    return AtlasResults(points.x, points.y, found, _rule(target, least), partly)


def _contests(
    runs: Sequence[RunData], target: float | None, least: int | None
) -> Mapping[Goal, Contest]:
    groups = group_runs(runs)
    chosen = target or common_target(best_of(groups), least or (len(groups) + 1) // 2)
    return all_contests(contenders_of(groups, chosen), chosen)


def _rule(target: float | None, least: int | None) -> str:
    if target is not None:
        return f"The target is {target_text(target)} at every point, as requested."
    who = "half of the mechanisms" if least is None else plural(least, "mechanism")
    return (
        f"The target at each point is the highest multiple of {target_text(STEP)} that at least "
        f"{who} {'reaches' if least == 1 else 'reach'} with every seed."
    )


def cell(contest: Contest) -> list[str]:
    """Return the lines of one point: the winner, by how much, and the target."""
    target = "no target" if contest.target is None else f"to {target_text(contest.target)}"
    if contest.winner is None:
        return [NOBODY, target]
    name = short_name(contest.winner.name, contest.winner.is_reconstruction)
    if contest.tied:
        others = [short_name(c.name, c.is_reconstruction) for c in contest.tied]
        more = f" +{len(others) - 1}" if len(others) > 1 else ""
        return [name, f"tie: {others[0]}{more}", target]
    lead = contest.lead
    if lead is None or lead.factor is None:
        return [name, "alone", target]
    return [name, f"{number(lead.factor)}x", target]


def short_name(name: str, is_reconstruction: bool) -> str:
    """Return the name as a map shows it: a star marks a reconstruction."""
    return f"{name}{RECONSTRUCTED if is_reconstruction else ''}"


def map_rows(results: AtlasResults, goal: Goal) -> list[tuple[str, ...]]:
    """Return the map of a goal as rows of text, the highest value of y first."""
    rows = []
    for j in reversed(range(len(results.y.values))):
        cells = [_text(results, goal, (i, j)) for i in range(len(results.x.values))]
        rows.append((f"{results.y.name} {results.y.values[j]}", *cells))
    return rows


def _text(results: AtlasResults, goal: Goal, place: Place) -> str:
    contests = results.points.get(place)
    return (
        results.incomplete.get(place, "") if contests is None else "\n".join(cell(contests[goal]))
    )


def map_columns(results: AtlasResults) -> tuple[str, ...]:
    """Return the heading of `map_rows`."""
    return ("", *(f"{results.x.name} {value}" for value in results.x.values))


POINT_COLUMNS = ("point", "goal", "target", "winner", "cost", "runner-up", "not at the target")


def point_rows(results: AtlasResults) -> list[tuple[str, ...]]:
    """Return one row per point and goal in words; nobody is left out."""
    rows = []
    for (i, j), contests in results.points.items():
        place = f"{results.x.name} {results.x.values[i]}, {results.y.name} {results.y.values[j]}"
        rows += [(place, goal, *_words(contests[goal])) for goal in GOALS]
    return rows


def _words(contest: Contest) -> tuple[str, ...]:
    missing = [f"{c.label} ({c.reached} of {len(c.costs)})" for c in contest.missing]
    absent = ", ".join(missing) or "all are"
    target = "none" if contest.target is None else target_text(contest.target)
    if contest.winner is None:
        return target, NOBODY, "", "", absent
    tie = f", tie with {', '.join(c.label for c in contest.tied)}" if contest.tied else ""
    cost, other = SHOW[contest.goal](contest.winner.mean(contest.goal)), ""
    if contest.runner_up is not None and contest.lead is not None:
        lead = contest.lead
        factor = "" if lead.factor is None else f", {number(lead.factor)} times as much"
        ahead = f"; ahead in {lead.ahead} of {plural(lead.seeds, 'seed')}"
        other = f"{contest.runner_up.label}{factor}{ahead}"
    return target, contest.winner.label + tie, cost, other, absent


def winners_csv(results: AtlasResults) -> str:
    """Return one row per point and goal, for other programs."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(_WINNERS)
    for (i, j), contests in results.points.items():
        for goal in GOALS:
            contest = contests[goal]
            first, second, lead = contest.winner, contest.runner_up, contest.lead
            rows.writerow([
                results.x.values[i], results.y.values[j], goal, _value(contest.target),
                first.name if first else "", first.provenance if first else "",
                _value(first.mean(goal) if first else None),
                " ".join(c.name for c in contest.tied), second.name if second else "",
                _value(lead.factor if lead else None), lead.ahead if lead else "",
                lead.seeds if lead else "", " ".join(c.name for c in contest.missing),
            ])  # fmt: skip
    return out.getvalue()


def mechanisms_csv(results: AtlasResults) -> str:
    """Return one row per point and mechanism, for other programs."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(_MECHANISMS)
    for (i, j), contests in results.points.items():
        for c in contests["time"].ranked:
            best = sum(c.best.values()) / max(len(c.best), 1)
            rows.writerow([
                results.x.values[i], results.y.values[j], _value(contests["time"].target), c.name,
                c.provenance, len(c.costs), c.reached, *(_value(c.mean(goal)) for goal in GOALS),
                best,
            ])  # fmt: skip
    return out.getvalue()


def _value(value: float | None) -> float | str:
    return "" if value is None else value
