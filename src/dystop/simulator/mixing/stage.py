"""One stage of the mixing of a plan, on the stack of all models.

For every weight, `Sources` says which model of the source counts: the latest one, the last finished
one, one from the mailbox, or what a node hands out in its place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dystop.control.aggregation import kept_coordinates, mix
from dystop.plan import Mix, MixKind
from dystop.simulator.mixing.product import sparse_rows
from dystop.simulator.model_stack import Models, handed_out, index
from dystop.sparse import Bools, Ints, ints
from dystop.training.device import upload


@dataclass(frozen=True)
class Sent:
    """What nodes hand out in place of their models: other vectors, or what receivers decode."""

    models: Mapping[int, Tensor] = field(default_factory=dict)  # [W] each
    updates: Mapping[int, Tensor] = field(default_factory=dict)  # [W] each; else model minus start

    def nodes(self, kind: MixKind) -> list[int]:
        """Return the nodes that hand out something else in a stage of this kind, ascending."""
        if not self.models and not self.updates:
            return []
        return sorted({*self.models, *self.updates} if kind == "delta" else self.models)


NOTHING = Sent()  # else: all nodes hand out their models


@dataclass(frozen=True)
class Sources:
    """Where each weight of a stage of mixing takes its model from."""

    fresh: Bools  # [M] the latest model of the source
    stale: Bools  # [M] the source is busy: its last finished model
    mailed: Bools  # [M] a message in the mailbox
    snapshot: Ints  # [M] its snapshot, where mailed
    busy: Bools  # [R] receivers that are mixed passively while they train
    sent: Sent = NOTHING

    def replaced(self, stage: Mix) -> Bools:
        """Return which weights take what their source sends in place of its model, [M]."""
        foreign = np.isin(stage.source, self.sent.nodes(stage.kind)) & (stage.dst != stage.source)
        # A message was changed when it was sent. Nothing is read for a weight of zero.
        hit: Bools = foreign & ~self.mailed & (stage.weight != 0)
        return hit


def all_fresh(weights: int, rows: int) -> Sources:
    """Return the sources of a stage in which everybody reads the latest models."""
    none = np.zeros(weights, bool)
    return Sources(~none, none, none, np.full(weights, -1), np.zeros(rows, bool))


def mixed_rows(models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return the rows of the receivers after one stage of mixing, [R, W]."""
    models.trainings.finish(stage.source[sources.fresh])
    stack = models.latest
    if stage.kind == "delta":
        if models.start is None:
            raise AssertionError("the simulator keeps `start` for mechanisms that declare deltas")
        stack = models.latest - models.start
    rows = mix(sparse_rows(stage, sources.fresh, stage.source), stack)
    if sources.sent.nodes(stage.kind):
        rows = rows + _from_sent(models, stage, sources)
    if sources.stale.any() and models.finished is not None:
        late = sparse_rows(stage, sources.stale, stage.source)
        rows = rows + mix(late, _finished_stack(models, stage))
    if sources.mailed.any():
        rows = rows + _from_mail(models, stage, sources)
    if stage.compensation:
        rows = rows - stage.compensation * delay_term(models, stage, sources)
    if stage.kind == "delta" and models.start is not None:
        rows = rows + models.start[index(stage.receiver, stack)]
    if stage.kind == "masked" and stage.mask is not None:
        mask = shared_mask(*stage.mask, models.latest)
        rows = torch.where(mask, rows, own_models(models, stage, sources))
    return _unless_empty(rows, models, stage, sources)


def _finished_stack(models: Models, stage: Mix) -> Tensor:
    """Return what busy workers contribute: their last finished models, or the updates to them."""
    if models.finished is None:
        raise AssertionError("only on_completion has stale sources")
    if stage.kind != "delta" or models.finished_start is None:
        return models.finished
    return models.finished - models.finished_start


