"""Warnings that a reader needs before trusting the numbers of runs or of a comparison."""

import json
from collections import Counter
from collections.abc import Callable, Sequence

from dystop.control.laws import PaperLaw
from dystop.folders.run_folder import RunData, log_was_changed
from dystop.recorders.emulated_trainings import TOO_SLOW, training_slowdown
from dystop.report.data.groups import Group, common_time_s, over_seeds
from dystop.report.data.names import (
    check_command,
    diverged_round,
    is_planned,
    law_name,
    mechanism_of,
    readings_text,
    resume_command,
    run_labels,
    run_status,
    worker_count,
)
from dystop.report.data.scores import evaluated_rounds
from dystop.report.data.settings import experiment_settings, plain_value
from dystop.report.data.time_shares import time_shares
from dystop.runs.common_time import unequal_ends
from dystop.runs.progress_text import slowdown_text
from dystop.training.models.catalogue import MODELS
from dystop.types import OUR
from dystop.units import data, percent, plural
from dystop.world.describe import start_notices

_MIN_EPOCHS = 3  # after which any model should have learnt something
_CHANCE_FACTOR = 1.1  # times the accuracy of guessing: chance alone hardly gives more
_MOSTLY_WAITING = 0.5  # share of worker time
_LARGE_LOSS = 1e3  # cross-entropy of guessing is ln K, below 12 for 100,000 classes
_OWN_SENTENCE = ("engine.timing", "engine.publish")  # keys whose difference has one
_MAX_KEYS, _MAX_VALUES = 5, 40  # settings that a note lists, and letters of their values
_NOT_NEGATIVE = {"d-psgd": "metropolis", "matcha": "nonnegative"}
"""Weights that are never negative, for mechanisms whose weights "optimal" may be."""


def notices(runs: Sequence[RunData]) -> list[str]:
    """Return the warnings for the report of one run or several."""
    repeated = len({run.path for run in runs}) < len(runs)
    return [
        *different_experiments(runs),
        *run_notices(runs),
        *(["The same run folder is listed more than once."] if repeated else []),
    ]


def run_notices(runs: Sequence[RunData]) -> list[str]:
    """Return the warnings about single runs."""
    checks = (
        _on_testbed, _slow_trainings, _planning_only, _unfinished, _changed_records,
        _not_evaluated, _missing_scores,
        _few_models, _diverged, serialised_by_law, _known_at_the_start, no_better_than_guessing,
        stand_in_models, moving_batch_norm, _reconstructions, _our_parts,
    )  # fmt: skip
    return [sentence for check in checks for sentence in check(runs)]


def _on_testbed(runs: Sequence[RunData]) -> list[str]:
    """Name the runs with a measured clock, on a page that calls time simulated."""
    return [
        f"{label} ran on the testbed: its seconds are measured on real processes, not simulated."
        for label, run in zip(run_labels(runs), runs, strict=True)
        if run.info.get("kind") == "testbed"
    ]


def _slow_trainings(runs: Sequence[RunData]) -> list[str]:
    """Name the testbed runs whose machine was too slow for the devices that it emulated."""
    slowdowns = [training_slowdown(run.records) or 0.0 for run in runs]
    return [
        f"{label}: {slowdown_text(slowdown)}."
        for label, slowdown in zip(run_labels(runs), slowdowns, strict=True)
        if slowdown > TOO_SLOW
    ]


def _planning_only(runs: Sequence[RunData]) -> list[str]:
    """Name the runs that trained no model, in one sentence where all did not."""
    planned = [label for label, run in zip(run_labels(runs), runs, strict=True) if is_planned(run)]
    if not planned:
        return []
    who = "" if len(planned) == len(runs) else f"{', '.join(planned)}: "
    return [
        f"{who}planning only: clock, staleness, traffic and topology were simulated; no model was "
        "trained (engine.train = false), so there is no accuracy and no loss."
    ]


def _unfinished(runs: Sequence[RunData]) -> list[str]:
    sentences = {
        "interrupted": "was interrupted; its numbers end there",
        "running": "was still running when this report was written",
        "failed": "failed; its numbers end there",
    }
    out = []
    for label, run in zip(run_labels(runs), runs, strict=True):
        status = run_status(run)
        end = f". To resume: {resume_command(run)}" if status == "interrupted" else "."
        out += [f"{label} {sentences[status]}{end}"] if status in sentences else []
    return out


def _changed_records(runs: Sequence[RunData]) -> list[str]:
    """Name the finished runs whose records are not those that they ended with."""
    return [
        f"{label}: the record log was truncated or changed after the run ended, so figures and "
        f"numbers may be wrong. To check: {check_command(run)}"
        for label, run in zip(run_labels(runs), runs, strict=True)
        if log_was_changed(run)
    ]


