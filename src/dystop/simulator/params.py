"""The knobs of the engine: its two laws, when it stops and when it tests. Free of torch."""

from dataclasses import dataclass
from typing import Literal

from dystop.control.stopping import Evaluate, Stop
from dystop.control.timing import Timing
from dystop.params import param

__all__ = ["EngineParams", "Evaluate", "Publish", "Stop"]

Publish = Literal["eager", "on_completion"]


@dataclass(frozen=True)
class EngineParams:
    """The two laws that the paper leaves to be named."""

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
