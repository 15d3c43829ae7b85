"""The page of `dystop gap`: a testbed run, its replay and its simulation side by side."""

from collections.abc import Callable
from pathlib import Path

from dystop.report.data.settings import setting_rows
from dystop.report.figures.gap import accuracy_figure, clock_figure
from dystop.report.pages.files import ReportFiles, write_files
from dystop.report.pages.html import DetailTable, inline_figures, render_template
from dystop.studies.gap import TESTBED_LAW, WITH_OVERHEAD, GapReport, Side
from dystop.studies.trace_metrics import Errors
from dystop.units import NOTHING, seconds

PREDICTIONS = ("", "pairs", "mean error", "median", "95 %", "total", "meaning")

Row = tuple[str, ...]


def percent_text(value: float | None, *, signed: bool = False) -> str:
    """Format a share in percent, with a sign if asked.

    >>> percent_text(0.1234), percent_text(-0.05, signed=True), percent_text(None)
    ('12.3 %', '-5.0 %', '–')
    """
    return NOTHING if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


def columns(report: GapReport) -> Row:
    """Return the titles of `comparison`; a simulation names its timing law."""
    other = report.other_law
    simulated = [f"simulation: {report.simulation.law}", WITH_OVERHEAD]
    simulated += [] if other is None else [f"simulation: {other.law}"]
    return ("", "testbed", "replay", *simulated, "meaning")


def _sides(report: GapReport) -> list[Side]:
    sides = [report.replay, report.simulation, report.with_overhead]
    return sides if report.other_law is None else [*sides, report.other_law]


def law_text(report: GapReport) -> str:
    """Say which timing law the simulation follows, and what the other column is."""
    law, other = report.simulation.law, report.other_law
    follows = f"The simulation follows the timing law {law}"
    if law == TESTBED_LAW:
        follows += ", as every testbed run does whatever engine.timing says"
    if other is None:
        return f"{follows}."
    owner = "the testbed's law" if other.law == TESTBED_LAW else "the run's engine.timing"
    return f"{follows}. The last column shows what {other.law}, {owner}, would give."


def overhead_text(report: GapReport) -> str:
    """Say what the machines of the run added, and which column has it."""
    added = report.overhead
    return (
        f"On average the machines of this run added {seconds(added.transfer_s)} to a transfer and "
        f"{seconds(added.round_s)} to a round: connections, messages, disk, planning. Replay and "
        f"simulation leave this out; the column {WITH_OVERHEAD} simulates with it. In the replay "
        "rounds open when they did, after trainings went on in that time."
    )


def comparison(report: GapReport) -> list[Row]:
    """Compare all simulations with the recorded run: rows under `columns`."""
    sides, real = _sides(report), report.real_pace

    def row(title: str, testbed: str, show: Callable[[Side], str], meaning: str) -> Row:
        return (title, testbed, *(show(side) for side in sides), meaning)

    total_s = report.replay.durations.measured_s
    return [
        row("completion time", seconds(total_s), _total, "sum of the durations of all rounds"),
        row("round duration, mean error", "", lambda s: percent_text(s.durations.mean),
            "mean of |simulated - real| / real"),
        row("round duration, median error", "", lambda s: percent_text(s.durations.median),
            "half of the rounds have a smaller error"),
        row("round duration, 95 % error", "", lambda s: percent_text(s.durations.q95),
            "19 of 20 rounds have a smaller error"),
        row("active workers of a round", f"{real.active:.2f}", lambda s: f"{s.pace.active:.2f}",
            "mean over rounds"),
        row("staleness", f"{real.staleness:.2f}", lambda s: f"{s.pace.staleness:.2f}",
            "mean over workers and rounds"),
        row("passes over the data", f"{real.passes:.1f}", lambda s: f"{s.pace.passes:.1f}",
            "trained until the end"),
        row("rounds with the same active workers", "", lambda s: _plan_overlap(s, "same_active"),
            "share of rounds"),
        row("rounds with the same links", "", lambda s: _plan_overlap(s, "same_links"),
            "share of rounds; lost transfers do not count"),
        row("overlap of active workers", "", lambda s: _plan_overlap(s, "active_overlap"),
            "intersection / union, mean over rounds"),
        row("overlap of links", "", lambda s: _plan_overlap(s, "link_overlap"),
            "intersection / union, mean over rounds"),
        row("final accuracy", percent_text(report.real.final), _final,
            "mean test accuracy of the workers' own models"),
        row("distance of the accuracy curves", "", lambda s: percent_text(s.learning.curve_gap),
            "mean |simulated - real| over the rounds that both evaluated"),
    ]  # fmt: skip


def _total(side: Side) -> str:
    return (
        f"{seconds(side.durations.predicted_s)} ({percent_text(side.durations.total, signed=True)})"
    )


def _plan_overlap(side: Side, name: str) -> str:
    return percent_text(None if side.plans is None else getattr(side.plans, name))


def _final(side: Side) -> str:
    learning = side.learning
    return f"{percent_text(learning.final)} ({percent_text(learning.final_gap, signed=True)})"


def predictions(report: GapReport) -> list[Row]:
    """Return the errors of predicted seconds: rows under `PREDICTIONS`."""
    return [
        _errors("transfers, channel model", report.link_model, "what the simulator predicts"),
        _errors("transfers, estimate", report.link_estimate, "what the coordinator expected"),
        _errors("trainings, compute model", report.step_model, "what the simulator predicts"),
        _errors("trainings, estimate", report.step_estimate, "what the coordinator expected"),
    ]


def _errors(title: str, errors: Errors, meaning: str) -> Row:
    parts = (errors.mean, errors.median, errors.q95)
    total = percent_text(errors.total, signed=True)
    return (title, f"{errors.count:,}", *map(percent_text, parts), total, meaning)


def write_gap(report: GapReport, out: Path) -> ReportFiles:
    """Write `out/report.html` and its figures."""
    plots = [clock_figure(report), accuracy_figure(report)]
    page = render_template(
        "gap.html.jinja",
        title=f"{report.run.name}: simulation against testbed",
        rounds=report.rounds,
        comparison=comparison(report),
        columns=columns(report),
        law=law_text(report),
        overhead=overhead_text(report),
        predictions=predictions(report),
        prediction_columns=PREDICTIONS,
        charts=inline_figures(plots),
        details=[
            ("Configuration", [DetailTable(report.run.name, setting_rows(report.run.config))])
        ],
    )
    return write_files(out, plots, page, ("png", "pdf"))
