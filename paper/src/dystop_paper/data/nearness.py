"""How near the runs of a reading come to the paper: its numbers, its distance, its verdicts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from dystop.folders.run_folder import RunData
from dystop_paper.data.measures import ArmRuns, RunsByArm, reachable_target
from dystop_paper.data.verdicts import ClaimVerdict, Verdict, arms_of, judge_claims
from dystop_paper.reproduce.distance import Beyond, Number, distance
from dystop_paper.reproduce.paper_claims import (
    Claim,
    Figure,
    Growth,
    Measure,
    Reduction,
    Rising,
)
from dystop_paper.reproduce.reading_runs import Group, Part
from dystop_paper.reproduce.reading_space import Reading

TARGETS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85)
"""The paper does not tell at which accuracy a run is complete; one target serves all mechanisms."""

LEARNED = 0.5
"""Where levels mean nothing: the share of the paper's accuracy that the reference arm must reach.

Models that have not learned all have about the same accuracy, and their ratios look near.
"""

GROUPS: dict[Group, str] = {
    "fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN", "cifar100": "CIFAR-100",
    "cifar10-settings": "CIFAR-10 (V, s)",
}  # fmt: skip
"""The groups of numbers on which a reading has a distance: data sets, and settings on one."""

SIMULATED: tuple[Group, Group] = ("fmnist", "cifar10")
"""The data sets of the paper's simulations; the others are those of its testbed."""

Measured = tuple[float, Beyond] | None


@dataclass(frozen=True)
class ReadingResult:
    """What the runs of one reading say about the paper."""

    reading: Reading
    seeds: int  # behind the main part
    target: float | None  # of completion times: the one at which the numbers are nearest
    numbers: tuple[Number, ...]
    verdicts: tuple[tuple[str, ClaimVerdict], ...]  # part and verdict

    is_complete: bool = True  # whether every arm of the parts of a distance has finished
    groups: frozenset[Group] = frozenset()  # those of which every arm has finished

    @property
    def distance(self) -> float | None:
        """The distance of its numbers from the paper's; None if some are missing.

        Trained runs on the other data sets have distances of their own (ADR 0044).
        """
        return distance(n for n in self.numbers if n.in_distance) if self.is_complete else None

    def distance_on(self, group: Group) -> float | None:
        """Return the distance of its numbers of one group; None if some are missing."""
        own = (n for n in self.numbers if n.group == group)
        return distance(own) if group in self.groups else None

    @property
    def rank(self) -> tuple[bool, float, str]:
        """Its place: by the distance, or where that was not run, by that of one group."""
        every = (self.distance, *map(self.distance_on, GROUPS))
        found = next((d for d in every if d is not None), 0.0)
        return not self.is_complete, found, self.reading.name

    def counts(self) -> Counter[Verdict]:
        """Return how many claims have each verdict."""
        return Counter(row.verdict for _, row in self.verdicts)


def judge_reading(
    reading: Reading,
    parts: Mapping[str, tuple[Part, RunsByArm]],
    *,
    ratios_only: bool,
    core: Sequence[Part] = (),
) -> ReadingResult:
    """Compare the runs of a reading with the paper.

    Args:
        reading: The reading.
        parts: Its parts that were run, by name, with the runs of their arms.
        ratios_only: Whether seconds, bytes and accuracies mean nothing (a small scale): then only
            ratios between arms count, and staleness, which is planned with the paper's fleet.
        core: The parts without which a reading has no distance, of each group.
    """
    by_target = {t: tuple(_numbers(parts, t, ratios_only=ratios_only)) for t in _reached(parts)}
    target = min(by_target, key=lambda t: distance(n for n in by_target[t] if n.in_distance) or 0.0)
    is_timed = any(n.measure == "time" and n.in_distance for n in by_target[target])
    trained = [(p, runs) for p, runs in parts.values() if p.has_distance and not p.is_planned]
    main = [runs for part, runs in trained if part.is_core] or [runs for _, runs in trained]
    return ReadingResult(
        reading,
        seeds=min((len(arm.runs) for runs in main for arm in runs.values()), default=0),
        target=target if is_timed else None,
        numbers=by_target[target],
        verdicts=tuple(
            (name, row)
            for name, (part, runs) in parts.items()
            for claim in _claims_of(part, ratios_only=ratios_only)
            if part.is_planned or not ratios_only or not isinstance(claim, Figure)
            for row in judge_claims([claim], same_seeds(claim, runs))
        ),
        is_complete=_is_complete(parts, [part for part in core if part.is_core] or core),
        groups=frozenset(
            group
            for group in GROUPS
            if any(part.group == group and not part.is_planned for part in core)
            and _is_complete(parts, [part for part in core if part.group == group])
        ),
    )


