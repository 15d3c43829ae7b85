"""The verdict page of a recipe, with one verdict per claim, and the page of the whole paper."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dystop.config import Experiment
from dystop.config.keys import keys_of
from dystop.folders.run_folder import RunData
from dystop.report.data.groups import Group
from dystop.report.data.names import law_name, mechanism_of, readings_text
from dystop.report.data.notices import (
    moving_batch_norm,
    no_better_than_guessing,
    stand_in_models,
)
from dystop.report.data.settings import UNSET, setting_rows
from dystop.report.figures.comparison import curves
from dystop.report.figures.style import Plot
from dystop.report.pages.files import ReportFiles, write_files
from dystop.report.pages.html import inline_figures, render_template
from dystop.units import plural
from dystop_paper.data.measures import AccuracyOf, ArmRuns, RunsByArm, with_accuracy_of
from dystop_paper.data.verdicts import ClaimVerdict, Verdict, judge_claims
from dystop_paper.figures import reproduced
from dystop_paper.reproduce.campaigns import Scale
from dystop_paper.reproduce.presets import NEAREST
from dystop_paper.reproduce.recipes import RECIPES, Recipe

OPEN_SETTINGS = (
    ("communication range", "world.range_m", "not stated; 40 m keeps links usable (ADR 0005)"),
    ("noise", "world.channel.noise", "a power by name, squared in the formula (ADR 0005)"),
    ("fading", "world.channel.coherence_blocks", "one draw has no finite mean time (ADR 0005)"),
    ("timing law", "engine.timing", "eq:duration, literally (ADR 0006)"),
    ("publish rule", "engine.publish", "the equations, literally (ADR 0006)"),
    ("seconds per batch", "world.compute.batch_s", "measured in the paper, not stated (ADR 0009)"),
    ("spread of speeds", "world.compute.spread", "a normal coefficient of unknown width"),
    ("end of phase 1", "mechanism.phase_threshold", "t_thre not stated; a quarter (ADR 0009)"),
    ("bandwidth budget", "world.budget.models", "not stated; 2 ceil(log2 N) models (ADR 0004)"),
    ("budgets bind", "world.budget.binds", "not stated for other mechanisms (ADR 0004)"),
    ("tested models", "evaluate.model", "before or after training: not stated (ADR 0044)"),
    ("learning rate", "training.learning_rate",
     "not stated; 0.05, 0.02 for SqueezeNet (ADR 0009)"),
    ("mini-batch", "training.batch", "not stated; 32, and 64 for ResNet-18 (ADR 0009)"),
    ("batch norm in tests", "evaluate.statistics", "not stated; moving averages (ADR 0009)"),
)  # fmt: skip
"""Settings that the paper leaves open: name, configuration key, reason for our value."""

SCALE_NOTES = {
    "smoke": "Smoke scale: a few workers for a short time. It shows that the recipe runs; "
    "its verdicts mean nothing.",
    "small": "Small scale: fewer workers, less data and less time than the paper. "
    "Directions can be compared, numbers cannot.",
    "paper": "",
}

ACCURACY_NOTES: dict[AccuracyOf, list[str]] = {
    "own": [],
    "global": [
        "Accuracy on this page, in claims and figures, is that of the global model, the average of "
        "all models by data size. The paper's is the mean over the workers' own models."
    ],
}
GLOBAL_ACCURACY = "the test accuracy of the global model"

_PLURALS: dict[Verdict, str] = {
    "holds": "hold",
    "holds partly": "hold partly",
    "does not hold": "do not hold",
    "undecided": "undecided",
}


@dataclass(frozen=True)
class VerdictRequest:
    """What was requested, as far as a page shows it."""

    scale: Scale
    accuracy_of: AccuracyOf = "own"
    overrides: tuple[str, ...] = ()  # KEY=VALUE words
    command: str = ""  # writes the page again
    reading: str = ""  # preset of the runs


@dataclass(frozen=True)
class VerdictReport:
    """The files of a written verdict page, and the verdicts that it shows."""

    files: ReportFiles
    verdicts: list[ClaimVerdict]


def arm_runs(
    recipe: Recipe, runs: Mapping[str, Sequence[RunData]], accuracy_of: AccuracyOf = "own"
) -> RunsByArm:
    """Collect the runs of every arm that has some, in the order of the campaign."""
    return {
        arm.key: ArmRuns(arm, tuple(with_accuracy_of(run, accuracy_of) for run in runs[arm.key]))
        for arm in recipe.campaign.arms
        if runs.get(arm.key)
    }


def write_verdict(
    recipe: Recipe, request: VerdictRequest, runs: RunsByArm, out: Path
) -> VerdictReport:
    """Judge the claims of a recipe; write `out/report.html` and its figures."""
    verdicts = judge_claims(recipe.claims, runs)
    plots = [_caption_for(plot, request.accuracy_of) for plot in draw_recipe(recipe, runs)]
    first = next(iter(runs.values())).runs[0]
    page = render_template(
        "verdict.html.jinja",
        package="dystop_paper",
        title=recipe.title,
        lead=_lead(request.scale, runs),
        notices=_notices(recipe, request, runs),
        labels=", ".join(recipe.labels),
        rows=verdicts,
        counts=count_verdicts(verdicts),
        charts=inline_figures(plots),
        open_settings=_open_settings(first),
        readings=_readings(request, [run for arm in runs.values() for run in arm.runs]),
        provenance=_provenance(runs),
        command=request.command,
        versions=setting_rows(first.info.get("versions") or {}),
    )
    return VerdictReport(write_files(out, plots, page, ("png", "pdf")), verdicts)


def _caption_for(plot: Plot, accuracy_of: AccuracyOf) -> Plot:
    """Return the plot with a caption that names the accuracy in use."""
    if accuracy_of == "own":
        return plot
    return replace(plot, caption=plot.caption.replace(curves.OWN_ACCURACY, GLOBAL_ACCURACY))


def count_verdicts(rows: Sequence[ClaimVerdict]) -> str:
    """Return how many claims have each verdict.

    >>> count_verdicts([ClaimVerdict("a", "", "", "holds"), ClaimVerdict("b", "", "", "holds")])
    '2 hold'
    """
    counts = Counter(row.verdict for row in rows)
    texts = [
        f"{counts[verdict]} {several if counts[verdict] > 1 else verdict}"
        for verdict, several in _PLURALS.items()
        if counts[verdict]
    ]
    return ", ".join(texts) or "no claim in numbers"


def draw_recipe(recipe: Recipe, runs: RunsByArm) -> list[Plot]:
    """Draw the figures of a recipe."""
    plots = []
    for kind in recipe.draws:
        if kind == "bars":
            plots.append(reproduced.bars(recipe, runs))
        elif kind == "choices":
            plots.append(reproduced.choices(runs))
        else:
            plots += _draw_curves(kind, recipe, runs)
    return plots


def _draw_curves(kind: str, recipe: Recipe, runs: RunsByArm) -> list[Plot]:
    """Draw one plot of curves, or one per phi where a campaign compares mechanisms."""
    draws: dict[str, Callable[[Sequence[Group]], Plot]] = {
        "accuracy-time": lambda groups: curves.accuracy_time(curves.in_one(groups), None),
        "loss-time": lambda groups: curves.loss_time(curves.in_one(groups)),
        "accuracy-bytes": lambda groups: curves.accuracy_data(curves.in_one(groups), None),
    }
    if not recipe.campaign.name.startswith(("main", "testbed")):
        return [draws[kind](_groups(list(runs.values())))]
    plots = []
    for phi in dict.fromkeys(o.arm.x for o in runs.values()):
        plot = draws[kind](_groups([o for o in runs.values() if o.arm.x == phi]))
        title = f"{plot.title}, phi = {phi:g}"
        plots.append(replace(plot, key=f"{plot.key}-phi{phi:g}", title=title))
    return plots


def _groups(arms: Sequence[ArmRuns]) -> list[Group]:
    return [
        Group(
            label=o.arm.label + mechanism_of(o.runs[0]).caveat,
            color_index=reproduced.mechanism_index(o.arm.label, k),
            mechanism=mechanism_of(o.runs[0]),
            law=law_name(o.runs[0]),
            runs=o.runs,
        )
        for k, o in enumerate(arms)
    ]


def _notices(recipe: Recipe, request: VerdictRequest, runs: RunsByArm) -> list[str]:
    """Return the warnings that a reader needs before trusting a verdict."""
    every = [run for arm in runs.values() for run in arm.runs]
    overrides = ", ".join(request.overrides)
    return [
        *_request_notes(request),
        *([f"Changed settings: {overrides}."] if overrides else []),
        *_missing_arms(recipe, runs),
        *stand_in_models(every),
        *moving_batch_norm(every),
        *([] if request.scale == "smoke" else no_better_than_guessing(every)),  # smoke is too short
    ]


def _request_notes(request: VerdictRequest) -> list[str]:
    """Return notes on the accuracy and the scale, where they are not the paper's."""
    scale = SCALE_NOTES[request.scale]
    return [*ACCURACY_NOTES[request.accuracy_of], *([scale] if scale else [])]


