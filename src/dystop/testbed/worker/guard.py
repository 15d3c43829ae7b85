"""What a worker believes of what it fetched, and how it mixes what it believes.

    guard = Guard(params.guards, schema.variances)
    guard.learn(own)                                     # each own model that is published
    verdict = guard.judge(Claim(node, round, version, number), vector, own, kind, kept)
    if verdict.code is None: ...                         # use it; verdict.distance for `Used`
    mixed = mix_arrived(row, node, own, arrived, params.guards, start=start, radius=guard.radius)

`arrived` holds what `judge` let through, by source, the own node not among them; a masked model
may be there as its kept coordinates only or as a whole. The result of `mix_arrived` is a new
vector, or `own` itself where nothing changes. Vectors are never written to.
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

REMEMBERED = 20  # own norms, and distances to others, that count as recent
ENOUGH = 5  # distances before one of them can be called unusual


@dataclass(frozen=True)
class Claim:
    """What a peer says that a model is, and the round for which it was asked."""

    node: int
    round: int  # of the order that asked for it, which the peer does not choose
    version: int
    number: int


class Verdict(NamedTuple):
    """Whether a model may be used."""

    code: RejectCode | None  # None: it may
    distance: float | None = None  # to the own model; None for updates


class _Seen(NamedTuple):
    """Newest (version, number) of a peer: accepted in earlier rounds, and up to `round`."""

    round: int
    floor: tuple[int, int]
    top: tuple[int, int]


class Guard:
    """Judges models by what the worker itself had and saw lately."""

    def __init__(self, params: Guards, variances: Sequence[slice] = ()) -> None:
        """`variances`: where batch norm's running variances lie in the vector."""
        self._params = params
        self._variances = tuple(variances)
        self._norms: deque[float] = deque(maxlen=REMEMBERED)
        self._unmeasured: Vector | None = None  # newest own model: a start must not wait for it
        self._distances: deque[float] = deque(maxlen=REMEMBERED)
        self._seen: dict[int, _Seen] = {}

    @property
    def radius(self) -> float | None:
        """Radius for clipping: the one set, or the median of the distances seen lately."""
        return self._params.clip_radius or robust_aggregation.running_radius(self._distances)

    def learn(self, own: Vector) -> None:
        """Take note of an own model, which must not change any more."""
        self._measure()
        self._unmeasured = own

    def _measure(self) -> None:
        own, self._unmeasured = self._unmeasured, None
        if own is not None and np.isfinite(size := robust_aggregation.norm(own)):
            self._norms.append(size)

    def forget(self, node: int) -> None:
        """A peer has begun anew (lost its disk): its versions count from the start again."""
        self._seen.pop(node, None)

    def judge(
        self,
        claim: Claim,
        vector: Vector,
        own: Vector,
        kind: str = "model",
        kept: Bools | None = None,
    ) -> Verdict:
        """Whether a model may be used; takes note of it if so.

        Order: finite, norm, variances, distance, replay. An update ("delta") is not compared with
        the own model. `kept` marks the coordinates that a masked vector consists of.
        """
        size = robust_aggregation.norm(vector)
        if not np.isfinite(size):
            return Verdict("not_finite")
        if size > self._longest(own):
            return Verdict("norm")
        if kind == "delta":
            return Verdict(self._replayed(claim))
        if self._bad_variance(vector, kept):
            return Verdict("variance")
        gap = _gap(vector, own, kept)
        usual = robust_aggregation.running_radius(self._distances)
        unusual = usual is not None and len(self._distances) >= ENOUGH and self._far(gap, usual)
        if gap > 0:
            # Also of those refused: a few strangers do not move a median, and where everybody
            # has moved on the limit must follow.
            self._distances.append(gap)
        return Verdict("distance", gap) if unusual else Verdict(self._replayed(claim), gap)

    def _longest(self, own: Vector) -> float:
        """Largest norm that is believed; no limit while the own model is all zeros."""
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

    def _replayed(self, claim: Claim) -> RejectCode | None:
        """Refuse what is older than what an earlier round has brought from the same peer.

        Not by order of arrival: two fetches for one round, or a slow one for an old round, may
        honestly overtake each other.
        """
        now = (claim.version, claim.number)
        seen = self._seen.get(claim.node, _Seen(claim.round, now, now))
        if claim.round < seen.round:
            return None
        floor = seen.top if claim.round > seen.round else seen.floor
        if now[0] < floor[0] or now[1] < floor[1]:
            return "replay"
        top = (max(now[0], seen.top[0]), max(now[1], seen.top[1]))
        self._seen[claim.node] = _Seen(claim.round, floor, top)
        return None


def _gap(vector: Vector, own: Vector, kept: Bools | None) -> float:
    """Distance to the own model; of a masked vector, scaled up to the whole."""
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
    """Mix a row of an order with what arrived (eq:aggregation), as the simulator does.

    Args:
        row: sources and weights; a source that is neither `node` nor in `arrived` is missing.
        node: the own one.
        own: the own model before the mix.
        arrived: accepted models by source; updates for rows of kind "delta".
        guards: aggregator and cap on weights; they do not apply to updates.
        start: where the training behind `own` began; needed by rows of kind "delta".
        radius: for clipping; None: the median distance of what arrived.
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
    """Weights of the sources that are there, ids ascending, after `control.aggregation.mend`.

    What is lost goes to the own model (`to_self`), is shared out among the rest, or, in a row of
    updates, is just not added. Empty where nothing can be mixed.
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
    """No neighbour weighs more than the cap; the excess goes to the own model."""
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
    """One row by the chosen aggregator; the plain mean in the order of ids."""
    own, ids = models[node], list(weights)
    others = [j for j in ids if j != node]
    if guards.aggregator == "mean" or not others:
        return robust_aggregation.blend(np.array(list(weights.values())), [models[j] for j in ids])
    theirs = np.array([weights[j] for j in others])
    if guards.aggregator == "clip":
        return _clip(own, [models[j] for j in others], theirs, radius)
    if guards.aggregator == "nearest":
        return robust_aggregation.nearest(own, [models[j] for j in others], theirs, guards.nearest)
    voters = [models[j] for j in ids if weights[j] != 0]  # a weight of zero is no vote
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
    """Add weighted updates: start + sum_j w_j delta_j; the own one is own - start."""
    if start is None:
        raise ValueError("a row of updates needs to know where the own training began")
    terms = {node: own - start, **updates}
    return start + robust_aggregation.blend(
        np.array(list(weights.values())), [terms[j] for j in weights]
    )


def _only(vector: Vector, kept: Bools) -> Vector:
    """The kept coordinates of a vector that may consist of just these."""
    return vector[kept] if len(vector) == len(kept) else vector
