"""The result of `dystop advise`: which mechanism to take, why, and how sure that is."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dystop.report.data.contests.winners import (
    FIRST,
    GOALS,
    SHOW,
    Contender,
    Contest,
    Goal,
    best_of,
    common_target,
    contenders_of,
    contest,
    is_cheaper,
    lead,
    survivors,
)
from dystop.report.data.groups import Group
from dystop.units import goal as target_text
from dystop.units import listed, number, percent, plural, seconds

TRIAL_STEP = 0.01
"""Targets of trials are multiples of it."""
_COLUMNS = (
    "stage", "seconds", "seeds", "target", "mechanism", "provenance", "reached", "time_s",
    "traffic_bytes", "compute_epochs", "best_accuracy", "goes_on",
)  # fmt: skip
_REACHED: dict[Goal, float] = {"time": 0.5, "traffic": 0.75, "compute": 0.75}
"""Share of the mechanisms that must reach a target. A cheap mechanism may be a slow one, so that
more of them have to get there where time is not the goal."""


@dataclass(frozen=True)
class StageResult:
    """What one stage of the trials found."""

    seconds: float  # simulated, of every run
    seeds: int
    contests: Mapping[Goal, Contest]
    kept: tuple[str, ...]  # who goes on; in the last stage nobody

    def target(self, goal: Goal) -> float | None:
        """Return the accuracy to which costs are counted."""
        return self.contests[goal].target

    @property
    def size(self) -> int:
        """Number of mechanisms."""
        return len(self.contests["time"].ranked)


def judge(
    groups: Sequence[Group], goal: Goal, limit_s: float, keep: int, highest: float | None = None
) -> StageResult:
    """Rank the mechanisms of a stage and choose who goes on.

    The target is the highest multiple of one percent that enough mechanisms reach with every seed:
    half of them where time is the goal, three quarters otherwise.

    Args:
        groups: One group per mechanism.
        goal: What the ranking is about.
        limit_s: Simulated seconds of every run.
        keep: How many go on, by this goal; 0 in the last stage.
        highest: The target is not above it.
    """
    best, contests = best_of(groups), {}
    for each in GOALS:
        least = math.ceil(_REACHED[each] * len(groups))
        target = common_target(best, least, TRIAL_STEP, highest or 1.0)
        contests[each] = contest(contenders_of(groups, target), each, target)
    kept = tuple(survivors(contests, goal, keep)) if keep else ()
    return StageResult(limit_s, max(len(group.runs) for group in groups), contests, kept)


@dataclass(frozen=True)
class Advice:
    """The advice, stage by stage."""

    goal: Goal
    stages: tuple[StageResult, ...]

    @property
    def last(self) -> StageResult:
        """The last stage, which decides."""
        return self.stages[-1]

    @property
    def contest(self) -> Contest:
        """The contest that decides."""
        return self.last.contests[self.goal]

    @property
    def headline(self) -> str:
        """Which mechanism to take; of several that tie, the one that costs less otherwise."""
        winner, target = self.contest.winner, self.contest.target
        if winner is None or target is None:
            return (
                "No advice: no mechanism learned anything in "
                f"{seconds(self.last.seconds)}; longer trials may: --seconds S"
            )
        if self.contest.tied:
            return f"{self._tie(target)} {self._tie_break}"
        cost = SHOW[self.goal](winner.mean(self.goal))
        return (
            f"Take {winner.label}: it reaches {target_text(target)} {FIRST[self.goal]}, "
            f"{'after ' if self.goal == 'time' else ''}{cost}."
        )

    def _tie(self, target: float) -> str:
        """Say who ties, at which cost, and why that is no order."""
        first, other, *_ = front = self.contest.front
        costs = listed(f"{c.label} ({SHOW[self.goal](c.mean(self.goal))})" for c in front)
        found = lead(first, other, self.goal)
        return (
            f"{costs} tie in {self.goal} to {target_text(target)}: no difference is larger than "
            f"its spread over the seeds; {first.name} is ahead of {other.name} in {found.ahead} of "
            f"{plural(found.seeds, 'seed')}."
        )

    @property
    def _tie_break(self) -> str:
        """Say which mechanism of a tie costs less otherwise, or that none does."""
        contest, others = self.contest, [goal for goal in GOALS if goal != self.goal]
        chosen = contest.choice
        if chosen is not None:
            rivals = [c for c in contest.front if c is not chosen]
            costs = listed(_other_cost(chosen, rivals, goal) for goal in others)
            return f"Take {chosen.label}: it gets there with {costs}."
        cheaper = {
            goal: [c for c in contest.cheapest if _is_least(c, contest.cheapest, goal)]
            for goal in others
        }
        if not any(cheaper.values()):
            return (
                f"Take any of {listed(c.label for c in contest.cheapest)}: {listed(others)} do "
                "not tell them apart either."
            )
        least = [
            f"{many[0].label} with {_other_cost(many[0], rivals, goal)}"
            for goal, many in cheaper.items()
            if many and (rivals := [c for c in contest.front if c is not many[0]])
        ]
        return f"What else you pay for decides: {listed(least)}."

    @property
    def runner_up(self) -> str:
        """Who comes next, and how sure the order is."""
        contest, winner = self.contest, self.contest.winner
        if winner is None:
            return ""
        behind = [c for c in contest.ranked if c.reached and c not in contest.front]
        found = lead(winner, behind[0], self.goal) if behind else None
        if found is None or found.factor is None:
            return "" if contest.tied else "No other mechanism of the last trials reaches it."
        whose = f" of {winner.name}" if contest.tied else ""
        by = f"{number(found.factor)} times the {self.goal}{whose}"
        ahead = f"{winner.name} is ahead in {found.ahead} of {plural(found.seeds, 'seed')}"
        sure = "" if found.seeds > 1 else " One seed cannot say how sure that is."
        return f"Runner-up: {behind[0].label}, {by}; {ahead}.{sure}"

    @property
    def why(self) -> str:
        """What the winner does better than the runner-up: cost is epochs times cost per epoch."""
        first, second = self.contest.winner, self.contest.runner_up
        if first is None or second is None or self.contest.tied:
            return ""
        needs, others = first.mean("compute"), second.mean("compute")
        if not needs or not others:
            return ""
        learns = f"needs {number(needs)} epochs to get there ({second.name}: {number(others)})"
        if self.goal == "compute":
            return f"Why: {first.name} {learns}."
        own, their = first.mean(self.goal) or 0.0, second.mean(self.goal) or 0.0
        if self.goal == "traffic":
            show = SHOW["traffic"]
            spends = f"sends {show(own / needs)} per epoch ({second.name}: {show(their / others)})"
        else:
            spends = (
                f"trains {number(needs / max(own, 1e-9))} epochs in a second "
                f"({second.name}: {number(others / max(their, 1e-9))})"
            )
        return f"Why: {first.name} {spends} and {learns}."

    @property
    def others(self) -> str:
        """The winners of the other goals, in one line."""
        parts = []
        for goal in GOALS:
            winner = self.last.contests[goal].winner
            if goal != self.goal and winner is not None:
                tied = self.last.contests[goal].tied
                tie = f", a tie with {', '.join(c.label for c in tied)}" if tied else ""
                cost, target = SHOW[goal](winner.mean(goal)), self.last.target(goal)
                aim = "" if target is None else f" to {target_text(target)}"
                parts.append(f"{FIRST[goal]}: {winner.label} ({cost}{aim}{tie})")
        return f"By the other goals: {'; '.join(parts)}." if parts else ""

    @property
    def sentences(self) -> list[str]:
        """The advice, sentence by sentence."""
        said = [
            self.headline, self.runner_up, self.why, self.others, self._server, self._missing,
        ]  # fmt: skip
        return [sentence for sentence in said if sentence]

    @property
    def _server(self) -> str:
        winner = self.contest.choice or self.contest.winner
        if winner is None or not winner.server:
            return ""
        return (
            f"{winner.name} needs a base station that reaches every worker; --no-server leaves "
            "such mechanisms out."
        )

    @property
    def _missing(self) -> str:
        names = [c.label for c in self.contest.missing]
        target = self.contest.target
        what = "the target" if target is None else target_text(target)
        return f"Not at {what} with every seed: {', '.join(names)}." if names else ""


def _is_least(one: Contender, every: Sequence[Contender], goal: Goal) -> bool:
    """Return whether a mechanism costs less than some other, and none costs less than it."""
    return any(is_cheaper(one, c, goal) for c in every) and not any(
        is_cheaper(c, one, goal) for c in every
    )


def _other_cost(one: Contender, rivals: Sequence[Contender], goal: Goal) -> str:
    """Return how a cost of one mechanism compares with that of others."""
    found = lead(one, rivals[0], goal)
    how = "less"
    if not all(is_cheaper(one, rival, goal) for rival in rivals):
        how = "about as much"
    elif len(rivals) == 1 and found.factor:
        how = f"{percent(1 - 1 / found.factor, 0)} less"
    theirs = "; ".join(f"{c.name}: {SHOW[goal](c.mean(goal))}" for c in rivals)
    return f"{how} {goal} ({SHOW[goal](one.mean(goal))}; {theirs})"


COLUMNS = ("mechanism", "stage", "target", "time", "traffic", "compute", "best accuracy", "")
"""Heading of `table`."""


def table(advice: Advice) -> list[tuple[str, ...]]:
    """Return one row per mechanism, from its last stage, the best first."""
    rows: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for number_of, stage in reversed(list(enumerate(advice.stages, 1))):
        for contender in stage.contests[advice.goal].ranked:
            if contender.name not in seen:
                seen.add(contender.name)
                rows.append(_row(contender, number_of, stage.target(advice.goal)))
    return rows


def _row(contender: Contender, number_of: int, target: float | None) -> tuple[str, ...]:
    total = len(contender.costs)
    reached = contender.reached
    note = "" if reached == total else f"target in {reached} of {plural(total, 'seed')}"
    best = sum(contender.best.values()) / max(len(contender.best), 1)
    aim = "none" if target is None else target_text(target)
    costs = [SHOW[goal](contender.mean(goal)) for goal in GOALS]
    return (contender.label, str(number_of), aim, *costs, percent(best), note)


def advice_csv(advice: Advice) -> str:
    """Return one row per mechanism and stage, for other programs."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for index, stage in enumerate(advice.stages, 1):
        for contender in stage.contests[advice.goal].ranked:
            means = [contender.mean(goal) for goal in GOALS]
            costs = ["" if mean is None else mean for mean in means]
            best = sum(contender.best.values()) / max(len(contender.best), 1)
            target = stage.target(advice.goal)
            rows.writerow([
                index, stage.seconds, stage.seeds, "" if target is None else target,
                contender.name, contender.provenance, contender.reached, *costs, best,
                contender.name in stage.kept,
            ])  # fmt: skip
    return out.getvalue()
