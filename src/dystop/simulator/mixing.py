"""All models of a run in one stack, and the mixing of a plan on that stack.

The weights of a stage of mixing are sparse rows; their product with the stack is the mixing. It is
a loop, row by row, models in the order of their ids, compiled on a CPU (`mixing_cpu`) and a kernel
on a GPU (`mixing_cuda`). The library's product takes three times as long on a CPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystop.acceleration import accelerated
from dystop.control.aggregation import kept_coordinates, mix, passive_shift
from dystop.parallel import as_readonly, block_size, run_in_blocks
from dystop.plan import Mix, MixKind, repeated
from dystop.sparse import Bools, Floats, Ints, ints
from dystop.training.device import on_device, upload
from dystop.training.problem import Trained
from dystop.training.trainer import Trainer

LARGE = 1 << 20  # numbers to be read before a second core is worth its thread
_FEW_ROWS = 2  # that are written one by one


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix [R, K] in compressed rows."""

    indptr: Ints  # [R + 1]
    column: Ints  # ascending inside a row
    weight: Floats

    def __matmul__(self, models: Tensor) -> Tensor:
        """Return the product with a stack of models [K, W], on the device of the stack."""
        return self._on_cpu(models) if models.device.type == "cpu" else self._on_device(models)

    def _on_cpu(self, models: Tensor) -> Tensor:
        out = torch.empty(len(self.indptr) - 1, models.shape[1], dtype=models.dtype)
        stack, into = as_readonly(models.detach().numpy()), out.numpy()
        rows = (
            as_readonly(self.indptr),
            as_readonly(self.column),
            as_readonly(self.weight.astype(into.dtype)),
        )
        if len(self.column) * stack.shape[1] < LARGE:
            mix_rows(*rows, stack, into, 0, len(out))
            return out

        def mix(lo: int, hi: int) -> None:
            mix_rows(*rows, stack, into, lo, hi)

        run_in_blocks(mix, len(out), block_size(len(out), 1))
        return out

    def _on_device(self, models: Tensor) -> Tensor:
        from dystop.simulator.mixing_cuda import mixed

        # One copy to the device instead of three: the bits of the weights travel as integers.
        packed = np.concatenate([self.indptr, self.column, self.weight.view(np.int64)])
        first, last = len(self.indptr), len(self.indptr) + len(self.column)
        with on_device(models.device):
            there = upload(packed, models.device)
            weight = there[last:].view(torch.float64).to(models.dtype)
            return mixed(there[:first], there[first:last], weight, models)


@accelerated("dystop.simulator.mixing_cpu:mix_rows")
def mix_rows(
    indptr: Ints,
    column: Ints,
    weight: Any,
    stack: NDArray[Any],
    out: NDArray[Any],
    lo: int,
    hi: int,
) -> None:
    """Write rows lo to hi of the product into `out`; a sum goes in the order of the columns."""
    for row in range(lo, hi):
        out[row] = 0
        for at in range(indptr[row], indptr[row + 1]):
            out[row] += weight[at] * stack[column[at]]


@dataclass(frozen=True)
class Models:
    """Every node's parameters and float buffers, row by row. The tensors change in place.

    `latest` is the model that a node has, or will have when its training ends. A busy node's pulls
    return `finished` under `publish = "on_completion"`: its last model whose training had ended
    before the present one began. `start` is where the last training began; it is kept only where
    updates are sent or compensated. `aggregated` is the result of a node's last aggregation, in
    which it was active or passive; it is kept only where an evaluation tests it.
    """

    latest: Tensor  # [nodes, W]
    counters: Tensor  # [nodes, C] integers, never mixed
    finished: Tensor | None  # [nodes, W]
    start: Tensor | None  # [nodes, W]
    finished_start: Tensor | None  # [nodes, W], where the training behind `finished` began
    snapshots: dict[int, Tensor]  # [W] each, for messages that were pushed
    origins: dict[int, Tensor]  # [W] each, where the training behind a snapshot began
    distances: Floats | None = None  # [nodes, RECENT], of received models; newest last, NaN: none
    losses: Floats | None = None  # [nodes, RECENT], of received models on own samples
    aggregated: Tensor | None = None  # [nodes, W]
    aggregated_before: Tensor | None = None  # [nodes, W], before an exchange that is under way
    public: Tensor | None = None  # [nodes, W], what others know where differences are sent
    leftover: Tensor | None = None  # [nodes, W], what compression left out of updates

    def finish(self, nodes: Ints) -> None:
        """Make sure that the latest models of these nodes are trained: here they always are."""

    def mix_later(self, stage: Mix, sources: "Sources") -> bool:
        """Let a mix wait and return True, if that is possible: here it is not."""
        return False

    def run_mixes(self) -> None:
        """Run the mixes that wait: here none does."""

    def shift(self, nodes: Ints, rows: Tensor) -> None:
        """Add rows to the latest models of some nodes."""
        self.latest[index(nodes, self.latest)] += rows

    def train(
        self, trainer: Trainer, nodes: Ints, versions: Ints, steps: Ints, rates: Floats | None
    ) -> Trained:
        """Train the latest models of some nodes in place."""
        at = index(nodes, self.latest)
        trained = trainer.train(self.latest[at], self.counters[at], nodes, versions, steps, rates)
        self.latest[at], self.counters[at] = trained.models, trained.counters
        return trained


