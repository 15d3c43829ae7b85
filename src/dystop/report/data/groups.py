"""Groups of runs that differ in nothing but the seed: one row of a comparison each."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dystop.folders.run_folder import RunData
from dystop.params import flatten, short_names
from dystop.record import RoundRecord
from dystop.report.data.names import MechanismInfo, diverged_round, law_name, mechanism_of
from dystop.report.data.settings import differing_settings, plain_value
from dystop.runs import common_time
from dystop.runs.common_time import Evaluations, evaluations_of
from dystop.units import NOTHING, data_unit, digits, energy_unit, known, number, percent

_SEED_KEYS = ("seed", "name")
"""Keys that differ between the seeds of a group."""
_MAX_LABEL_KEYS = 3
"""Differing settings that a label can list; with more of them, rows are numbered."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A mechanism with its settings under one law, with one run per seed."""

    label: str
    color_index: int  # the same for one label under both laws
    mechanism: MechanismInfo
    law: str
    runs: tuple[RunData, ...]

    @property
    def seeds(self) -> list[str]:
        """The seeds, in the order of the runs."""
        return [str(run.info.get("seed")) for run in self.runs]

    @property
    def histories(self) -> list[list[RoundRecord]]:
        """The records of every run that has some."""
        return [run.records for run in self.runs if run.records]


@dataclass(frozen=True)
class SeedSpread:
    """A quantity over the seeds: the values that exist, and the number of seeds."""

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


def over_seeds(values: Iterable[float | None]) -> SeedSpread:
    """Collect one value per seed; None and non-finite numbers count as missing.

    >>> over_seeds([1.0, None, 3.0])
    SeedSpread(values=(1.0, 3.0), total=3)
    """
    every = [known(value) for value in values]
    return SeedSpread(tuple(v for v in every if v is not None), len(every))


def plus_minus(spread: SeedSpread, unit: str = "", scale: float = 1.0) -> str:
    """Format mean ± standard deviation with equal decimals and one unit.

    >>> plus_minus(SeedSpread((2.0, 4.0), 2), "s"), plus_minus(SeedSpread((2.0,), 1))
    ('3.00 ± 1.41 s', '2')
    """
    if spread.mean is None:
        return NOTHING
    mean = spread.mean / scale
    if not spread.std:  # one seed, or no difference between seeds
        return f"{number(mean)} {unit}".rstrip()
    places = digits(mean)
    return f"{mean:,.{places}f} ± {spread.std / scale:,.{places}f} {unit}".rstrip()


def in_seconds(spread: SeedSpread) -> str:
    """Format a time in seconds."""
    return plus_minus(spread, "s")


def in_bytes(spread: SeedSpread) -> str:
    """Format an amount of data in the unit that suits its mean."""
    scale, unit = data_unit(spread.mean or 0.0)
    return plus_minus(spread, unit, scale)


def in_joules(spread: SeedSpread) -> str:
    """Format an energy in the unit that suits its mean."""
    scale, unit = energy_unit(spread.mean or 0.0)
    return plus_minus(spread, unit, scale)


def in_percent(spread: SeedSpread) -> str:
    """Format a share in percent with one decimal."""
    if spread.mean is None or spread.std is None:
        return percent(spread.mean)
    return f"{100 * spread.mean:.1f} ± {100 * spread.std:.1f} %"


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Group the runs that differ only in their seed, in the order of first appearance."""
    found: dict[str, list[RunData]] = {}
    for run in runs:
        found.setdefault(_settings_key(run), []).append(run)
    seeds = list(found.values())
    laws = [law_name(many[0]) for many in seeds]
    labels = _distinct_labels([many[0] for many in seeds], laws)
    color = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return [
        Group(
            label=label, color_index=color[label], mechanism=mechanism_of(many[0]), law=law,
            runs=tuple(many),
        )
        for label, law, many in zip(labels, laws, seeds, strict=True)
    ]  # fmt: skip


def _settings_key(run: RunData) -> str:
    """Return the configuration without the keys that tell seeds apart."""
    kept = {key: value for key, value in run.config.items() if key not in _SEED_KEYS}
    return json.dumps(kept, sort_keys=True, default=str)


def _distinct_labels(runs: Sequence[RunData], laws: Sequence[str]) -> list[str]:
    """Label each run by its mechanism; add settings where a law would have the label twice."""
    labels = [mechanism_of(run).title for run in runs]
    equal: dict[tuple[str, str], list[int]] = {}
    for k, pair in enumerate(zip(labels, laws, strict=True)):
        equal.setdefault(pair, []).append(k)
    for ks in equal.values():
        if len(ks) > 1:
            for k, suffix in zip(ks, _label_suffixes([runs[k] for k in ks]), strict=True):
                labels[k] += suffix
    return labels


def _label_suffixes(runs: Sequence[RunData]) -> list[str]:
    """Return the settings on which runs of one label differ, or a number where they are many."""
    rows = [row for row in differing_settings(runs) if row[0] not in _SEED_KEYS]
    short = short_names({key: None for run in runs for key, _ in flatten(run.config)})
    columns = [[f", {short[key]} = {plain_value(v)}" for v in values] for key, values in rows]
    suffixes = ["".join(each) for each in zip(*columns, strict=True)]
    if len(rows) <= _MAX_LABEL_KEYS and len(set(suffixes)) == len(runs):
        return suffixes
    return [f" #{k}" for k in range(1, len(runs) + 1)]


def evaluations(run: RunData) -> Evaluations:
    """Return the evaluations of a run."""
    return evaluations_of(run.records, run.config, diverged=diverged_round(run) is not None)


def common_time_s(groups: Sequence[Group]) -> float | None:
    """Return the last clock time at which the accuracies of all runs compare, if there is one."""
    return common_time.common_time_s([evaluations(run) for group in groups for run in group.runs])


def accuracy_at(group: Group, clock_s: float) -> SeedSpread:
    """Return the accuracy that was known at a time, seed by seed."""
    return over_seeds(evaluations(run).score_at(clock_s) for run in group.runs)
