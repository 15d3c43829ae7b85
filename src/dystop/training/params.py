"""The knobs of local training and evaluation."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from dystop.params import param

Path = Literal["auto", "fused", "stacked", "sequential"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TrainerParams:
    """How a worker trains and how the machine does it."""

    batch: Annotated[int, Ge(1)] = param(32, "samples in a mini-batch, |xi_i|")
    learning_rate: Annotated[float, Gt(0)] = param(0.05, "step size of plain SGD, eta")
    l2: Annotated[float, Ge(0)] = param(
        0.0, "strength of a penalty l2/2 ||w||^2 on the trained parameters; 0: none (the paper's)"
    )
    path: Path = param(
        "auto",
        "train models in fused CPU kernels, in stacks, one after another, or as suits them (auto)",
    )
    device: str = param("auto", "cpu, cuda (all GPUs), cuda:N, or the best there is (auto)")
    precision: Precision = param("float32", "of products on a GPU; bfloat16 is faster and rounder")
    compile: bool | None = param(
        None, "compile steps of large models on a GPU (a minute, once); unset: where it pays"
    )
    chunk: Annotated[int, Ge(1)] | None = param(
        None, "models trained at once when stacked; by device and memory when absent"
    )
    lanes: Annotated[int, Ge(1)] | None = param(
        None, "local trainings side by side: one core each on a CPU (unset: all), streams on a GPU"
    )
    evaluation_batch: Annotated[int, Ge(1)] = param(500, "test samples examined at once")
