"""What a reader must know before believing the numbers."""

from collections.abc import Sequence

from dystop.experiments.store import RunData, log_was_changed
from dystop.report.naming import check, identity, labels, status, way_on
from dystop.trainer.catalogue import MODELS
from dystop.units import data

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
