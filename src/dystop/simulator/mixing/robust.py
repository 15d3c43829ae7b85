"""Robust aggregation on the stack of models, row by row of a plan.

Under `clip`, `agree` and `nearest` only the weights of a row change; the product with the stack
stays that of `stage`. `trimmed` and `median` replace the product.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dystop.control.aggregation import row_sums
from dystop.control.robust_aggregation import (
    COORDINATE_WISE,
    RECENT,
    Aggregation,
    Seen,
    Usual,
    robust_weights,
    running_median,
    stretch_factors,
    trimmed,
)
from dystop.plan import Mix
from dystop.simulator.mixing.stage import Sources, mixed_rows, own_models, received, shared_mask
from dystop.simulator.model_stack import Models
from dystop.sparse import Floats, Ints
from dystop.training.device import upload
from dystop.training.trainer import Trainer


def with_memory(models: Models, aggregation: Aggregation) -> Models:
    """Return the models with room for what receivers remember, if the rule needs it."""
    if aggregation.rule not in ("clip", "agree"):
        return models
    empty = np.full((len(models.latest), RECENT), np.nan)
    losses = empty.copy() if aggregation.rule == "agree" else None
    return replace(models, distances=empty, losses=losses)


def aggregated_rows(
    aggregation: Aggregation, trainer: Trainer, models: Models, stage: Mix, sources: Sources
) -> Tensor:
    """Return the rows of the receivers after one stage of mixing, [R, W].

    The rules do not apply to rows of updates.
    """
    if aggregation.rule == "mean" or stage.kind == "delta":
        return mixed_rows(models, stage, sources)
    models.trainings.finish(np.concatenate([stage.receiver, stage.source]))
    if aggregation.rule in COORDINATE_WISE:
        return _coordinate_wise(aggregation, models, stage, sources)
    weight, own = stage.weight.copy(), own_models(models, stage, sources)
    stretch, mask = np.ones(len(weight)), _mask(models, stage)
    scale = 1.0 if mask is None else math.sqrt(len(mask) / max(int(mask.sum()), 1))
    for row, node in enumerate(stage.receiver.tolist()):
        at, others = _received(models, stage, sources, row, own[row])
        if not len(at):
            continue
        apart = _distances(own[row], others) * scale  # as the testbed's guard measures
        if aggregation.rule == "agree":
            stretch[at], others = _stretched(own[row], others, mask)
        seen = _seen(aggregation, trainer, models, node, own[row], others, scale)
        usual = _remember(models, node, replace(seen, distance=apart))
        weight[at] = robust_weights(aggregation, weight[at], seen, usual)
    return _reweighted(models, stage, sources, weight, stretch, own)


def _reweighted(
    models: Models, stage: Mix, sources: Sources, weight: Floats, stretch: Floats, own: Tensor
) -> Tensor:
    """Return the rows with new weights of models that are stretched.

    What is missing to the old sums of weights goes to the own model.
    """
    used = weight != 0  # the product must not read a model that is not finite
    sources = replace(
        sources,
        fresh=sources.fresh & used,
        stale=sources.stale & used,
        mailed=sources.mailed & used,
    )
    missing = row_sums(stage, stage.weight) - row_sums(stage, weight)
    rest = upload(missing, own.device).to(own.dtype)[:, None] * own
    mixed = mixed_rows(models, replace(stage, weight=weight * stretch), sources) + rest
    if stage.kind == "masked" and stage.mask is not None:
        mixed = torch.where(shared_mask(*stage.mask, models.latest), mixed, own)
    return mixed


def _received(
    models: Models, stage: Mix, sources: Sources, row: int, own: Tensor
) -> tuple[Ints, Tensor]:
    """Return the weights of others in a row and their models, [K] and [K, W].

    A masked model has the receiver's own numbers outside the mask.
    """
    at, others = received(models, stage, sources, row)
    if stage.kind == "masked" and stage.mask is not None:
        others = torch.where(shared_mask(*stage.mask, models.latest), others, own)
    return at, others


def _mask(models: Models, stage: Mix) -> Tensor | None:
    """Return which coordinates a stage mixes, [W]; None: all."""
    if stage.kind != "masked" or stage.mask is None:
        return None
    return shared_mask(*stage.mask, models.latest)


def _stretched(own: Tensor, others: Tensor, mask: Tensor | None) -> tuple[Floats, Tensor]:
    """Return the factors that stretch short models, [K], and the stretched models, [K, W].

    Only the coordinates that are mixed count.
    """
    kept = slice(None) if mask is None else mask
    norms = others[:, kept].double().norm(dim=1).cpu().numpy()
    factor = stretch_factors(float(own[kept].double().norm()), norms)
    longer = others * upload(factor, others.device).to(others.dtype)[:, None]
    return factor, longer if mask is None else torch.where(mask, longer, own)


def _distances(own: Tensor, others: Tensor) -> Floats:
    """Return how far models are from the own one, [K]."""
    distance: Floats = (others - own).double().norm(dim=1).cpu().numpy()
    return distance


def _seen(
    aggregation: Aggregation,
    trainer: Trainer,
    models: Models,
    node: int,
    own: Tensor,
    others: Tensor,
    scale: float,
) -> Seen:
    """Measure the models that one receiver got: distances, and losses if the rule needs them."""
    distance = _distances(own, others) * scale
    if aggregation.rule != "agree":
        return Seen(distance)
    return Seen(
        distance, trainer.own_losses(others, models.counters[node], node, aggregation.samples)
    )


def _remember(models: Models, node: int, seen: Seen) -> Usual:
    """Add to what a receiver remembers; return what is usual for it now."""
    return Usual(
        _running(models.distances, node, seen.distance), _running(models.losses, node, seen.loss)
    )


def _running(recent: Floats | None, node: int, new: Floats | None) -> float | None:
    if recent is None or new is None:
        return None
    recent[node] = np.concatenate([recent[node], new])[-RECENT:]
    return running_median(recent[node])


def _coordinate_wise(
    aggregation: Aggregation, models: Models, stage: Mix, sources: Sources
) -> Tensor:
    """Return the rows under `trimmed` and `median`; an own model of weight zero has no vote."""
    out = own_models(models, stage, sources).clone()
    share = aggregation.trim if aggregation.rule == "trimmed" else 0.5
    own_weight = np.zeros(len(stage.receiver))
    own = stage.dst == stage.source
    own_weight[stage.row_of[own]] = stage.weight[own]
    for row in range(len(stage.receiver)):
        _, others = _received(models, stage, sources, row, out[row])
        voters = torch.cat([out[row][None], others]) if own_weight[row] else others
        if len(voters):
            middle = trimmed(voters.cpu().numpy(), share)
            out[row] = torch.from_numpy(middle).to(out)
    return out
