"""When a run ends and when its models are tested; simulator and testbed go by the same rules."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from dystop.params import param
from dystop.record import RoundRecord


@dataclass(frozen=True)
class Stop:
    """When a run ends: whichever comes first. 0 switches a rule off."""

    rounds: Annotated[int, Ge(1)] = param(60, "most rounds; also the horizon of phase 1")
    seconds: Annotated[float, Ge(0)] = param(0.0, "simulated seconds; 0: no limit")
    accuracy: Annotated[float, Ge(0), Le(1)] = param(
        0.0, "target of the mean test accuracy, as a share; 0: none"
    )
    loss: Annotated[float, Ge(0)] = param(0.0, "target of the training loss of a round; 0: none")


@dataclass(frozen=True)
class Evaluate:
    """When all models are tested."""

    every_s: Annotated[float, Ge(0)] = param(0.0, "simulated seconds between tests; 0: by rounds")
    every_rounds: Annotated[int, Ge(1)] = param(5, "rounds between tests where every_s is 0")
    samples: Annotated[int, Ge(0)] = param(0, "test images per model; 0: the whole test set")
    statistics: Literal["running", "recomputed"] = param(
        "running",
        "batch norm's in a test: the models' moving averages, or computed anew on training samples",
    )


def is_over(stop: Stop, t: int, clock_s: float) -> bool:
    """Whether round t may no longer open at this time."""
    return t > stop.rounds or (stop.seconds > 0 and clock_s >= stop.seconds)


def reached(stop: Stop, record: RoundRecord) -> str:
    """Name of the target that a record reaches, or nothing."""
    if stop.accuracy > 0 and record.accuracy is not None and record.accuracy >= stop.accuracy:
        return "accuracy"
    if stop.loss > 0 and record.loss is not None and record.loss <= stop.loss:
        return "loss"
    return ""
