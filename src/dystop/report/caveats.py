"""What a reader of a comparison must know: what was equal, what was not, and what a band means."""

import json
from collections.abc import Sequence

from dystop.experiments.store import RunData
from dystop.report.groups import Group, common_time_s, over_seeds
from dystop.report.naming import workers
from dystop.report.notices import about_each
from dystop.units import seconds

_FAR_APART = 1.2
"""Ratio of simulated ends beyond which final accuracies mislead."""


def study_notes(every: Sequence[Group]) -> list[str]:
    """How to read the numbers; holds for every comparison."""
    seeds = list(dict.fromkeys(seed for group in every for seed in group.seeds))
    several = len(seeds) > 1
    equal = not _unequal([run for group in every for run in group.runs])
    return [
        f"Seed{'s' if several else ''} {', '.join(seeds)}."
        + (" Numbers are mean ± sample standard deviation over the seeds; bands and whiskers go "
           "from the lowest to the highest seed." if several else ""),
        *(["Within a seed, all runs had the same workers, places, data split, initial model "
           "and channel draws."] if equal else []),
        "Nothing here is drawn against rounds: a round may train one worker or all of them. Time "
        "is simulated; data counts every transfer once. For the mean line of a figure a seed is "
        "taken to go straight between its own points; the tables interpolate nothing.",
        "Tables are sorted by time to target. A star marks the best; only a row that reached "
        "the target with every seed can have it.",
    ]  # fmt: skip


def study_notices(every: Sequence[Group]) -> list[str]:
    """Warnings; none when there is nothing to warn about."""
    runs = [run for group in every for run in group.runs]
    return [*about_each(runs), *_few_seeds(every), *_unequal(runs), *_ends(every)]


def _few_seeds(every: Sequence[Group]) -> list[str]:
    counts = {len(group.runs) for group in every}
    if counts == {1}:
        return ["One seed each: a difference may be chance."]
    seeds = {tuple(sorted(group.seeds)) for group in every}
    return ["Not all were run with the same seeds."] if len(seeds) > 1 else []


def _unequal(runs: Sequence[RunData]) -> list[str]:
    """Seeds under which the mechanisms did not meet the same fleet: never from `dystop compare`."""
    fleets: dict[str, set[str]] = {}
    for run in runs:
        counts, places = run.fleet.get("label_counts"), run.fleet.get("positions") or []
        shown = json.dumps([counts, places[: workers(run)]])  # a server may follow the workers
        fleets.setdefault(str(run.info.get("seed")), set()).add(shown)
    odd = [seed for seed, found in fleets.items() if len(found) > 1]
    told = f"Under seed {', '.join(odd)} the runs do not share one fleet and data split."
    return [told] if odd else []


def _ends(every: Sequence[Group]) -> list[str]:
    """Law by law, whether the mechanisms were given about the same simulated time."""
    out = []
    for law in dict.fromkeys(group.timing for group in every):
        under = [group for group in every if group.timing == law]
        ends = [
            (spread.mean, group.label)
            for group in under
            if (spread := over_seeds(rows[-1].clock_s for rows in group.histories)).mean
        ]
        if not ends or (max(ends)[0] or 0.0) <= _FAR_APART * (min(ends)[0] or 0.0):
            continue
        low, high = min(ends), max(ends)
        out.append(
            f"Under the {law} law the runs end at different simulated times, from {seconds(low[0])}"
            f" ({low[1]}) to {seconds(high[0])} ({high[1]}): their final accuracies do not "
            f"compare. The time to target does{_common(under)}."
        )
    return out


def _common(every: Sequence[Group]) -> str:
    """The other thing that compares, where the tables have it."""
    if common_time_s(every) is None:
        return ""
    return ", and so does the accuracy at one common time"
