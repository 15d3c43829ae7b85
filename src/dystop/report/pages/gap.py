"""The page of `dystop gap`: a testbed run, its replay and its simulation side by side."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dystop import __version__
from dystop.experiments.gap import GapReport, Side
from dystop.experiments.trace_metrics import Errors
from dystop.record import RoundRecord
from dystop.report.figures.style import Mark, Plot, canvas, house_style, legend_keys, look
from dystop.report.garbage import spare_the_old
from dystop.report.pages.html import Folded, flat, picture, templates
from dystop.report.pages.write import ReportFiles, write_files
from dystop.units import NOTHING, seconds, time_unit

COLUMNS = ("", "testbed", "replay", "simulation", "meaning")
PREDICTIONS = ("", "pairs", "mean error", "median", "95 %", "total", "meaning")

Row = tuple[str, ...]


def share(value: float | None, *, signed: bool = False) -> str:
    """A share as per cent.

    >>> share(0.1234), share(-0.05, signed=True), share(None)
    ('12.3 %', '-5.0 %', '–')
    """
    return NOTHING if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


def comparison(found: GapReport) -> list[Row]:
    """What the two simulations make of the recorded run, as rows under `COLUMNS`."""
    sides = (found.replay, found.simulation)

    def row(title: str, real: str, tell: Callable[[Side], str], meaning: str) -> Row:
        return (title, real, *(tell(side) for side in sides), meaning)

    total_s = found.replay.durations.measured_s
    return [
        row("completion time", seconds(total_s), _total, "sum of the durations of all rounds"),
        row("round duration, mean error", "", lambda s: share(s.durations.mean),
            "mean of |simulated - real| / real"),
        row("round duration, median error", "", lambda s: share(s.durations.median),
            "half of the rounds are closer"),
        row("round duration, 95 % error", "", lambda s: share(s.durations.q95),
            "19 of 20 rounds are closer"),
        row("rounds with the same active workers", "", lambda s: _plans(s, "same_active"),
            "share of rounds"),
        row("rounds with the same links", "", lambda s: _plans(s, "same_links"),
            "share of rounds; transfers that were lost do not count"),
        row("overlap of active workers", "", lambda s: _plans(s, "active_overlap"),
            "common / all that either names, mean over rounds"),
        row("overlap of links", "", lambda s: _plans(s, "link_overlap"),
            "common / all that either names, mean over rounds"),
        row("final accuracy", share(found.real.final), _final,
            "mean test accuracy of the workers' own models"),
        row("distance of the accuracy curves", "", lambda s: share(s.learning.curve_gap),
            "mean |simulated - real| over the rounds that were tested in both"),
    ]  # fmt: skip


def _total(side: Side) -> str:
    return f"{seconds(side.durations.predicted_s)} ({share(side.durations.total, signed=True)})"


def _plans(side: Side, name: str) -> str:
    return share(None if side.plans is None else getattr(side.plans, name))


def _final(side: Side) -> str:
    return f"{share(side.learning.final)} ({share(side.learning.final_gap, signed=True)})"


def predictions(found: GapReport) -> list[Row]:
    """How well seconds were predicted, as rows under `PREDICTIONS`."""
    return [
        _errors("transfers, channel model", found.link_model, "what the simulator would have said"),
        _errors("transfers, estimate", found.link_estimate, "what the coordinator expected"),
        _errors("trainings, compute model", found.step_model, "what the simulator would have said"),
        _errors("trainings, estimate", found.step_estimate, "what the coordinator expected"),
    ]


def _errors(title: str, errors: Errors, meaning: str) -> Row:
    parts = (errors.mean, errors.median, errors.q95)
    total = share(errors.total, signed=True)
    return (title, f"{errors.count:,}", *map(share, parts), total, meaning)


def _lines(found: GapReport) -> list[tuple[Mark, Sequence[RoundRecord]]]:
    names = ("testbed", "replay", "simulation")
    histories = (found.run.records[: found.rounds], found.replay.records, found.simulation.records)
    marks = [Mark(name, *look(k), True) for k, name in enumerate(names)]
    return list(zip(marks, histories, strict=True))


def _draw(axes: Axes, mark: Mark, points: Sequence[tuple[int, float]]) -> None:
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=mark.color, **mark.marks(len(points)))


@house_style()
def clock_figure(found: GapReport) -> Plot:
    """Clocks over rounds."""
    words = Plot(
        "gap-clock",
        "Clock over rounds",
        "When each round closed. The replay has the measured seconds of the testbed, the "
        "simulation those of its channel and compute models. Each line adds up its own rounds.",
    )
    lines = _lines(found)
    sums = [(mark, _summed(records)) for mark, records in lines]
    scale, unit = time_unit(max(points[-1][1] for _, points in sums))
    figure, axes = canvas(legend_keys([mark for mark, _ in lines]))
    for mark, points in sums:
        _draw(axes, mark, [(t, s / scale) for t, s in points])
    axes.set_xlabel("round")
    axes.set_ylabel(f"time ({unit})")
    ends = "; ".join(f"{mark.label}: {seconds(points[-1][1])}" for mark, points in sums)
    return words.drawn(figure, f"Line chart of clocks. {ends}.")


def _summed(records: Sequence[RoundRecord]) -> list[tuple[int, float]]:
    """Sums of durations; clocks of a replay are set to the recorded ones at every opening."""
    points, clock = [], 0.0
    for record in records:
        clock += record.duration_s
        points.append((record.round, clock))
    return points


@house_style()
def accuracy_figure(found: GapReport) -> Plot:
    """Accuracies over rounds."""
    words = Plot(
        "gap-accuracy",
        "Test accuracy over rounds",
        "Mean test accuracy of the workers' own models, wherever it was tested.",
        missing="No model was tested, so there is no accuracy to draw.",
    )
    lines = [
        (mark, [(r.round, r.accuracy) for r in records if r.accuracy is not None])
        for mark, records in _lines(found)
    ]
    if not any(points for _, points in lines):
        return words
    figure, axes = canvas(legend_keys([mark for mark, _ in lines]))
    for mark, points in lines:
        _draw(axes, mark, points)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy")
    ends = "; ".join(f"{mark.label}: {share(p[-1][1])}" for mark, p in lines if p)
    return words.drawn(figure, f"Line chart of test accuracy. {ends}.")


@spare_the_old()
def write_gap(found: GapReport, out: Path) -> ReportFiles:
    """Write `out/report.html` and its figures."""
    plots = [clock_figure(found), accuracy_figure(found)]
    page = (
        templates()
        .get_template("gap.html.jinja")
        .render(
            title=f"{found.run.name}: simulated and real",
            rounds=found.rounds,
            version=__version__,
            comparison=comparison(found),
            columns=COLUMNS,
            predictions=predictions(found),
            prediction_columns=PREDICTIONS,
            charts=[(plot, picture(plot)) for plot in plots],
            folds=[("Configuration", [Folded(found.run.name, flat(found.run.config))])],
        )
    )
    return write_files(out, plots, page, ("png", "pdf"))