def _is_complete(parts: Mapping[str, tuple[Part, RunsByArm]], needed: Sequence[Part]) -> bool:
    """Return whether every arm of these parts has a run."""
    return all(
        part.name in parts and all(arm.key in parts[part.name][1] for arm in part.arms)
        for part in needed
    )


def _reached(parts: Mapping[str, tuple[Part, RunsByArm]]) -> list[float]:
    """Return the targets that DySTop reaches in every run of the main part; at least the lowest.

    A target that it misses would hide its own times behind the ends of the runs.
    """
    own = [
        arm
        for part, runs in parts.values()
        if part.is_core and not part.is_planned
        for key, arm in runs.items()
        if key.startswith("dystop")
    ]
    highest = reachable_target(own, None) or 0.0
    return [t for t in TARGETS if t <= highest] or [TARGETS[0]]


def same_seeds(claim: Claim, runs: RunsByArm) -> RunsByArm:
    """Return the arms of a claim with the runs of those seeds that all of them have finished."""
    names = [*arms_of(claim), *([claim.set_by] if isinstance(claim, Figure) else [])]
    arms = {name: runs[name] for name in names if name in runs}
    if not arms:
        return {}
    shared = set.intersection(*({_seed(run) for run in arm.runs} for arm in arms.values()))
    kept = {k: replace(a, runs=tuple(r for r in a.runs if _seed(r) in shared))
            for k, a in arms.items()}  # fmt: skip
    return {name: arm for name, arm in kept.items() if arm.runs}


def _seed(run: RunData) -> object:
    return run.info.get("seed")


def with_numbers(result: ReadingResult, names: Sequence[str]) -> ReadingResult:
    """Return a result with some of the numbers of its distance only."""
    kept = tuple(n for n in result.numbers if n.name in names or not n.in_distance)
    return replace(result, numbers=kept)


def common_numbers(results: Sequence[ReadingResult]) -> list[str]:
    """Return the numbers of a distance that every result has: only over these it is compared."""
    if not results:
        return []
    shared = set.intersection(*({n.name for n in result.numbers} for result in results))
    return [n.name for n in results[0].numbers if n.name in shared and n.in_distance]


def _claims_of(part: Part, *, ratios_only: bool) -> tuple[Claim, ...]:
    """Return the claims of a part. A stand-in has targets of its own: the paper's may be easy."""
    if not part.reference or not ratios_only:
        return part.claims
    return tuple(
        replace(c, target=None) if isinstance(c, Reduction | Rising) else c for c in part.claims
    )


def _numbers(
    parts: Mapping[str, tuple[Part, RunsByArm]], target: float, *, ratios_only: bool
) -> Iterator[Number]:
    for part, runs in parts.values():
        for claim in _claims_of(part, ratios_only=ratios_only):
            if any(arm not in runs for arm in arms_of(claim)) or not same_seeds(claim, runs):
                continue
            as_share = part.reference and ratios_only and claim.measure in part.shares
            if as_share and isinstance(claim, Figure):
                found = _share_of_reference(claim, part, runs)
            else:
                found = _number(claim, part, same_seeds(claim, runs), target, ratios_only)
            if found is not None:
                yield replace(found, group=part.group, in_distance=part.in_distance)


