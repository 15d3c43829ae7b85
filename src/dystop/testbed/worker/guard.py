"""Decide which pulled models a worker may use.

    guard = Guard(params.guards, schema.variances)
    guard.learn(own)                                     # for each own model that is published
    verdict = guard.judge(claim_of(node, round, header), vector, own, kind, kept)
    if verdict.code is None: ...                         # use the model

No vector is ever modified. `mixer` mixes the accepted models. The observer has the same guard.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dystop.exchange.rules import RECENT, distance, norm, running_median
from dystop.sparse import Bools
from dystop.testbed.events import Vector
from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import MAX_LEAD, MAX_VERSION, RejectCode
from dystop.testbed.protocol.pulls import ModelHeader

MIN_DISTANCES = 5  # before a distance can count as unusual


@dataclass(frozen=True)
class ModelClaim:
    """What the sender of a model states about it, and the round of the pull."""

    node: int
    round: int  # of the order that pulled it; the sender does not choose it
    version: int
    number: int
    began: int = 0  # round whose order started its training

    @property
    def is_possible(self) -> bool:
        """Whether a model that is pulled in this round may have such numbers."""
        most = self.round + MAX_LEAD
        return max(self.number, self.began) <= most and self.version <= MAX_VERSION


def claim_of(node: int, round_: int, header: ModelHeader) -> ModelClaim:
    """Return what a header claims about a model that was pulled in a round."""
    return ModelClaim(node, round_, header.version, header.number, header.round)


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
    def usual_distance(self) -> float | None:
        """The median of recent distances; None if there are none."""
        return running_median(self._distances)

    def learn(self, own: Vector) -> None:
        """Remember an own model; it must not change afterwards."""
        self._measure()
        self._unmeasured = own

    def _measure(self) -> None:
        own, self._unmeasured = self._unmeasured, None
        if own is not None and np.isfinite(size := norm(own)):
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

        Checks in this order: claim, finite, norm, variances, distance, replay. An update ("delta")
        is not compared with the own model. `kept` marks the coordinates of a masked vector.
        """
        if not claim.is_possible:
            return Verdict("malformed")
        size = norm(vector)
        if not np.isfinite(size):
            return Verdict("not_finite")
        if size > self._largest_norm(own):
            return Verdict("norm")
        if kind == "delta":
            return Verdict(self._replayed(claim))
        if self._bad_variance(vector, kept):
            return Verdict("variance")
        gap = _gap(vector, own, kept)
        usual = self.usual_distance
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
        recent = max(self._norms, default=0.0) or norm(own)
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
        return distance(own, vector)
    part = distance(own[kept], vector)
    return part * float(np.sqrt(len(own) / max(len(vector), 1)))
