"""Rankings of groups, and the tables of a comparison: mean and standard deviation over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dystop.record import RoundRecord
from dystop.report.data.comparison.leads import first_place
from dystop.report.data.comparison.sweep_layout import Panel, SweepLayout, panels
from dystop.report.data.groups import (
    Group,
    SeedSpread,
    accuracy_at,
    common_time_s,
    evaluations,
    in_bytes,
    in_joules,
    in_percent,
    in_seconds,
    over_seeds,
    plus_minus,
)
from dystop.report.data.names import diverged_round
from dystop.report.data.scores import Score, first_reaching
from dystop.report.data.summary import RunSummary, summarise
from dystop.report.data.summary_table import TARGET_RULE, TableCell
from dystop.report.data.time_shares import MEANINGS, PARTS
from dystop.runs.common_time import tells_more
from dystop.units import NOTHING, number, plural, seconds

CumulativeQuantity = Callable[[RoundRecord], float]
Format = Callable[[SeedSpread], str]
Summaries = Sequence[Sequence[RunSummary]]
"""The summaries of every group, seed by seed."""

NOT_REACHED, NO_TARGET = "not reached", "no target"
_PLANNED = 3  # columns of costs in the first table where nothing was trained


@dataclass(frozen=True)
class TableColumn:
    """A column of a comparison table, with one cell per group."""

    title: str
    meaning: str
    cells: list[TableCell]
    better: Literal["first", "low", "high"] | None = None  # whose cell has a star; None: none has


@dataclass(frozen=True)
class Ranking:
    """The groups under one law with the columns of their tables.

    The best comes first; the settings of a sweep keep the order in which they were typed.
    """

    law: str
    panels: list[Panel]  # rows compare inside a panel; a comparison has one
    results: list[TableColumn]  # what was reached
    costs: list[TableColumn]  # what it took
    why: list[TableColumn]  # what the workers did until the target; empty: the rounds took no time

    @property
    def groups(self) -> list[Group]:
        """The groups in the order of the rows."""
        return [group for panel in self.panels for group in panel.groups]


def cost_to_target(group: Group, target: float | None, quantity: CumulativeQuantity) -> SeedSpread:
    """Return a cumulative quantity at the first evaluation of each seed that meets the target.

    Nothing is interpolated. A seed that never reaches the target has no value.
    """
    rows = [None if target is None else first_reaching(run.records, target) for run in group.runs]
    return over_seeds(None if row is None else quantity(row) for row in rows)


def rank_groups(
    groups: Sequence[Group],
    target: float | None,
    score: Score | None = None,
    layout: SweepLayout | None = None,
) -> list[Ranking]:
    """Rank the groups of each law; times under different laws do not compare."""
    laws, score = dict.fromkeys(group.law for group in groups), score or Score()
    rankings = []
    for law in laws:
        own = [group for group in groups if group.law == law]
        divided = [Panel("", _ranked(own, target))]
        if layout is not None:
            divided = panels(own, layout.shared_keys)
        rankings.append(_ranking(law, divided, target, score))
    return rankings


def _ranked(groups: Sequence[Group], target: float | None) -> tuple[Group, ...]:
    pairs = [(group, summarise(group.runs, target)) for group in groups]
    pairs.sort(key=lambda pair: _sort_key(pair[0], pair[1], target))
    return tuple(group for group, _ in pairs)


def _ranking(law: str, divided: list[Panel], target: float | None, score: Score) -> Ranking:
    ordered = [group for panel in divided for group in panel.groups]
    summaries = [summarise(group.runs, target) for group in ordered]
    costs, why = _costs(summaries), _why(summaries)
    if all(s.planned for seeds in summaries for s in seeds):  # nothing was reached: costs are all
        return Ranking(law, divided, costs[:_PLANNED], costs[_PLANNED:], why)
    results = _results(ordered, summaries, target, score)
    return Ranking(law, divided, [_starred(c, divided, target) for c in results], costs, why)


def _sort_key(
    group: Group, summaries: Sequence[RunSummary], target: float | None
) -> tuple[int, float, float]:
    """More seeds at the target first, then less time, then more accuracy."""
    reached = cost_to_target(group, target, lambda r: r.clock_s)
    final = over_seeds(s.accuracy for s in summaries)
    return -len(reached.values), reached.mean or 0.0, -(final.mean or 0.0)


def _seed_count(spread: SeedSpread) -> str:
    return f"in {len(spread.values)} of {plural(spread.total, 'seed')}"


def _target_cell(spread: SeedSpread, show: Format, missing: str, *, first: bool) -> TableCell:
    """Return a cost of the target; the first column and incomplete cells count the seeds."""
    count = _seed_count(spread)
    if not spread.values:
        return TableCell(missing, count if first and missing == NOT_REACHED else "")
    note = count if first or not spread.complete else ""
    # A mean over only those seeds that reached the target cannot be the best.
    return TableCell(show(spread), note, spread.mean if spread.complete else None)


def _starred(column: TableColumn, divided: Sequence[Panel], target: float | None) -> TableColumn:
    """Return the column with a star for the best row of every panel."""
    cells: list[TableCell] = []
    for panel in divided:
        own = column.cells[len(cells) : len(cells) + len(panel.groups)]
        cells += _mark_first(panel.groups, own, target) if column.better == "first" else (
            _mark_best(own, {"low": min, "high": max}.get(str(column.better)))
        )  # fmt: skip
    return replace(column, cells=cells)


def _mark_first(
    groups: Sequence[Group], cells: Sequence[TableCell], target: float | None
) -> list[TableCell]:
    """Mark the first row to the target; where rows tie for it, say so and mark none."""
    place = first_place(groups, target)
    if place is None or not place.tied:
        return _mark_best(cells, min)
    tied = [place.first, *(other for other, _ in place.tied)]
    return [
        replace(cell, note=f"{cell.note}, tie") if any(group is t for t in tied) else cell
        for group, cell in zip(groups, cells, strict=True)
    ]


def _mark_best(cells: Sequence[TableCell], pick: Callable[..., float] | None) -> list[TableCell]:
    values = [c.value for c in cells if c.value is not None]
    if pick is None or len(cells) < 2 or not values:
        return list(cells)
    best = pick(values)
    return [replace(c, best=c.value == best) for c in cells]


def _results(
    groups: Sequence[Group], summaries: Summaries, target: float | None, score: Score
) -> list[TableColumn]:
    """Return the columns of what was reached."""
    name, missing = score.aim(target), NO_TARGET if target is None else NOT_REACHED
    costs: list[tuple[str, str, CumulativeQuantity, Format]] = [
        ("time", "simulated time", lambda r: r.clock_s, in_seconds),
        ("data", "on the wire, every transfer counted once", lambda r: r.wire_bytes_total,
         in_bytes),
        ("epochs", "local epochs, in passes over the whole training set",
         lambda r: r.epochs_total, plus_minus),
    ]  # fmt: skip
    columns: list[TableColumn] = []
    for what, meaning, quantity, show in costs:
        reached = [cost_to_target(g, target, quantity) for g in groups]
        cells = [_target_cell(spread, show, missing, first=not columns) for spread in reached]
        title = f"{what} to {name}"
        better: Literal["first", "low"] = "low" if columns else "first"
        columns.append(TableColumn(title, f"{meaning}; {TARGET_RULE}", cells, better))
    if _is_known(summaries, lambda s: s.energy_j):
        reached = [
            over_seeds(None if target is None else s.target_energy_j for s in seeds)
            for seeds in summaries
        ]
        cells = [_target_cell(spread, in_joules, missing, first=False) for spread in reached]
        meaning = f"joules of all workers; {TARGET_RULE}"
        columns.append(TableColumn(f"energy to {name}", meaning, cells, "low"))
    spent = [over_seeds(s.epochs for s in seeds) for seeds in summaries]
    total = [TableCell(plus_minus(spread)) for spread in spent]
    meaning = "passes over the whole training set until the end of each run, all workers together"
    compute = TableColumn("epochs in all", meaning, total)
    return [*columns, compute, *_accuracies(groups, summaries, score)]


def _why(summaries: Summaries) -> list[TableColumn]:
    """Return the shares of worker time; none where the rounds of a run took no time."""
    reads: tuple[Callable[[RunSummary], float | None], ...] = (
        lambda s: s.compute_share,
        lambda s: s.transfer_share,
        lambda s: s.wait_others_share,
        lambda s: s.wait_round_share,
    )
    if not all(s.compute_share is not None for seeds in summaries for s in seeds if s.rounds):
        return []
    columns = []
    for title, meaning, read in zip(PARTS, MEANINGS, reads, strict=True):
        cells = [TableCell(in_percent(over_seeds(map(read, seeds)))) for seeds in summaries]
        rule = f"share of worker time until the target, or else until the end: {meaning}"
        columns.append(TableColumn(title, rule, cells))
    return columns


def _accuracies(groups: Sequence[Group], summaries: Summaries, score: Score) -> list[TableColumn]:
    """Return the accuracy at the end of each run, and at the common time where it is another."""
    final = [over_seeds(s.accuracy for s in seeds) for seeds in summaries]
    at_s, columns = common_time_s(groups), []
    if at_s is not None and tells_more([evaluations(r) for g in groups for r in g.runs], at_s):
        common = [accuracy_at(group, at_s) for group in groups]
        meaning = "the fair comparison: the last evaluation of each run at or before this time"
        columns.append(
            _accuracy_column(f"accuracy at {seconds(at_s)}", meaning, common, groups, score)
        )
    merged = [over_seeds(s.accuracy_global for s in seeds) for seeds in summaries]
    meaning = "mean over the workers' own models at the last evaluation of each run"
    columns.append(_accuracy_column("final accuracy", meaning, final, groups, score))
    meaning = "accuracy of the data-weighted average of all models at the last evaluation"
    columns.append(_accuracy_column("global model", meaning, merged, groups, score))
    return [*columns, *_fairness(groups, summaries, score)]


def _fairness(groups: Sequence[Group], summaries: Summaries, score: Score) -> list[TableColumn]:
    """Return how evenly accuracy is spread over the workers, where single workers were recorded."""
    if not _is_known(summaries, lambda s: s.accuracy_worst):
        return []
    worst = [over_seeds(s.accuracy_worst for s in seeds) for seeds in summaries]
    meaning = "mean accuracy of the worst tenth of the workers' own models at the last evaluation"
    even = [over_seeds(s.accuracy_jain for s in seeds) for seeds in summaries]
    cells = [TableCell(_index(s), value=s.mean if s.complete else None) for s in even]
    rule = "Jain's index of the workers' accuracies at the last evaluation: 1 if all are equal"
    return [
        _accuracy_column("worst tenth", meaning, worst, groups, score),
        TableColumn("fairness", rule, cells, "high"),
    ]


def _index(spread: SeedSpread) -> str:
    """Format an index between 0 and 1 with three decimals."""
    if spread.mean is None:
        return NOTHING
    return f"{spread.mean:.3f}" + (f" ± {spread.std:.3f}" if spread.std is not None else "")


def _is_known(summaries: Summaries, of: Callable[[RunSummary], float | None]) -> bool:
    """Return whether any run has a value."""
    return any(of(s) is not None for seeds in summaries for s in seeds)


def _accuracy_column(
    title: str,
    meaning: str,
    spreads: Sequence[SeedSpread],
    groups: Sequence[Group],
    score: Score,
) -> TableColumn:
    cells = [_accuracy_cell(*pair, score) for pair in zip(spreads, groups, strict=True)]
    # Where a seed has no value, the means cover different seeds and none of them is the best.
    better: Literal["high"] | None = "high" if all(s.complete for s in spreads) else None
    return TableColumn(score.named(title), score.named(meaning), cells, better)


def _accuracy_cell(spread: SeedSpread, group: Group, score: Score) -> TableCell:
    diverged, shown = _diverged(group), score.text(spread.mean, spread.std)
    if not spread.values:
        return TableCell(diverged or "not evaluated")
    if diverged:
        return TableCell(shown, diverged)
    note = "" if spread.complete else _seed_count(spread)
    return TableCell(shown, note, spread.mean)


def _diverged(group: Group) -> str:
    """Return in which rounds the models of a group diverged; empty if they did not."""
    rounds = [str(t) for run in group.runs if (t := diverged_round(run)) is not None]
    if not rounds:
        return ""
    seeds = "" if len(group.runs) == 1 else f" ({len(rounds)} of {plural(len(group.runs), 'seed')})"
    return f"diverged in round {', '.join(rounds)}{seeds}"


_COSTS: list[tuple[str, str, Callable[[RunSummary], float | None], Format]] = [
    ("simulated time", "clock at the last round", lambda s: s.clock_s, in_seconds),
    ("data, wire", "every transfer counted once", lambda s: s.wire_bytes, in_bytes),
    ("data, both ends", "every transfer counted at sender and receiver: the paper's communication "
     "overhead", lambda s: s.endpoint_bytes, in_bytes),
    ("seconds between activations", "mean simulated time from one activation of a worker to its "
     "next: a staleness that compares across mechanisms", lambda s: s.turn_s, in_seconds),
    ("idle share", "share of worker time spent neither training nor exchanging models",
     lambda s: s.idle_share, in_percent),
]  # fmt: skip


def _costs(summaries: Summaries) -> list[TableColumn]:
    """Return the columns of what the runs took."""
    columns = [
        TableColumn(title, meaning, [TableCell(show(over_seeds(map(of, s)))) for s in summaries])
        for title, meaning, of, show in _COSTS
    ]
    staleness = TableColumn(
        "staleness, mean / max",
        "mean over workers and rounds; largest of any worker, round and seed; both in rounds of "
        "that mechanism",
        [TableCell(_staleness(seeds)) for seeds in summaries],
    )
    if not _is_known(summaries, lambda s: s.energy_j):
        return [*columns, staleness]
    used = [over_seeds(s.energy_j for s in seeds) for seeds in summaries]
    meaning = "joules of all workers until the end of the run: training, idle, radio"
    return [
        *columns,
        staleness,
        TableColumn("energy", meaning, [TableCell(in_joules(u)) for u in used]),
    ]


def _staleness(seeds: Sequence[RunSummary]) -> str:
    mean = over_seeds(s.staleness_mean for s in seeds)
    largest = over_seeds(s.staleness_max for s in seeds)
    return f"{plus_minus(mean)} / {number(max(largest.values, default=None))}"
