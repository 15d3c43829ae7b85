"""Vectors that a mechanism carries, in the mixing of a round (`dystop.carried`)."""

from dataclasses import replace

import torch
from torch import Tensor

from dystop.carried import Carrying
from dystop.control.round import seconds_apart
from dystop.plan import Mix
from dystop.simulator.mixing.stage import Sent, Sources, mixed_rows
from dystop.simulator.model_stack import Models, index
from dystop.simulator.state import Components, State
from dystop.sparse import Ints

Vectors = tuple[Tensor, Tensor]
"""Models and counters of some workers, [A, W] and [A, C]."""


def vectors_before(components: Components, models: Models, active: Ints) -> Vectors | None:
    """Return copies of the vectors of the active workers before a round; None: none are carried."""
    if not (components.capabilities.carries and components.engine.train and len(active)):
        return None
    models.trainings.finish(active)
    at = index(active, models.latest)
    return models.latest[at].clone(), models.counters[at].clone()


def after_mixing(
    components: Components, state: State, active: Ints, before: Vectors | None
) -> None:
    """Let the mechanism change the vectors of the active workers after all stages of mixing."""
    if before is None:
        return
    models = state.models
    models.trainings.finish(active)
    at = index(active, models.latest)
    dt = torch.as_tensor(seconds_apart(state.control, active)[:, None]).to(models.latest)
    carrying = Carrying(components.mechanism, components.trainer.places)
    mixed = models.latest[at], models.counters[at]
    models.latest[at], models.counters[at] = carrying.after_mixing(before, mixed, dt)


def mix_own_rows(
    components: Components, models: Models, stage: Mix, sources: Sources, rows: Tensor
) -> None:
    """Mix carried vectors that have weights of their own, into the mixed rows [R, W]."""
    if stage.carried is None:
        return
    own = replace(stage, weight=stage.carried, carried=None)
    for columns in components.trainer.places.own:
        sent = Sent({node: one[columns] for node, one in sources.sent.models.items()})
        narrow = replace(sources, sent=sent)
        rows[:, columns] = mixed_rows(_narrow(models, columns), own, narrow)


def _narrow(models: Models, columns: slice) -> Models:
    """Return the models with some of their columns only."""
    late = models.finished
    return replace(
        models,
        latest=models.latest[:, columns],
        finished=None if late is None else late[:, columns],
        snapshots={number: one[columns] for number, one in models.snapshots.items()},
    )
