"""All models of a run in one stack: which of them a node hands out, and how mixed rows are written.

The tensors change in place, because the stack may be most of the memory there is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dystop.control.aggregation import passive_shift
from dystop.exchange.rules import Memory
from dystop.model_state import ModelState
from dystop.plan import Mix
from dystop.sparse import Bools, Floats, Ints, ints
from dystop.training.device import upload
from dystop.training.problem import Trained
from dystop.training.trainer import Trainer
from dystop.types import Score

if TYPE_CHECKING:
    from dystop.simulator.mixing.stage import Sources

PendingScore = Callable[[], Score]
"""Waits for an evaluation that a device has been asked for."""

ScoreOf = Callable[[Tensor, Tensor], PendingScore]
"""Evaluates models [N, W] with counters [N, C]; does not wait for a device."""

_FEW_ROWS = 2  # that are written one by one


@dataclass(eq=False)
class Trainings:
    """When mixes, trainings and evaluations run: here each at once, in the order of the rounds.

    `dystop.simulator.waves.TrainingQueue` lets them wait for each other.
    """

    def finish(self, nodes: Ints) -> None:
        """Make sure that the latest models of these nodes are mixed and trained."""

    def mix_later(self, stage: Mix, sources: "Sources") -> bool:
        """Let a mix wait and return True, if that is possible."""
        return False

    def run_mixes(self) -> None:
        """Run the mixes that wait."""

    def shift(self, models: "Models", nodes: Ints, rows: Tensor) -> None:
        """Add rows to the latest models of some nodes, after the trainings of those that wait."""
        models.latest[index(nodes, models.latest)] += rows

    def train(
        self,
        models: "Models",
        trainer: Trainer,
        nodes: Ints,
        versions: Ints,
        steps: Ints,
        rates: Floats | None,
    ) -> Trained:
        """Train the latest models of some nodes in place."""
        at = index(nodes, models.latest)
        start, counters = models.latest[at], models.counters[at]
        trained = trainer.train(start, counters, nodes, versions, steps, rates)
        models.latest[at], models.counters[at] = trained.models, trained.counters
        return trained

    def evaluate(self, models: "Models", done: Bools, workers: int, score: ScoreOf) -> PendingScore:
        """Evaluate the published models of the workers; do not wait for a device."""
        self.finish(np.arange(workers))
        return score(published(models, done)[:workers], models.counters[:workers])


AT_ONCE = Trainings()


@dataclass(frozen=True)
class Models(ModelState[Tensor, Tensor]):
    """Every node's models, row by row. The tensors change in place.

    A busy node's pulls return `finished` under `publish = "on_completion"`: its last model whose
    training had ended before the present one began. `aggregated` is the result of a node's last
    aggregation, in which it was active or passive; it is kept only where an evaluation tests it.
    """

    snapshots: dict[int, Tensor] = field(default_factory=dict)  # [W] each, of pushed models
    origins: dict[int, Tensor] = field(default_factory=dict)  # [W] each, where their training began
    memory: Memory | None = None  # of the nodes, where the aggregation rule needs one
    aggregated: Tensor | None = None  # [nodes, W]
    aggregated_before: Tensor | None = None  # [nodes, W], before an exchange that is under way
    public: Tensor | None = None  # [nodes, W], what others know where differences are sent
    leftover: Tensor | None = None  # [nodes, W], what the codec left out of updates
    trainings: Trainings = AT_ONCE


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
    nodes = np.arange(len(done)) if models.finished is None else np.flatnonzero(done)
    models.trainings.finish(nodes)
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
        models.trainings.finish(ints([node]))
        return models.latest[node]
    return models.finished[node]


def handed_out(models: Models, nodes: Ints, busy: Bools) -> Tensor:
    """Return the models of some nodes, [K, W]: the last finished one where the node is busy."""
    at = index(nodes, models.latest)
    models.trainings.finish(nodes if models.finished is None else nodes[~busy])
    if models.finished is None or not busy.any():
        return models.latest[at]
    late = upload(busy, models.latest.device)
    return torch.where(late[:, None], models.finished[at], models.latest[at])


def write_rows(models: Models, receiver: Ints, rows: Tensor, passive: Bools, busy: Bools) -> None:
    """Write mixed rows into the stack, in place.

    Args:
        models: All models.
        receiver: Whose rows they are, [R].
        rows: The mixed models, [R, W].
        passive: Receivers that are not about to train (`passive_shift`), [R].
        busy: Those of them whose training still runs, [R].
    """
    finished = models.finished
    models.trainings.run_mixes()  # they may read the rows that are about to change
    _keep_aggregated(models, receiver, rows, passive)
    models.trainings.finish(receiver if finished is None else receiver[~busy])
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
    models.trainings.shift(models, receiver[busy], shift[late])
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
