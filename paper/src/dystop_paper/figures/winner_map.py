"""Maps of networks: the colour of a cell is the mechanism that wins there."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dystop.report.data.contests.winners import FIRST, Contest, Goal
from dystop.report.figures.style import GRID, INK, MUTED, Plot, color_and_marker, figure_style
from dystop_paper.data.atlas import NOBODY, AtlasResults, cell

_CELL_IN = (1.35, 0.85)
_PALE, _FULL = 0.2, 0.6  # opacity of a tie, and of a win


@figure_style()
def winner_map(results: AtlasResults, goal: Goal) -> Plot:
    """Draw the winners of one goal over both axes."""
    x, y = results.x, results.y
    plot = Plot(
        f"map-{goal}",
        f"Who reaches the target {FIRST[goal]}",
        "The colour of a cell is the mechanism that wins there. Below its name: how many times as "
        "much the runner-up spends, and the target. A pale cell is a tie within the spread over "
        "the seeds. A cell without a colour lacks runs. "
        f"x: {x.meaning}. y: {y.meaning}.",
        missing="At no point have all runs finished, so there is no map to draw.",
        wide=len(x.values) > 3,
    )
    if not results.points:
        return plot
    width, height = _CELL_IN
    size = (1.1 + width * len(x.values), 0.8 + height * len(y.values))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    colors = {name: color_and_marker(k)[0] for k, name in enumerate(results.mechanisms)}
    for (i, j), contests in results.points.items():
        _draw_cell(axes, i, j, contests[goal], colors)
    for (i, j), runs in results.incomplete.items():
        axes.text(i, j, runs, fontsize=7.5, ha="center", va="center", color=MUTED)
    axes.set_xlim(-0.5, len(x.values) - 0.5)
    axes.set_ylim(-0.5, len(y.values) - 0.5)
    axes.set_xticks(range(len(x.values)), x.values)
    axes.set_yticks(range(len(y.values)), y.values)
    axes.set_xlabel(x.name)
    axes.set_ylabel(y.name)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    names = results.reconstructions
    notes = [results.rule]
    notes += [f"* reconstruction, no code was published: {', '.join(names)}."] if names else []
    return plot.with_figure(figure, _alt(results, goal), notes)


def _draw_cell(axes: Axes, i: int, j: int, contest: Contest, colors: Mapping[str, str]) -> None:
    winner = contest.winner
    color = GRID if winner is None else colors[winner.name]
    alpha = 1.0 if winner is None else _PALE if contest.tied else _FULL
    place = (i - 0.48, j - 0.48)
    axes.add_patch(Rectangle(place, 0.96, 0.96, color=color, alpha=alpha, linewidth=0))
    name, *rest = cell(contest)
    options: dict[str, Any] = {
        "ha": "center",
        "va": "center",
        "color": MUTED if name == NOBODY else INK,
    }
    axes.text(i, j + 0.2, name, fontsize=9, fontweight="bold", **options)
    axes.text(i, j - 0.16, "\n".join(rest), fontsize=7.5, **options)


def _alt(results: AtlasResults, goal: Goal) -> str:
    x, y = results.x, results.y
    cells = [
        f"{x.name} {x.values[i]}, {y.name} {y.values[j]}: {', '.join(cell(contests[goal]))}"
        for (i, j), contests in results.points.items()
    ]
    return f"Map of winners. {'; '.join(cells)}."
