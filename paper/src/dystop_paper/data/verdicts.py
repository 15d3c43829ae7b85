"""Verdicts: each claim of the paper compared with our runs, by the rules of `paper_claims`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Literal

from dystop.report.data.groups import SeedSpread
from dystop_paper.data.measures import (
    ArmRuns,
    RunsByArm,
    format_measure,
    format_spread,
    reachable_target,
    target_suffix,
)
from dystop_paper.reproduce.paper_claims import (
    Best,
    Claim,
    Figure,
    Growth,
    Measure,
    Reduction,
    Rising,
)

Verdict = Literal["holds", "holds partly", "does not hold", "undecided"]
SUFFICIENT = 0.8  # of the paper's reduction
NEAR, FAR = 0.1, 0.3  # of the paper's number
NEAR_POINTS, FAR_POINTS = 0.03, 0.1  # where it is an accuracy


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim with its verdict."""

    claim: str
    paper: str
    ours: str
    verdict: Verdict


def judge_claims(claims: Sequence[Claim], runs: RunsByArm) -> list[ClaimVerdict]:
    """Judge every claim whose arms were run."""
    return [_judge(claim, runs) for claim in claims if _arms_are_known(claim, runs)]


def arms_of(claim: Claim) -> tuple[str, ...]:
    """Return the arms of a claim; the first one sets the target."""
    if isinstance(claim, Reduction | Growth):
        return (claim.arm, claim.than)
    if isinstance(claim, Best):
        return (claim.arm, *(a for a in claim.among if a != claim.arm))
    return claim.arms if isinstance(claim, Rising) else (claim.arm,)


def _arms_are_known(claim: Claim, runs: RunsByArm) -> bool:
    setting_arm = (claim.set_by,) if isinstance(claim, Figure) and claim.set_by else ()
    return all(arm in runs for arm in (*arms_of(claim), *setting_arm))


def _judge(claim: Claim, runs: RunsByArm) -> ClaimVerdict:
    arms = [runs[key] for key in arms_of(claim)]
    wanted = None if isinstance(claim, Best) else claim.target
    # A rise can only be measured at a target that all arms reach.
    setting_arms = arms if isinstance(claim, Rising | Growth) else arms[:1]
    if isinstance(claim, Figure) and claim.set_by:
        setting_arms = [runs[claim.set_by]]
    target = reachable_target(setting_arms, wanted) if claim.measure in ("time", "bytes") else None
    spreads = [arm.spread(claim.measure, target) for arm in arms]
    text = claim.text + target_suffix(target)
    if isinstance(claim, Reduction):
        return _reduction(claim, text, arms, target)
    if isinstance(claim, Growth):
        return _growth(claim, text, arms, target)
    if isinstance(claim, Best):
        return _best(claim, text, arms, spreads)
    if isinstance(claim, Rising):
        return _rising(claim, text, spreads)
    row = _figure(claim, text, spreads[0], arms[0].end_s)
    missed = claim.target is not None and target != claim.target
    return replace(row, verdict="undecided") if missed else row


def _reduction(
    claim: Reduction, text: str, arms: Sequence[ArmRuns], target: float | None
) -> ClaimVerdict:
    """Compare seed by seed; a rival that misses the target costs at least its whole run."""
    own, rival = (arm.spread(claim.measure, target) for arm in arms)
    paper = f"{claim.paper:.2%} less" if claim.paper else "less"
    if not own.complete:
        return ClaimVerdict(text, paper, format_spread(own, claim.measure), "undecided")
    exact, lower = _savings(claim.measure, arms, target)
    ours = f"{format_spread(own, claim.measure)} against {format_spread(rival, claim.measure)}"
    share = fmean([*exact, *lower]) if exact or lower else 0.0
    if exact or lower:
        at = "at least " if lower and share >= 0 else ""
        ours = f"{at}{abs(share):.1%} {'less' if share >= 0 else 'more'} ({ours})"
    if exact and min(exact) <= 0:
        return ClaimVerdict(text, paper, ours, "does not hold")
    if not (exact or lower):  # the rival's run ended too early
        return ClaimVerdict(text, paper, ours, "undecided")
    complete = len(exact) + len(lower) == rival.total
    enough = complete and share > 0 and share >= SUFFICIENT * claim.paper
    return ClaimVerdict(text, paper, ours, "holds" if enough else "holds partly")


def _savings(
    measure: Measure, arms: Sequence[ArmRuns], target: float | None
) -> tuple[list[float], list[float]]:
    """Return the exact shares saved, and lower bounds where the rival misses the target."""
    own, rival = (arm.values(measure, target) for arm in arms)
    pairs = [(a, b) for a, b in zip(own, rival, strict=False) if a is not None]
    exact = [1.0 - a / b for a, b in pairs if b is not None]
    ends = zip(own, rival, arms[1].ends(measure), strict=False)
    return exact, [1.0 - a / end for a, b, end in ends if a is not None and b is None and a < end]


