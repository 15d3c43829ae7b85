"""The headline of a comparison: who reached the target first, by how much, how sure, and why."""

import statistics
from collections.abc import Sequence

from dystop.report.data.groups import Group
from dystop.report.data.leads import FirstPlace, Lead, arrivals, first_place
from dystop.report.data.scores import Score, until_target
from dystop.report.data.summary import idle_share
from dystop.report.data.time_shares import mean_shares, whole_parts
from dystop.units import data, number, percent, plural, seconds

_MANY = 3  # rows that tie, from which their distances are not listed


def headline(
    groups: Sequence[Group],
    target: float | None,
    score: Score | None = None,
    *,
    with_costs: bool = True,
) -> str:
    """Say who was first to the target, how sure that is, and at what cost.

    Empty where there is nothing to compare. All groups must be under one timing law.
    """
    if target is None or len(groups) < 2:
        return ""
    aim = (score or Score()).aim(target)
    place = first_place(groups, target)
    if place is None:
        return f"No row reached {aim} with every seed."
    others = sorted((*place.tied, *place.behind), key=lambda pair: pair[1].mean_s)
    second = others[0][0] if others else None
    sentences = [
        _tie(place, aim) if place.tied else _win(place, target, aim),
        _distance(*place.behind[0]) if place.tied and place.behind else "",
        _costs(place.first, second, target) if with_costs else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _win(place: FirstPlace, target: float, aim: str) -> str:
    arrived = arrivals(place.first, target) or {}
    mean_s = statistics.fmean(a.clock_s for a in arrived.values())
    begin = f"{place.first.label} is first to {aim}, after {seconds(mean_s)}"
    if not place.behind:
        return f"{begin}; no other row reached it with every seed."
    return f"{begin}, {_gap(*place.behind[0])}."


def _tie(place: FirstPlace, aim: str) -> str:
    names = [place.first.label, *(other.label for other, _ in place.tied)]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    reasons = "; ".join(
        f"{other.label} is {seconds(abs(lead.mean_s))} behind, {lead.doubt}"
        for other, lead in place.tied
    )
    if len(place.tied) >= _MANY:
        reasons = "no lead exceeds its spread over the seeds and one evaluation interval"
    return f"{listed} tie for the first place to {aim}: {reasons}."


def _distance(other: Group, lead: Lead) -> str:
    return f"{other.label} comes next, {_spread(lead)} later."


def _gap(other: Group, lead: Lead) -> str:
    ahead = sum(gap > 0 for gap in lead.gaps_s)
    seeds = f", in {ahead} of {plural(len(lead.gaps_s), 'seed')}" if len(lead.gaps_s) > 1 else ""
    return f"{_spread(lead)} ({percent(lead.saved, 0)}) before {other.label}{seeds}"


def _spread(lead: Lead) -> str:
    return seconds(lead.mean_s) if len(lead.gaps_s) < 2 else (
        f"{number(lead.mean_s)} ± {number(lead.std_s)} s"
    )  # fmt: skip


def _costs(first: Group, second: Group | None, target: float) -> str:
    """Say what the first group had spent when it arrived, and in brackets what the second had."""
    ours = _spent(first, target)
    theirs = {} if second is None else _spent(second, target)
    parts = [
        text.format(value + (f" ({theirs[text]})" if text in theirs else ""))
        for text, value in ours.items()
    ]
    who = "" if second is None else f"; in brackets {second.label}"
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"By then the workers of {first.label} had {listed} of the time{who}."


def _spent(group: Group, target: float) -> dict[str, str]:
    """Return what was spent until the target, as means over the seeds, by what is said of it."""
    rounds = [until_target(run.records, target) for run in group.runs]
    last = [rows[-1] for rows in rounds]
    spent = {
        "trained {} epochs": number(statistics.fmean(r.epochs_total for r in last)),
        "moved {}": data(statistics.fmean(r.wire_bytes_total for r in last)),
    }
    if (shares := mean_shares(group.runs, target)) is not None:
        computed, transferred, *waited = whole_parts(shares, 100)
        return spent | {
            "computed {}": f"{computed} %",
            "transferred {}": f"{transferred} %",
            "waited {}": f"{sum(waited)} %",
        }
    idle = [share for rows in rounds if (share := idle_share(rows)) is not None]
    return spent | {"idled {}": percent(statistics.fmean(idle) if idle else None, 0)}
