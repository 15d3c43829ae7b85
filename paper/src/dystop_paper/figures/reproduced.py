"""Figures of a reproduction: a measure for every arm, with the numbers of the paper."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dystop.report.data.names import mechanism_of
from dystop.report.figures.style import INK, MUTED, Plot, color_and_marker, figure_style, new_figure
from dystop_paper.data.measures import (
    ArmRuns,
    RunsByArm,
    format_spread,
    reachable_target,
    target_suffix,
)
from dystop_paper.reproduce.campaigns import CHOICES, NAMES, RIVALS, choice_key
from dystop_paper.reproduce.paper_claims import Figure as Number
from dystop_paper.reproduce.paper_claims import Measure
from dystop_paper.reproduce.recipes import Recipe

_AXES: dict[Measure, str] = {
    "time": "simulated seconds{target}",
    "bytes": "bytes, both ends{target}",
    "accuracy": "test accuracy at the end",
    "staleness": "mean staleness (rounds)",
}
_OURS = "Bars: our mean over the seeds; whiskers: lowest to highest seed"
_SQUARES = "Squares: the paper's numbers for the same target."
_NO_SQUARES = "The paper has no numbers for these targets."
_SQUARE: dict[str, Any] = {"color": INK, "marker": "s", "linestyle": "none", "fillstyle": "none"}


@figure_style()
def bars(recipe: Recipe, runs: RunsByArm) -> Plot:
    """Draw a measure for every arm, with the paper's number where there is one."""
    measure = recipe.measures[0]
    targets = _targets(recipe, runs, measure)
    shown, paper = list(runs.values()), _paper_values(recipe, targets, measure)
    caption = f"{_OURS}. {_SQUARES if paper else _NO_SQUARES}"
    plot = Plot(recipe.name, recipe.title, caption)
    figure, axes = new_figure([*_handles(shown), *([_square()] if paper else [])], height_in=3.2)
    values = [_draw_bar(axes, k, o, measure, targets[o.arm.key]) for k, o in enumerate(shown)]
    axes.plot(list(paper), list(paper.values()), markersize=6, **_SQUARE)
    suffixes = [target_suffix(targets[o.arm.key]) for o in shown]
    differ = len(set(suffixes)) > 1
    ticks = [
        _tick(o) + (suffix.replace(" to ", ": ") if differ else "")
        for o, suffix in zip(shown, suffixes, strict=True)
    ]
    axes.set_xticks(range(len(shown)), ticks, rotation=30, ha="right")
    axes.set_ylabel(_AXES[measure].format(target=" to the target" if differ else suffixes[0]))
    axes.set_ylim(bottom=0)
    return plot.with_figure(figure, f"Bar chart. {'; '.join(values)}.")


def _targets(recipe: Recipe, runs: RunsByArm, measure: Measure) -> dict[str, float | None]:
    """Return the target of each arm: the paper's, or one that every run of DySTop reaches."""
    if measure not in ("time", "bytes"):
        return dict.fromkeys(runs)
    own = [o for o in runs.values() if o.arm.key.startswith("dystop")]
    shared = reachable_target(own or list(runs.values()), None)
    targets: dict[str, float | None] = dict.fromkeys(runs, shared)
    for claim in recipe.claims:
        if isinstance(claim, Number) and claim.target and claim.arm in runs:
            chosen = runs.get(claim.set_by or claim.arm)
            targets[claim.arm] = reachable_target([chosen], claim.target) if chosen else shared
    return targets


def _tick(arm_runs: ArmRuns) -> str:
    label, x = arm_runs.arm.label, arm_runs.arm.x
    return label if x is None or " = " in label else f"{label}, {x:g}"


def _handles(runs: Sequence[ArmRuns]) -> list[Line2D]:
    """Return a legend handle per mechanism, with its caveat; none where there is only one."""
    labels = {_name(o): _name(o) + mechanism_of(o.runs[0]).caveat for o in runs}
    handles = [
        Line2D([], [], color=_color(n), linewidth=6, label=text) for n, text in labels.items()
    ]
    return handles if len(handles) > 1 else []