def _missing_arms(recipe: Recipe, runs: RunsByArm) -> list[str]:
    done, total = len(runs), len(recipe.campaign.arms)
    if done == total:
        return []
    return [f"{done} of {total} settings are done; claims about the others are left out."]


def _lead(scale: Scale, runs: RunsByArm) -> str:
    total = sum(len(o.runs) for o in runs.values())
    seeds = max(len(o.runs) for o in runs.values())
    counts = plural(len(runs), "setting"), plural(seeds, "seed"), plural(total, "run")
    return f"{', '.join(counts)} at {scale} scale."


def _open_settings(run: RunData) -> list[tuple[str, str, str, str]]:
    found = {k.name: json.dumps(k.default) for k in keys_of(Experiment) if k.default is not None}
    found |= dict(setting_rows(run.config))
    return [
        (name, key, str(found.get(key, "")) or UNSET, reason) for name, key, reason in OPEN_SETTINGS
    ]


def _provenance(runs: RunsByArm) -> list[str]:
    """Return the mechanisms whose code does not follow the paper."""
    found = dict.fromkeys(mechanism_of(o.runs[0]).title for o in runs.values())
    return [title for title in found if "(paper)" not in title]


def _readings(request: VerdictRequest, runs: Sequence[RunData]) -> str:
    text = readings_text(runs)
    return f"{NEAREST}: {text}" if request.reading == NEAREST else text  # no run knows its name


def render_paper(pages: Mapping[str, RunsByArm], request: VerdictRequest, suffix: str) -> str:
    """Return one page for all recipes that were reproduced at a scale.

    Args:
        pages: The runs of every recipe that has a page, by its name.
        request: Scale and accuracy of the pages.
        suffix: End of the names of the recipes' folders.
    """
    judged = {name: judge_claims(RECIPES[name].claims, runs) for name, runs in pages.items()}
    every = [row for rows in judged.values() for row in rows]
    counts = count_verdicts(every)
    runs = [run for arms in pages.values() for arm in arms.values() for run in arm.runs]
    return render_template(
        "paper.html.jinja",
        package="dystop_paper",
        title="The paper's evaluation, reproduced",
        lead=f"{len(pages)} of {len(RECIPES)} recipes at {request.scale} scale: {counts}.",
        notices=_request_notes(request),
        suffix=suffix,
        readings=_readings(request, runs),
        recipes=[
            (
                RECIPES[name],
                [*_missing_arms(RECIPES[name], pages[name]), count_verdicts(rows)],
                rows,
            )
            for name, rows in judged.items()
        ],
    )
