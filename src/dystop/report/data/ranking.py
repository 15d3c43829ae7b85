"""The tables of a comparison: every number as mean and standard deviation over the seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dystop.record import RoundRecord
from dystop.report.data.groups import Group, Spread, common_time_s, interval_s, over_seeds
from dystop.report.data.summary import Summary, evaluated, first_reaching, summarise
from dystop.units import NOTHING, data_unit, digits, goal, number, percent, plural, seconds

Pick = Callable[[RoundRecord], float]


@dataclass(frozen=True)
class Cell:
    """A value of a table, and what to add in small print."""

    text: str
    small: str = ""
    value: float | None = None  # for the star; None takes no part
    best: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a comparison table."""

    title: str
    meaning: str
    cells: list[Cell]


@dataclass(frozen=True)
class Ranked:
    """Groups under one timing law, best first, with everything that is told about them."""

    timing: str
    groups: list[Group]
    results: list[Column]
    costs: list[Column]


def to_target(group: Group, target: float | None, pick: Pick) -> Spread:
    """A cumulative quantity when each seed first reached the target; nothing is interpolated."""
    rows = [None if target is None else first_reaching(run.records, target) for run in group.runs]
    return over_seeds(None if row is None else pick(row) for row in rows)


def accuracy_by(
    records: Sequence[RoundRecord], clock_s: float, within_s: float = 0.0
) -> float | None:
    """Accuracy of the test planned for this time, else of the last one at or before it.

    A planned test takes place when the first round closes at or after its time. Where that is not
    within `within_s`, rounds are longer than that and the test before is still how things stand.
    """
    tests = evaluated(records)
    planned = [r.accuracy for r in tests if clock_s <= r.clock_s < clock_s + within_s]
    before = [r.accuracy for r in tests if r.clock_s <= clock_s]
    return planned[0] if planned else before[-1] if before else None


def _order(group: Group, target: float | None) -> tuple[int, float, float]:
    """More seeds at the target first, then sooner, then more accurate."""
    reached = to_target(group, target, lambda r: r.clock_s)
    final = over_seeds(s.accuracy for s in summarise(group.runs, target))
    return -len(reached.values), reached.mean or 0.0, -(final.mean or 0.0)


def rank(every: Sequence[Group], target: float | None) -> list[Ranked]:
    """One ranking per timing law: times under different laws do not compare."""
    laws = dict.fromkeys(group.timing for group in every)
    return [_ranked(law, [g for g in every if g.timing == law], target) for law in laws]


def _ranked(law: str, every: Sequence[Group], target: float | None) -> Ranked:
    ordered = sorted(every, key=lambda g: _order(g, target))
    sums = [summarise(group.runs, target) for group in ordered]
    return Ranked(law, ordered, _results(ordered, sums, target), _costs(sums))


def plus_minus(spread: Spread, unit: str = "", scale: float = 1.0) -> str:
    """Mean ± standard deviation, with the same decimals and the unit once.

    >>> plus_minus(Spread((2.0, 4.0), 2), "s"), plus_minus(Spread((2.0,), 1))
    ('3.00 ± 1.41 s', '2')
    """
    if spread.mean is None:
        return NOTHING
    mean = spread.mean / scale
    if not spread.std:  # one seed, or no difference at all between them
        return f"{number(mean)} {unit}".rstrip()
    places = digits(mean)
    return f"{mean:,.{places}f} ± {spread.std / scale:,.{places}f} {unit}".rstrip()


def in_seconds(spread: Spread) -> str:
    """A time, in seconds."""
    return plus_minus(spread, "s")


def in_bytes(spread: Spread) -> str:
    """An amount of data, in the unit that suits its mean."""
    scale, unit = data_unit(spread.mean or 0.0)
    return plus_minus(spread, unit, scale)


def in_percent(spread: Spread) -> str:
    """A share, in percent with one decimal."""
    if spread.mean is None or spread.std is None:
        return percent(spread.mean)
    return f"{100 * spread.mean:.1f} ± {100 * spread.std:.1f} %"


def _count(spread: Spread) -> str:
    return f"in {len(spread.values)} of {plural(spread.total, 'seed')}"


def _reached(spread: Spread, show: Callable[[Spread], str], none: str, *, first: bool) -> Cell:
    """A cost of reaching the target; the number of seeds is said once, and wherever some missed."""
    count = _count(spread)
    if not spread.values:
        return Cell(none, count if first and none == "not reached" else "")
    small = count if first or not spread.complete else ""
    # A mean over the lucky seeds alone must not win the star.
    return Cell(show(spread), small, spread.mean if spread.complete else None)


def _starred(cells: Sequence[Cell], better: Callable[..., float] | None) -> list[Cell]:
    values = [c.value for c in cells if c.value is not None]
    if better is None or len(cells) < 2 or not values:
        return list(cells)
    best = better(values)
    return [Cell(c.text, c.small, c.value, c.value == best) for c in cells]


def _results(
    every: Sequence[Group], sums: Sequence[Sequence[Summary]], target: float | None
) -> list[Column]:
    """What was achieved."""
    aim, none = ("target", "no target") if target is None else (goal(target), "not reached")
    rule = "first evaluated round at or above the target, never interpolated"
    told: list[tuple[str, str, Pick, Callable[[Spread], str]]] = [
        ("time", f"simulated time; {rule}", lambda r: r.clock_s,
         in_seconds),
        ("data", f"on the wire, every transfer once; {rule}", lambda r: r.wire_bytes_total,
         in_bytes),
        ("epochs", f"local epochs executed, in passes over the whole training set; {rule}",
         lambda r: r.epochs_total, plus_minus),
    ]  # fmt: skip
    columns: list[Column] = []
    for what, meaning, pick, show in told:
        reached = [to_target(g, target, pick) for g in every]
        cells = [_reached(spread, show, none, first=not columns) for spread in reached]
        columns.append(Column(f"{what} to {aim}", meaning, _starred(cells, min)))
    return [*columns, *_accuracies(every, sums)]