def _better(measure: Measure, a: float, b: float) -> bool:
    return a > b if measure == "accuracy" else a < b


def _best(
    claim: Best, text: str, arms: Sequence[ArmRuns], spreads: Sequence[SeedSpread]
) -> ClaimVerdict:
    ours = ", ".join(
        f"{arm.arm.label} {format_spread(s, claim.measure)}"
        for arm, s in zip(arms, spreads, strict=True)
    )
    own, rivals = spreads[0], [s for s in spreads[1:] if s.mean is not None]
    if not own.complete or own.mean is None:
        return ClaimVerdict(text, claim.paper, ours, "undecided")
    verdicts = [_beats(claim.measure, own, rival) for rival in rivals]
    verdict: Verdict = "holds"
    if "no" in verdicts:
        verdict = "does not hold"
    elif _too_short(claim.measure, own.mean, arms[1:], spreads[1:]):
        verdict = "undecided"
    elif "perhaps" in verdicts:
        verdict = "holds partly"
    return ClaimVerdict(text, claim.paper, ours, verdict)


def _too_short(
    measure: Measure, own: float, rivals: Sequence[ArmRuns], spreads: Sequence[SeedSpread]
) -> bool:
    """Return whether a rival missed the target but had less time than the arm needed."""
    pairs = zip(rivals, spreads, strict=True)
    return measure == "time" and any(s.mean is None and r.end_s <= own for r, s in pairs)


def _beats(measure: Measure, own: SeedSpread, rival: SeedSpread) -> str:
    """Return yes, no, or perhaps: within the spread, or a faster rival misses with some seeds."""
    assert own.mean is not None
    assert rival.mean is not None
    tolerance = max(own.std or 0.0, rival.std or 0.0)
    if abs(own.mean - rival.mean) <= tolerance:
        return "perhaps"
    if _better(measure, own.mean, rival.mean):
        return "yes"
    return "no" if rival.complete else "perhaps"


def _rising(claim: Rising, text: str, spreads: Sequence[SeedSpread]) -> ClaimVerdict:
    ours = " → ".join(format_spread(s, claim.measure) for s in spreads)
    known = [s for s in spreads if s.complete and s.mean is not None]
    if len(known) < len(spreads):
        return ClaimVerdict(text, claim.paper, ours, "undecided")
    down = [(a, b) for a, b in pairwise(known) if (b.mean or 0.0) <= (a.mean or 0.0)]
    if not down:
        return ClaimVerdict(text, claim.paper, ours, "holds")
    within_spread = all(
        (a.mean or 0.0) - (b.mean or 0.0) <= max(a.std or 0.0, b.std or 0.0) for a, b in down
    )
    return ClaimVerdict(
        text, claim.paper, ours, "holds partly" if within_spread else "does not hold"
    )


def _growth(
    claim: Growth, text: str, arms: Sequence[ArmRuns], target: float | None
) -> ClaimVerdict:
    later, before = (arm.values(claim.measure, target) for arm in arms)
    pairs = zip(later, before, strict=False)
    shares = [1.0 - b / a for a, b in pairs if a is not None and b is not None]
    paper = f"by {claim.paper:.2%} of the longer"
    if not shares:
        return ClaimVerdict(text, paper, "not reached", "undecided")
    share = fmean(shares)
    return ClaimVerdict(text, paper, f"by {share:.1%} of the longer", _judge_distance(claim, share))


def _figure(claim: Figure, text: str, spread: SeedSpread, end_s: float) -> ClaimVerdict:
    paper, ours = format_measure(claim.paper, claim.measure), format_spread(spread, claim.measure)
    if spread.mean is None or not spread.complete:
        too_late = claim.measure == "time" and end_s > (1 + FAR) * claim.paper
        never = not spread.values and too_late
        return ClaimVerdict(text, paper, ours, "does not hold" if never else "undecided")
    return ClaimVerdict(text, paper, ours, _judge_distance(claim, spread.mean))


def _judge_distance(claim: Figure | Growth, ours: float) -> Verdict:
    """Judge how near a number is to the paper's."""
    if claim.measure == "accuracy":
        off, near, far = abs(ours - claim.paper), NEAR_POINTS, FAR_POINTS
    else:
        off, near, far = abs(ours / claim.paper - 1.0), NEAR, FAR
    return "holds" if off <= near else "holds partly" if off <= far else "does not hold"
