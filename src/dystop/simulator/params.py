"""Options of the simulator: how long a round lasts, and when a model is published. No torch."""

from dataclasses import dataclass
from typing import Literal

from dystop.control.timing import Timing
from dystop.params import param

Publish = Literal["eager", "on_completion"]


@dataclass(frozen=True)
class EngineParams:
    """Two choices that the paper leaves open."""

    timing: Timing = param(
        "paper",
        "paper: a round lasts until its slowest active worker has pulled; overlap: "
        "transfers run on beside the next rounds",
    )
    publish: Publish = param(
        "eager",
        "eager: a pull returns the result of a training that may still be running (the "
        "paper's equations); on_completion: the last finished model, as a real worker must",
    )
