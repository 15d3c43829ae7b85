"""Whether another timing law would change the first place, estimated from planned runs.

A planned run trains nothing. It counts as learned what the recorded run had learned after as many
epochs, so that the evaluations of the recorded run take place at other times.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from dystop.control.stopping import Evaluate, is_evaluation_due, next_evaluation_s
from dystop.folders.run_folder import RunData
from dystop.record import RoundRecord
from dystop.report.data.comparison.leads import FirstPlace, arrivals, first_place
from dystop.report.data.groups import Group
from dystop.report.data.scores import Score, evaluated_rounds, first_reaching
from dystop.studies.other_law import OtherLaw
from dystop.units import listed, seconds

_END_S = "planned_end_s"  # when the planned run had trained as much as the recorded one
_HOW = (
    "An estimate: the runs were planned again without training, and count as learned what they had "
    "learned after as many epochs; --timing both trains them."
)


def planned_first_place(
    groups: Sequence[Group], target: float | None, planned: OtherLaw, score: Score
) -> str:
    """Say whether the first place would change under another law; empty where nobody has it."""
    before = first_place(groups, target)
    if target is None or before is None:
        return ""
    later = [_retimed(group, planned) for group in groups]
    after = first_place(later, target)
    if after is None:
        return ""
    begin, aim = f"Under the {planned.law} law", score.aim(target)
    if early := [group.label for group in later if _may_be_first(group, target, after)]:
        at = f"{aim}, after {seconds(_mean_s(after, target))}"
        return (
            f"{begin} the first place is open: {listed(early)} would have trained as much as in "
            f"the whole run before {after.first.label} is at {at}. {_HOW}"
        )
    old, new = _front(before), _front(after)
    if set(old) == set(new):
        verdict = f"would stay {'a tie of' if len(old) > 1 else 'with'} {listed(old)}"
    elif len(new) > 1:
        verdict = f"would change, from {_named(old)} to a tie of {listed(new)}"
    else:
        verdict = (
            f"would change, from {_named(old)} to {new[0]}, "
            f"at {aim} after {seconds(_mean_s(after, target))}"
        )
    return f"{begin} the first place {verdict}. {_HOW}"


def _front(place: FirstPlace) -> list[str]:
    return [place.first.label, *(other.label for other, _ in place.tied)]


def _named(labels: Sequence[str]) -> str:
    return f"a tie of {listed(labels)}" if len(labels) > 1 else labels[0]


def _mean_s(place: FirstPlace, target: float) -> float:
    arrived = arrivals(place.first, target) or {}
    return statistics.fmean(a.clock_s for a in arrived.values())


def _retimed(group: Group, planned: OtherLaw) -> Group:
    """Return a group whose evaluations take place at the planned times."""
    runs = tuple(_retimed_run(run, planned.clocks_s.get(run.name, ())) for run in group.runs)
    return replace(group, runs=runs)


def _retimed_run(run: RunData, clocks_s: Sequence[float]) -> RunData:
    tested = evaluated_rounds(run.records)
    moved = [replace(r, clock_s=s) for r, s in zip(tested, clocks_s, strict=False)]
    end_s = moved[-1].clock_s if moved and len(moved) == len(tested) else math.inf
    return replace(run, records=_due(run, moved), info={**run.info, _END_S: end_s})


def _due(run: RunData, moved: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the evaluations that a run with its interval in seconds would have had."""
    evaluate = Evaluate(every_s=float((run.config.get("evaluate") or {}).get("every_s") or 0.0))
    if not evaluate.every_s:
        return list(moved)
    due_s, out = evaluate.every_s, []
    for record in moved:
        if is_evaluation_due(evaluate, record.round, record.clock_s, due_s):
            out.append(record)
            due_s = next_evaluation_s(evaluate, record.clock_s)
    return out


def _may_be_first(group: Group, target: float, after: FirstPlace) -> bool:
    """Return whether a group that missed the target would have time to train more than it did."""
    if arrivals(group, target) is not None:
        return False
    earliest = [
        run.info[_END_S] if (row := first_reaching(run.records, target)) is None else row.clock_s
        for run in group.runs
    ]
    return statistics.fmean(earliest) < _mean_s(after, target)
