"""Vectors that a mechanism carries, around the local trainings of a trainer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from dystop.carried import MODEL, Carried, Places, places_of
from dystop.sparse import Floats, Ints
from dystop.training.device import upload
from dystop.training.flat import Layout, Slot
from dystop.training.problem import Job, Trained
from dystop.types import Mechanism


@dataclass(frozen=True)
class CarriedVectors:
    """The vectors that a mechanism carries behind models of some layout."""

    inside: Layout  # of models with the state of an optimiser
    mechanism: Mechanism | None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the vectors; none: the mechanism carries nothing."""
        return tuple(one.name for one in self._carries)

    @cached_property
    def layout(self) -> Layout:
        """The layout of models with all carried vectors."""
        parameters, carried, own = self.inside.parameters, [*self.inside.carried], []
        for one in self._carries:
            name = f"carried.{one.name}"
            if one.rows == "home":
                own.append(Slot(name, (one.words(parameters),), torch.int64))
            else:
                carried.append(Slot(name, (one.numbers(parameters),), torch.float32))
        return replace(self.inside, carried=tuple(carried), own=(*self.inside.own, *own))

    @cached_property
    def places(self) -> Places:
        """Where the vectors lie."""
        inside = self.inside
        return places_of(self._carries, inside.parameters, inside.width, inside.counters)

    @property
    def _carries(self) -> tuple[Carried, ...]:
        return () if self.mechanism is None else self.mechanism.capabilities().carries

    def initial(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the first vector [W] and counters [C] of a worker."""
        vector, counters = self.layout.flatten(module)
        model = vector[: self.inside.parameters]
        first = {one.name: model if one.first == MODEL else one.first for one in self._carries}
        self.places.write(vector, counters, first)
        return vector, counters

    def split(self, job: Job) -> tuple[Job, Mapping[str, Tensor]]:
        """Return the job without carried vectors, and copies of model and carried vectors."""
        if self.mechanism is None or not self.names:
            return job, {}
        values = {k: v.clone() for k, v in self.places.values(job.models, job.counters).items()}
        corrects = self.mechanism.capabilities().corrects
        plain = replace(
            job,
            models=job.models[:, : self.inside.width],
            counters=job.counters[:, : self.inside.counters],
            correction=self.mechanism.correction(values) if corrects else None,
        )
        return plain, values

    def joined(
        self, before: Mapping[str, Tensor], trained: Trained, steps: Ints, rates: Floats
    ) -> Trained:
        """Return trained models with their carried vectors after the training.

        Args:
            before: Model and carried vectors before it, [A, width] each.
            trained: The result, without carried vectors.
            steps: Mini-batches that were taken, [A].
            rates: Learning rates, [A].
        """
        if self.mechanism is None or not self.names:
            return trained
        rows, device = len(trained.models), trained.models.device
        beside = self.layout.width - self.inside.width, self.layout.counters - self.inside.counters
        models = torch.cat([trained.models, trained.models.new_empty(rows, beside[0])], 1)
        counters = torch.cat([trained.counters, trained.counters.new_zeros(rows, beside[1])], 1)
        numbers = (upload(each, device).float()[:, None] for each in (steps, rates))
        after = self.places.values(models, counters)[MODEL]
        carried = {name: before[name].to(device) for name in self.names}
        start = before[MODEL].to(device)
        changed = self.mechanism.after_training(start, after, carried, *numbers)
        self.places.write(models, counters, carried | dict(changed))
        return replace(trained, models=models, counters=counters)
