"""The summary table: a line for each metric, a column for each run, and the best value marked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dystop.folders.run_folder import RunData
from dystop.report.data.names import run_labels
from dystop.report.data.scores import Score, score_of
from dystop.report.data.summary import RunSummary, summarise
from dystop.report.data.time_shares import PARTS, TimeShares, share_texts
from dystop.runs.common_time import end_together
from dystop.units import NOTHING, data, energy, number, percent, seconds

TARGET_RULE = "first evaluated round at or above the target, never interpolated"

_WHOLE = 1000
"""Letters of a run's name in a terminal, where one may have to type it: all of them."""


@dataclass(frozen=True)
class TableCell:
    """A value of a table as text, with a note in small print."""

    text: str
    note: str = ""
    value: float | None = None  # compared to find the best; None is never the best
    best: bool = False


@dataclass(frozen=True)
class SummaryRow:
    """A metric of the summary table, with one cell per run."""

    title: str
    meaning: str
    cells: list[TableCell]


@dataclass(frozen=True)
class Metric:
    """A line of the summary table: how it reads from a summary, and which value is better."""

    title: str
    meaning: str
    show: Callable[[RunSummary], str]
    value: Callable[[RunSummary], float | None] = lambda _: None
    better: Literal["high", "low"] | None = None
    at_end: bool = False  # read at the end of a run, so that a longer run has more of it


def _or(text: str, instead: str) -> str:
    return instead if text == NOTHING else text


def _score(text: str) -> str:
    return _or(text, "not evaluated")


def metrics(summaries: Sequence[RunSummary], score: Score) -> list[Metric]:
    """Return the lines of the summary table, in reading order; planning only has only costs."""
    target = summaries[0].target if summaries else None
    missing = "no target" if target is None else "not reached"
    clocks = {s.clock for s in summaries}
    clock = clocks.pop() if len(clocks) == 1 else "time"
    costs = [*_cost_metrics(clock), *_energy_used(summaries), *_privacy_spent(summaries)]
    if summaries and all(s.planned for s in summaries):
        return costs
    return [
        Metric(
            "final accuracy",
            "mean ± standard deviation over the workers' own models, at the last evaluation",
            lambda s: _score(score.text(s.accuracy, s.accuracy_std)),
            lambda s: s.accuracy,
            "high",
            at_end=True,
        ),
        Metric(
            "global model",
            "accuracy of the data-weighted average of all models, at the last evaluation",
            lambda s: _score(score.text(s.accuracy_global)),
            lambda s: s.accuracy_global,
            "high",
            at_end=True,
        ),
        Metric(
            "best accuracy",
            "highest mean over the workers' models at any evaluation",
            lambda s: _score(score.text(s.accuracy_best)),
            lambda s: s.accuracy_best,
            "high",
            at_end=True,
        ),
        *_fairness_metrics(summaries, score),
        *_target_metrics(score.aim(target), clock, missing),
        *_energy_to_target(summaries, score.aim(target), missing),
        *costs,
    ]


def _fairness_metrics(summaries: Sequence[RunSummary], score: Score) -> list[Metric]:
    """Return how evenly accuracy is spread over the workers, where single workers were recorded."""
    if all(s.accuracy_worst is None for s in summaries):
        return []
    return [
        Metric(
            "worst tenth of workers",
            "mean accuracy of the worst tenth of the workers' own models, at the last evaluation",
            lambda s: _score(score.text(s.accuracy_worst)),
            lambda s: s.accuracy_worst,
            "high",
        ),
        Metric(
            "fairness, Jain's index",
            "of the workers' accuracies at the last evaluation: 1 if all are equal",
            lambda s: _score(NOTHING if s.accuracy_jain is None else f"{s.accuracy_jain:.3f}"),
            lambda s: s.accuracy_jain,
            "high",
        ),
    ]


def _energy_to_target(summaries: Sequence[RunSummary], name: str, missing: str) -> list[Metric]:
    """Return the energy to the target, where energy was counted."""
    if all(s.energy_j is None for s in summaries):
        return []
    return [
        Metric(
            f"energy to {name}",
            f"of all workers; {TARGET_RULE}",
            lambda s: _or(energy(s.target_energy_j), missing),
            lambda s: s.target_energy_j,
            "low",
        )
    ]


def _privacy_spent(summaries: Sequence[RunSummary]) -> list[Metric]:
    """Return the epsilon of whole runs, where training was private."""
    if all(s.epsilon is None for s in summaries):
        return []
    meaning = "differential privacy: the largest epsilon of a worker at the end, for privacy.delta"
    return [Metric("epsilon", meaning, lambda s: number(s.epsilon))]


