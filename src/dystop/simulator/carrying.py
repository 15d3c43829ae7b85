"""Vectors that a mechanism carries, in the mixing of a round (`dystop.carried`)."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from dystop.plan import Mix
from dystop.simulator.mixing.stage import Sources, mixed_rows
from dystop.simulator.model_stack import Models, index
from dystop.simulator.state import Components
from dystop.sparse import Ints

Vectors = Mapping[str, Tensor]
"""Model and carried vectors of some workers by name, [A, width] each."""


def vectors_before(components: Components, models: Models, active: Ints) -> Vectors | None:
    """Return copies of the vectors of the active workers before a round; None: none are carried."""
    if not (components.capabilities.carries and components.engine.train and len(active)):
        return None
    models.trainings.finish(active)
    at = index(active, models.latest)
    values = components.trainer.places.values(models.latest[at], models.counters[at])
    return {name: value.clone() for name, value in values.items()}


def after_mixing(
    components: Components, models: Models, active: Ints, before: Vectors | None
) -> None:
    """Let the mechanism change the vectors of the active workers after all stages of mixing."""
    if before is None:
        return
    models.trainings.finish(active)
    at, places = index(active, models.latest), components.trainer.places
    vectors, counters = models.latest[at].clone(), models.counters[at].clone()
    mixed = places.values(vectors, counters)
    places.write(vectors, counters, components.mechanism.after_mixing(before, mixed))
    models.latest[at], models.counters[at] = vectors, counters


def mix_own_rows(
    components: Components, models: Models, stage: Mix, sources: Sources, rows: Tensor
) -> None:
    """Mix carried vectors that have weights of their own, into the mixed rows [R, W]."""
    if stage.carried is None:
        return
    own = replace(stage, weight=stage.carried, carried=None)
    for columns in components.trainer.places.own:
        rows[:, columns] = mixed_rows(_narrow(models, columns), own, sources)


def _narrow(models: Models, columns: slice) -> Models:
    """Return the models with some of their columns only."""
    late = models.finished
    return replace(
        models,
        latest=models.latest[:, columns],
        finished=None if late is None else late[:, columns],
        snapshots={number: one[columns] for number, one in models.snapshots.items()},
    )
