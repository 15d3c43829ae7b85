"""The parameters of local training and evaluation."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from dystop.params import param

Path = Literal["auto", "fused", "stacked", "sequential"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TrainerParams:
    """The `training` section: how a worker trains, and how the machine computes it."""

    batch: Annotated[int, Ge(1)] = param(32, "samples in a mini-batch, |xi_i|")
    learning_rate: Annotated[float, Gt(0)] = param(0.05, "step size of plain SGD, eta")
    l2: Annotated[float, Ge(0)] = param(
        0.0, "strength of the penalty l2/2 ||w||^2 on the parameters; 0: none (as in the paper)"
    )
    path: Path = param(
        "auto",
        "train models in fused CPU kernels, in stacks, one after another, or choose (auto)",
    )
    device: str = param("auto", "cpu, cuda (all GPUs), cuda:N, or the fastest available (auto)")
    precision: Precision = param(
        "float32", "precision of products on a GPU; bfloat16 is faster and less exact"
    )
    compile: bool | None = param(
        None, "compile steps of large models on a GPU (a minute, once); unset: where it is faster"
    )
    chunk: Annotated[int, Ge(1)] | None = param(
        None, "models in one stack; unset: chosen by device and memory"
    )
    lanes: Annotated[int, Ge(1)] | None = param(
        None, "local trainings side by side: CPU cores (unset: all), or streams on a GPU"
    )
    evaluation_batch: Annotated[int, Ge(1)] = param(500, "test samples in one forward pass")
