"""AD-PSGD: the asynchronous reference, one pair of workers at a time."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dystop.control.aggregation import with_self
from dystop.plan import Plan, join_links, links
from dystop.sparse import Ints, ints
from dystop.types import Capabilities, Mechanism, Memory, View


@dataclass(frozen=True)
class ADPSGD(Mechanism):
    """Whoever finishes first averages with one random neighbour, which keeps on training.

    Both end up with the mean of the two models; the update that the neighbour is computing on its
    old model is added when it ends. The caller pays for both directions. An exchange is one atomic
    step: a networked shell must lock the two workers in the order of their ids.

    That holds for `publish = "eager"`. Under "on_completion" the caller, which trains on from the
    mean, hands out the model it had before until that training ends (ADR 0007). The mean of all
    models is kept either way, but who meets it meanwhile meets an older model, so that models come
    together about half as fast.

    Among workers that have finished, the one that has waited most rounds comes first (our choice):
    by id alone, the last ones would never have their turn where exchanges are slow.
    """

    name: ClassVar[str] = "ad-psgd"
    provenance: ClassVar[str] = "reference"
    summary: ClassVar[str] = "the first to finish averages with one random neighbour"

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", doubly_stochastic=True)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """One caller, one neighbour that it hears and that hears it."""
        caller = _first_to_finish(view)
        peers = _two_way(caller, view)
        if len(peers):
            peers = ints([view.rng("peer").choice(peers)])
        here = np.full(len(peers), caller)
        pull, push = links(here, peers), links(peers, here, pushed=True)
        rows = with_self(
            np.concatenate([here, peers]),
            np.concatenate([peers, here]),
            np.full(2 * len(peers), 0.5),
            np.sort(np.append(peers, caller)),
        )
        return Plan(ints([caller]), join_links([pull, push]), (rows,)), memory


def _first_to_finish(view: View) -> int:
    """The worker with the least training left, then the most stale, then the lowest id."""
    alive = np.flatnonzero(view.alive)
    order = np.lexsort((alive, -view.staleness[alive], view.remaining_s[alive]))
    return int(alive[order[0]])


def _two_way(i: int, view: View) -> Ints:
    """Neighbours that worker i hears and that hear it."""
    heard = view.reach.row(i)
    return heard[view.reach.find(heard, np.full(len(heard), i)) >= 0]