def _not_evaluated(runs: Sequence[RunData]) -> list[str]:
    out = []
    for label, run in zip(run_labels(runs), runs, strict=True):
        if not run.records:
            out.append(f"{label} has not closed a round yet.")
        elif not is_planned(run) and all(r.accuracy is None for r in run.records):
            out.append(f"{label} has not been evaluated yet, so it has no accuracy.")
    return out


def _missing_scores(runs: Sequence[RunData]) -> list[str]:
    """Name the runs in which evaluations that were due have no result, and why."""
    out = []
    for label, run in zip(run_labels(runs), runs, strict=True):
        reasons = Counter(r.no_score for r in run.records if r.no_score is not None)
        if reasons:
            due = reasons.total() + len(evaluated_rounds(run.records))
            counts = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common())
            out.append(
                f"{label}: {reasons.total()} of {plural(due, 'evaluation')} that were due have no "
                f"score ({counts}). Evaluate less often, or give the observer more time or cores."
            )
    return out


def _few_models(runs: Sequence[RunData]) -> list[str]:
    """Name the runs with scores that rest on fewer models than there are workers."""
    out = []
    for label, run in zip(run_labels(runs), runs, strict=True):
        workers = worker_count(run)
        tested = [
            r.get("tested") for r in evaluated_rounds(run.records) if r.get("tested") is not None
        ]
        few = [n for n in tested if n < workers]
        if few:
            out.append(
                f"{label}: {len(few)} of {plural(len(tested), 'score')} rest on fewer models than "
                f"there are workers; the smallest on {min(few)} of {workers}, the last on "
                f"{tested[-1]} of {workers}."
            )
    return out


def _diverged(runs: Sequence[RunData]) -> list[str]:
    """Name the runs whose models diverged: that ended early, or whose last losses show it."""
    return [
        f"{label}: {what}. {divergence_advice(run)}"
        for label, run in zip(run_labels(runs), runs, strict=True)
        if (what := _divergence(run))
    ]


def _divergence(run: RunData) -> str:
    """Return how the models of a run diverged; empty if they did not."""
    if diverged_round(run) is not None:
        return str(run.info.get("stop_reason") or run_status(run))
    lost = [r.get("diverged") for r in run.records if r.get("diverged") is not None][-1:]
    last = [x for r in run.records[-1:] for x in (r.loss, r.get("test_loss")) if x is not None]
    if lost and lost[0]:
        workers = len(run.fleet.get("data_size", [])) or "all"
        return f"{lost[0]} of {workers} models diverged: their loss is not finite"
    if last and max(last) > _LARGE_LOSS:
        return f"training diverged: the loss is {max(last):.3g} at the end"
    return ""


def divergence_advice(run: RunData) -> str:
    """Return the likely reason why models diverged, and what to try."""
    tries = ["a smaller training.learning_rate"]
    reason = "Likely, the learning rate is too large"
    mechanism = run.config.get("mechanism") or {}
    other = _NOT_NEGATIVE.get(str(mechanism.get("name")))
    if other is not None and mechanism.get("weights") == "optimal":
        reason += " for mixing weights that may be negative"
        tries.append(f"mechanism.weights={other}")
    if (run.config.get("adversary") or {}).get("kind", "none") != "none":
        tries.append("an aggregation.rule that withstands attackers")
    return f"{reason}. Try {', or '.join(tries)}."


def serialised_by_law(runs: Sequence[RunData]) -> list[str]:
    """Name the mechanisms that wait most of the time because the paper's law serialises them."""
    waits: dict[str, list[float]] = {}
    for run in runs:
        shares = time_shares(run.records)
        if law_name(run) == PaperLaw.name and run.info.get("kind") != "testbed" and shares:
            waits.setdefault(mechanism_of(run).name, []).append(shares.waiting_round)
    one_law = len({law_name(run) for run in runs}) == 1
    see = " See engine.timing=overlap, or dystop compare --timing both." if one_law else ""
    return [
        f"{name} waits for rounds {percent(mean)} of the time: under engine.timing = "
        '"paper" nobody trains on while one worker pulls or pushes, so a mechanism that wakes few '
        f"workers at a time looks slow.{see}"
        for name, shares in waits.items()
        if (mean := sum(shares) / len(shares)) > _MOSTLY_WAITING
    ]


def _known_at_the_start(runs: Sequence[RunData]) -> list[str]:
    """Name the runs whose network is in pieces, or whose compressed links move the mean model."""
    found: dict[str, list[str]] = {}
    for label, run in zip(run_labels(runs), runs, strict=True):
        for notice in start_notices(run.fleet.get("physics", {})):
            found.setdefault(notice, []).append(label)
    return [f"{_some_of(labels)}: {notice}." for notice, labels in found.items()]