def delay_term(models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return the first-order correction for updates that were computed at other models, [R, W].

    The update d_j was computed from the model s_j. At the receiver's model x_i the gradient differs
    by about the curvature times (x_i - s_j). With squared gradients in place of the curvature, and
    updates in place of gradients, x_j is replaced by x_j - strength * d_j^2 (x_i - s_j).
    """
    own = own_models(models, stage, sources)
    total = torch.zeros_like(own)
    foreign = stage.dst != stage.source
    for pick, models_of, origins_of, column in _histories(models, stage, sources):
        square = (models_of - origins_of) ** 2
        weights = sparse_rows(stage, pick & foreign, column)
        total += own * mix(weights, square) - mix(weights, square * origins_of)
    return total


def _histories(
    models: Models, stage: Mix, sources: Sources
) -> Iterator[tuple[Bools, Tensor, Tensor, Ints]]:
    """Yield stacks of models and of the starts of their trainings, with the weights on them."""
    if models.start is None:
        raise AssertionError("the simulator keeps `start` where updates are compensated")
    yield sources.fresh, models.latest, models.start, stage.source
    if models.finished is not None and models.finished_start is not None:
        yield sources.stale, models.finished, models.finished_start, stage.source
    if sources.mailed.any():
        used, column = _mail_columns(stage, sources)
        stack = torch.stack([models.snapshots[k] for k in used])
        origins = torch.stack([models.origins[k] for k in used])
        if stage.kind == "delta":  # a message with an update: the model is where it leads to
            stack = stack + origins
        yield sources.mailed, stack, origins, column


def _mail_columns(stage: Mix, sources: Sources) -> tuple[list[int], Ints]:
    """Return the distinct snapshots of a stage by sender, and the column of each mailed weight.

    Models are summed in the order of their ids. Sources ascend inside a row, so columns in the
    order of senders ascend too, whatever the order of sending was.
    """
    mailed = sources.mailed
    snapshot, where = sources.snapshot[mailed], np.zeros(len(stage.source), np.int64)
    if len(stage.receiver) == 1:
        where[mailed] = np.arange(len(snapshot))
        return snapshot.tolist(), where
    base = int(snapshot.max(initial=0)) + 1
    used, column = np.unique(stage.source[mailed] * base + snapshot, return_inverse=True)
    where[mailed] = column
    return (used % base).tolist(), where


def _from_mail(models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return what the mailboxes contribute; every snapshot enters the product once."""
    used, column = _mail_columns(stage, sources)
    stack = torch.stack([models.snapshots[k] for k in used])
    result: Tensor = mix(sparse_rows(stage, sources.mailed, column), stack)
    return result


def _from_sent(models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return what those contribute that hand out something else than their models."""
    nodes = ints(sources.sent.nodes(stage.kind))
    stack = torch.stack([_sent_row(models, stage, sources.sent, k) for k in nodes.tolist()])
    column = np.searchsorted(nodes, stage.source)
    result: Tensor = mix(sparse_rows(stage, sources.replaced(stage), column), stack)
    return result


def _sent_row(models: Models, stage: Mix, sent: Sent, node: int) -> Tensor:
    """Return what a node sends; an update is the difference to where training began."""
    if stage.kind == "delta" and models.start is not None:
        return (
            sent.updates[node] if node in sent.updates else sent.models[node] - models.start[node]
        )
    return sent.models[node]


def received(models: Models, stage: Mix, sources: Sources, row: int) -> tuple[Ints, Tensor]:
    """Return the weights of one row that belong to others, and their models: [K] and [K, W].

    A weight of zero is left out: the model behind it may have been lost.
    """
    here = slice(int(stage.indptr[row]), int(stage.indptr[row + 1]))
    foreign = (stage.source[here] != stage.receiver[row]) & (stage.weight[here] != 0)
    at = here.start + np.flatnonzero(foreign)
    replaced = sources.replaced(stage)
    rows = []
    for k, node in zip(at.tolist(), stage.source[at].tolist(), strict=True):
        if replaced[k]:
            rows.append(sources.sent.models[node])
        elif sources.mailed[k]:
            rows.append(models.snapshots[int(sources.snapshot[k])])
        elif sources.stale[k] and models.finished is not None:
            rows.append(models.finished[node])
        else:
            rows.append(models.latest[node])
    return at, torch.stack(rows) if rows else models.latest[:0]


def own_models(models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return the receivers' models before mixing; a busy one has the model that it publishes."""
    return handed_out(models, stage.receiver, sources.busy)


def _unless_empty(rows: Tensor, models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return the rows; one that lost all of its sources leaves the receiver's model as it is."""
    empty = np.diff(stage.indptr) == 0
    if not empty.any():
        return rows
    own = own_models(models, stage, sources)
    return torch.where(upload(empty, rows.device)[:, None], own, rows)


def shared_mask(seed: int, keep: float, like: Tensor) -> Tensor:
    """Return the coordinates that both ends of a masked exchange derive from a seed, [W]."""
    return torch.from_numpy(kept_coordinates(seed, keep, like.shape[1])).to(like.device)
