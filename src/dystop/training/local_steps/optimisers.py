"""Optimisers: how a mini-batch's gradient changes the parameters, and the state that this needs.

The arithmetic is that of `torch.optim`, on one flat model or on a stack of them. The state is one
vector [n P] for each worker, its moments: the momentum of SGD, or both moments of Adam. Between two
trainings of a worker (`training.optimizer_state`, ADR 0054) it is

- `reset`: nothing is stored, and every training begins with zeros;
- `kept`: it stays at home with its worker;
- `mixed`: it is mixed and sent with the model.

It is a carried vector (`dystop.carried`), so that simulator, testbed and checkpoints handle it like
those of a mechanism.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dystop.carried import Carried, Rows
from dystop.errors import ConfigError
from dystop.training.local_steps.schedules import Schedule, Table, schedule_of
from dystop.training.params import TrainerParams

RATE, FIRST, SECOND = range(3)  # numbers of a step: learning rate, corrections of both moments
_CLIP_EPS = 1e-6  # as in `torch.nn.utils.clip_grad_norm_`
_NO_DECAY = 2.0**-54  # 1 - x rounds to 1 below this x


@dataclass(frozen=True)
class Optimiser:
    """The step of an optimiser."""

    params: TrainerParams
    schedule: Schedule

    @property
    def is_adam(self) -> bool:
        """Whether the state holds two moments."""
        return self.params.optimizer != "sgd"

    @property
    def moments(self) -> int:
        """Numbers of the state for each parameter."""
        return 2 if self.is_adam else int(self.params.momentum > 0)

    def state(self, parameters: int) -> Carried | None:
        """Return what is stored between two trainings of a worker; None: nothing is."""
        rule, name = self.params.optimizer_state, f"optimizer.{self.params.optimizer}"
        if rule == "reset":
            return None
        rows: Rows = "home" if rule == "kept" else "model"
        return Carried(name, rows, self.moments * parameters)

    @property
    def is_plain(self) -> bool:
        """Whether a step is the paper's: the gradient times the learning rate (eq:updating)."""
        params = self.params
        return not (self.moments or params.weight_decay or params.clip_norm)

    @property
    def counts_steps(self) -> bool:
        """Whether a step depends on how many steps the worker has taken in earlier trainings."""
        return not self.schedule.is_constant or (
            self.is_adam and self.params.optimizer_state != "reset"
        )

    @property
    def why_not_fused(self) -> str | None:
        """Why the compiled CPU kernels cannot take these steps, or None if they can."""
        if self.is_adam:
            return "the kernels take steps of SGD only, not of Adam"
        return "the kernels do not support training.clip_norm" if self.params.clip_norm else None

    @property
    def kernel_numbers(self) -> tuple[float, ...]:
        """Momentum, decay, and the weights of velocity and gradient in a step; none: plain SGD.

        A step of the compiled kernels is rate * (weights[0] * velocity + weights[1] * gradient).
        """
        params = self.params
        if self.is_plain:
            return ()
        weights = (params.momentum, 1.0) if params.nesterov else (1.0, 0.0)
        return (params.momentum, params.weight_decay, *weights)

    @property
    def changes_numbers(self) -> bool:
        """Whether the numbers of a step differ from those of the step before."""
        return self.is_adam or not self.schedule.is_constant

    @property
    def numbers_of_a_step(self) -> int:
        """How many numbers a step has besides gradient and state."""
        return 3 if self.is_adam else 1

    def numbers(self, rates: Tensor, taken: Tensor | None, steps: int) -> Tensor:
        """Return the numbers of every step of some trainings, [A, steps, n] in double precision.

        Args:
            rates: Learning rates before the schedule, [A].
            taken: Steps that the workers have taken in earlier trainings, [A]; None: not needed.
            steps: Steps of the longest training.
        """
        own = torch.arange(steps, device=rates.device)
        ever = own if taken is None else taken[:, None] + own
        rate = rates[:, None].expand(-1, steps)
        if not self.schedule.is_constant:
            rate = rate * self.schedule.at(ever)
        if not self.is_adam:
            return rate[..., None]
        since = own if self.params.optimizer_state == "reset" else ever
        corrections = (c.at(since).expand_as(rate) for c in self._corrections)
        return torch.stack([rate, *corrections], 2)

    @cached_property
    def _corrections(self) -> tuple[Table, Table]:
        """Tables of 1 - beta1^t and sqrt(1 - beta2^t) for t = 1, 2, ... until they stay at 1."""
        first, second = (_powers(beta) for beta in self.params.betas)
        ones = tuple(1 - power for power in first)
        return Table(ones), Table(tuple(math.sqrt(1 - power) for power in second))

    def step(
        self,
        parameters: Tensor,
        gradient: Tensor,
        moments: Tensor,
        numbers: Tensor | Sequence[float],
    ) -> None:
        """Take one step in place.

        Args:
            parameters: [..., P].
            gradient: [..., P].
            moments: [..., n P].
            numbers: The numbers of the step, [n], or [n, ..., 1].
        """
        params = self.params
        if params.clip_norm:
            norm = gradient.norm(dim=-1, keepdim=True)
            gradient = gradient * (params.clip_norm / (norm + _CLIP_EPS)).clamp(max=1.0)
        if params.weight_decay and params.optimizer == "adamw":
            parameters.mul_(1 - numbers[RATE] * params.weight_decay)
        elif params.weight_decay:
            gradient = gradient.add(parameters, alpha=params.weight_decay)
        if self.is_adam:
            change = self._adam_change(gradient, moments, numbers)
        else:
            change = self._momentum_change(gradient, moments)
        parameters.sub_(numbers[RATE] * change)

    def _momentum_change(self, gradient: Tensor, velocity: Tensor) -> Tensor:
        momentum = self.params.momentum
        if not momentum:
            return gradient
        velocity.mul_(momentum).add_(gradient)
        return gradient.add(velocity, alpha=momentum) if self.params.nesterov else velocity

    def _adam_change(
        self, gradient: Tensor, moments: Tensor, numbers: Tensor | Sequence[float]
    ) -> Tensor:
        (beta1, beta2), width = self.params.betas, gradient.shape[-1]
        first, second = moments[..., :width], moments[..., width:]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        return first / numbers[FIRST] / (second.sqrt() / numbers[SECOND] + self.params.eps)


