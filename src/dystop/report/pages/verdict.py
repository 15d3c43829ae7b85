"""The verdict page of a recipe: our figure, the paper's numbers, each claim with its verdict."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dystop import __version__
from dystop.experiments.reproduce import RECIPES, Recipe
from dystop.experiments.reproduce.campaigns import Scale
from dystop.experiments.run_folder import RunData
from dystop.report.data.groups import Group
from dystop.report.data.measures import Outcome, Outcomes, Whose, counted
from dystop.report.data.names import identity
from dystop.report.data.notices import guessing, lagging, stand_ins
from dystop.report.data.verdicts import Row, judge
from dystop.report.figures import curves, reproduced
from dystop.report.figures.style import Plot, look
from dystop.report.garbage import spare_the_old
from dystop.report.pages.html import flat, picture, templates
from dystop.report.pages.write import ReportFiles, write_files
from dystop.units import plural

OPEN = (
    ("communication range", "world.range_m", "not stated; 40 m keeps links usable (ADR 0005)"),
    ("fading", "world.channel.coherence_blocks", "one draw has no finite mean time (ADR 0005)"),
    ("timing law", "engine.timing", "eq:duration, literally (ADR 0006)"),
    ("publish rule", "engine.publish", "the equations, literally (ADR 0007)"),
    ("seconds per batch", "world.compute.batch_s", "measured in the paper, not told (ADR 0009)"),
    ("spread of speeds", "world.compute.spread", "a normal coefficient of unknown width"),
    ("end of phase 1", "mechanism.phase_threshold", "t_thre is not told; a quarter (ADR 0010)"),
    ("bandwidth budget", "world.budget.models", "not told; 2 ceil(log2 N) models (ADR 0004)"),
    ("learning rate", "training.learning_rate", "not told; 0.05, 0.02 for SqueezeNet (ADR 0009)"),
    ("mini-batch", "training.batch", "not told; 32, and 64 for ResNet-18 (ADR 0009)"),
    ("batch norm in tests", "evaluate.statistics", "not told; moving averages (ADR 0026)"),
)
"""Settings that the paper leaves open: what it is, our key, why."""

SIZES = {
    "smoke": "Smoke scale: a few workers for a moment. It shows that the recipe runs; "
    "its verdicts mean nothing.",
    "small": "Small scale: fewer workers, less data and less time than the paper. "
    "Directions can be compared, numbers cannot.",
    "paper": "",
}


@dataclass(frozen=True)
class Asked:
    """What was asked for, as a page has to tell it."""

    scale: Scale
    whose: Whose = "own"
    changed: tuple[str, ...] = ()  # KEY=VALUE words
    command: str = ""  # how to get the page again


WHOSE: dict[Whose, list[str]] = {
    "own": [],
    "global": [
        "Accuracy on this page, in claims and figures, is that of the global model, the average of "
        "all models by data size. The paper's is the mean over the workers' own models."
    ],
}
GLOBAL = "the test accuracy of the global model"


def outcomes_of(
    recipe: Recipe, runs: Mapping[str, Sequence[RunData]], whose: Whose = "own"
) -> Outcomes:
    """Runs by the key of their arm, as outcomes in the order of the campaign."""
    return {
        arm.key: Outcome(arm, tuple(counted(run, whose) for run in runs[arm.key]))
        for arm in recipe.campaign.arms
        if runs.get(arm.key)
    }


@spare_the_old()
def write_verdict(recipe: Recipe, asked: Asked, outcomes: Outcomes, out: Path) -> ReportFiles:
    """Write `out/report.html` and its figures."""
    rows = judge(recipe.claims, outcomes)
    plots = [_about(plot, asked.whose) for plot in draw(recipe, outcomes)]
    first = next(iter(outcomes.values())).runs[0]
    page = templates().get_template("verdict.html.jinja").render(
        title=recipe.title,
        version=__version__,
        lead=_lead(asked.scale, outcomes),
        notices=_notices(recipe, asked, outcomes),
        labels=", ".join(recipe.labels),
        rows=rows,
        tally=tally(rows),
        charts=[(plot, picture(plot)) for plot in plots],
        open=_open_settings(first),
        provenance=_provenance(outcomes),
        command=asked.command,
        versions=flat(first.info.get("versions") or {}),
    )  # fmt: skip
    return write_files(out, plots, page, ("png", "pdf"))


def _about(plot: Plot, whose: Whose) -> Plot:
    """A plot whose words name the accuracy that counts."""
    if whose == "own":
        return plot
    return replace(plot, caption=plot.caption.replace(curves.OWN, GLOBAL))


def tally(rows: Sequence[Row]) -> str:
    """How many claims hold.

    >>> tally([Row("a", "", "", "holds"), Row("b", "", "", "holds")])
    '2 hold'
    """
    words = {"holds": "hold", "holds partly": "hold partly", "does not hold": "do not hold",
             "cannot be told": "cannot be told"}  # fmt: skip
    counts = Counter(row.verdict for row in rows)
    told = [f"{n} {words[v] if n > 1 else v}" for v in words if (n := counts[v])]  # type: ignore[index]
    return ", ".join(told) or "no claim in numbers"


def draw(recipe: Recipe, outcomes: Outcomes) -> list[Plot]:
    """The figures of a recipe, one for each split where the arms are split."""
    plots = []
    for kind in recipe.draws:
        if kind == "bars":
            plots.append(reproduced.bars(recipe, outcomes))
        elif kind == "choices":
            plots.append(reproduced.choices(outcomes))
        else:
            plots += _lines(kind, recipe, outcomes)
    return plots


def _lines(kind: str, recipe: Recipe, outcomes: Outcomes) -> list[Plot]:
    """One plot of curves, or one for every phi of a comparison of mechanisms."""
    draws: dict[str, Callable[[Sequence[Group]], Plot]] = {
        "accuracy-time": lambda every: curves.accuracy_time(every, None),
        "loss-time": curves.loss_time,
        "accuracy-bytes": lambda every: curves.accuracy_data(every, None),
    }
    if not recipe.campaign.name.startswith(("main", "testbed")):
        return [draws[kind](_groups(list(outcomes.values())))]
    plots = []
    for phi in dict.fromkeys(o.arm.x for o in outcomes.values()):
        some = _groups([o for o in outcomes.values() if o.arm.x == phi])
        plot = draws[kind](some)
        plots.append(
            replace(plot, key=f"{plot.key}-phi{phi:g}", title=f"{plot.title}, phi = {phi:g}")
        )
    return plots


def _groups(outcomes: Sequence[Outcome]) -> list[Group]:
    return [
        Group(
            o.arm.label + identity(o.runs[0]).caveat, *look(reproduced.place(o.arm.label, k)),
            len(outcomes) > 1,
            mechanism=identity(o.runs[0]), timing=str(o.runs[0].info.get("timing")), runs=o.runs,
        )
        for k, o in enumerate(outcomes)
    ]  # fmt: skip


def _notices(recipe: Recipe, asked: Asked, outcomes: Outcomes) -> list[str]:
    """What must be known before a verdict is believed."""
    runs = [run for outcome in outcomes.values() for run in outcome.runs]
    idle = [] if asked.scale == "smoke" else guessing(runs)  # too short to learn anything
    changed = [f"Changed from the recipe: {', '.join(asked.changed)}."] if asked.changed else []
    known = [*stand_ins(runs), *lagging(runs), *idle]
    return [*_words(asked), *changed, *_partial(recipe, outcomes), *known]


def _words(asked: Asked) -> list[str]:
    """Whose accuracy counts and how large the runs were, where that is not the paper's."""
    return [*WHOSE[asked.whose], *([SIZES[asked.scale]] if SIZES[asked.scale] else [])]


