"""Results of a comparison or a sweep, computed once: groups, target accuracy and rankings.

`results_csv` has the same numbers for other programs, one row per run.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from dystop.folders.run_folder import RunData
from dystop.report.data.comparison.headline import headline, order_sentence
from dystop.report.data.comparison.other_law import planned_first_place
from dystop.report.data.comparison.ranking import Ranking, rank_groups
from dystop.report.data.comparison.sweep_layout import colored, short_labels, sweep_layout
from dystop.report.data.groups import Group, group_runs
from dystop.report.data.names import is_planned
from dystop.report.data.notices import study_notices
from dystop.report.data.scores import Score, best_accuracy, score_of
from dystop.report.data.settings import value_of
from dystop.report.data.summary import NO_TARGET_PLANNED, TARGETS, RunSummary, summarise
from dystop.studies.other_law import OtherLaw


@dataclass(frozen=True)
class Target:
    """The accuracy that a study compares by, and the sentence that says who chose it."""

    accuracy: float | None
    reason: str


@dataclass(frozen=True)
class StudyResults:
    """Everything that the page, the figures and the terminal show of a study."""

    groups: tuple[Group, ...]  # in the order of the runs
    target: Target
    rankings: tuple[Ranking, ...]  # one per timing law
    swept: tuple[str, ...]  # the keys of a sweep; empty for a comparison
    notices: tuple[str, ...]
    score: Score = Score()  # noqa: RUF009 - a frozen value
    planned: OtherLaw | None = None  # the clock of its runs under a law that was not run

    @property
    def headlines(self) -> list[str]:
        """Who was first to the target: law by law, and panel by panel of a sweep."""
        several, found = len(self.rankings) > 1, []
        layout = sweep_layout(self.groups, self.swept) if self.swept else None
        for ranking in self.rankings:
            law = [f"Under the {ranking.law} law"] if several else []
            alone = len(ranking.panels) == 1
            for panel in ranking.panels:
                groups = panel.groups if layout is None else short_labels(panel.groups, layout)
                text = headline(groups, self.target.accuracy, self.score, with_costs=alone)
                where = ", ".join([*law, *([panel.title] if panel.title else [])])
                if text:
                    found.append(f"{where}: {text}" if where else text)
        return found

    @property
    def order(self) -> str:
        """Who is first under each of two timing laws; of one law, whether another changes it."""
        if self.planned is not None and len(self.rankings) == 1:
            groups = self.rankings[0].groups if len(self.rankings[0].panels) == 1 else []
            return planned_first_place(groups, self.target.accuracy, self.planned, self.score)
        return order_sentence(self.rankings, self.target.accuracy)

    @property
    def ranked_groups(self) -> list[Group]:
        """All groups, law by law, the best of each law first."""
        return [group for ranking in self.rankings for group in ranking.groups]


def study_results(
    runs: Sequence[RunData],
    target: float | None = None,
    swept: Sequence[str] = (),
    notices: Sequence[str] = (),
    planned: OtherLaw | None = None,
) -> StudyResults:
    """Group and rank the runs of a study.

    Args:
        runs: All runs of the study that exist.
        target: Accuracy to compare by; see `choose_target` for the default.
        swept: The keys that a sweep varies.
        notices: Warnings that do not follow from the runs, such as missing runs.
        planned: The clock of the runs under another law, if it was planned.
    """
    groups, score = group_runs(runs), score_of(runs)
    layout = sweep_layout(groups, swept) if swept else None
    groups = groups if layout is None else colored(groups, layout)
    chosen = choose_target(groups, target, score)
    rankings = tuple(rank_groups(groups, chosen.accuracy, score, layout))
    warnings = (*notices, *study_notices(groups))
    return StudyResults(tuple(groups), chosen, rankings, tuple(swept), warnings, score, planned)


def choose_target(
    groups: Sequence[Group], requested: float | None, score: Score | None = None
) -> Target:
    """Choose the requested target, or the accuracy at which runs stop, or `shared_target`."""
    score = score or Score()
    begin = f"The target {score.name} is"
    if requested is not None:
        return Target(requested, f"{begin} {score.goal(requested)}, as requested.")
    stop = groups[0].runs[0].config.get("stop") or {}
    if accuracy := stop.get("accuracy"):
        return Target(accuracy, f"{begin} {score.goal(accuracy)}: the runs stop there.")
    shared, rule = shared_target(groups)
    if all(is_planned(run) for group in groups for run in group.runs):
        return Target(None, NO_TARGET_PLANNED)
    if shared is None:
        least = score.goal(TARGETS[0])
        return Target(None, f"There is no target: none was requested, and no run reached {least}.")
    defaults = ", ".join(map(score.goal, TARGETS)).replace(" %,", ",")
    return Target(
        shared,
        f"{begin} {score.goal(shared)}: none was requested, and among the defaults "
        f"({defaults}) this is the highest that {rule}.",
    )


def shared_target(groups: Sequence[Group]) -> tuple[float | None, str]:
    """Return a default target and the rule that chose it.

    It is the largest that half of the groups reached with every seed, or else that any run reached.
    """
    best = [[best_accuracy(run.records) or 0.0 for run in group.runs] for group in groups]
    worst = sorted(map(min, best), reverse=True)
    rules = {
        "at least half of the rows reached with every seed": worst[(len(worst) - 1) // 2],
        "any run reached": max(map(max, best)),
    }
    for rule, level in rules.items():
        if reached := [target for target in TARGETS if target <= level]:
            return max(reached), rule
    return None, ""


_TEXT_FIELDS = ("label", "mechanism", "status")
_NUMBER_FIELDS = tuple(f.name for f in fields(RunSummary) if f.name not in _TEXT_FIELDS)


def results_csv(results: StudyResults) -> str:
    """Return comma-separated values with a heading; a swept key has a column of its own."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    keys = [key for key in results.swept if key not in ("mechanism.name", "engine.timing")]
    names = ["run", "mechanism", "provenance", "timing", "seed", *keys, "status", *_NUMBER_FIELDS]
    rows.writerow(names)
    for group in results.ranked_groups:
        summaries = summarise(group.runs, results.target.accuracy)
        for run, summary in zip(group.runs, summaries, strict=True):
            mechanism = group.mechanism
            settings = [_csv_value(value_of(run, key)) for key in keys]
            numbers = [_csv_value(getattr(summary, name)) for name in _NUMBER_FIELDS]
            rows.writerow([
                run.name, mechanism.name, mechanism.provenance, group.law,
                run.info.get("seed"), *settings, summary.status, *numbers,
            ])  # fmt: skip
    return out.getvalue()


def _csv_value(value: Any) -> Any:
    return "" if value is None else value
