"""Vectors beside the models of a trainer: the state of its optimiser, and what a mechanism carries.

All of them are `Carried` and lie behind the model: those that travel in the vector that is mixed,
sent and stored, and those that stay at home in the counters, which are only stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from dystop.carried import MODEL, Carried, Places, places_of
from dystop.sparse import Floats, Ints
from dystop.training.device import upload
from dystop.training.flat import Layout, Slot
from dystop.training.local_steps.optimisers import PLAIN, Optimiser
from dystop.training.problem import Job, Trained
from dystop.types import Mechanism


@dataclass(frozen=True)
class CarriedVectors:
    """The vectors beside models of some layout."""

    model: Layout  # without them
    mechanism: Mechanism | None = None
    optimiser: Optimiser = PLAIN

    @cached_property
    def layout(self) -> Layout:
        """The layout of models with all vectors beside them."""
        parameters, travel, home = self.model.parameters, [], []
        if self.optimiser.counts_steps:
            home.append(Slot("optimizer.steps", (1,), torch.int64))
        for name, one in self._slots.items():
            if one.rows == "home":
                home.append(Slot(name, (one.words(parameters),), torch.int64))
            else:
                travel.append(Slot(name, (one.numbers(parameters),), torch.float32))
        return replace(self.model, carried=tuple(travel), own=tuple(home))

    @cached_property
    def places(self) -> Places:
        """Where the vectors lie."""
        model, carries = self.model, tuple(self._slots.values())
        counters = model.counters + self.optimiser.counts_steps
        return places_of(carries, model.parameters, model.width, counters)

    @cached_property
    def _slots(self) -> dict[str, Carried]:
        """The vectors by the names of their slots."""
        state = self.optimiser.state(self.model.parameters)
        slots = {} if state is None else {state.name: state}
        return slots | {f"carried.{one.name}": one for one in self._of_mechanism}

    @property
    def _of_mechanism(self) -> tuple[Carried, ...]:
        return () if self.mechanism is None else self.mechanism.capabilities().carries

    @property
    def is_empty(self) -> bool:
        """Whether nothing lies beside the models."""
        return self.layout is self.model or not (self.layout.carried or self.layout.own)

    def initial(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the first vector [W] and counters [C] of a worker."""
        vector, counters = self.layout.flatten(module)
        model = vector[: self.model.parameters]
        first = {one.name: model if one.first == MODEL else one.first for one in self._of_mechanism}
        self.places.write(vector, counters, first)
        return vector, counters

    def models_alone(self, models: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
        """Return models and counters without what lies beside them, [..., W] and [..., C]."""
        return models[..., : self.model.width], counters[..., : self.model.counters]

    def split(self, job: Job) -> tuple[Job, Mapping[str, Tensor]]:
        """Return the job of a back end, and copies of the vectors that the mechanism knows."""
        found, mechanism = self.places.values(job.models, job.counters), self.mechanism
        names = [MODEL, *(one.name for one in self._of_mechanism)] if self._of_mechanism else []
        before = {name: found[name].clone() for name in names}
        corrects = mechanism is not None and mechanism.capabilities().corrects
        models, counters = self.models_alone(job.models, job.counters)
        plain = replace(
            job,
            models=models,
            counters=counters,
            moments=self._moments(found),
            taken=self._steps(job.counters),
            correction=mechanism.correction(before) if mechanism and corrects else None,
        )
        return plain, before

    def _moments(self, found: Mapping[str, Tensor]) -> Tensor | None:
        """Return the moments [A, n P] with which trainings begin; None: zeros."""
        state = self.optimiser.state(self.model.parameters)
        if state is None:
            return None
        moments, width = found[state.name], self.model.parameters
        if state.rows == "home" or not self.optimiser.is_adam:
            return moments
        # A mechanism may extrapolate, and a negative second moment has no root.
        return torch.cat([moments[:, :width], moments[:, width:].clamp(min=0)], 1)

    def _steps(self, counters: Tensor) -> Tensor | None:
        """Return the steps of earlier trainings, [A]; None: they are not counted."""
        return counters[:, self.model.counters] if self.optimiser.counts_steps else None

    def joined(
        self, job: Job, before: Mapping[str, Tensor], trained: Trained, steps: Ints, rates: Floats
    ) -> Trained:
        """Return trained models with the vectors beside them after the training.

        Args:
            job: What was trained, as `split` has returned it.
            before: Model and carried vectors before it, [A, width] each.
            trained: The result.
            steps: Mini-batches that were taken, [A].
            rates: Learning rates, [A].
        """
        rows, layout = len(trained.models), self.layout
        models = trained.models.new_empty(rows, layout.width)
        counters = trained.counters.new_zeros(rows, layout.counters)
        alone = self.models_alone(models, counters)
        alone[0].copy_(trained.models)
        alone[1].copy_(trained.counters)
        device, after = models.device, dict(before)
        taken = upload(steps, device)
        if job.taken is not None:
            counters[:, self.model.counters] = job.taken + taken
        state = self.optimiser.state(self.model.parameters)
        if state is not None and trained.moments is not None:
            after[state.name] = trained.moments
        if self.mechanism is not None and before:
            after |= self._after_training(before, alone[0], taken, upload(rates, device))
        after.pop(MODEL, None)
        self.places.write(models, counters, after)
        return Trained(models, counters, trained.losses, trained.samples)

    def _after_training(
        self, before: Mapping[str, Tensor], after: Tensor, taken: Tensor, rates: Tensor
    ) -> Mapping[str, Tensor]:
        assert self.mechanism is not None
        carried = {name: value for name, value in before.items() if name != MODEL}
        trained, numbers = after[:, : self.model.parameters], (taken, rates)
        steps, rate = (each.float()[:, None] for each in numbers)
        return self.mechanism.after_training(before[MODEL], trained, carried, steps, rate)
