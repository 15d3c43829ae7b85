"""Differentially private local training (DP-SGD, Abadi 2016).

A step draws its samples by Poisson sampling: each sample of the worker with probability
batch / D_i. The gradient of each sample is shortened to the norm `privacy.clip`, and their sum gets
Gaussian noise of `privacy.noise_multiplier` times this norm. `dystop.recorders.privacy` counts the
cost of these steps.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from dystop.errors import ConfigError
from dystop.rng import bits, uniform
from dystop.sparse import Ints
from dystop.training.device import upload
from dystop.training.params import PrivacyParams, TrainerParams
from dystop.training.randomness import device_fold_in

if TYPE_CHECKING:
    from dystop.training.problem import Problem

_AT_ONCE = 16  # samples whose gradients are held at once


@dataclass(frozen=True)
class Privacy:
    """The private part of local steps. All randomness has an address.

    In a testbed the seed is a secret of the worker's process: it is neither written nor sent.
    """

    params: PrivacyParams
    seed: int = field(repr=False)

    def drawn(self, samples: Ints, batch: int, address: tuple[int, int, int]) -> Ints:
        """Return the samples of one step: each with probability batch / D.

        Args:
            samples: Samples of the worker, [D].
            batch: Expected size of a mini-batch.
            address: Worker, training and step.
        """
        draws = uniform(self.seed, "poisson", *address, np.arange(len(samples)))
        chosen: Ints = samples[draws < batch / max(len(samples), 1)]
        return chosen

    def noise(self, width: int, address: tuple[int, int, int]) -> Tensor:
        """Return the noise that is added to a sum of gradients, [width]."""
        generator = torch.Generator().manual_seed(int(bits(self.seed, "privacy", *address) >> 1))
        deviation = self.params.noise_multiplier * self.params.clip
        return deviation * torch.randn(width, generator=generator)


def private_gradient(
    problem: "Problem",
    privacy: Privacy,
    state: tuple[Tensor, Tensor, Tensor],
    step: tuple[int, int, int],
    address: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the private gradient of one step, [P], and the mean loss of its samples.

    Args:
        problem: What is trained.
        privacy: Clipping and noise.
        state: Parameters, other floats and counters.
        step: Worker, training and step.
        address: Of dropout and moved images.
    """
    own = problem.shards.of(step[0])
    drawn = privacy.drawn(own, problem.batch, step)
    total = privacy.noise(len(state[0]), step).to(problem.device)
    losses = torch.zeros((), device=problem.device)
    for lo in range(0, len(drawn), _AT_ONCE):
        part = upload(drawn[lo : lo + _AT_ONCE], problem.device)
        numbers = torch.arange(lo, lo + len(part), device=problem.device)
        gradients, loss = sample_gradients(problem, state, part, device_fold_in(address, numbers))
        total += clipped(gradients, privacy.params.clip).sum(0)
        losses += loss.sum()
    return total / min(problem.batch, len(own)), losses / max(len(drawn), 1)


def sample_gradients(
    problem: "Problem", state: tuple[Tensor, Tensor, Tensor], index: Tensor, address: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gradient and loss of each sample by itself, [b, P] and [b]."""
    parameters, kept, counters = state
    x, y = problem.take(index[:, None], address)

    def loss_of(leaf: Tensor, x: Tensor, y: Tensor, address: Tensor) -> Tensor:
        named = problem.named((leaf, kept, counters), address)
        outputs: Tensor = functional_call(problem.module, named, (x,))
        loss: Tensor = problem.task.loss(outputs.float(), y)
        return loss

    each = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0, 0))
    found: tuple[Tensor, Tensor] = each(parameters.detach(), x, y, address)
    return found


def clipped(gradients: Tensor, norm: float) -> Tensor:
    """Return gradients [b, P] of at most this norm."""
    lengths = gradients.norm(dim=1, keepdim=True)
    short: Tensor = gradients * (norm / lengths.clamp(min=norm))
    return short


def check_private_training(training: TrainerParams, module: nn.Module, draws: bool) -> None:
    """Refuse settings and models that do not allow private training.

    Args:
        training: Parameters of training.
        module: The model.
        draws: Whether the model draws random numbers of its own.
    """
    if training.path not in ("auto", "sequential"):
        raise ConfigError(
            f"training.path = {training.path!r}: private training runs one model after another; "
            "use 'auto' or 'sequential', or privacy.noise_multiplier = 0"
        )
    if any(isinstance(m, _BatchNorm) for m in module.modules()):
        raise ConfigError(
            "privacy.noise_multiplier: this model has batch norm, which mixes the samples of a "
            "mini-batch, so that no gradient belongs to one sample; choose a model without it"
        )
    if draws:
        raise ConfigError(
            "privacy.noise_multiplier: this model draws random numbers of its own; use nn.Dropout, "
            "or a model without randomness"
        )
