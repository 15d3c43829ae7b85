"""Verdicts: each sentence of the paper held against our runs, by the rules of `recipes.claims`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Literal

from dystop.experiments.reproduce.paper_claims import (
    Best,
    Claim,
    Figure,
    Growth,
    Measure,
    Reduction,
    Rising,
)
from dystop.report.data.groups import Spread
from dystop.report.data.measures import Outcome, Outcomes, aim, show, show_spread, target_for

Verdict = Literal["holds", "holds partly", "does not hold", "cannot be told"]
ENOUGH = 0.8  # of the paper's reduction
NEAR, FAR = 0.1, 0.3  # of the paper's number
NEAR_POINTS, FAR_POINTS = 0.03, 0.1  # where it is an accuracy


@dataclass(frozen=True)
class Row:
    """One claim with its verdict."""

    claim: str
    paper: str
    ours: str
    verdict: Verdict


def judge(claims: Sequence[Claim], outcomes: Outcomes) -> list[Row]:
    """Every claim whose arms were run."""
    return [_row(claim, outcomes) for claim in claims if _known(claim, outcomes)]


def arms_of(claim: Claim) -> tuple[str, ...]:
    """The arms that a claim is about; the first one sets the target."""
    if isinstance(claim, Reduction | Growth):
        return (claim.arm, claim.than)
    if isinstance(claim, Best):
        return (claim.arm, *(a for a in claim.among if a != claim.arm))
    return claim.arms if isinstance(claim, Rising) else (claim.arm,)


def _known(claim: Claim, outcomes: Outcomes) -> bool:
    setter = (claim.set_by,) if isinstance(claim, Figure) and claim.set_by else ()
    return all(arm in outcomes for arm in (*arms_of(claim), *setter))


def _row(claim: Claim, outcomes: Outcomes) -> Row:
    arms = [outcomes[key] for key in arms_of(claim)]
    wanted = None if isinstance(claim, Best) else claim.target
    # A step up or down is only told at a level that both ends reach.
    setters = arms if isinstance(claim, Rising | Growth) else arms[:1]
    if isinstance(claim, Figure) and claim.set_by:
        setters = [outcomes[claim.set_by]]
    target = target_for(setters, wanted) if claim.measure in ("time", "bytes") else None
    spreads = [arm.spread(claim.measure, target) for arm in arms]
    text = claim.text + aim(target)
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
    return replace(row, verdict="cannot be told") if missed else row


def _reduction(claim: Reduction, text: str, arms: Sequence[Outcome], target: float | None) -> Row:
    """Seed by seed; a rival that does not get there needs at least as long as its run took."""
    own, rival = (arm.spread(claim.measure, target) for arm in arms)
    paper = f"{claim.paper:.2%} less" if claim.paper else "less"
    if not own.complete:
        return Row(text, paper, show_spread(own, claim.measure), "cannot be told")
    met, least = _saved(claim.measure, arms, target)
    ours = f"{show_spread(own, claim.measure)} against {show_spread(rival, claim.measure)}"
    share = fmean([*met, *least]) if met or least else 0.0
    if met or least:
        at = "at least " if least and share >= 0 else ""
        ours = f"{at}{abs(share):.1%} {'less' if share >= 0 else 'more'} ({ours})"
    if met and min(met) <= 0:
        return Row(text, paper, ours, "does not hold")
    if not (met or least):  # the rival's run ended before
        return Row(text, paper, ours, "cannot be told")
    told = len(met) + len(least) == rival.total
    enough = told and share > 0 and share >= ENOUGH * claim.paper
    return Row(text, paper, ours, "holds" if enough else "holds partly")


def _saved(
    measure: Measure, arms: Sequence[Outcome], target: float | None
) -> tuple[list[float], list[float]]:
    """Shares saved: where both get there, and at least, where the rival's run is longer."""
    own, rival = (arm.each(measure, target) for arm in arms)
    pairs = [(a, b) for a, b in zip(own, rival, strict=False) if a is not None]
    met = [1.0 - a / b for a, b in pairs if b is not None]
    ends = zip(own, rival, arms[1].ends(measure), strict=False)
    return met, [1.0 - a / end for a, b, end in ends if a is not None and b is None and a < end]


