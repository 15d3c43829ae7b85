"""The parameters of local training and evaluation."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from dystop.params import param, section

Path = Literal["auto", "fused", "stacked", "sequential"]
Precision = Literal["float32", "bfloat16"]
OptimizerName = Literal["sgd", "adam", "adamw"]
StateRule = Literal["reset", "kept", "mixed"]
ScheduleName = Literal["constant", "cosine", "step"]
Beta = Annotated[float, Ge(0), Le(0.9999)]


@dataclass(frozen=True)
class ScheduleParams:
    """How the learning rate changes with the mini-batches that a worker has trained on so far."""

    name: ScheduleName = param(
        "constant",
        "constant; cosine: falls to `floor` over `steps`; step: times `factor` each"
        " `every` mini-batches",
    )
    warmup: Annotated[int, Ge(0)] = param(
        0, "mini-batches of a worker over which the learning rate first grows linearly; 0: none"
    )
    steps: Annotated[int, Ge(0)] = param(
        0, "cosine: mini-batches of a worker, after the warm-up, until `floor` is reached"
    )
    floor: Annotated[float, Ge(0), Le(1)] = param(
        0.0, "cosine: share of the learning rate that is left at the end"
    )
    every: Annotated[int, Ge(0)] = param(0, "step: mini-batches of a worker between two drops")
    factor: Annotated[float, Gt(0), Lt(1)] = param(0.1, "step: what a drop multiplies by")


@dataclass(frozen=True)
class AugmentParams:
    """Random moves of training images, drawn anew whenever an image is used."""

    crop: Annotated[int, Ge(0)] = param(
        0, "pixels of black border from which an image is cut at a random place; 0: none; usually 4"
    )
    flip: bool = param(False, "mirror every second image, at random, left to right")


@dataclass(frozen=True)
class PrivacyParams:
    """Differentially private local training: clipped gradients of samples, and noise."""

    noise_multiplier: Annotated[float, Ge(0)] = param(
        0.0, "deviation of the noise in a step, in units of clip; 0: training is not private"
    )
    clip: Annotated[float, Gt(0)] = param(
        1.0, "largest norm of the gradient of one sample", under={"noise_multiplier": None}
    )
    delta: Annotated[float, Gt(0), Lt(1)] = param(
        1e-5,
        "probability for which epsilon is stated; below 1 / samples of a worker",
        under={"noise_multiplier": None},
    )

    @property
    def is_on(self) -> bool:
        """Whether training is private."""
        return self.noise_multiplier > 0


@dataclass(frozen=True)
class TrainerParams:
    """The `training` section: how a worker trains, and how the machine computes it."""

    batch: Annotated[int, Ge(1)] = param(32, "samples in a mini-batch, |xi_i|")
    learning_rate: Annotated[float, Gt(0)] = param(0.05, "step size of the optimiser, eta")
    l2: Annotated[float, Ge(0)] = param(
        0.0, "factor of the penalty l2/2 ||w||^2 on the parameters; 0: none (as in the paper)"
    )
    optimizer: OptimizerName = param("sgd", "sgd (as in the paper), adam or adamw")
    momentum: Annotated[float, Ge(0), Lt(1)] = param(
        0.0, "sgd: share of the last change that the next one keeps; 0: none (as in the paper)"
    )
    nesterov: bool = param(False, "sgd: Nesterov's momentum")
    weight_decay: Annotated[float, Ge(0)] = param(
        0.0, "pull of the parameters to zero; adamw: apart from the gradient, else added to it"
    )
    betas: tuple[Beta, Beta] = param((0.9, 0.999), "adam, adamw: decay of the two moments")
    eps: Annotated[float, Gt(0)] = param(1e-8, "adam, adamw: number added to the denominator")
    optimizer_state: StateRule = param(
        "reset",
        "momentum or moments when a training begins: reset: zero; kept: the worker's own of its "
        "last training; mixed: sent and averaged with the models",
    )
    clip_norm: Annotated[float, Ge(0)] = param(
        0.0, "largest norm of a mini-batch's gradient; a longer one is shortened; 0: no limit"
    )
    schedule: ScheduleParams = section(ScheduleParams, "how the learning rate changes")
    augment: AugmentParams = section(AugmentParams, "random moves of training images")
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
