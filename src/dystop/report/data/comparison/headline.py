"""The headline of a comparison: who reached the target first, by how much, how sure, and why."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dystop.report.data.comparison.leads import FirstPlace, Lead, arrivals, first_place, lead_of
from dystop.report.data.comparison.ranking import NOT_REACHED, Ranking, cost_to_target
from dystop.report.data.groups import Group, in_seconds, over_seeds
from dystop.report.data.names import is_planned
from dystop.report.data.scores import Score, evaluated_rounds, until_target
from dystop.report.data.time_shares import mean_shares, whole_parts
from dystop.units import data, listed, number, percent, plural, seconds

UNCHANGED = "unchanged"
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
    reasons = "; ".join(
        f"{other.label} is {seconds(abs(lead.mean_s))} behind, {lead.doubt}"
        for other, lead in place.tied
    )
    if len(place.tied) >= _MANY:
        reasons = "no lead exceeds its spread over the seeds and one evaluation interval"
    return f"{listed(names)} tie for the first place to {aim}: {reasons}."


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
    return f"By then the workers of {first.label} had {listed(parts)} of the time{who}."


def _spent(group: Group, target: float) -> dict[str, str]:
    """Return what was spent until the target, as means over the seeds, by what is said of it."""
    rounds = [until_target(run.records, target) for run in group.runs]
    last = [rows[-1] for rows in rounds]
    spent = {
        "trained {} epochs": number(statistics.fmean(r.epochs_total for r in last)),
        "moved {}": data(statistics.fmean(r.wire_bytes_total for r in last)),
    }
    shares = mean_shares(group.runs, target)
    if shares is None:
        return spent
    computed, transferred, *waited = whole_parts(shares, 100)
    return spent | {
        "computed {}": f"{computed} %",
        "transferred {}": f"{transferred} %",
        "waited {}": f"{sum(waited)} %",
    }


@dataclass(frozen=True)
class RankChange:
    """The ranks of a group under two timing laws."""

    group: Group
    ranks: list[str]  # rank and time to target, or without a target final accuracy, law by law
    change: str


def rank_changes(
    rankings: Sequence[Ranking], target: float | None, score: Score | None = None
) -> list[RankChange]:
    """Return how ranks change from the first law to the second, in the order of the first.

    Empty unless there are two laws with the same groups. Planning only has no ranks.
    """
    if len(rankings) != 2 or all(is_planned(r) for g in rankings[0].groups for r in g.runs):
        return []
    first, second = ([g.label for g in ranking.groups] for ranking in rankings)
    found = []
    for rank, group in enumerate(rankings[0].groups):
        if group.label not in second:
            continue
        other = second.index(group.label)
        pairs = (rank, group), (other, rankings[1].groups[other])
        ranks = [_rank_text(place, row, target, score or Score()) for place, row in pairs]
        found.append(RankChange(group, ranks, _change(rank - other)))
    return found if len(found) == len(first) else []


def order_sentence(rankings: Sequence[Ranking], target: float | None) -> str:
    """Say who is first under each timing law, and what changes; empty: one law was run.

    Two rows change places only if each is ahead of the other under one law by more than a tie.
    Without a target, rows are compared by their final accuracies.
    """
    changes = rank_changes(rankings, target)
    if not changes or any(len(ranking.panels) > 1 for ranking in rankings):
        return ""
    return f"{_first_places(rankings, target)} {_moves(rankings, changes, target)}"


def _first_places(rankings: Sequence[Ranking], target: float | None) -> str:
    """Say who is first, or ties for it, under each of two laws."""
    first, second = ([g.label for g in _front(r.groups, target)] for r in rankings)
    if first and set(first) == set(second):
        return f"{_are_first(first)} under both timing laws."
    changed = bool(first and second) and not set(first) & set(second)
    begin = "The first place changes with the timing law: " if changed else ""
    parts = (
        f"{_are_first(labels)} under {r.law}"
        for labels, r in zip((first, second), rankings, strict=True)
    )
    return f"{begin}{'; '.join(parts)}."


def _are_first(labels: Sequence[str]) -> str:
    if not labels:
        return "no row reached the target with every seed"
    return f"{labels[0]} is first" if len(labels) == 1 else (
        f"{listed(labels)} tie for the first place"
    )  # fmt: skip


def _front(groups: Sequence[Group], target: float | None) -> list[Group]:
    """Return the first group and those that tie with it, all under one law."""
    if target is None:
        first, *others = groups
        return [first, *(other for other in others if not _is_more_accurate(first, other))]
    place = first_place(groups, target)
    return [] if place is None else [place.first, *(other for other, _ in place.tied)]


def _moves(rankings: Sequence[Ranking], changes: Sequence[RankChange], target: float | None) -> str:
    """Say how many rows change their rank, and which change places by more than a tie."""
    moved = sum(change.change != UNCHANGED for change in changes)
    if not moved:
        return "Every row keeps its rank."
    begin = f"{moved} of {plural(len(changes), 'row')} change their rank"
    swapped = _swapped_pairs(rankings[0].groups, rankings[1].groups, target)
    if not swapped:
        return f"{begin}, but no two of them change places by more than a tie."
    named = ", ".join(f"{a.label} and {b.label}" for a, b in swapped)
    pairs = named if len(swapped) < _MANY else f"{plural(len(swapped), 'pair')} of rows"
    return f"{begin}; {pairs} change places by more than a tie."


def _swapped_pairs(
    before: Sequence[Group], after: Sequence[Group], target: float | None
) -> list[tuple[Group, Group]]:
    """Return the pairs of groups whose order is decided under both laws, and differs."""
    later = {group.label: group for group in after}
    return [
        (a, b)
        for a, b in itertools.combinations(before, 2)
        if _is_ahead(a, b, target) and _is_ahead(later[b.label], later[a.label], target)
    ]


def _is_ahead(first: Group, other: Group, target: float | None) -> bool:
    """Return whether one group reaches the target before another by more than a tie."""
    if target is None:
        return _is_more_accurate(first, other)
    if arrivals(first, target) is None:
        return False
    lead = lead_of(first, other, target)
    return arrivals(other, target) is None if lead is None else not lead.doubt


def _is_more_accurate(first: Group, other: Group) -> bool:
    """Return whether the mean lead in final accuracy exceeds its spread over the seeds."""
    ours, theirs = _final_accuracies(first), _final_accuracies(other)
    leads = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    spread = statistics.stdev(leads) if len(leads) > 1 else 0.0
    return bool(leads) and statistics.fmean(leads) > spread


def _final_accuracies(group: Group) -> dict[str, float]:
    """Return the accuracy at the last evaluation, by seed."""
    tested = (
        (s, evaluated_rounds(r.records)) for s, r in zip(group.seeds, group.runs, strict=True)
    )
    return {
        seed: rows[-1].accuracy for seed, rows in tested if rows and rows[-1].accuracy is not None
    }


def _rank_text(rank: int, group: Group, target: float | None, score: Score) -> str:
    if target is None:
        final = over_seeds(_final_accuracies(group).values())
        return f"{rank + 1}. {score.text(final.mean, final.std)}"
    spread = cost_to_target(group, target, lambda r: r.clock_s)
    time = in_seconds(spread) if spread.values else NOT_REACHED
    partial = spread.values and not spread.complete
    seeds = f", {len(spread.values)} of {plural(spread.total, 'seed')}" if partial else ""
    return f"{rank + 1}. {time}{seeds}"


def _change(up: int) -> str:
    if up == 0:
        return UNCHANGED
    return f"{'up' if up > 0 else 'down'} {abs(up)}"