def _some_of(labels: Sequence[str]) -> str:
    """Return a few names, and how many more there are.

    >>> _some_of(["a"]), _some_of(["a", "b", "c", "d"])
    ('a', 'a and 3 more runs')
    """
    return (
        labels[0] if len(labels) == 1 else f"{labels[0]} and {plural(len(labels) - 1, 'more run')}"
    )


def no_better_than_guessing(runs: Sequence[RunData]) -> list[str]:
    """Name the runs that passed over the data several times and learnt nothing."""
    out = []
    for label, run in zip(run_labels(runs), runs, strict=True):
        if run.fleet.get("task"):  # another task than to tell the classes apart
            continue
        classes = len((run.fleet.get("label_counts") or [[]])[0])
        for last in evaluated_rounds(run.records)[-1:]:
            best = max(last.accuracy or 0.0, last.get("accuracy_global") or 0.0)
            if last.epochs_total >= _MIN_EPOCHS and best * classes < _CHANCE_FACTOR:
                out.append(
                    f"{label}: after {last.epochs_total:.0f} epochs its models are no better than "
                    f"guessing among {classes} classes. Something is wrong: try another "
                    "training.learning_rate, or training.device=cpu."
                )
    return out


def stand_in_models(runs: Sequence[RunData]) -> list[str]:
    """Name the runs that train one model and transfer the bytes of another."""
    sizes = {
        (str(model.get("name")), model["wire_bytes"])
        for run in runs
        if (model := run.config.get("model") or {}).get("wire_bytes") and not is_planned(run)
    }
    return [
        f"Stand-in model: clock, plans and traffic are those of a model of {data(size)}; "
        f"accuracy and loss are those of {name}, which was trained instead (model.wire_bytes)."
        for name, size in sorted(sizes)
    ]


def moving_batch_norm(runs: Sequence[RunData]) -> list[str]:
    """Name the models that are evaluated with moving averages of batch-norm statistics."""
    names = {
        str((run.config.get("model") or {}).get("name"))
        for run in runs
        if (run.config.get("evaluate") or {}).get("statistics", "running") == "running"
        and run.info.get("kind") != "testbed"  # which cannot recompute them
        and not is_planned(run)
    }
    return [
        f"{name} has batch norm and was evaluated with moving averages of its statistics. They "
        "can lag behind the weights and cost many points of accuracy; "
        "evaluate.statistics=recomputed recomputes them before an evaluation."
        for name in sorted(names)
        if name in MODELS and MODELS[name].batch_norm
    ]


def _reconstructions(runs: Sequence[RunData]) -> list[str]:
    rebuilt = sorted({m.name for m in map(mechanism_of, runs) if "reconstruction" in m.provenance})
    verb = "is a reconstruction" if len(rebuilt) == 1 else "are reconstructions"
    text = (
        f"{', '.join(rebuilt)} {verb}: not every detail of the original is known, so "
        "these numbers do not reproduce the published ones."
    )
    return [text] if rebuilt else []


def _our_parts(runs: Sequence[RunData]) -> list[str]:
    """Name the mechanisms that follow a source, but for some parts."""
    found = {m.name: m for m in map(mechanism_of, runs) if m.ours}
    return [
        f"{name} follows its {found[name].provenance.partition(OUR)[0]}, but its "
        f"{found[name].ours} are ours: these numbers need not be those of its authors."
        for name in sorted(found)
    ]


def different_experiments(runs: Sequence[RunData]) -> list[str]:
    """Say why the numbers of runs do not compare; empty where they are runs of one experiment."""
    out = _different_settings(runs)
    if len({run.info.get("kind") == "testbed" for run in runs}) > 1:
        out.append("Some seconds are measured and others simulated: they do not compare.")
    if len({law_name(run) for run in runs}) > 1:
        out.append("The runs use different timing laws: their simulated times do not compare.")
    if len({str(run.info.get("publish")) for run in runs}) > 1:
        out.append("The runs use different publish rules: pulls return models of different age.")
    by_settings = _by_settings(runs, lambda run: str(run.fleet.get("label_counts")))
    if any(len(found) > 1 for found in by_settings.values()):
        out.append("The runs do not share one data split.")
    return out


def _different_settings(runs: Sequence[RunData]) -> list[str]:
    """Name the settings in which runs are different experiments, those of the clock apart."""
    found = [row for row in experiment_settings(runs) if row[0] not in _OWN_SENTENCE]
    if not found:
        return []
    texts = [f"{key} = {_values_text(values)}" for key, values in found[:_MAX_KEYS]]
    more = len(found) - len(texts)
    rest = f"; and {plural(more, 'more key')}, listed under Settings" if more else ""
    return [
        "These runs are different experiments, so no value is marked as the best: "
        f"{'; '.join(texts)}{rest}."
    ]


