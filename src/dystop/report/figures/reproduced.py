"""Figures that only a reproduction has: a measure against a setting, with the paper's numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dystop.experiments.reproduce import Recipe
from dystop.experiments.reproduce.campaigns import CHOICES, NAMES, RIVALS, choice_key
from dystop.experiments.reproduce.paper_claims import Figure as Number
from dystop.experiments.reproduce.paper_claims import Measure
from dystop.report.data.measures import Outcome, Outcomes, aim, show_spread, target_for
from dystop.report.data.names import identity
from dystop.report.figures.style import INK, MUTED, Plot, canvas, house_style, look

_AXES: dict[Measure, str] = {
    "time": "simulated seconds{aim}",
    "bytes": "bytes, both ends{aim}",
    "accuracy": "test accuracy at the end",
    "staleness": "mean staleness (rounds)",
}
_OURS = "Ours: mean over seeds, whiskers from lowest to highest"
_SQUARES = "Squares: the paper's numbers, where it has any for the same target."
_NO_SQUARES = "The paper has no numbers for these targets."
_SQUARE: dict[str, Any] = {"color": INK, "marker": "s", "linestyle": "none", "fillstyle": "none"}


@house_style()
def bars(recipe: Recipe, outcomes: Outcomes) -> Plot:
    """A measure for every arm, with the paper's number where it gives one."""
    measure = recipe.measures[0]
    targets = _targets(recipe, outcomes, measure)
    shown, paper = list(outcomes.values()), _points(recipe, targets, measure)
    words = f"{_OURS}. {_SQUARES if paper else _NO_SQUARES}"
    plot = Plot(recipe.name, recipe.title, words)
    figure, axes = canvas([*_keys(shown), *([_square()] if paper else [])], height_in=3.2)
    told = [_bar(axes, k, o, measure, targets[o.arm.key]) for k, o in enumerate(shown)]
    axes.plot(list(paper), list(paper.values()), markersize=6, **_SQUARE)
    aims = [aim(targets[o.arm.key]) for o in shown]
    differ = len(set(aims)) > 1
    ticks = [
        _tick(o) + (own.replace(" to ", ": ") if differ else "")
        for o, own in zip(shown, aims, strict=True)
    ]
    axes.set_xticks(range(len(shown)), ticks, rotation=30, ha="right")
    axes.set_ylabel(_AXES[measure].format(aim=" to the target" if differ else aims[0]))
    axes.set_ylim(bottom=0)
    return plot.drawn(figure, f"Bar chart. {'; '.join(told)}.")


def _targets(recipe: Recipe, outcomes: Outcomes, measure: Measure) -> dict[str, float | None]:
    """The accuracy that each arm is measured at: the paper's, or one that DySTop reaches always."""
    if measure not in ("time", "bytes"):
        return dict.fromkeys(outcomes)
    own = [o for o in outcomes.values() if o.arm.key.startswith("dystop")]
    shared = target_for(own or list(outcomes.values()), None)
    targets: dict[str, float | None] = dict.fromkeys(outcomes, shared)
    for claim in recipe.claims:
        if isinstance(claim, Number) and claim.target and claim.arm in outcomes:
            setter = outcomes.get(claim.set_by or claim.arm)
            targets[claim.arm] = target_for([setter], claim.target) if setter else shared
    return targets


def _tick(outcome: Outcome) -> str:
    label, x = outcome.arm.label, outcome.arm.x
    return label if x is None or " = " in label else f"{label}, {x:g}"


def _keys(outcomes: Sequence[Outcome]) -> list[Line2D]:
    """A key per mechanism that says what is a reconstruction; none where there is but one."""
    labels = {_name(o): _name(o) + identity(o.runs[0]).caveat for o in outcomes}
    keys = [Line2D([], [], color=_color(n), linewidth=6, label=told) for n, told in labels.items()]
    return keys if len(keys) > 1 else []


def _name(outcome: Outcome) -> str:
    return outcome.arm.label.split(" = ")[0]


def _square() -> Line2D:
    return Line2D([], [], label="the paper's number", **_SQUARE)


