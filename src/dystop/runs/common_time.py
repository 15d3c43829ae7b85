"""Accuracy at a time that several runs share: the same numbers in reports, pages and Python.

The score of a run at a time is that of its last evaluation at or before it: what was known then.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dystop.record import RoundRecord
from dystop.units import known, seconds

SAME_END = 1.2
"""Ratio of clock times at the end beyond which final accuracies do not compare."""


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a run, in the order of its rounds."""

    clocks_s: Sequence[float]
    scores: Sequence[float]
    every_s: float = 0.0  # configured seconds between two of them; 0: rounds are counted
    diverged: bool = False  # the models diverged, which ended the run

    def score_at(self, clock_s: float) -> float | None:
        """Return the score that was known at a time; None before the first, and after divergence.

        >>> run = Evaluations([2.1, 4.2], [0.5, 0.6])
        >>> run.score_at(2.0), run.score_at(4.1), run.score_at(4.2)
        (None, 0.5, 0.6)
        """
        if not self.clocks_s or (self.diverged and self.clocks_s[-1] < clock_s):
            return None
        at = bisect.bisect_right(self.clocks_s, clock_s)
        return self.scores[at - 1] if at else None


def evaluations_of(
    records: Sequence[RoundRecord], config: Mapping[str, Any], *, diverged: bool
) -> Evaluations:
    """Return the evaluations of a run from its records and its configuration."""
    tested = [(r.clock_s, score) for r in records if (score := known(r.accuracy)) is not None]
    every_s = float((config.get("evaluate") or {}).get("every_s") or 0.0)
    return Evaluations([s for s, _ in tested], [score for _, score in tested], every_s, diverged)


def common_time_s(runs: Sequence[Evaluations]) -> float | None:
    """Return the last time at which the scores of all runs compare; None where there is none.

    Where all runs are evaluated at one interval, all have had the last planned evaluation that
    every run reached, and none has had the next one; a run whose rounds are longer than the
    interval may have had none since an earlier one. Otherwise it is the time at which the
    evaluations of the first run end. Runs whose models diverged do not count.
    """
    lasting = [run.clocks_s for run in runs if not run.diverged]
    if not lasting or not all(lasting):
        return None
    first, last = max(clocks[0] for clocks in lasting), min(clocks[-1] for clocks in lasting)
    intervals = {run.every_s for run in runs}
    step_s = intervals.pop() if len(intervals) == 1 else 0.0
    if not step_s:
        return last if last >= first else None
    k = math.floor(last / step_s)
    due = (k + 1 if (k + 1) * step_s <= last else k) * step_s  # a quotient is rounded: 8.6 / 0.2
    had = max(s for clocks in lasting for s in clocks if s < due + step_s or s == last)
    return had if due > 0 and first <= had else None


def tells_more(runs: Sequence[Evaluations], clock_s: float) -> bool:
    """Return whether scores at a time are others than the last ones, which stand beside them."""
    return any([run.score_at(clock_s)] != [*run.scores[-1:]] for run in runs)


def end_together(ends_s: Iterable[float]) -> bool:
    """Return whether nothing ends much later than something else.

    >>> end_together([10.0, 11.9]), end_together([10.0, 12.1]), end_together([])
    (True, False, True)
    """
    ends = list(ends_s)
    return not ends or max(ends) <= SAME_END * min(ends)


def unequal_ends(ends_s: Mapping[str, float]) -> str:
    """Say that runs end at times at which their scores do not compare; empty where they do.

    Args:
        ends_s: Clock at the end, by mechanism.
    """
    if end_together(ends_s.values()):
        return ""
    first, last = min(ends_s, key=ends_s.__getitem__), max(ends_s, key=ends_s.__getitem__)
    return (
        f"the runs end at different simulated times, from {seconds(ends_s[first])} ({first}) to "
        f"{seconds(ends_s[last])} ({last}): what they have reached at the end does not compare"
    )
