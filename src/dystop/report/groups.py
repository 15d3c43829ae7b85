"""Runs that differ in nothing but the seed, taken together: a group is one line of a comparison."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dystop.experiments.store import RunData
from dystop.record import RoundRecord
from dystop.report.naming import Identity, identity
from dystop.report.style import Mark, look
from dystop.report.tables import TARGETS, best_accuracy, evaluated
from dystop.report.units import known

_OF_A_SEED = ("seed", "name")


@dataclass(frozen=True, kw_only=True)
class Group(Mark):
    """One mechanism under one timing law, with a run per seed."""

    mechanism: Identity
    timing: str
    runs: tuple[RunData, ...]

    @property
    def seeds(self) -> list[str]:
        """The seeds, in order."""
        return [str(run.info.get("seed")) for run in self.runs]

    @property
    def histories(self) -> list[list[RoundRecord]]:
        """The records of every seed that has some."""
        return [run.records for run in self.runs if run.records]


@dataclass(frozen=True)
class Spread:
    """A quantity over the seeds: those that have a value, out of all."""

    values: tuple[float, ...]
    total: int

    @property
    def mean(self) -> float | None:
        """Mean over the seeds that have a value."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation between seeds; None below two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def complete(self) -> bool:
        """Whether every seed has a value."""
        return len(self.values) == self.total


def over_seeds(values: Iterable[float | None]) -> Spread:
    """Collect one value per seed.

    >>> over_seeds([1.0, None, 3.0])
    Spread(values=(1.0, 3.0), total=3)
    """
    every = [known(value) for value in values]
    return Spread(tuple(v for v in every if v is not None), len(every))


def _setting(run: RunData) -> str:
    """The configuration without what tells seeds apart."""
    kept = {key: value for key, value in run.config.items() if key not in _OF_A_SEED}
    return json.dumps(kept, sort_keys=True, default=str)


def groups(runs: Sequence[RunData]) -> list[Group]:
    """Put runs together that differ only in their seed, in the order of first appearance."""
    found: dict[str, list[RunData]] = {}
    for run in runs:
        found.setdefault(_setting(run), []).append(run)
    laws = [str(many[0].info.get("timing") or "not recorded") for many in found.values()]
    titles = _distinct([identity(many[0]).title for many in found.values()], laws)
    order: dict[str, int] = {}  # a mechanism keeps its colour under both laws
    for title in titles:
        order.setdefault(title, len(order))
    return [
        Group(
            title, *look(order[title]), len(found) > 1,
            mechanism=identity(many[0]), timing=law, runs=tuple(many),
        )
        for title, law, many in zip(titles, laws, found.values(), strict=True)
    ]  # fmt: skip


def _distinct(titles: Sequence[str], laws: Sequence[str]) -> list[str]:
    """Number titles that occur twice under one law: the same mechanism with other settings."""
    pairs = list(zip(titles, laws, strict=True))
    total, seen = Counter(pairs), Counter[tuple[str, str]]()
    out = []
    for pair in pairs:
        seen[pair] += 1
        out.append(f"{pair[0]} #{seen[pair]}" if total[pair] > 1 else pair[0])
    return out


def shared_target(every: Sequence[Group]) -> tuple[float | None, str]:
    """A usual target to compare by, and by which rule it was chosen.

    The largest that half of the groups reached with every seed; else that any run reached.
    """
    best = [[best_accuracy(run.records) or 0.0 for run in group.runs] for group in every]
    worst = sorted(map(min, best), reverse=True)
    rules = {
        "at least half of the mechanisms reached with every seed": worst[(len(worst) - 1) // 2],
        "any run reached": max(map(max, best)),
    }
    for rule, level in rules.items():
        if reached := [target for target in TARGETS if target <= level]:
            return max(reached), rule
    return None, ""


def common_time_s(every: Sequence[Group]) -> float | None:
    """The last simulated time by which every run was tested, and none has ended its tests.

    None where there is no such time: a run was never tested, or first when another had ended.
    """
    tested = [evaluated(run.records) for g in every for run in g.runs]
    if not tested or not all(tested):
        return None
    last = min(rows[-1].clock_s for rows in tested)
    return last if last >= max(rows[0].clock_s for rows in tested) else None
