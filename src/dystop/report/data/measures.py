"""What a claim of the paper is measured by: one number per seed, from the records of an arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dystop.experiments.reproduce.campaigns import Arm
from dystop.experiments.reproduce.paper_claims import Measure
from dystop.experiments.run_folder import RunData
from dystop.record import RoundRecord
from dystop.report.data.groups import Spread, over_seeds
from dystop.report.data.summary import best_accuracy, evaluated, first_reaching
from dystop.units import data, goal, number, percent, plural, seconds

STEP = 0.05  # targets are multiples of this
Whose = Literal["own", "global"]
"""Whose accuracy counts: the mean of the workers' own models (the paper's) or the global one's."""


@dataclass(frozen=True)
class Outcome:
    """The runs of one arm, seed by seed."""

    arm: Arm
    runs: tuple[RunData, ...]

    def spread(self, measure: Measure, target: float | None) -> Spread:
        """The measure over the seeds; a seed that never reached the target has no value."""
        return over_seeds(self.each(measure, target))

    def each(self, measure: Measure, target: float | None) -> list[float | None]:
        """The measure of every seed, None where it never reached the target."""
        return [_one(run, measure, target) for run in self.runs]

    def ends(self, measure: Measure) -> list[float]:
        """Seconds or bytes at the end of every run."""
        return [_cost(run.records[-1], measure) if run.records else 0.0 for run in self.runs]

    @property
    def end_s(self) -> float:
        """Simulated seconds that the shortest run covers."""
        return min(self.ends("time"), default=0.0)


Outcomes = Mapping[str, Outcome]


def counted(run: RunData, whose: Whose) -> RunData:
    """A run whose accuracy is the one that counts."""
    if whose == "own":
        return run
    records = [replace(r, accuracy=r.accuracy_global) for r in run.records]
    return replace(run, records=records)


def _one(run: RunData, measure: Measure, target: float | None) -> float | None:
    if not run.records:
        return None
    if measure == "staleness":
        return sum(r.staleness_mean for r in run.records) / len(run.records)
    if measure == "accuracy":
        return evaluated(run.records)[-1].accuracy if evaluated(run.records) else None
    reached = None if target is None else first_reaching(run.records, target)
    return None if reached is None else _cost(reached, measure)


def _cost(record: RoundRecord, measure: Measure) -> float:
    return record.clock_s if measure == "time" else float(record.endpoint_bytes_total)


def target_for(outcomes: Sequence[Outcome], wanted: float | None) -> float | None:
    """The paper's target if every run of these reaches it, else the highest step that all reach."""
    runs = [run for outcome in outcomes for run in outcome.runs]
    reached = min((best_accuracy(run.records) or 0.0 for run in runs), default=0.0)
    if wanted is not None and reached >= wanted:
        return wanted
    steps = int(reached / STEP + 1e-9)
    return round(steps * STEP, 2) if steps else None


def show(value: float | None, measure: Measure) -> str:
    """A measured value in words.

    >>> show(0.4, "accuracy"), show(12.0, "time"), show(1.58, "staleness")
    ('40.0 %', '12 s', '1.58')
    """
    if value is None:
        return "not reached"
    if measure == "accuracy":
        return percent(value)
    return {"time": seconds, "bytes": data, "staleness": number}[measure](value)


def show_spread(spread: Spread, measure: Measure) -> str:
    """Mean and standard deviation over the seeds that have a value."""
    text = show(spread.mean, measure)
    if spread.std is not None:
        text += f" ± {show(spread.std, measure)}"
    if spread.values and not spread.complete:
        text += f" ({len(spread.values)} of {plural(spread.total, 'seed')})"
    return text


def aim(target: float | None) -> str:
    """The target in words, empty where there is none."""
    return "" if target is None else f" to {goal(target)}"
