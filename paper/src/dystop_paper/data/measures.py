"""Measures of the paper's claims: one number per seed, from the records of an arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dystop.folders.run_folder import RunData
from dystop.record import RoundRecord
from dystop.report.data.groups import SeedSpread, over_seeds
from dystop.report.data.scores import best_accuracy, evaluated_rounds, first_reaching
from dystop.units import data, goal, number, percent, plural, seconds
from dystop_paper.reproduce.campaigns import Arm
from dystop_paper.reproduce.paper_claims import Measure

TARGET_STEP = 0.05
"""Targets of our own are multiples of this."""

AccuracyOf = Literal["own", "global"]
"""Whose accuracy counts: the workers' own models (the paper's), or the global model."""


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm of a campaign, seed by seed."""

    arm: Arm
    runs: tuple[RunData, ...]

    def spread(self, measure: Measure, target: float | None) -> SeedSpread:
        """Return the measure over the seeds; a seed that never reached the target has no value."""
        return over_seeds(self.values(measure, target))

    def values(self, measure: Measure, target: float | None) -> list[float | None]:
        """Return the measure of every seed, None where it never reached the target."""
        return [_measure(run, measure, target) for run in self.runs]

    def ends(self, measure: Measure) -> list[float]:
        """Return seconds or bytes at the end of every run."""
        return [_cost(run.records[-1], measure) if run.records else 0.0 for run in self.runs]

    @property
    def end_s(self) -> float:
        """Simulated seconds that the shortest run covers."""
        return min(self.ends("time"), default=0.0)


RunsByArm = Mapping[str, ArmRuns]


def with_accuracy_of(run: RunData, accuracy_of: AccuracyOf) -> RunData:
    """Return the run with the accuracy of own models or of the global model."""
    if accuracy_of == "own":
        return run
    records = [
        replace(r, added={**r.added, "accuracy": r.get("accuracy_global")}) for r in run.records
    ]
    return replace(run, records=records)


def _measure(run: RunData, measure: Measure, target: float | None) -> float | None:
    if not run.records:
        return None
    if measure == "staleness":
        return sum(r.staleness_mean for r in run.records) / len(run.records)
    if measure == "accuracy":
        return evaluated_rounds(run.records)[-1].accuracy if evaluated_rounds(run.records) else None
    reached = None if target is None else first_reaching(run.records, target)
    return None if reached is None else _cost(reached, measure)


def _cost(record: RoundRecord, measure: Measure) -> float:
    return record.clock_s if measure == "time" else float(record.endpoint_bytes_total)


def reachable_target(arms: Sequence[ArmRuns], wanted: float | None) -> float | None:
    """Return the wanted target if every run reaches it, else the highest step that all reach."""
    runs = [run for arm in arms for run in arm.runs]
    reached = min((best_accuracy(run.records) or 0.0 for run in runs), default=0.0)
    if wanted is not None and reached >= wanted:
        return wanted
    steps = int(reached / TARGET_STEP + 1e-9)
    return round(steps * TARGET_STEP, 2) if steps else None


def format_measure(value: float | None, measure: Measure) -> str:
    """Format a measured value.

    >>> format_measure(0.4, "accuracy"), format_measure(12.0, "time")
    ('40.0 %', '12 s')
    """
    if value is None:
        return "not reached"
    if measure == "accuracy":
        return percent(value)
    return {"time": seconds, "bytes": data, "staleness": number}[measure](value)


def format_spread(spread: SeedSpread, measure: Measure) -> str:
    """Format mean and standard deviation over the seeds that have a value."""
    text = format_measure(spread.mean, measure)
    if spread.std is not None:
        text += f" ± {format_measure(spread.std, measure)}"
    if spread.values and not spread.complete:
        text += f" ({len(spread.values)} of {plural(spread.total, 'seed')})"
    return text


def target_suffix(target: float | None) -> str:
    """Return " to 80 %", or an empty text without a target."""
    return "" if target is None else f" to {goal(target)}"
