"""Mix the models that a worker has accepted, by the rule of the configuration.

    mixer = Mixer(exchange, weight_cap, own_losses)
    mixed = mixer.mix_arrived(row, node, own, arrived, radius=guard.usual_distance)

`arrived` holds the accepted models by source, without the own node. A masked model may be whole or
consist of its kept coordinates only. The result is a new vector, or `own` itself if nothing
changes. No vector is ever modified.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from dystop.control.aggregation import kept_coordinates
from dystop.exchange import Exchange
from dystop.exchange.rules import (
    Memory,
    Models,
    Usual,
    Vectors,
    VotingRule,
    WeighingRule,
    blend,
)
from dystop.sparse import Bools, Floats
from dystop.testbed.events import Vector
from dystop.testbed.protocol.messages import CarryingRow, Row
from dystop.testbed.worker.state import OwnLosses


class Mixer:
    """Mixes the accepted models of one worker; remembers their distances and losses."""

    def __init__(
        self,
        exchange: Exchange,
        weight_cap: float = 1.0,
        own_losses: OwnLosses = lambda models, samples: None,
    ) -> None:
        """Prepare the mixer.

        Args:
            exchange: Rule and codec; the rule does not apply to updates.
            weight_cap: Largest weight of one neighbour.
            own_losses: Losses of models on own samples; a rule may ask for them.
        """
        self._rule, self._cap, self._own_losses = exchange.rule, weight_cap, own_losses
        self._gamma = exchange.codec.gamma if exchange.codec is not None else 0.0
        self._memory = Memory.empty(1)

    def mix_arrived(
        self,
        row: Row,
        node: int,
        own: Vector,
        arrived: Mapping[int, Vector],
        *,
        start: Vector | None = None,
        radius: float | None = None,
        own_copy: Callable[[], Vector | None] = lambda: None,
    ) -> Vector:
        """Mix a row of an order with the arrived models (eq:aggregation), as the simulator does.

        Args:
            row: Sources and weights; a source that is neither `node` nor in `arrived` is missing.
            node: The own node.
            own: The own model before the mix.
            arrived: Accepted models by source; updates for rows of kind "delta".
            start: Where the training behind `own` started; needed by rows of kind "delta".
            radius: For clipping; None: the median distance of the arrived models.
            own_copy: What others get of the own model in this stage, under CHOCO's rule.
        """
        weights = arrived_weights(row, node, arrived)
        if not weights:
            return own
        if row.kind == "delta":
            return _add_updates(weights, node, own, arrived, start)
        weights = _capped(weights, node, self._cap)
        if self._gamma and (copy := own_copy()) is not None:
            return self._moved(weights, node, own, arrived, copy)
        if row.kind != "masked" or row.mask is None:
            return self._combine(weights, node, {**arrived, node: own}, radius)
        kept = kept_coordinates(*row.mask, len(own))
        models = {j: _only(arrived[j], kept) for j in weights if j != node} | {node: own[kept]}
        mixed = own.copy()
        mixed[kept] = self._combine(weights, node, models, radius, own, kept)
        return mixed

    def _moved(
        self,
        weights: dict[int, float],
        node: int,
        own: Vector,
        arrived: Mapping[int, Vector],
        copy: Vector,
    ) -> Vector:
        """Return x_i + gamma sum_j w_ij (copy_j - copy_i), the rule of CHOCO-SGD.

        All numbers are mixed: the codec takes the place of a shared mask.
        """
        foreign = {j: w for j, w in weights.items() if j != node and w != 0}
        if not foreign:
            return own
        factors = np.array([*foreign.values(), -sum(foreign.values())])
        step = blend(factors, [*(arrived[j] for j in foreign), copy])
        moved: Vector = own + np.float32(self._gamma) * step
        return moved

    def _combine(
        self,
        weights: dict[int, float],
        node: int,
        models: Mapping[int, Vector],
        radius: float | None,
        whole: Vector | None = None,
        kept: Bools | None = None,
    ) -> Vector:
        """Combine one row by the rule; the mean adds models by id.

        `whole` is the own model with all coordinates, of which the models hold the kept ones.
        """
        own, ids = models[node], list(weights)
        others = [j for j in ids if j != node and weights[j] != 0]
        if others and isinstance(self._rule, VotingRule):
            return self._rule.voted([models[j] for j in ids if weights[j] != 0])
        if others and isinstance(self._rule, WeighingRule):
            # Scaled to full length, as the guard measures.
            scale = 1.0 if whole is None else math.sqrt(len(whole) / max(len(own), 1))
            arrived = Vectors(
                own, [models[j] for j in others], scale, partial(self._losses, whole, kept)
            )
            given = np.array([weights[j] for j in others])
            return self._rule.combined(given, arrived, partial(self._recall, radius))
        return blend(np.array(list(weights.values())), [models[j] for j in ids])

    def _recall(self, radius: float | None, distance: Floats, loss: Floats | None = None) -> Usual:
        """Remember distances and losses; return what is usual, with the radius of the guard."""
        usual = self._memory.recall(0, distance, loss)
        return usual if radius is None else Usual(radius, usual.loss)

    def _losses(
        self, whole: Vector | None, kept: Bools | None, models: Models, samples: int
    ) -> Floats | None:
        """Return the losses on own samples; a masked model gets its other coordinates from own."""
        if whole is not None and kept is not None:
            models = [_filled(whole, kept, model) for model in models]
        return self._own_losses(models, samples)


def mix_own_rows(
    row: CarryingRow, mixed: Vector, models: Mapping[int, Vector], columns: Sequence[slice]
) -> Vector:
    """Return a mixed model in which the weights of carried vectors have mixed some columns.

    Args:
        row: With these weights.
        mixed: What its other weights make of the models.
        models: Models by source, the own one among them; one that is lost contributes nothing.
        columns: Where the carried vectors lie that have rows of their own.
    """
    here = [(w, models[j]) for j, w in zip(row.sources, row.carried, strict=True) if j in models]
    weights, out = np.array([w for w, _ in here]), mixed.copy()
    for part in columns:
        out[part] = blend(weights, [model[part] for _, model in here])
    return out


def arrived_weights(row: Row, node: int, arrived: Mapping[int, Vector]) -> dict[int, float]:
    """Return the weights of the arrived sources by id, as `control.aggregation` renormalises them.

    A lost weight goes to the own model (`to_self`), is shared among the other sources, or, in a row
    of updates, is not added. The result is empty if nothing can be mixed.
    """
    given = dict(sorted(zip(row.sources, row.weights, strict=True)))
    here = {j: w for j, w in given.items() if j == node or j in arrived}
    lost = sum(given.values()) - sum(here.values())
    if len(here) == len(given):
        return here
    if row.to_self:
        return dict(sorted((here | {node: here.get(node, 0.0) + lost}).items()))
    if row.kind == "delta":
        return here
    total = sum(here.values())
    return {j: w / total for j, w in here.items()} if total else {}


def _capped(weights: dict[int, float], node: int, cap: float) -> dict[int, float]:
    """Limit the weight of each neighbour to the cap; the own model gets the excess."""
    if cap >= 1 or all(abs(w) <= cap for j, w in weights.items() if j != node):
        return weights
    cut = {j: w if j == node else float(np.clip(w, -cap, cap)) for j, w in weights.items()}
    excess = sum(weights.values()) - sum(cut.values())
    return dict(sorted((cut | {node: cut.get(node, 0.0) + excess}).items()))


def _add_updates(
    weights: dict[int, float],
    node: int,
    own: Vector,
    updates: Mapping[int, Vector],
    start: Vector | None,
) -> Vector:
    """Return start + sum_j w_j delta_j; the own update is own - start."""
    if start is None:
        raise ValueError("a row of updates needs the start of the own training")
    terms = {node: own - start, **updates}
    return start + blend(np.array(list(weights.values())), [terms[j] for j in weights])


def _only(vector: Vector, kept: Bools) -> Vector:
    """Return the kept coordinates of a vector that is whole or consists of just these."""
    return vector[kept] if len(vector) == len(kept) else vector


def _filled(own: Vector, kept: Bools, part: Vector) -> Vector:
    """Return the own model with the kept coordinates of another one."""
    filled = own.copy()
    filled[kept] = part
    return filled
