"""When a run ends and when its models are evaluated; simulator and testbed use the same rules."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from dystop.params import param
from dystop.record import RoundRecord
from dystop.sparse import Floats
from dystop.units import are, plural

NO_LIMIT = 1_000_000
"""Rounds that no run reaches whose seconds are limited."""


@dataclass(frozen=True)
class Stop:
    """The rules that end a run; the first one that applies ends it. 0 switches a rule off."""

    rounds: Annotated[int, Ge(1)] = param(
        60, "largest number of rounds; also the horizon that sets the length of phase 1"
    )
    seconds: Annotated[float, Ge(0)] = param(
        0.0, "largest number of simulated seconds; 0: no limit"
    )
    accuracy: Annotated[float, Ge(0), Le(1)] = param(
        0.0, "mean test accuracy at which the run ends, from 0 to 1; 0: none"
    )
    loss: Annotated[float, Ge(0)] = param(
        0.0,
        "mean test loss of an evaluation at which the run ends; in a testbed without an observer "
        "the median of the training losses that its workers reported last; 0: none",
    )
    diverged: Annotated[float, Ge(0)] = param(
        1000.0,
        "mean test loss above which, or not finite, an evaluation ends a simulation as diverged; "
        "0: the run goes on, as a testbed always does",
    )


@dataclass(frozen=True)
class Evaluate:
    """When and how all models are evaluated."""

    every_s: Annotated[float, Ge(0)] = param(
        0.0, "simulated seconds between evaluations; 0: count rounds"
    )
    every_rounds: Annotated[int, Ge(1)] = param(5, "rounds between evaluations if every_s is 0")
    samples: Annotated[int, Ge(0)] = param(0, "test images per model; 0: the whole test set")
    statistics: Literal["running", "recomputed"] = param(
        "running",
        "batch-norm statistics in an evaluation: moving averages of the models, or recomputed on "
        "training samples",
    )
    model: Literal["trained", "aggregated"] = param(
        "trained",
        "which model of a worker is tested: trained: after its local training, as others pull it; "
        "aggregated: as its last aggregation left it, before the local training that follows",
    )
    per_worker: bool = param(
        False, "whether records hold accuracy and loss of every worker's own model, not only means"
    )


def is_over(stop: Stop, t: int, clock_s: float) -> bool:
    """Return whether round t may no longer open at this time."""
    return t > stop.rounds or (stop.seconds > 0 and clock_s >= stop.seconds)


def reached(stop: Stop, record: RoundRecord, reported: float | None = None) -> str:
    """Return the name of the target that a record reaches; empty: none.

    Args:
        stop: The rules.
        record: The record of a round; only its evaluation counts.
        reported: The loss of `median_loss` where nobody evaluates models.
    """
    if stop.accuracy > 0 and record.accuracy is not None and record.accuracy >= stop.accuracy:
        return "accuracy"
    if stop.loss > 0:
        loss = reported if record.get("test_loss") is None else record.get("test_loss")
        return "loss" if loss is not None and loss <= stop.loss else ""
    return ""


def median_loss(losses: Floats) -> float | None:
    """Return the median of the losses that workers reported last; None: there are none.

    A minority of false reports does not move it beyond the honest ones.

    >>> median_loss(np.array([0.7, -1e40, 0.9, np.nan])), median_loss(np.array([np.nan]))
    (0.7, None)
    """
    known = losses[np.isfinite(losses)]
    return float(np.median(known)) if len(known) else None


def has_diverged(limit: float, record: RoundRecord) -> bool:
    """Return whether the models of an evaluation have diverged; a limit of 0 asks nothing.

    Only evaluations tell. The mean is not finite if the test loss of one model is not.
    """
    return limit > 0 and (bool(record.get("diverged")) or (record.get("test_loss") or 0.0) > limit)


def diverged_round(limit: float, records: Iterable[RoundRecord]) -> int | None:
    """Return the first round whose evaluation found diverged models; None if none did."""
    return next((r.round for r in records if has_diverged(limit, r)), None)


def ends_early(stop: Stop, record: RoundRecord, reported: float | None = None) -> str:
    """Return why a run ends with this record before its rounds or seconds are over; else empty."""
    if target := reached(stop, record, reported):
        return f"target {target} reached"
    if not has_diverged(stop.diverged, record):
        return ""
    what = f"diverged in round {record.round}: the"
    if lost := record.get("diverged"):
        return f"{what} test loss of {plural(lost, 'model')} is not finite"
    loss = record.get("test_loss")
    return f"{what} mean test loss is {loss:.3g}, above stop.diverged = {stop.diverged:g}"


def ends_run(stop: Stop, record: RoundRecord, reported: float | None = None) -> bool:
    """Return whether no round may follow the one of this record."""
    return bool(ends_early(stop, record, reported)) or is_over(
        stop, record.round + 1, record.clock_s
    )


def stop_reason(
    stop: Stop, record: RoundRecord, seconds: str = "simulated", reported: float | None = None
) -> str:
    """Return why a run ended with this record; `seconds` says what kind of seconds were limited."""
    if early := ends_early(stop, record, reported):
        return early
    if record.round >= stop.rounds:
        return f"{are(record.round, 'round')} over"
    return f"{stop.seconds:g} {seconds} seconds are over"


def is_evaluation_due(evaluate: Evaluate, t: int, clock_s: float, due_s: float) -> bool:
    """Return whether the interval between two evaluations ends with round t.

    Args:
        evaluate: The chosen interval.
        t: The round.
        clock_s: When it closes.
        due_s: When the next evaluation is due, where the interval is one of time.
    """
    return clock_s >= due_s if evaluate.every_s > 0 else t % evaluate.every_rounds == 0


def next_evaluation_s(evaluate: Evaluate, clock_s: float) -> float:
    """Return when the evaluation after one at `clock_s` is due; 0 where rounds are counted."""
    every_s = evaluate.every_s
    return (math.floor(clock_s / every_s) + 1.0) * every_s if every_s > 0 else 0.0
