"""The knobs of local training and evaluation."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from dystop.knobs import knob

Path = Literal["auto", "stacked", "sequential"]


@dataclass(frozen=True)
class TrainerParams:
    """How a worker trains and how the machine does it."""

    batch: Annotated[int, Ge(1)] = knob(32, "samples in a mini-batch, |xi_i|")
    learning_rate: Annotated[float, Gt(0)] = knob(0.05, "step size of plain SGD, eta")
    path: Path = knob(
        "auto", "train models in stacks, one after another, or as suits the model (auto)"
    )
    device: str = knob("auto", "cpu, cuda, cuda:N, or the best there is (auto)")
    chunk: Annotated[int, Ge(1)] | None = knob(
        None, "models trained at once when stacked; by device and memory when absent"
    )
    lanes: Annotated[int, Ge(1)] | None = knob(
        None, "local trainings side by side on a CPU, one core each; unset: all cores"
    )
    evaluation_batch: Annotated[int, Ge(1)] = knob(500, "test samples examined at once")
