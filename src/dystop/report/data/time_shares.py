"""Why a mechanism is fast or slow: the shares of its workers' time.

Every second of every present worker until the target, or else until the end of the run, belongs to
exactly one of four parts (`dystop.control.time_spent`), so that the shares add up to one.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dystop.folders.run_folder import RunData
from dystop.record import RoundRecord
from dystop.report.data.scores import until_target
from dystop.units import NOTHING

PARTS = ("computing", "transferring", "waiting for others", "waiting for the round")
"""What a worker does, in the order of `TimeShares.parts`."""

MEANINGS = (
    "a local training runs",
    "its exchange moves models: in each stage, the slowest link charged to the worker",
    "it is active in this round and waits for a slower worker",
    "it has finished its training, and the round does not activate it",
)
_FILLS = "█▓▒░"


@dataclass(frozen=True)
class TimeShares:
    """The parts of the worker-seconds of a run; they add up to one."""

    computing: float
    transferring: float
    waiting_others: float
    waiting_round: float

    @property
    def parts(self) -> tuple[float, float, float, float]:
        """The shares in the order of `PARTS`."""
        return self.computing, self.transferring, self.waiting_others, self.waiting_round

    @property
    def waiting(self) -> float:
        """The share of both kinds of waiting."""
        return self.waiting_others + self.waiting_round


def time_shares(records: Sequence[RoundRecord]) -> TimeShares | None:
    """Return the shares over some rounds; None where they took no time."""
    total_s = sum(r.alive * r.duration_s for r in records)
    if total_s <= 0:
        return None
    compute_s = sum(r.get("compute_s") or 0.0 for r in records)
    transfer_s = sum(r.get("transfer_s") or 0.0 for r in records)
    others_s = sum(r.get("wait_others_s") or 0.0 for r in records)
    left_s = max(total_s - compute_s - transfer_s - others_s, 0.0)  # a sum is rounded
    seconds = (compute_s, transfer_s, others_s, left_s)
    return TimeShares(*(part / sum(seconds) for part in seconds))


def mean_shares(runs: Sequence[RunData], target: float | None) -> TimeShares | None:
    """Return the mean of the shares over seeds, each until the target or else until its end.

    None where one seed has no round, or its rounds took no time.
    """
    every = [time_shares(until_target(run.records, target)) for run in runs if run.records]
    shares = [found.parts for found in every if found is not None]
    if not shares or len(shares) < len(every):
        return None
    return TimeShares(*(statistics.fmean(part) for part in zip(*shares, strict=True)))


def share_texts(shares: TimeShares | None) -> list[str]:
    """Return the shares as whole percentages that add up to 100.

    >>> share_texts(TimeShares(0.335, 0.333, 0.332, 0.0))
    ['34 %', '33 %', '33 %', '0 %']
    """
    if shares is None:
        return [NOTHING] * len(PARTS)
    return [f"{part} %" for part in whole_parts(shares, 100)]


def share_bar(shares: TimeShares | None, width: int = 20) -> str:
    """Return the shares as a stacked bar of characters.

    >>> share_bar(TimeShares(0.5, 0.2, 0.2, 0.1), 10)
    '█████▓▓▒▒░'
    """
    if shares is None:
        return NOTHING
    counts = whole_parts(shares, width)
    return "".join(fill * count for fill, count in zip(_FILLS, counts, strict=True))


def whole_parts(shares: TimeShares, total: int) -> list[int]:
    """Return whole numbers that add up to a total; the largest remainders are rounded up."""
    scaled = [total * part for part in shares.parts]
    counts = [int(part) for part in scaled]
    order = sorted(range(len(scaled)), key=lambda k: counts[k] - scaled[k])
    for k in order[: total - sum(counts)]:
        counts[k] += 1
    return counts
