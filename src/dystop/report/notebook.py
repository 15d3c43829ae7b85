"""Runs and comparisons in a notebook: figures, and tables with a figure.

Everything is self-contained: a page asks for nothing from the network.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dystop.errors import ConfigError, nearest
from dystop.folders.run_folder import RunData
from dystop.record import ACCURACY
from dystop.report.data.groups import Group
from dystop.report.data.names import mechanism_of
from dystop.report.figures.comparison import curves
from dystop.report.figures.single_runs import learning
from dystop.report.figures.style import Plot, styled_runs, with_score_of
from dystop.report.figures.svg import save
from dystop.runs.results import Comparison, Run
from dystop.units import data, number, percent, seconds

_WIDTH_PX = 560
_KINDS = ("pdf", "png", "svg")


@dataclass(frozen=True)
class Drawing:
    """A figure that a notebook shows. `figure` is None where there is nothing to draw."""

    title: str
    caption: str  # how to read it, or why there is no figure
    alt: str
    figure: Figure | None

    def __repr__(self) -> str:
        return f"{self.title}. {self.alt or self.caption}"

    def _repr_png_(self) -> bytes | None:
        return None if self.figure is None else save(self.figure, "png")

    def save(self, path: str | Path) -> None:
        """Write the figure as a PNG, PDF or SVG file."""
        kind = Path(path).suffix.removeprefix(".")
        if self.figure is None or kind not in _KINDS:
            expected = f"a file that ends in {', '.join(f'.{kind}' for kind in _KINDS)}"
            raise ConfigError(f"{path}: {self.caption if self.figure is None else expected}")
        Path(path).write_bytes(save(self.figure, kind))


def draw_run(run: Run, what: str, target: float | None = None) -> Drawing:
    """Draw one run."""
    drawn = styled_runs([_run_data(run)])
    return _drawing(
        what,
        {
            "accuracy": lambda: learning.accuracy_time(drawn, target),
            "accuracy-data": lambda: learning.accuracy_data(drawn, target),
            "loss": lambda: learning.loss_time(drawn),
            "data": lambda: learning.data_time(drawn),
        },
        [styled.run for styled in drawn],
    )


def draw_comparison(comparison: Comparison, what: str, target: float | None = None) -> Drawing:
    """Draw the means over the seeds of all mechanisms."""
    groups = _groups(comparison)
    return _drawing(
        what,
        {
            "accuracy": lambda: curves.accuracy_time(curves.in_one(groups), target),
            "accuracy-data": lambda: curves.accuracy_data(curves.in_one(groups), target),
            "loss": lambda: curves.loss_time(curves.in_one(groups)),
            "data": lambda: curves.data_time(curves.in_one(groups)),
        },
        [run for group in groups for run in group.runs],
    )


def _drawing(
    what: str, figures: Mapping[str, Callable[[], Plot]], runs: Sequence[RunData]
) -> Drawing:
    if what not in figures:
        raise ConfigError(
            f"plot: {what!r}; expected one of {', '.join(figures)}{nearest(what, figures)}"
        )
    (plot,) = with_score_of([figures[what]()], runs)
    return Drawing(plot.title, plot.missing or plot.caption, plot.alt, plot.figure)


def _run_data(run: Run) -> RunData:
    return RunData(
        path=Path(run.name),
        name=run.name,
        config=dict(run.config),
        info={"seed": run.seed},
        fleet={},
        records=list(run.records),
    )


def _groups(comparison: Comparison) -> list[Group]:
    """Return a group of runs for each mechanism, under its label in the comparison."""
    out = []
    for k, (label, runs) in enumerate(comparison.runs.items()):
        found = tuple(map(_run_data, runs))
        law = str(found[0].config.get("engine", {}).get("timing", ""))
        mechanism = mechanism_of(found[0])
        out.append(Group(label=label, color_index=k, mechanism=mechanism, law=law, runs=found))
    return out


def run_html(run: Run) -> str:
    """Return a table of a run and its figure, as HTML."""
    facts = [("mechanism", mechanism_of(_run_data(run)).name), ("seed", str(run.seed))]
    if run.records:
        last = run.records[-1]
        facts += [
            ("rounds", f"{last.round:,}"),
            (run.score_name, _score(run)),
            ("time", seconds(last.clock_s)),
            ("traffic", data(last.wire_bytes_total)),
            ("epochs", number(last.epochs_total)),
        ]
    if run.stop_reason:
        facts.append(("stopped", run.stop_reason))
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts)
    return f"<b>{escape(run.name)}</b><table>{rows}</table>{_image(draw_run(run, 'accuracy'))}"


def _score(run: Run) -> str:
    """Return the last score; an accuracy in percent."""
    return percent(run.accuracy) if run.score_name == ACCURACY else number(run.accuracy)


def comparison_html(comparison: Comparison) -> str:
    """Return the table of a comparison and its figure, as HTML."""
    head, *rows = comparison.cells()
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    figure = _image(draw_comparison(comparison, "accuracy"))
    warning = f"<p>Note: {escape(comparison.warning)}.</p>" if comparison.warning else ""
    return f"<table><tr>{titles}</tr>{body}</table>{warning}{figure}"


def _image(drawing: Drawing) -> str:
    """Return a figure as an element that contains it, or why there is none."""
    png: Any = drawing._repr_png_()
    if png is None:
        return f"<p>{escape(drawing.caption)}</p>"
    return (
        f'<img width="{_WIDTH_PX}" alt="{escape(drawing.alt)}" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    )