def first_models(
    vector: Tensor,
    counters: Tensor,
    nodes: int,
    *,
    late: bool,
    deltas: bool,
    aggregated: bool = False,
) -> Models:
    """Return the models at time 0: every node has the same one.

    Args:
        vector: Its parameters and float buffers, [W].
        counters: Its integers, [C].
        nodes: Number of nodes.
        late: Keep finished models apart, as `publish = "on_completion"` needs.
        deltas: Keep where trainings began.
        aggregated: Keep the results of aggregations.
    """
    latest = vector.expand(nodes, -1).clone()
    return Models(
        latest=latest,
        counters=counters.expand(nodes, -1).clone(),
        finished=latest.clone() if late else None,
        start=latest.clone() if deltas else None,
        finished_start=latest.clone() if late and deltas else None,
        snapshots={},
        origins={},
        aggregated=latest.clone() if aggregated else None,
        aggregated_before=latest.clone() if aggregated and late else None,
    )


def index(rows: Ints, like: Tensor) -> Tensor | slice:
    """Return row numbers as an index of a stack like this one, on its device.

    A single row is a slice, which needs no copy to the device. What it selects is a view.
    """
    if len(rows) == 1:
        return slice(int(rows[0]), int(rows[0]) + 1)
    return upload(rows, like.device)


def _put(stack: Tensor, nodes: Ints, rows: Tensor) -> None:
    """Write rows into a stack; a few of them one by one, without a copy of their numbers."""
    if len(nodes) > _FEW_ROWS:
        stack[index(nodes, stack)] = rows
        return
    for k, node in enumerate(nodes.tolist()):
        stack[node] = rows[k]


def published(models: Models, done: Bools) -> Tensor:
    """Return what each node would hand out, [nodes, W]: its newest model that is done (eq:asyw)."""
    models.finish(np.arange(len(done)) if models.finished is None else np.flatnonzero(done))
    return newest_published(models, done)


def newest_published(models: Models, done: Bools) -> Tensor:
    """Return what `published` does; the rows of nodes that wait hold the starts of trainings."""
    if models.finished is None or done.all():
        return models.latest
    chosen = upload(done, models.latest.device)
    return torch.where(chosen[:, None], models.latest, models.finished)


def published_row(models: Models, done: Bools, node: int) -> Tensor:
    """Return what one node would hand out, [W]."""
    if models.finished is None or done[node]:
        models.finish(ints([node]))
        return models.latest[node]
    return models.finished[node]


def sparse_rows(stage: Mix, pick: Bools, source: Ints) -> SparseRows:
    """Return the picked weights of a stage as a sparse matrix; `source` holds the columns."""
    if pick.all():
        return SparseRows(stage.indptr, source, stage.weight)
    if len(stage.receiver) == 1:
        picked = source[pick]
        return SparseRows(ints([0, len(picked)]), picked, stage.weight[pick])
    counts = np.bincount(stage.row_of[pick], minlength=len(stage.receiver))
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SparseRows(indptr, source[pick], stage.weight[pick])


@dataclass(frozen=True)
class Sent:
    """What nodes hand out in place of their models: what attackers send, or compressed models."""

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


@lru_cache(maxsize=256)
def all_fresh(weights: int, rows: int) -> Sources:
    """Return the sources of a stage in which everybody reads the latest models; read-only."""
    none, busy = repeated(np.bool_(False), weights), repeated(np.bool_(False), rows)
    fresh, snapshot = repeated(np.bool_(True), weights), repeated(np.int64(-1), weights)
    return Sources(fresh, none, none, snapshot, busy)