def _values_text(values: Sequence[str]) -> str:
    """Return distinct values in the order of the runs, or how many there are.

    >>> _values_text(['"cnn"', '"softmax"', '"cnn"']), _values_text([f"{k}e9" for k in range(20)])
    ('cnn, softmax', '20 values')
    """
    distinct = list(dict.fromkeys(map(plain_value, values)))
    text = ", ".join(distinct)
    return text if len(text) <= _MAX_VALUES else f"{len(distinct)} values"


def study_notes(groups: Sequence[Group]) -> list[str]:
    """Return sentences on how to read the numbers of a comparison."""
    seeds = list(dict.fromkeys(seed for group in groups for seed in group.seeds))
    several = len(seeds) > 1
    runs = [run for group in groups for run in group.runs]
    fleets = {(str(run.info.get("seed")), _fleet_text(run)) for run in runs}
    equal = len(fleets) == len(seeds)
    return [
        f"Seed{'s' if several else ''} {', '.join(seeds)}."
        + (" Numbers are mean ± sample standard deviation over the seeds; bands and whiskers go "
           "from the lowest to the highest seed." if several else ""),
        *(["Within a seed, all runs had the same workers, positions, data split, initial model "
           "and channel draws."] if equal else []),
        "No figure has rounds on its axis: a round may train one worker or all of them. Time "
        "is simulated; data counts every transfer once. The mean line of a figure interpolates "
        "each seed linearly between its own points; the tables interpolate nothing.",
        readings_note(runs),
        "The rows of a comparison are sorted by time to target, those of a sweep as they were "
        "typed. A star marks the best value among rows that compare; only a row that reached the "
        "target with every seed can have it, and none has it for its time where rows tie.",
    ]  # fmt: skip


def readings_note(runs: Sequence[RunData]) -> str:
    """Return the sentence that says how these runs read what the paper leaves open."""
    return f"Readings of what the paper leaves open: {readings_text(runs)}."


def study_notices(groups: Sequence[Group]) -> list[str]:
    """Return the warnings for the report of a comparison or a sweep."""
    runs = [run for group in groups for run in group.runs]
    return [
        *run_notices(runs), *_few_seeds(groups), *_unequal_fleets(runs), *_unequal_ends(groups)
    ]  # fmt: skip


def _few_seeds(groups: Sequence[Group]) -> list[str]:
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return ["One seed each: a difference may be chance."]
    seeds = {tuple(sorted(group.seeds)) for group in groups}
    return ["The rows do not all have the same seeds."] if len(seeds) > 1 else []


def _unequal_fleets(runs: Sequence[RunData]) -> list[str]:
    """Name the seeds whose runs have different fleets; `dystop compare` never makes such runs."""
    by_settings = _by_settings(runs, _fleet_text)
    unequal = list(
        dict.fromkeys(seed for (seed, _), found in by_settings.items() if len(found) > 1)
    )
    sentence = f"With seed {', '.join(unequal)} the runs do not share one fleet and data split."
    return [sentence] if unequal else []


def _fleet_text(run: RunData) -> str:
    """Return data split and positions as text, without a server at the end."""
    counts, positions = run.fleet.get("label_counts"), run.fleet.get("positions") or []
    return json.dumps([counts, positions[: worker_count(run)]])


def _by_settings(
    runs: Sequence[RunData], of: Callable[[RunData], str]
) -> dict[tuple[str, str], set[str]]:
    """Collect what runs have in common whose seed and settings of data and world are the same."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        settings = [run.config.get(section) for section in ("fleet", "data", "world")]
        key = str(run.info.get("seed")), json.dumps(settings, default=str)
        found.setdefault(key, set()).add(of(run))
    return found


def _unequal_ends(groups: Sequence[Group]) -> list[str]:
    """Name the timing laws under which groups end at very different clock times."""
    out = []
    for law in dict.fromkeys(group.law for group in groups):
        same_law = [group for group in groups if group.law == law]
        if all(is_planned(run) for group in same_law for run in group.runs):
            continue  # no accuracies to compare
        spreads = [
            (group.label, over_seeds(rows[-1].clock_s for rows in group.histories))
            for group in same_law
        ]
        if what := unequal_ends({label: s.mean for label, s in spreads if s.mean is not None}):
            common = common_time_s(same_law)
            comparable = "" if common is None else " and the accuracy at a common time"
            out.append(f"Under the {law} law {what}. Compare the time to target{comparable}.")
    return out
