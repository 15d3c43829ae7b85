"""What a reader must know before believing the numbers."""

import json
from collections.abc import Sequence

from dystop.experiments.run_folder import RunData, log_was_changed
from dystop.report.data.groups import Group, common_time_s, over_seeds
from dystop.report.data.names import check, identity, labels, status, way_on, workers
from dystop.training.models.catalogue import MODELS
from dystop.units import data, seconds

_EPOCHS = 3  # after which any model should have learnt something
_LUCK = 1.1  # times the accuracy of a guess: chance alone hardly gives more


def notices(runs: Sequence[RunData]) -> list[str]:
    """Sentences for the top of the page; none when there is nothing to warn about."""
    return [*about_each(runs), *_incomparable(runs)]


def about_each(runs: Sequence[RunData]) -> list[str]:
    """What is to be known about single runs, whatever they are compared with."""
    doubts = (_real, _unfinished, _changed, _unscored, _diverged,
              guessing, stand_ins, lagging, _provenance)  # fmt: skip
    return [sentence for doubt in doubts for sentence in doubt(runs)]


def _real(runs: Sequence[RunData]) -> list[str]:
    """Runs whose seconds really passed, on a page that calls them simulated."""
    return [
        f"{label} ran on the testbed: its seconds were measured on real processes, not simulated."
        for label, run in zip(labels(runs), runs, strict=True)
        if run.info.get("kind") == "testbed"
    ]


def _unfinished(runs: Sequence[RunData]) -> list[str]:
    words = {
        "interrupted": "was interrupted; its numbers stop where it stopped",
        "running": "was still running when this report was written",
        "failed": "failed; its numbers stop where it failed",
    }
    out = []
    for label, run in zip(labels(runs), runs, strict=True):
        state = status(run)
        on = f"; go on with it by: {way_on(run)}" if state == "interrupted" else "."
        out += [f"{label} {words[state]}{on}"] if state in words else []
    return out


def _changed(runs: Sequence[RunData]) -> list[str]:
    """Finished runs whose records are no longer those that they ended with."""
    return [
        f"{label}: the record log was cut or changed after the run ended; figures and numbers here"
        f" may be wrong; check with: {check(run)}"
        for label, run in zip(labels(runs), runs, strict=True)
        if log_was_changed(run)
    ]


def _unscored(runs: Sequence[RunData]) -> list[str]:
    out = []
    for label, run in zip(labels(runs), runs, strict=True):
        if not run.records:
            out.append(f"{label} has not closed a round yet.")
        elif all(r.accuracy is None for r in run.records):
            out.append(f"{label} has not been evaluated yet: it has no accuracy.")
    return out


def _diverged(runs: Sequence[RunData]) -> list[str]:
    """Runs in which some model's loss was no longer a number at the last evaluation."""
    out = []
    for label, run in zip(labels(runs), runs, strict=True):
        lost = [r.diverged for r in run.records if r.diverged is not None][-1:]
        if lost and lost[0]:
            workers = len(run.fleet.get("data_size", [])) or "all"
            out.append(
                f"{label}: {lost[0]} of {workers} models have diverged, their loss is not a"
                " finite number; a smaller training.learning_rate may help."
            )
    return out


def guessing(runs: Sequence[RunData]) -> list[str]:
    """Runs that have seen all data several times and learnt nothing."""
    out = []
    for label, run in zip(labels(runs), runs, strict=True):
        classes = len((run.fleet.get("label_counts") or [[]])[0])
        last = [r for r in run.records if r.accuracy is not None][-1:]
        for r in last:
            best = max(r.accuracy or 0.0, r.accuracy_global or 0.0)
            if r.epochs_total >= _EPOCHS and best * classes < _LUCK:
                out.append(
                    f"{label}: after {r.epochs_total:.0f} epochs its models are no better than "
                    f"guessing among {classes} classes. Something is wrong; try another "
                    "training.learning_rate, or training.device=cpu."
                )
    return out


def stand_ins(runs: Sequence[RunData]) -> list[str]:
    """Runs that train a small model and send one of another size."""
    sizes = {
        (str(model.get("name")), model["wire_bytes"])
        for run in runs
        if (model := run.config.get("model") or {}).get("wire_bytes")
    }
    return [
        f"A stand-in: clock, plans and traffic are those of a model of {data(size)}, accuracy and "
        f"loss are those of {name}, which was trained in its place (model.wire_bytes)."
        for name, size in sorted(sizes)
    ]


def lagging(runs: Sequence[RunData]) -> list[str]:
    """Models that are tested with moving averages of batch norm's statistics."""
    names = {
        str((run.config.get("model") or {}).get("name"))
        for run in runs
        if (run.config.get("evaluate") or {}).get("statistics", "running") == "running"
        and run.info.get("kind") != "testbed"  # where they cannot be computed anew
    }
    return [
        f"{name} has batch norm, and was tested with moving averages of its statistics: they can "
        "lag behind the weights and cost many points; evaluate.statistics=recomputed tests with "
        "fitting ones."
        for name in sorted(names)
        if name in MODELS and MODELS[name].batch_norm
    ]


def _provenance(runs: Sequence[RunData]) -> list[str]:
    rebuilt = sorted({m.name for m in map(identity, runs) if "reconstruction" in m.provenance})
    verb = "is a reconstruction" if len(rebuilt) == 1 else "are reconstructions"
    text = (
        f"{', '.join(rebuilt)} {verb}: the original could not be followed in every detail, so "
        "these numbers do not reproduce the published ones."
    )
    return [text] if rebuilt else []


def _incomparable(runs: Sequence[RunData]) -> list[str]:
    """Differences that make a comparison between the runs unfair."""
    out = []
    if len({str(run.info.get("timing")) for run in runs}) > 1:
        out.append("The runs use different timing laws: their simulated times do not compare.")
    if len({str(run.info.get("publish")) for run in runs}) > 1:
        out.append("The runs use different publish rules: pulls return models of different age.")
    if len({str(run.fleet.get("label_counts")) for run in runs}) > 1:
        out.append("The runs do not share one data split.")
    if len({run.path for run in runs}) < len(runs):
        out.append("The same run folder is listed more than once.")
    return out


# MERGED: What a reader of a comparison must know: what was equal, what was not, and what a band
#   means.


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
