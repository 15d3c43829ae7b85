"""Learning-rate schedules: the factor of the learning rate by a worker's local step.

A schedule counts the mini-batches that one worker has trained on since the run began. Workers that
train more often are further on. The factors are gathered from a table, never computed on the
device: every back end and every device uses the same bits.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dystop.errors import ConfigError
from dystop.training.params import ScheduleParams

_LEAST = 1e-12  # share of the learning rate below which further drops do not matter


@dataclass(frozen=True)
class Table:
    """Numbers that are looked up; the last one stays."""

    values: tuple[float, ...]

    @cached_property
    def _on(self) -> dict[torch.device, Tensor]:
        return {}

    def at(self, entries: Tensor) -> Tensor:
        """Return the numbers of entries (counted from 0), in double precision."""
        device = entries.device
        if device not in self._on:
            self._on[device] = torch.tensor(self.values, dtype=torch.float64, device=device)
        return self._on[device][entries.clamp(max=len(self.values) - 1)]


@dataclass(frozen=True)
class Schedule:
    """A schedule as a table of factors."""

    warmup: int  # entries of the warm-up, one for each step
    every: int  # steps of one entry after the warm-up
    factors: Table

    @property
    def is_constant(self) -> bool:
        """Whether every factor is 1."""
        return self.factors.values == (1.0,)

    def at(self, steps: Tensor) -> Tensor:
        """Return the factors of local steps (counted from 0), in double precision.

        >>> made = schedule_of(ScheduleParams(name="cosine", warmup=2, steps=4))
        >>> made.at(torch.arange(8)).tolist()
        [0.5, 1.0, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627, 0.0, 0.0]
        """
        after = self.warmup + (steps - self.warmup) // self.every
        return self.factors.at(torch.where(steps < self.warmup, steps, after))


def schedule_of(params: ScheduleParams) -> Schedule:
    """Return the schedule that the parameters describe.

    >>> schedule_of(ScheduleParams(name="step", every=10, factor=0.5)).at(torch.tensor([9, 25]))
    tensor([1.0000, 0.2500], dtype=torch.float64)
    """
    _check(params)
    grows = [(step + 1) / params.warmup for step in range(params.warmup)]
    if params.name == "cosine":
        span = 1 - params.floor
        angles = (math.pi * step / params.steps for step in range(params.steps + 1))
        falls = [params.floor + span * (1 + math.cos(angle)) / 2 for angle in angles]
        return Schedule(params.warmup, 1, Table((*grows, *falls)))
    if params.name == "step":
        drops = math.ceil(math.log(_LEAST) / math.log(params.factor))
        steps = [params.factor**drop for drop in range(drops + 1)]
        return Schedule(params.warmup, params.every, Table((*grows, *steps)))
    return Schedule(params.warmup, 1, Table((*grows, 1.0)))


def _check(params: ScheduleParams) -> None:
    """Refuse a schedule without the length that it needs, and a length that nobody reads."""
    needed = {"cosine": ("steps",), "step": ("every",)}.get(params.name, ())
    for key in ("steps", "every"):
        value = getattr(params, key)
        if key in needed and not value:
            raise ConfigError(
                f"training.schedule.name = {params.name!r} needs training.schedule.{key}: a number "
                "of mini-batches of one worker, at least 1"
            )
        if value and key not in needed:
            raise ConfigError(
                f"training.schedule.{key} = {value}: the schedule {params.name!r} does not use it; "
                "leave it out, or choose training.schedule.name: 'cosine' uses steps, 'step' every"
            )