def _better(measure: Measure, a: float, b: float) -> bool:
    return a > b if measure == "accuracy" else a < b


def _best(claim: Best, text: str, arms: Sequence[Outcome], spreads: Sequence[Spread]) -> Row:
    told = ", ".join(
        f"{arm.arm.label} {show_spread(s, claim.measure)}"
        for arm, s in zip(arms, spreads, strict=True)
    )
    own, rivals = spreads[0], [s for s in spreads[1:] if s.mean is not None]
    if not own.complete or own.mean is None:
        return Row(text, claim.paper, told, "cannot be told")
    verdicts = [_beats(claim.measure, own, rival) for rival in rivals]
    verdict: Verdict = "holds"
    if "no" in verdicts:
        verdict = "does not hold"
    elif _too_short(claim.measure, own.mean, arms[1:], spreads[1:]):
        verdict = "cannot be told"
    elif "perhaps" in verdicts:
        verdict = "holds partly"
    return Row(text, claim.paper, told, verdict)


def _too_short(
    measure: Measure, own: float, rivals: Sequence[Outcome], spreads: Sequence[Spread]
) -> bool:
    """Whether a rival that never got there had less time than the arm needed."""
    pairs = zip(rivals, spreads, strict=True)
    return measure == "time" and any(s.mean is None and r.end_s <= own for r, s in pairs)


def _beats(measure: Measure, own: Spread, rival: Spread) -> str:
    """Yes, no, or perhaps: within the spread, or a faster rival does not arrive with every seed."""
    assert own.mean is not None
    assert rival.mean is not None
    blur = max(own.std or 0.0, rival.std or 0.0)
    if abs(own.mean - rival.mean) <= blur:
        return "perhaps"
    if _better(measure, own.mean, rival.mean):
        return "yes"
    return "no" if rival.complete else "perhaps"


def _rising(claim: Rising, text: str, spreads: Sequence[Spread]) -> Row:
    told = " → ".join(show_spread(s, claim.measure) for s in spreads)
    known = [s for s in spreads if s.complete and s.mean is not None]
    if len(known) < len(spreads):
        return Row(text, claim.paper, told, "cannot be told")
    down = [(a, b) for a, b in pairwise(known) if (b.mean or 0.0) <= (a.mean or 0.0)]
    if not down:
        return Row(text, claim.paper, told, "holds")
    blurred = all(
        (a.mean or 0.0) - (b.mean or 0.0) <= max(a.std or 0.0, b.std or 0.0) for a, b in down
    )
    return Row(text, claim.paper, told, "holds partly" if blurred else "does not hold")


def _growth(claim: Growth, text: str, arms: Sequence[Outcome], target: float | None) -> Row:
    later, before = (arm.each(claim.measure, target) for arm in arms)
    pairs = zip(later, before, strict=False)
    shares = [1.0 - b / a for a, b in pairs if a is not None and b is not None]
    paper = f"by {claim.paper:.2%} of the longer"
    if not shares:
        return Row(text, paper, "not reached", "cannot be told")
    share = fmean(shares)
    return Row(text, paper, f"by {share:.1%} of the longer", _close(claim, share))


def _figure(claim: Figure, text: str, spread: Spread, end_s: float) -> Row:
    paper, ours = show(claim.paper, claim.measure), show_spread(spread, claim.measure)
    if spread.mean is None or not spread.complete:
        too_late = claim.measure == "time" and end_s > (1 + FAR) * claim.paper
        never = not spread.values and too_late
        return Row(text, paper, ours, "does not hold" if never else "cannot be told")
    return Row(text, paper, ours, _close(claim, spread.mean))


def _close(claim: Figure | Growth, ours: float) -> Verdict:
    """How near a number is to the paper's."""
    if claim.measure == "accuracy":
        off, near, far = abs(ours - claim.paper), NEAR_POINTS, FAR_POINTS
    else:
        off, near, far = abs(ours / claim.paper - 1.0), NEAR, FAR
    return "holds" if off <= near else "holds partly" if off <= far else "does not hold"
