"""Decide which pulled models a worker may use, and mix the accepted ones.

    guard = Guard(params.guards, schema.variances)
    guard.learn(own)                                     # for each own model that is published
    verdict = guard.judge(Claim(node, round, version, number), vector, own, kind, kept)
    if verdict.code is None: ...                         # use the model
    mixed = mix_arrived(row, node, own, arrived, params.guards, start=start, radius=guard.radius)

`arrived` holds the models that `judge` accepted, by source, without the own node. A masked model
may be whole or consist of its kept coordinates only. The result of `mix_arrived` is a new vector,
or `own` itself if nothing changes. No vector is ever modified.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dystop.control import robust_aggregation
from dystop.control.aggregation import kept_coordinates
from dystop.sparse import Bools, Floats
from dystop.testbed.events import Vector
from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import RejectCode, Row

RECENT = 20  # number of own norms and of distances that are remembered
MIN_DISTANCES = 5  # before a distance can count as unusual


@dataclass(frozen=True)
class ModelClaim:
    """The version of a model as its sender states it, and the round of the pull."""

    node: int
    round: int  # of the order that pulled it; the sender does not choose it
    version: int
    number: int


class Verdict(NamedTuple):
    """Whether a model may be used."""

    code: RejectCode | None  # None: it may be used
    distance: float | None = None  # to the own model; None: an update


class _Seen(NamedTuple):
    """Newest (version, number) of a peer: from rounds before `round`, and including it."""

    round: int
    before: tuple[int, int]
    newest: tuple[int, int]


class Guard:
    """Judges models by the recent models of the worker and its neighbours."""

    def __init__(self, params: Guards, variances: Sequence[slice] = ()) -> None:
        """`variances`: positions of the running variances of batch norm in the vector."""
        self._params = params
        self._variances = tuple(variances)
        self._norms: deque[float] = deque(maxlen=RECENT)
        self._unmeasured: Vector | None = None  # newest own model; measured when first needed
        self._distances: deque[float] = deque(maxlen=RECENT)
        self._seen: dict[int, _Seen] = {}

    @property
    def radius(self) -> float | None:
        """Radius for clipping: the configured one, or the median of recent distances."""
        return self._params.clip_radius or robust_aggregation.running_radius(self._distances)

    def learn(self, own: Vector) -> None:
        """Remember an own model; it must not change afterwards."""
        self._measure()
        self._unmeasured = own

    def _measure(self) -> None:
        own, self._unmeasured = self._unmeasured, None
        if own is not None and np.isfinite(size := robust_aggregation.norm(own)):
            self._norms.append(size)

    def forget(self, node: int) -> None:
        """Forget the versions of a peer that may start anew, for example without its disk."""
        self._seen.pop(node, None)

    def judge(
        self,
        claim: ModelClaim,
        vector: Vector,
        own: Vector,
        kind: str = "model",
        kept: Bools | None = None,
    ) -> Verdict:
        """Return whether a model may be used; if so, remember it.

        Checks in this order: finite, norm, variances, distance, replay. An update ("delta") is not
        compared with the own model. `kept` marks the coordinates of a masked vector.
        """
        size = robust_aggregation.norm(vector)
        if not np.isfinite(size):
            return Verdict("not_finite")
        if size > self._largest_norm(own):
            return Verdict("norm")
        if kind == "delta":
            return Verdict(self._replayed(claim))
        if self._bad_variance(vector, kept):
            return Verdict("variance")
        gap = _gap(vector, own, kept)
        usual = robust_aggregation.running_radius(self._distances)
        unusual = (
            usual is not None and len(self._distances) >= MIN_DISTANCES and self._far(gap, usual)
        )
        if gap > 0:
            # Refused models count, too: a few of them do not move the median, and if all neighbours
            # move away, the limit must follow.
            self._distances.append(gap)
        return Verdict("distance", gap) if unusual else Verdict(self._replayed(claim), gap)

    def _largest_norm(self, own: Vector) -> float:
        """Return the largest accepted norm; no limit while the own model is all zeros."""
        self._measure()
        recent = max(self._norms, default=0.0) or robust_aggregation.norm(own)
        return self._params.norm_factor * recent if recent > 0 else np.inf

    def _far(self, gap: float, usual: float) -> bool:
        factor = self._params.distance_factor
        return factor > 0 and gap > factor * usual

    def _bad_variance(self, vector: Vector, kept: Bools | None) -> bool:
        if not self._variances:
            return False
        if kept is None:
            return any(bool((vector[part] < 0).any()) for part in self._variances)
        marked = np.zeros(len(kept), bool)
        for part in self._variances:
            marked[part] = True
        return bool((vector[marked[kept]] < 0).any())

    def _replayed(self, claim: ModelClaim) -> RejectCode | None:
        """Refuse a model that is older than one that an earlier round pulled from the same peer.

        The order of arrival does not matter: two pulls of one round, or a slow pull of an earlier
        round, may overtake each other without any fault of the peer.
        """
        now = (claim.version, claim.number)
        seen = self._seen.get(claim.node, _Seen(claim.round, now, now))
        if claim.round < seen.round:
            return None
        before = seen.newest if claim.round > seen.round else seen.before
        if now[0] < before[0] or now[1] < before[1]:
            return "replay"
        newest = (max(now[0], seen.newest[0]), max(now[1], seen.newest[1]))
        self._seen[claim.node] = _Seen(claim.round, before, newest)
        return None


def _gap(vector: Vector, own: Vector, kept: Bools | None) -> float:
    """Return the distance to the own model; that of a masked vector is scaled to full length."""
    if kept is None or len(vector) == len(own):
        return robust_aggregation.distance(own, vector)
    part = robust_aggregation.distance(own[kept], vector)
    return part * float(np.sqrt(len(own) / max(len(vector), 1)))


def mix_arrived(
    row: Row,
    node: int,
    own: Vector,
    arrived: Mapping[int, Vector],
    guards: Guards,
    *,
    start: Vector | None = None,
    radius: float | None = None,
) -> Vector:
    """Mix a row of an order with the arrived models (eq:aggregation), as the simulator does.

    Args:
        row: Sources and weights; a source that is neither `node` nor in `arrived` is missing.
        node: The own node.
        own: The own model before the mix.
        arrived: Accepted models by source; updates for rows of kind "delta".
        guards: Aggregator and cap on weights; they do not apply to updates.
        start: Where the training behind `own` started; needed by rows of kind "delta".
        radius: For clipping; None: the median distance of the arrived models.
    """
    weights = arrived_weights(row, node, arrived)
    if not weights:
        return own
    if row.kind == "delta":
        return _add_updates(weights, node, own, arrived, start)
    weights = _capped(weights, node, guards.weight_cap)
    if row.kind != "masked" or row.mask is None:
        return _aggregate(weights, node, {**arrived, node: own}, guards, radius)
    kept = kept_coordinates(*row.mask, len(own))
    models = {j: _only(arrived[j], kept) for j in weights if j != node} | {node: own[kept]}
    mixed = own.copy()
    mixed[kept] = _aggregate(weights, node, models, guards, radius)
    return mixed


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


def _aggregate(
    weights: dict[int, float],
    node: int,
    models: Mapping[int, Vector],
    guards: Guards,
    radius: float | None,
) -> Vector:
    """Aggregate one row with the configured aggregator; the mean adds models by id."""
    own, ids = models[node], list(weights)
    others = [j for j in ids if j != node]
    if guards.aggregator == "mean" or not others:
        return robust_aggregation.blend(np.array(list(weights.values())), [models[j] for j in ids])
    theirs = np.array([weights[j] for j in others])
    if guards.aggregator == "clip":
        return _clip(own, [models[j] for j in others], theirs, radius)
    if guards.aggregator == "nearest":
        return robust_aggregation.nearest(own, [models[j] for j in others], theirs, guards.nearest)
    voters = [models[j] for j in ids if weights[j] != 0]  # a model of weight zero has no vote
    share = guards.trim if guards.aggregator == "trimmed" else 0.5
    return robust_aggregation.trimmed(voters or [own], share)


def _clip(own: Vector, others: list[Vector], weights: Floats, radius: float | None) -> Vector:
    if radius is None:
        radius = (
            robust_aggregation.running_radius(robust_aggregation.distances(own, others).tolist())
            or 0.0
        )
    return robust_aggregation.clip(own, others, weights, radius)


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
    return start + robust_aggregation.blend(
        np.array(list(weights.values())), [terms[j] for j in weights]
    )


def _only(vector: Vector, kept: Bools) -> Vector:
    """Return the kept coordinates of a vector that is whole or consists of just these."""
    return vector[kept] if len(vector) == len(kept) else vector