def _number(
    claim: Claim, part: Part, runs: RunsByArm, target: float, ratios_only: bool
) -> Number | None:
    stated = _stated(claim, ratios_only=ratios_only and not part.is_planned)
    if stated is None:
        return None
    wanted = _target_of(claim, runs, target, ratios_only=ratios_only)
    if part.reference and ratios_only and wanted is not None:
        wanted = reachable_target([runs[arms_of(claim)[0]]], None)
    ours, beyond = _ours(claim, runs, wanted) or (None, 0)
    return Number(f"{part.name}: {claim.text}", claim.measure, stated, ours, beyond)


def _share_of_reference(claim: Figure, part: Part, runs: RunsByArm) -> Number | None:
    """Return a figure as a share of the reference arm's, in the paper and in ours."""
    other = _figure_of(part, part.reference, claim.measure)
    if other is None or other == claim or part.reference not in runs:
        return None
    name = f"{part.name}: {claim.text}, of that of {part.reference}"
    both = same_seeds(Reduction("", claim.measure, claim.arm, part.reference, 0.0), runs)
    target = reachable_target(list(runs.values()), None)
    ours = _share(claim.measure, part, target, *both.values()) if len(both) == 2 else None
    return Number(name, claim.measure, claim.paper / other.paper, ours)


def _figure_of(part: Part, arm: str, measure: Measure) -> Figure | None:
    """Return what the paper states about an arm."""
    figures = (c for c in part.claims if isinstance(c, Figure))
    return next((c for c in figures if (c.arm, c.measure) == (arm, measure)), None)


def _share(
    measure: Measure, part: Part, target: float | None, arm: ArmRuns, reference: ArmRuns
) -> float | None:
    """Return what an arm has, or needs to the target, of what the reference has or needs."""
    learned = _value(reference, "accuracy", None)
    stated = _figure_of(part, part.reference, "accuracy")
    if learned is None or stated is None or learned[0] < LEARNED * stated.paper:
        return None
    own, other = _value(arm, measure, target), _value(reference, measure, target)
    if own is None or other is None or own[1] or not other[0]:
        return None
    return own[0] / other[0]


def _stated(claim: Claim, *, ratios_only: bool) -> float | None:
    """Return the paper's number, a reduction as what is left of the rival's; None: no number."""
    if isinstance(claim, Figure):
        return None if ratios_only else claim.paper
    if isinstance(claim, Reduction | Growth):
        return 1.0 - claim.paper if claim.paper else None
    return None


def _target_of(claim: Claim, runs: RunsByArm, target: float, *, ratios_only: bool) -> float | None:
    if claim.measure not in ("time", "bytes"):
        return None
    named = claim.target if isinstance(claim, Reduction | Figure) else None
    if named is None:
        return target
    # A small model may not reach the paper's target: then the highest that it does.
    return reachable_target([runs[arms_of(claim)[0]]], named) if ratios_only else named


def _ours(claim: Claim, runs: RunsByArm, target: float | None) -> Measured:
    if isinstance(claim, Figure):
        return _value(runs[claim.arm], claim.measure, target)
    if isinstance(claim, Reduction):
        return _ratio(claim.measure, runs[claim.arm], runs[claim.than], target)
    if isinstance(claim, Growth):
        return _ratio(claim.measure, runs[claim.than], runs[claim.arm], target)
    return None


def _ratio(measure: Measure, arm: ArmRuns, rival: ArmRuns, target: float | None) -> Measured:
    """Return what the arm needs of what the rival needs; at most that, if the rival fails."""
    own, other = _value(arm, measure, target), _value(rival, measure, target)
    if own is None or other is None or own[1] or not other[0]:
        return None
    return own[0] / other[0], -1 if other[1] else 0


def _value(arm: ArmRuns, measure: Measure, target: float | None) -> Measured:
    """Return the mean over the seeds; where one misses the target, that it lies beyond the end."""
    values = arm.values(measure, target)
    known = [value for value in values if value is not None]
    if values and len(known) == len(values):
        return fmean(known), 0
    if measure in ("time", "bytes"):
        return fmean(arm.ends(measure)), 1
    return None
