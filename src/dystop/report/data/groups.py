"""Runs that differ in nothing but the seed, taken together: a group is one line of a comparison."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dystop.experiments.run_folder import RunData
from dystop.params import short_names
from dystop.record import RoundRecord
from dystop.report.data.names import Identity, identity
from dystop.report.data.summary import TARGETS, best_accuracy, evaluated
from dystop.report.figures.style import Mark, look
from dystop.units import known

_OF_A_SEED = ("seed", "name")
_MOST_KEYS = 3
"""Differing settings that a label can tell; with more of them it is a number."""


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
    titles = _distinct([many[0] for many in found.values()], laws)
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


def _distinct(runs: Sequence[RunData], laws: Sequence[str]) -> list[str]:
    """A title per run; one that occurs twice under a law is told apart by its settings."""
    titles = [identity(run).title for run in runs]
    alike: dict[tuple[str, str], list[int]] = {}
    for k, pair in enumerate(zip(titles, laws, strict=True)):
        alike.setdefault(pair, []).append(k)
    for ks in alike.values():
        if len(ks) > 1:
            for k, more in zip(ks, _apart([runs[k] for k in ks]), strict=True):
                titles[k] += more
    return titles


def _apart(runs: Sequence[RunData]) -> list[str]:
    """What to add to the title that runs share: the settings that differ, else a number."""
    from dystop.report.pages.html import differing, flat

    rows = [row for row in differing(runs) if row[0] not in _OF_A_SEED]
    short = short_names({key: None for run in runs for key, _ in flat(run.config)})
    told = [[f", {short[key]} = {_plain(v)}" for v in values] for key, values in rows]
    out = ["".join(each) for each in zip(*told, strict=True)]
    if len(rows) <= _MOST_KEYS and len(set(out)) == len(runs):
        return out
    return [f" #{k}" for k in range(1, len(runs) + 1)]


def _plain(value: str) -> str:
    """A value of a configuration as a label has it.

    >>> _plain("10.0"), _plain("0.4"), _plain('"combined"')
    ('10', '0.4', 'combined')
    """
    return value.strip('"').removesuffix(".0")


def shared_target(every: Sequence[Group]) -> tuple[float | None, str]:
    """A usual target to compare by, and by which rule it was chosen.

    The largest that half of the groups reached with every seed; else that any run reached.
    """
    best = [[best_accuracy(run.records) or 0.0 for run in group.runs] for group in every]
    worst = sorted(map(min, best), reverse=True)
    rules = {
        "at least half of the rows reached with every seed": worst[(len(worst) - 1) // 2],
        "any run reached": max(map(max, best)),
    }
    for rule, level in rules.items():
        if reached := [target for target in TARGETS if target <= level]:
            return max(reached), rule
    return None, ""


def interval_s(every: Sequence[Group]) -> float:
    """Simulated seconds between two tests, where all runs have the same; else 0."""
    blocks = [run.config.get("evaluate") or {} for group in every for run in group.runs]
    found = {float(block.get("every_s") or 0.0) for block in blocks}
    return found.pop() if len(found) == 1 else 0.0


def common_time_s(every: Sequence[Group]) -> float | None:
    """The last simulated time at which the tests of all runs compare.

    Where all are tested every so many seconds, it is the last planned test that no run missed;
    else the last time by which every run was tested, and none has ended its tests.
    None where there is no such time: a run was never tested, or first when another had ended.
    """
    tested = [evaluated(run.records) for g in every for run in g.runs]
    if not tested or not all(tested):
        return None
    first, last = max(rows[0].clock_s for rows in tested), min(rows[-1].clock_s for rows in tested)
    step_s = interval_s(every)
    if not step_s:
        return last if last >= first else None
    k = math.floor(last / step_s)
    due = (k + 1 if (k + 1) * step_s <= last else k) * step_s  # a quotient is rounded: 8.6 / 0.2
    return due if due > 0 and first < due + step_s else None
