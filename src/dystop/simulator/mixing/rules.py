"""Aggregation rules on the stack of models, row by row of a plan.

A rule that weighs only changes the weights of a row; the product with the stack stays that of
`stage`. A rule that votes replaces the product.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dystop.control.aggregation import mix, row_sums
from dystop.exchange import Exchange
from dystop.exchange.rules import Memory, VotingRule, WeighingRule
from dystop.plan import Mix
from dystop.simulator.mixing.product import sparse_rows
from dystop.simulator.mixing.stage import Sources, mixed_rows, own_models, received, shared_mask
from dystop.simulator.model_stack import Models, index
from dystop.sparse import Floats, Ints
from dystop.training.device import upload
from dystop.training.trainer import Trainer


def combined_rows(
    exchange: Exchange, trainer: Trainer, models: Models, stage: Mix, sources: Sources
) -> Tensor | None:
    """Return the rows of the receivers after one stage of mixing, [R, W].

    None: they are a plain mean that waits for others. The rules do not apply to rows of updates.
    """
    rule, codec = exchange.rule, exchange.codec
    if codec is not None and codec.gamma and stage.kind != "delta":
        return _moved_rows(codec.gamma, models, stage, sources)
    if stage.kind != "delta" and isinstance(rule, WeighingRule | VotingRule):
        models.trainings.finish(np.concatenate([stage.receiver, stage.source]))
        if isinstance(rule, VotingRule):
            return _voted_rows(rule, models, stage, sources)
        return _weighed_rows(rule, trainer, models, stage, sources)
    if models.trainings.mix_later(stage, sources):
        return None
    return mixed_rows(models, stage, sources)


def _moved_rows(gamma: float, models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return x_i + gamma sum_j w_ij (copy_j - copy_i), the rule of CHOCO-SGD, [R, W].

    All numbers are mixed: the codec takes the place of a shared mask.
    """
    own, public = own_models(models, stage, sources), models.public
    assert public is not None, "a codec with a step packs differences to public copies"
    foreign = stage.dst != stage.source
    given = row_sums(stage, np.where(foreign, stage.weight, 0.0))
    own_share = upload(given, own.device).to(own.dtype)[:, None]
    theirs = mix(sparse_rows(stage, foreign, stage.source), public)
    moved: Tensor = own + gamma * (theirs - own_share * public[index(stage.receiver, public)])
    return moved


@dataclass(frozen=True)
class _Arrived:
    """The models that one receiver mixes with its own; implements `dystop.exchange.rules.Arrived`.

    A masked model has the receiver's own numbers outside the mask.
    """

    own: Tensor  # [W]
    others: Tensor  # [K, W]
    mask: Tensor | None  # coordinates that are mixed, [W]; None: all
    counters: Tensor  # of the receiver, [C]
    node: int
    trainer: Trainer
    factor: Floats  # by which the others are stretched, [K]

    def distances(self) -> Floats:
        """Return how far the others are from the own model, as the testbed's guard measures."""
        mask = self.mask
        scale = 1.0 if mask is None else math.sqrt(len(mask) / max(int(mask.sum()), 1))
        distance: Floats = (self.others - self.own).double().norm(dim=1).cpu().numpy()
        return distance * scale

    def norms(self) -> tuple[float, Floats]:
        """Return the norms of the own and the other models; only mixed coordinates count."""
        kept = slice(None) if self.mask is None else self.mask
        norms = self.others[:, kept].double().norm(dim=1).cpu().numpy()
        return float(self.own[kept].double().norm()), norms

    def stretched(self, factor: Floats) -> "_Arrived":
        """Return these models, each times its factor."""
        longer = self.others * upload(factor, self.others.device).to(self.others.dtype)[:, None]
        if self.mask is not None:
            longer = torch.where(self.mask, longer, self.own)
        return replace(self, others=longer, factor=self.factor * factor)

    def losses(self, samples: int) -> Floats | None:
        """Return the losses of the others on samples of the receiver."""
        return self.trainer.own_losses(self.others, self.counters, self.node, samples)


def _weighed_rows(
    rule: WeighingRule, trainer: Trainer, models: Models, stage: Mix, sources: Sources
) -> Tensor:
    """Return the rows with new weights of models that may be stretched.

    What is missing to the old sums of weights goes to the own model.
    """
    weight, own = stage.weight.copy(), own_models(models, stage, sources)
    stretch, mask = np.ones(len(weight)), _mask(models, stage)
    memory = models.memory or Memory.empty(len(models.latest))
    for row, node in enumerate(stage.receiver.tolist()):
        at, others = _received(models, stage, sources, row, own[row])
        if not len(at):
            continue
        counters, even = models.counters[node], np.ones(len(at))
        arrived = _Arrived(own[row], others, mask, counters, node, trainer, even)
        weight[at], arrived = rule.weighed(weight[at], arrived, partial(memory.recall, node))
        stretch[at] = arrived.factor
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
    return mixed if mask is None else torch.where(mask, mixed, own)


def _received(
    models: Models, stage: Mix, sources: Sources, row: int, own: Tensor
) -> tuple[Ints, Tensor]:
    """Return the weights of others in a row and their models, [K] and [K, W]."""
    at, others = received(models, stage, sources, row)
    mask = _mask(models, stage)
    return at, others if mask is None else torch.where(mask, others, own)


def _mask(models: Models, stage: Mix) -> Tensor | None:
    """Return which coordinates a stage mixes, [W]; None: all."""
    if stage.kind != "masked" or stage.mask is None:
        return None
    return shared_mask(*stage.mask, models.latest)


def _voted_rows(rule: VotingRule, models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return the rows on which the models have voted; an own model of weight zero has no vote."""
    out = own_models(models, stage, sources).clone()
    own_weight = np.zeros(len(stage.receiver))
    own = stage.dst == stage.source
    own_weight[stage.row_of[own]] = stage.weight[own]
    for row in range(len(stage.receiver)):
        _, others = _received(models, stage, sources, row, out[row])
        voters = torch.cat([out[row][None], others]) if own_weight[row] else others
        if len(voters):
            out[row] = torch.from_numpy(rule.voted(voters.cpu().numpy())).to(out)
    return out