def _accuracies(every: Sequence[Group], sums: Sequence[Sequence[Summary]]) -> list[Column]:
    """Accuracy at one time by which all runs were tested, if any, then at the end of each."""
    at_s = common_time_s(every)
    columns = [] if at_s is None else [_at_common_time(every, at_s)]
    final = [over_seeds(s.accuracy for s in many) for many in sums]
    whole = [over_seeds(s.accuracy_global for s in many) for many in sums]
    meaning = "mean over the workers' own models at the last evaluation of each run"
    columns.append(_accuracy("final accuracy", meaning, final))
    meaning = "accuracy of the data-weighted average of all models at the last evaluation"
    columns.append(_accuracy("global model", meaning, whole))
    return columns


def _at_common_time(every: Sequence[Group], at_s: float) -> Column:
    """The same planned test of all runs; without a common plan, the last that each had by then."""
    step_s = interval_s(every)
    spreads = [over_seeds(accuracy_by(run.records, at_s, step_s) for run in g.runs) for g in every]
    rule = (
        "each run at its first test at or after this time, the last planned one that all reached; "
        f"where none follows within {seconds(step_s)}, at its last one before"
        if step_s
        else "last evaluation by the time that every run reached"
    )
    title = f"accuracy at {seconds(round(at_s, 9))}"  # 3 * 0.2 is not quite 0.6
    return _accuracy(title, f"the fair one to compare: {rule}", spreads)


def _accuracy(title: str, meaning: str, spreads: Sequence[Spread]) -> Column:
    cells = [_scored(spread) for spread in spreads]
    # Where a seed has no value, the means are over different seeds and none of them is the best.
    return Column(
        title, meaning, _starred(cells, max if all(s.complete for s in spreads) else None)
    )


def _scored(spread: Spread) -> Cell:
    if not spread.values:
        return Cell("not evaluated")
    return Cell(in_percent(spread), "" if spread.complete else _count(spread), spread.mean)


Show = Callable[[Spread], str]
_COSTS: list[tuple[str, str, Callable[[Summary], float | None], Show]] = [
    ("simulated time", "clock at the last round", lambda s: s.clock_s,
     in_seconds),
    ("data, wire", "every transfer counted once", lambda s: s.wire_bytes, in_bytes),
    ("data, both ends", "every transfer at sender and receiver: the paper's communication overhead",
     lambda s: s.endpoint_bytes, in_bytes),
    ("local epochs", "passes over the whole training set, all workers together",
     lambda s: s.epochs, plus_minus),
    ("seconds between turns", "mean simulated time from one activation of a worker to its next: "
     "staleness that compares across mechanisms", lambda s: s.turn_s,
     in_seconds),
    ("idle share", "share of worker time spent neither training nor exchanging",
     lambda s: s.idle_share, in_percent),
]  # fmt: skip


def _costs(sums: Sequence[Sequence[Summary]]) -> list[Column]:
    """What it took."""
    out = []
    for title, meaning, pick, show in _COSTS:
        cells = [Cell(show(over_seeds(map(pick, many)))) for many in sums]
        out.append(Column(title, meaning, cells))
    stale = Column(
        "staleness, mean / max",
        "mean over workers and rounds; largest of any worker, round and seed; both in rounds of "
        "that mechanism",
        [Cell(_staleness(many)) for many in sums],
    )
    return [*out, stale]


def _staleness(seeds: Sequence[Summary]) -> str:
    mean = over_seeds(s.staleness_mean for s in seeds)
    most = over_seeds(s.staleness_max for s in seeds)
    return f"{plus_minus(mean)} / {number(max(most.values, default=None))}"


@dataclass(frozen=True)
class Move:
    """A mechanism's place under two timing laws."""

    group: Group
    places: list[str]  # place and time to target, law by law
    change: str


def moves(rankings: Sequence[Ranked], target: float | None) -> list[Move]:
    """How the ranking changes from the first law to the second, in the order of the first."""
    if len(rankings) != 2:
        return []
    first, second = ([g.label for g in ranking.groups] for ranking in rankings)
    found = []
    for place, group in enumerate(rankings[0].groups):
        if group.label not in second:
            continue
        other = second.index(group.label)
        twin = rankings[1].groups[other]
        told = [_place(place, group, target), _place(other, twin, target)]
        found.append(Move(group, told, _change(place - other)))
    return found if len(found) == len(first) else []


def _place(place: int, group: Group, target: float | None) -> str:
    spread = to_target(group, target, lambda r: r.clock_s)
    none = "no target" if target is None else "not reached"
    time = in_seconds(spread) if spread.values else none
    partly = spread.values and not spread.complete
    seeds = f", {len(spread.values)} of {plural(spread.total, 'seed')}" if partly else ""
    return f"{place + 1}. {time}{seeds}"


def _change(up: int) -> str:
    if up == 0:
        return "same place"
    return f"{'up' if up > 0 else 'down'} {abs(up)}"
