"""The knobs of the engine: its two laws, when it stops and when it tests. Free of torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from dystop.control.timing import Timing
from dystop.knobs import knob

Publish = Literal["eager", "on_completion"]


@dataclass(frozen=True)
class Laws:
    """The two laws that the paper leaves to be named."""

    timing: Timing = knob(
        "paper",
        "paper: a round lasts until its slowest active worker has pulled; overlap: "
        "transfers run on beside the next rounds",
    )
    publish: Publish = knob(
        "eager",
        "eager: a pull returns the result of a training that may still be running (the "
        "paper's equations); on_completion: the last finished model, as a real worker must",
    )


@dataclass(frozen=True)
class Stop:
    """When a run ends: whichever comes first. 0 switches a rule off."""

    rounds: Annotated[int, Ge(1)] = knob(60, "most rounds; also the horizon of phase 1")
    seconds: Annotated[float, Ge(0)] = knob(0.0, "simulated seconds; 0: no limit")
    accuracy: Annotated[float, Ge(0), Le(1)] = knob(
        0.0, "target of the mean test accuracy, as a share; 0: none"
    )
    loss: Annotated[float, Ge(0)] = knob(0.0, "target of the training loss of a round; 0: none")


@dataclass(frozen=True)
class Evaluate:
    """When all models are tested."""

    every_s: Annotated[float, Ge(0)] = knob(0.0, "simulated seconds between tests; 0: by rounds")
    every_rounds: Annotated[int, Ge(1)] = knob(5, "rounds between tests where every_s is 0")
    samples: Annotated[int, Ge(0)] = knob(0, "test images per model; 0: the whole test set")
