"""AD-PSGD: asynchronous averaging, one pair of workers at a time."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dystop.mechanisms.shared.server import first_to_finish
from dystop.plan import Mix, Plan, links, no_links
from dystop.sparse import Ints, ints, two_way
from dystop.types import Capabilities, Mechanism, Memory, View

_PUSHED = np.array([False, True])  # the caller pulls, and pushes its own model
_ENDS = {1: ints([0, 1]), 2: ints([0, 2, 4])}  # of the rows of one node, and of a pair


@dataclass(frozen=True)
class ADPSGD(Mechanism):
    """The first worker to finish averages with one random neighbour, which keeps training.

    Both workers get the mean of the two models. The update that the neighbour is still computing on
    its old model is added when it ends. The caller waits for both directions. An exchange is
    atomic: the testbed locks the two workers in the order of their ids.

    This describes `publish = "eager"`. Under "on_completion" the caller trains from the mean but
    serves its previous model until that training ends (ADR 0006). Both rules keep the mean of all
    models. Under "on_completion" a later caller meets an older model, so consensus is about half as
    fast.

    Among workers that have finished, the one with the largest staleness comes first (our choice).
    Ordered by id alone, workers with high ids would never be active where exchanges are slow.
    """

    name: ClassVar[str] = "ad-psgd"
    provenance: ClassVar[str] = "reference"
    summary: ClassVar[str] = "the first to finish averages with one random neighbour"

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", doubly_stochastic=True)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Pair the caller with a random neighbour that it can reach in both directions."""
        alive = np.flatnonzero(view.alive)
        caller = int(first_to_finish(alive, view.remaining_s, view.staleness, 1)[0])
        peers = two_way(view.reach, caller)
        if not len(peers):
            return Plan(ints([caller]), no_links(), (_mean_of(ints([caller])),)), memory
        pair = ints([caller, peers[view.rng("peer").integers(len(peers))]])
        exchange = links(pair, pair[::-1], pushed=_PUSHED)
        return Plan(pair[:1], exchange, (_mean_of(pair),)), memory


def _mean_of(nodes: Ints) -> Mix:
    """Return rows that give every node the mean of their models."""
    k, nodes = len(nodes), np.sort(nodes)
    return Mix(nodes, _ENDS[k], np.concatenate([nodes] * k), np.full(k * k, 1.0 / k))
