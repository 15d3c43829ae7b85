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
        0.0, "factor of the penalty l2/2 ||w||^2 on the parameters; 0: none (as in the paper)"
    )
    path: Path = param(
        "auto",
        "how models are trained: fused: CPU kernels; stacked: several at once; sequential: "
        "one after another; auto: chosen",
    )
    device: str = param("auto", "cpu, cuda (all GPUs), cuda:N, or auto (the fastest)")
    precision: Precision = param(
        "float32", "precision of matrix products on a GPU; bfloat16 is faster and less exact"
    )
    compile: bool | None = param(
        None, "compile the steps of large models on a GPU (takes a minute); unset: if it is faster"
    )
    chunk: Annotated[int, Ge(1)] | None = param(
        None, "models in one stack; unset: depends on device and memory"
    )
    lanes: Annotated[int, Ge(1)] | None = param(
        None, "concurrent local trainings: CPU cores (unset: all), or streams on a GPU"
    )
    evaluation_batch: Annotated[int, Ge(1)] = param(500, "test samples in one forward pass")