def _energy_used(summaries: Sequence[RunSummary]) -> list[Metric]:
    """Return the energy of whole runs, where it was counted."""
    if all(s.energy_j is None for s in summaries):
        return []
    meaning = "joules of all workers until the end of the run: training, idle, radio"
    return [Metric("energy", meaning, lambda s: energy(s.energy_j))]


def _target_metrics(name: str, clock: str, missing: str) -> list[Metric]:
    return [
        Metric(
            f"time to {name}",
            f"{clock}; {TARGET_RULE}",
            lambda s: _or(seconds(s.target_s), missing),
            lambda s: s.target_s,
            "low",
        ),
        Metric(
            f"data to {name}",
            f"on the wire; {TARGET_RULE}",
            lambda s: _or(data(s.target_bytes), missing),
            lambda s: s.target_bytes,
            "low",
        ),
        Metric(
            f"epochs to {name}",
            f"local epochs, in passes over the whole training set; {TARGET_RULE}",
            lambda s: _or(number(s.target_epochs), missing),
            lambda s: s.target_epochs,
            "low",
        ),
    ]


def _cost_metrics(clock: str) -> list[Metric]:
    return [
        Metric("rounds", "rounds that closed", lambda s: f"{s.rounds:,}"),
        Metric(clock, "clock at the last round", lambda s: seconds(s.clock_s)),
        Metric("data, wire", "every transfer counted once", lambda s: data(s.wire_bytes)),
        Metric(
            "data, both ends",
            "every transfer counted at sender and receiver: the paper's communication overhead",
            lambda s: data(s.endpoint_bytes),
        ),
        Metric("local epochs", "passes over the whole training set", lambda s: number(s.epochs)),
        Metric(
            "staleness, mean / max",
            "mean over workers and rounds, and the largest of any worker",
            lambda s: f"{number(s.staleness_mean)} / {number(s.staleness_max)}",
        ),
        Metric(
            "active per round",
            "mean number of workers that a round activates",
            lambda s: number(s.active_mean),
        ),
        Metric(
            "idle share",
            "share of worker time spent neither training nor exchanging models",
            lambda s: percent(s.idle_share),
        ),
        Metric(
            "worker time",
            f"{', '.join(PARTS)}; until the target, or else until the end",
            _shares_text,
        ),
    ]


def _shares_text(summary: RunSummary) -> str:
    parts = (
        summary.compute_share,
        summary.transfer_share,
        summary.wait_others_share,
        summary.wait_round_share,
    )
    known_parts = [part for part in parts if part is not None]
    if len(known_parts) < len(parts):
        return NOTHING
    return " / ".join(share_texts(TimeShares(*known_parts)))


def summary_table(
    summaries: Sequence[RunSummary], score: Score | None = None, *, mark: bool = True
) -> list[SummaryRow]:
    """Return the summary table, metric by metric; the best run of each metric is marked.

    Args:
        summaries: The numbers of the runs.
        score: The score of their task; by default an accuracy.
        mark: Whether to mark the best; not so where runs are different experiments.
    """
    score, mark = score or Score(), mark and len(summaries) > 1
    return [
        _summary_row(metric, summaries, score, mark=mark) for metric in metrics(summaries, score)
    ]


def _summary_row(
    metric: Metric, summaries: Sequence[RunSummary], score: Score, *, mark: bool
) -> SummaryRow:
    values = [metric.value(s) for s in summaries]
    present = [v for v in values if v is not None]
    pick = max if metric.better == "high" else min
    comparable = not metric.at_end or end_together(s.clock_s for s in summaries)
    best = pick(present) if mark and metric.better and comparable and present else None
    cells = [
        TableCell(metric.show(s), value=v, best=best is not None and v == best)
        for s, v in zip(summaries, values, strict=True)
    ]
    return SummaryRow(score.named(metric.title), score.named(metric.meaning), cells)


def summary_rows(runs: Sequence[RunData], target: float | None = None) -> list[dict[str, str]]:
    """Return one row of text per run for a terminal: column title -> value."""
    summaries, score = summarise(runs, target), score_of(runs)
    lines = metrics(summaries, score)
    names = run_labels(runs, longest=_WHOLE)
    heads = [
        {"run": name, "mechanism": s.mechanism, "status": s.status}
        for name, s in zip(names, summaries, strict=True)
    ]
    return [
        head | {score.named(m.title): m.show(s) for m in lines}
        for head, s in zip(heads, summaries, strict=True)
    ]
