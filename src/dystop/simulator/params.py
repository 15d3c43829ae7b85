"""The parameters of the simulator. This module does not import torch."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from dystop.control.laws import LAWS, Law
from dystop.params import param
from dystop.registry import NameIn, chosen, options_of

Publish = Literal["eager", "on_completion"]


@dataclass(frozen=True)
class EngineParams:
    """What the paper leaves open: the duration of a round, and the model that a pull returns.

    It also says how a simulation is executed.
    """

    timing: Annotated[str, NameIn(LAWS)] = param(
        "paper", "timing law: how long a round lasts; 'dystop list laws' shows them"
    )
    publish: Publish = param(
        "eager",
        "eager: a pull returns the result of the newest training, even if it still runs (the "
        "paper's equations); on_completion: a pull returns the last finished model",
    )
    ahead: bool = param(
        True,
        "decide rounds ahead, and train workers together whose trainings do not depend on each "
        "other; no record changes",
    )
    train: bool = param(
        True,
        "whether models are trained and evaluated; false: planning only, which simulates clock, "
        "staleness, traffic and topology without models",
    )
    options: Any = options_of("timing", "parameters of the timing law")

    @cached_property
    def law(self) -> Law:
        """The timing law."""
        law: Law = chosen(self, "timing")
        return law

    def under(self, law: str) -> "EngineParams":
        """Return the same under another timing law, with its usual parameters."""
        return self if law == self.timing else replace(self, timing=law, options=None)