def _name(arm_runs: ArmRuns) -> str:
    return arm_runs.arm.label.split(" = ")[0]


def _square() -> Line2D:
    return Line2D([], [], label="the paper's number", **_SQUARE)


def _color(name: str) -> str:
    """Return the colour of a mechanism of the paper; any other has the first colour."""
    return color_and_marker(mechanism_index(name, 0))[0]


def mechanism_index(name: str, otherwise: int) -> int:
    """Return the index of a mechanism of the paper, so that its colour is always the same."""
    names = list(NAMES.values())
    return names.index(name) if name in names else otherwise


def _draw_bar(axes: Axes, k: int, arm_runs: ArmRuns, measure: Measure, target: float | None) -> str:
    spread = arm_runs.spread(measure, target)
    color = _color(_name(arm_runs))
    if spread.mean is None:
        axes.text(k, 0, "not reached", rotation=90, ha="center", va="bottom", color=MUTED)
    else:
        axes.bar(k, spread.mean, color=color, width=0.7)
        axes.vlines(k, min(spread.values), max(spread.values), color=INK, linewidth=1.0)
    return f"{_tick(arm_runs)}: {format_spread(spread, measure)}"


def _paper_values(
    recipe: Recipe, targets: Mapping[str, float | None], measure: Measure
) -> dict[int, float]:
    """Return the paper's numbers for the same target, by the index of their arms."""
    index = {key: k for k, key in enumerate(targets)}
    return {
        index[c.arm]: c.paper
        for c in recipe.claims
        if isinstance(c, Number) and c.measure == measure and c.arm in index
        if c.target in (None, targets[c.arm])
        if targets.get(c.set_by or c.arm) == targets[c.arm]
    }


@figure_style()
def choices(runs: RunsByArm) -> Plot:
    """Draw the final accuracy of every mechanism under every reading of the paper."""
    plot = Plot(
        "sensitivity",
        "Accuracy under other readings of the paper",
        "Each row is a setting that the paper leaves open, each marker a mechanism. Where the "
        "order of the markers changes from row to row, the ranking depends on the setting.",
        wide=True,
    )
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="none", label=label)
        for k, label in enumerate(_mechanism_labels(runs))
        for color, marker in [color_and_marker(k)]
    ]
    figure, axes = new_figure(handles, height_in=0.9 + 0.32 * len(CHOICES))
    values = [_draw_choice(axes, row, choice, runs) for row, choice in enumerate(CHOICES)]
    axes.set_yticks(range(len(CHOICES)), list(CHOICES))
    axes.invert_yaxis()
    axes.set_xlabel(_AXES["accuracy"])
    return plot.with_figure(figure, "; ".join(values))


def _mechanism_labels(runs: RunsByArm) -> list[str]:
    """Return the names of the mechanisms with their caveats."""
    caveats = {(i := mechanism_of(o.runs[0])).name: i.caveat for o in runs.values()}
    return [NAMES[m] + caveats.get(m, "") for m in RIVALS]


def _draw_choice(axes: Axes, row: int, choice: str, runs: RunsByArm) -> str:
    scores = []
    for k, mechanism in enumerate(RIVALS):
        arm_runs = runs.get(choice_key(mechanism, choice))
        spread = arm_runs.spread("accuracy", None) if arm_runs else None
        if spread is None or spread.mean is None:
            continue
        color, marker = color_and_marker(k)
        axes.plot(spread.mean, row, color=color, marker=marker, linestyle="none")
        axes.hlines(row, min(spread.values), max(spread.values), color=color, linewidth=1.0)
        scores.append((spread.mean, NAMES[mechanism]))
    order = [name for _, name in sorted(scores, reverse=True)]
    return f"{choice}: {' > '.join(order)}" if order else f"{choice}: no run"
