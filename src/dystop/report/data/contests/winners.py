"""Which mechanism reaches a target first, with least traffic or with least compute.

The costs of two mechanisms are compared seed by seed, because runs of one seed share fleet, split
and channel. The mean of the logarithms of their ratios says by how much one is ahead; it is a tie
if that mean does not exceed its standard deviation over the seeds.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dystop.record import RoundRecord
from dystop.report.data.groups import Group
from dystop.report.data.scores import best_accuracy, first_reaching
from dystop.units import NOTHING, data, number, seconds

Goal = Literal["time", "traffic", "compute"]
GOALS: tuple[Goal, ...] = ("time", "traffic", "compute")
STEP = 0.05
"""Targets that are chosen from results are multiples of it."""
_SMALLEST = 1e-9  # a cost of 0 has no logarithm


@dataclass(frozen=True)
class Costs:
    """What one run had spent when it reached the target."""

    time: float  # simulated seconds
    traffic: float  # bytes on the wire
    compute: float  # local epochs, in passes over the whole training set

    def of(self, goal: Goal) -> float:
        """Return the cost that a goal asks for."""
        return {"time": self.time, "traffic": self.traffic, "compute": self.compute}[goal]


@dataclass(frozen=True)
class Contender:
    """A mechanism with its costs and its best accuracy, seed by seed."""

    name: str
    costs: Mapping[str, Costs | None]  # None: this seed did not reach the target
    best: Mapping[str, float]
    provenance: str = ""
    server: bool = False  # whether it needs a base station

    @property
    def reached(self) -> int:
        """Number of seeds that reached the target."""
        return sum(costs is not None for costs in self.costs.values())

    @property
    def is_reconstruction(self) -> bool:
        """Whether no code and no full description of the mechanism was published."""
        return self.provenance.lower().startswith("reconstruction")

    @property
    def label(self) -> str:
        """The name, with a warning where the mechanism is a reconstruction."""
        return f"{self.name} (reconstruction)" if self.is_reconstruction else self.name

    def mean(self, goal: Goal) -> float | None:
        """Return the geometric mean of a cost over the seeds that reached the target."""
        every = [math.log(max(c.of(goal), _SMALLEST)) for c in self.costs.values() if c is not None]
        if not every:
            return None
        return float(f"{math.exp(statistics.fmean(every)):.12g}")  # a logarithm is rounded


@dataclass(frozen=True)
class Lead:
    """By how much one mechanism is ahead of another."""

    factor: float | None  # cost of the other divided by its own; None: no seed has both
    seeds: int  # that have both
    ahead: int  # of them, those in which it costs less
    tie: bool


def lead(first: Contender, other: Contender, goal: Goal) -> Lead:
    """Compare two mechanisms seed by seed."""
    ratios = [
        math.log(max(theirs.of(goal), _SMALLEST) / max(own.of(goal), _SMALLEST))
        for seed, own in first.costs.items()
        if own is not None and (theirs := other.costs.get(seed)) is not None
    ]
    if not ratios:
        return Lead(None, 0, 0, tie=False)
    mean = statistics.fmean(ratios)
    spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
    tie = other.reached >= first.reached and mean <= spread
    return Lead(math.exp(mean), len(ratios), sum(ratio > 0 for ratio in ratios), tie)


def undercuts(first: Contender, other: Contender, goals: Sequence[Goal]) -> bool:
    """Return whether one mechanism is cheaper than another by some goal, and dearer by none.

    Differences that are a tie do not count.
    """
    return any(is_cheaper(first, other, goal) for goal in goals) and not any(
        is_cheaper(other, first, goal) for goal in goals
    )


def is_cheaper(first: Contender, other: Contender, goal: Goal) -> bool:
    """Return whether one mechanism costs less than another, by more than a tie."""
    found = lead(first, other, goal)
    return found.factor is not None and not found.tie


@dataclass(frozen=True)
class Contest:
    """The mechanisms in the order of one goal, best first."""

    goal: Goal
    target: float | None
    ranked: tuple[Contender, ...]

    @property
    def winner(self) -> Contender | None:
        """The first mechanism; None if no run reached the target."""
        return self.ranked[0] if self.ranked and self.ranked[0].reached else None

    @property
    def runner_up(self) -> Contender | None:
        """The second mechanism; None if it did not reach the target."""
        return self.ranked[1] if len(self.ranked) > 1 and self.ranked[1].reached else None

    @property
    def lead(self) -> Lead | None:
        """How far the winner is ahead of the runner-up."""
        if self.winner is None or self.runner_up is None:
            return None
        return lead(self.winner, self.runner_up, self.goal)

    @property
    def tied(self) -> tuple[Contender, ...]:
        """The mechanisms that tie with the winner, in order."""
        first = self.winner
        if first is None:
            return ()
        return tuple(c for c in self.ranked[1:] if c.reached and lead(first, c, self.goal).tie)

    @property
    def front(self) -> tuple[Contender, ...]:
        """The winner and those that tie with it; nobody, if no run reached the target."""
        return () if self.winner is None else (self.winner, *self.tied)

    @property
    def cheapest(self) -> tuple[Contender, ...]:
        """The front without those that another one of it undercuts in the other costs."""
        others = [goal for goal in GOALS if goal != self.goal]
        return tuple(c for c in self.front if not any(undercuts(o, c, others) for o in self.front))

    @property
    def choice(self) -> Contender | None:
        """The winner, or of several that tie the one whose other costs undercut the rest."""
        return self.cheapest[0] if len(self.cheapest) == 1 else None

    @property
    def missing(self) -> tuple[Contender, ...]:
        """The mechanisms that did not reach the target with every seed."""
        return tuple(c for c in self.ranked if c.reached < len(c.costs))


def contest(contenders: Sequence[Contender], goal: Goal, target: float | None) -> Contest:
    """Rank mechanisms: more seeds at the target first, then a lower cost, then more accuracy."""

    def key(contender: Contender) -> tuple[int, float, float, str]:
        accuracy = statistics.fmean(contender.best.values()) if contender.best else 0.0
        return -contender.reached, contender.mean(goal) or 0.0, -accuracy, contender.name

    return Contest(goal, target, tuple(sorted(contenders, key=key)))


def common_target(
    best: Sequence[Sequence[float]], least: int, step: float = STEP, highest: float = 1.0
) -> float | None:
    """Return the highest multiple of `step` that enough mechanisms reach with every seed.

    Args:
        best: Best accuracy of every mechanism, seed by seed.
        least: How many mechanisms must reach it; all of them, where there are fewer.
        step: The target is a multiple of it.
        highest: The target is not above it.

    >>> common_target([[0.61, 0.58], [0.55, 0.57], [0.3, 0.7]], least=2)
    0.55
    """
    worst = sorted((min(seeds, default=0.0) for seeds in best), reverse=True)
    if not worst:
        return None
    level = min(worst[min(least, len(worst)) - 1], highest)
    steps = math.floor(level / step + 1e-9)
    return round(steps * step, 9) if steps > 0 else None


def survivors(contests: Mapping[Goal, Contest], goal: Goal, keep: int) -> list[str]:
    """Return who stays in: the best by the goal, and the winner by each other goal."""
    names = [contender.name for contender in contests[goal].ranked[:keep]]
    others = [contests[other].winner for other in contests if other != goal]
    return list(dict.fromkeys([*names, *(c.name for c in others if c is not None)]))


def best_of(groups: Sequence[Group]) -> list[list[float]]:
    """Return the best accuracy of every group, seed by seed."""
    return [[best_accuracy(run.records) or 0.0 for run in group.runs] for group in groups]


def contenders_of(groups: Sequence[Group], target: float | None) -> list[Contender]:
    """Return the mechanisms of a comparison with their costs to the target."""
    return [_contender(group, target) for group in groups]


def _contender(group: Group, target: float | None) -> Contender:
    costs: dict[str, Costs | None] = {}
    best: dict[str, float] = {}
    for seed, run in zip(group.seeds, group.runs, strict=True):
        row = None if target is None else first_reaching(run.records, target)
        costs[seed] = None if row is None else _costs_at(row)
        best[seed] = best_accuracy(run.records) or 0.0
    mechanism = group.mechanism
    physics = group.runs[0].fleet.get("physics") or {}
    server = physics.get("server", "none") != "none"
    return Contender(mechanism.name, costs, best, mechanism.provenance, server)


def _costs_at(row: RoundRecord) -> Costs:
    return Costs(row.clock_s, float(row.wire_bytes_total), row.epochs_total)


def all_contests(contenders: Sequence[Contender], target: float | None) -> dict[Goal, Contest]:
    """Return the contest of every goal."""
    return {goal: contest(contenders, goal, target) for goal in GOALS}


def _epochs(value: float | None) -> str:
    return NOTHING if value is None else f"{number(value)} epochs"


SHOW: dict[Goal, Callable[[float | None], str]] = {
    "time": seconds,
    "traffic": data,
    "compute": _epochs,
}
"""How a cost is written."""

FIRST: dict[Goal, str] = {
    "time": "first",
    "traffic": "with least traffic",
    "compute": "with least compute",
}
"""How the winner by a goal reaches the target."""