def _partial(recipe: Recipe, outcomes: Outcomes) -> list[str]:
    """What is said while runs are missing."""
    done, total = len(outcomes), len(recipe.campaign.arms)
    if done == total:
        return []
    return [f"{done} of {total} settings are done; claims about the others are left out."]


def _lead(scale: Scale, outcomes: Outcomes) -> str:
    runs = sum(len(o.runs) for o in outcomes.values())
    seeds = max(len(o.runs) for o in outcomes.values())
    counts = plural(len(outcomes), "setting"), plural(seeds, "seed"), plural(runs, "run")
    return f"{', '.join(counts)} at {scale} scale."


def _open_settings(run: RunData) -> list[tuple[str, str, str, str]]:
    found = dict(flat(run.config))
    return [(what, key, str(found.get(key, "")) or "unset", why) for what, key, why in OPEN]


def _provenance(outcomes: Outcomes) -> list[str]:
    """Mechanisms that could not be followed exactly."""
    found = dict.fromkeys(identity(o.runs[0]).title for o in outcomes.values())
    return [title for title in found if "(paper)" not in title]


def whole_paper(pages: Mapping[str, Outcomes], asked: Asked, suffix: str) -> str:
    """One page for everything that was reproduced at a scale: recipes by name, with their runs."""
    judged = {name: judge(RECIPES[name].claims, outcomes) for name, outcomes in pages.items()}
    every = [row for rows in judged.values() for row in rows]
    return templates().get_template("paper.html.jinja").render(
        title="The paper's evaluation, reproduced",
        version=__version__,
        lead=f"{len(pages)} of {len(RECIPES)} recipes at {asked.scale} scale: {tally(every)}.",
        notices=_words(asked),
        suffix=suffix,
        recipes=[
            (RECIPES[name], [*_partial(RECIPES[name], pages[name]), tally(rows)], rows)
            for name, rows in judged.items()
        ],
    )  # fmt: skip