def _powers(beta: float) -> list[float]:
    """Return beta^1, beta^2, ... down to one that no longer counts."""
    last = 1 if beta == 0 else math.ceil(math.log(_NO_DECAY) / math.log(beta))
    return [beta**step for step in range(1, last + 1)]


def optimiser_of(params: TrainerParams) -> Optimiser:
    """Return the optimiser that the parameters describe.

    Raises:
        ConfigError: A parameter does not belong to the chosen optimiser.
    """
    _check(params)
    return Optimiser(params, schedule_of(params.schedule))


def _check(params: TrainerParams) -> None:
    """Refuse keys that the chosen optimiser does not use."""
    name, usual = params.optimizer, TrainerParams()
    if params.nesterov and not params.momentum:
        raise ConfigError("training.nesterov = true needs training.momentum above 0, such as 0.9")
    if name != "sgd" and params.momentum:
        raise ConfigError(
            f"training.momentum = {params.momentum:g}: {name!r} has no momentum of its own; leave "
            "it out (training.betas is the decay of the moments), or use training.optimizer='sgd'"
        )
    if name == "sgd":
        for key in ("betas", "eps"):
            if (value := getattr(params, key)) != getattr(usual, key):
                raise ConfigError(
                    f"training.{key} = {value}: training.optimizer = 'sgd' does not use it; leave "
                    "it out, or use 'adam' or 'adamw'"
                )
    if params.optimizer_state != "reset" and name == "sgd" and not params.momentum:
        raise ConfigError(
            f"training.optimizer_state = {params.optimizer_state!r}: plain SGD has no state; leave "
            "it out, or set training.momentum, or use 'adam' or 'adamw'"
        )


PLAIN = optimiser_of(TrainerParams())
"""Plain SGD, as in the paper."""
