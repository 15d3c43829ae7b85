"""The score of a task: what it is called, how its values read, and when a run had which.

An accuracy is a share and reads in percent. Any other score, such as R2, keeps its own unit.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dystop.folders.run_folder import RunData
from dystop.record import ACCURACY, RoundRecord
from dystop.units import NOTHING, goal, known, spread


@dataclass(frozen=True)
class Score:
    """The score that some runs have in common."""

    name: str = ACCURACY

    @property
    def is_share(self) -> bool:
        """Whether values read in percent."""
        return self.name == ACCURACY

    def text(self, mean: float | None, std: float | None = None) -> str:
        """Return a value, with its standard deviation if there is one.

        >>> Score().text(0.8125, 0.012), Score("r2").text(0.8125, 0.012), Score("r2").text(0.5)
        ('81.2 ± 1.2 %', '0.812 ± 0.012', '0.500')
        """
        if self.is_share:
            return spread(mean, std)
        if mean is None:
            return NOTHING
        return f"{mean:.3f}" if std is None else f"{mean:.3f} ± {std:.3f}"

    def goal(self, target: float) -> str:
        """Return the value of a target.

        >>> Score().goal(0.8), Score("r2").goal(0.8)
        ('80 %', '0.8')
        """
        return goal(target) if self.is_share else f"{target:g}"

    def aim(self, target: float | None) -> str:
        """Return a target as it is named in titles.

        >>> Score().aim(0.8), Score("r2").aim(0.8), Score().aim(None)
        ('80 %', 'r2 0.8', 'target')
        """
        if target is None:
            return "target"
        return self.goal(target) if self.is_share else f"{self.name} {target:g}"

    def named(self, text: str) -> str:
        """Return a text about the accuracy of models, with the name of this score.

        >>> Score("r2").named("test accuracy (stop.accuracy)")
        'test r2 (stop.accuracy)'
        """
        return re.sub(r"(?<![.\w])accuracy\b", self.name, text)


def score_of(runs: Sequence[RunData]) -> Score:
    """Return the score that the runs have in common; it is called "score" if they differ."""
    names = {name for run in runs if (name := _score_name(run)) is not None} or {ACCURACY}
    return Score(names.pop() if len(names) == 1 else "score")


def _score_name(run: RunData) -> str | None:
    """Return the name of a run's score; None if no model was evaluated."""
    return next(
        (r.get("score_name") or ACCURACY for r in run.records if r.accuracy is not None), None
    )


def evaluated_rounds(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the rounds after which the models were evaluated."""
    return [r for r in records if known(r.accuracy) is not None]


def first_reaching(records: Sequence[RoundRecord], target: float) -> RoundRecord | None:
    """Return the first evaluated round at or above the target; nothing is interpolated."""
    return next((r for r in evaluated_rounds(records) if (r.accuracy or 0.0) >= target), None)


def best_accuracy(records: Sequence[RoundRecord]) -> float | None:
    """Return the highest mean accuracy of all evaluations."""
    scores = [r.accuracy for r in evaluated_rounds(records) if r.accuracy is not None]
    return max(scores, default=None)


def until_target(records: Sequence[RoundRecord], target: float | None) -> Sequence[RoundRecord]:
    """Return the rounds until the first evaluation at the target; all of them if there is none."""
    reached = None if target is None else first_reaching(records, target)
    return records if reached is None else [r for r in records if r.round <= reached.round]
