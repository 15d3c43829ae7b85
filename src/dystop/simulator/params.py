"""The parameters of the simulator. This module does not import torch."""

from dataclasses import dataclass
from typing import Literal

from dystop.control.timing import Timing
from dystop.params import param

Publish = Literal["eager", "on_completion"]


@dataclass(frozen=True)
class EngineParams:
    """What the paper leaves open: the duration of a round, and the model that a pull returns.

    It also says how a simulation is executed.
    """

    timing: Timing = param(
        "paper",
        "paper: a round lasts until its slowest active worker has pulled, and new trainings start "
        "then; overlap: transfers continue during the next rounds; testbed: rounds are as under "
        "paper, and each worker starts to train when its own models have arrived, as all runs of "
        "'dystop testbed' do",
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