def _color(name: str) -> str:
    """Colour of a mechanism, whichever of them are there; anything else has the first one."""
    return look(place(name, 0))[0]


def place(name: str, otherwise: int) -> int:
    """Number of a mechanism among the four, so that it looks the same in every figure."""
    every = list(NAMES.values())
    return every.index(name) if name in every else otherwise


def _bar(axes: Axes, k: int, outcome: Outcome, measure: Measure, target: float | None) -> str:
    spread = outcome.spread(measure, target)
    color = _color(_name(outcome))
    if spread.mean is None:
        axes.text(k, 0, "not reached", rotation=90, ha="center", va="bottom", color=MUTED)
    else:
        axes.bar(k, spread.mean, color=color, width=0.7)
        axes.vlines(k, min(spread.values), max(spread.values), color=INK, linewidth=1.0)
    return f"{_tick(outcome)}: {show_spread(spread, measure)}"


def _points(
    recipe: Recipe, targets: Mapping[str, float | None], measure: Measure
) -> dict[int, float]:
    """The paper's numbers by the places of their arms, where they are about the same target."""
    places = {key: k for k, key in enumerate(targets)}
    return {
        places[c.arm]: c.paper
        for c in recipe.claims
        if isinstance(c, Number) and c.measure == measure and c.arm in places
        if c.target in (None, targets[c.arm])
        if targets.get(c.set_by or c.arm) == targets[c.arm]
    }


@house_style()
def choices(outcomes: Outcomes) -> Plot:
    """Accuracy at the end of every mechanism under every reading of the paper."""
    plot = Plot(
        "sensitivity",
        "Accuracy under other readings of the paper",
        "Each line is a setting that the paper leaves open, each mark a mechanism. Where the order "
        "of the marks changes from line to line, the ranking hinges on the setting.",
        wide=True,
    )
    keys = [
        Line2D([], [], color=look(k)[0], marker=look(k)[1], linestyle="none", label=label)
        for k, label in enumerate(_rivals(outcomes))
    ]
    figure, axes = canvas(keys, height_in=0.9 + 0.32 * len(CHOICES))
    told = [_choice(axes, row, choice, outcomes) for row, choice in enumerate(CHOICES)]
    axes.set_yticks(range(len(CHOICES)), list(CHOICES))
    axes.invert_yaxis()
    axes.set_xlabel(_AXES["accuracy"])
    return plot.drawn(figure, "; ".join(told))


def _rivals(outcomes: Outcomes) -> list[str]:
    """Names of the mechanisms, with what is to be known about them."""
    caveats = {(i := identity(o.runs[0])).name: i.caveat for o in outcomes.values()}
    return [NAMES[m] + caveats.get(m, "") for m in RIVALS]


def _choice(axes: Axes, row: int, choice: str, outcomes: Outcomes) -> str:
    told = []
    for k, mechanism in enumerate(RIVALS):
        outcome = outcomes.get(choice_key(mechanism, choice))
        spread = outcome.spread("accuracy", None) if outcome else None
        if spread is None or spread.mean is None:
            continue
        color, marker = look(k)
        axes.plot(spread.mean, row, color=color, marker=marker, linestyle="none")
        axes.hlines(row, min(spread.values), max(spread.values), color=color, linewidth=1.0)
        told.append((spread.mean, NAMES[mechanism]))
    order = [name for _, name in sorted(told, reverse=True)]
    return f"{choice}: {' > '.join(order)}" if order else f"{choice}: nothing run"


def rankings(outcomes: Outcomes) -> list[tuple[str, list[str]]]:
    """The order of the mechanisms under every choice, best first."""
    out = []
    for choice in CHOICES:
        found = [
            (float(np.mean(s.values)), NAMES[m])
            for m in RIVALS
            if (o := outcomes.get(choice_key(m, choice)))
            and (s := o.spread("accuracy", None)).values
        ]
        out.append((choice, [f"{n} {v:.1%}" for v, n in sorted(found, reverse=True)]))
    return out