def mixed_rows(models: Models, stage: Mix, sources: Sources) -> Tensor:
    """Return the rows of the receivers after one stage of mixing, [R, W]."""
    models.finish(stage.source[sources.fresh])
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
        yield sources.mailed, stack, torch.stack([models.origins[k] for k in used]), column


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


def handed_out(models: Models, nodes: Ints, busy: Bools) -> Tensor:
    """Return the models of some nodes, [K, W]: the last finished one where the node is busy."""
    at = index(nodes, models.latest)
    models.finish(nodes if models.finished is None else nodes[~busy])
    if models.finished is None or not busy.any():
        return models.latest[at]
    late = upload(busy, models.latest.device)
    return torch.where(late[:, None], models.finished[at], models.latest[at])


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


def write_rows(models: Models, receiver: Ints, rows: Tensor, passive: Bools, busy: Bools) -> None:
    """Write mixed rows into the stack, in place: the stack may be most of the memory there is.

    Args:
        models: All models.
        receiver: Whose rows they are, [R].
        rows: The mixed models, [R, W].
        passive: Receivers that are not about to train (`passive_shift`), [R].
        busy: Those of them whose training still runs, [R].
    """
    finished = models.finished
    models.run_mixes()  # they may read the rows that are about to change
    _keep_aggregated(models, receiver, rows, passive)
    models.finish(receiver if finished is None else receiver[~busy])
    if finished is None or not busy.any():
        if models.start is not None and passive.any():
            shift = passive_shift(rows, models.latest[index(receiver, rows)])
            _add(models.start, receiver, shift, passive)
        _put(models.latest, receiver, rows)
        return
    late, now = (index(np.flatnonzero(one), rows) for one in (busy, ~busy))
    shift = passive_shift(rows, handed_out(models, receiver, busy))
    _put(finished, receiver[busy], rows[late])
    if models.finished_start is not None:
        _add(models.finished_start, receiver, shift, busy)
    if models.start is not None:
        _add(models.start, receiver, shift, passive)
    models.shift(receiver[busy], shift[late])
    _put(models.latest, receiver[~busy], rows[now])


def _add(stack: Tensor, receiver: Ints, shift: Tensor, which: Bools) -> None:
    """Add shifts to the rows of some receivers."""
    stack[index(receiver[which], shift)] += shift[index(np.flatnonzero(which), shift)]


def _keep_aggregated(models: Models, receiver: Ints, rows: Tensor, passive: Bools) -> None:
    """Note the rows of passive receivers: their aggregation ends with this stage."""
    if models.aggregated is None or not passive.any():
        return
    moved = rows[index(np.flatnonzero(passive), rows)]
    _put(models.aggregated, receiver[passive], moved)
    if models.aggregated_before is not None:
        _put(models.aggregated_before, receiver[passive], moved)


def after_aggregation(models: Models, done: Bools, aggregations: Ints, begun: Bools) -> Tensor:
    """Return the model of each worker as its last aggregation left it, [N, W].

    A worker that has not been active yet has its published model. No training is waited for.

    Args:
        models: All models.
        done: Which nodes have finished their newest training, [nodes].
        aggregations: How often each worker was active, [N].
        begun: Whose newest training has begun, so that the exchange before it is over, [N]. Models
            without `aggregated_before` count the newest exchange in any case.
    """
    assert models.aggregated is not None, "the simulator keeps them where they are tested"
    n, over, stack = len(aggregations), aggregations, models.aggregated[: len(aggregations)]
    if models.aggregated_before is not None:
        over = aggregations - ~begun
        stack = torch.where(_column(begun, stack), stack, models.aggregated_before[:n])
    return torch.where(_column(over > 0, stack), stack, newest_published(models, done)[:n])


def _column(mask: Bools, like: Tensor) -> Tensor:
    """Return a mask over rows that broadcasts over a stack of models."""
    return upload(mask, like.device)[:, None]


def link_distances(models: Models, dst: Ints, src: Ints, busy: tuple[Bools, Bools]) -> Floats:
    """Return ||w_dst - w_src|| of each link, [L].

    Args:
        models: All models.
        dst: Receiver of each link, [L].
        src: Sender of each link, [L].
        busy: Whether receivers and senders hand out their last finished model, [L] each.
    """
    out = np.empty(len(dst))
    for lo in range(0, len(dst), 64):  # an array [L, W] may not fit into memory
        part = slice(lo, lo + 64)
        own = handed_out(models, dst[part], busy[0][part])
        gap = own - handed_out(models, src[part], busy[1][part])
        out[part] = gap.double().norm(dim=1).cpu().numpy()
    return out
