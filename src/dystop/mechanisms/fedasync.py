"""FedAsync: an asynchronous parameter server that takes one worker at a time."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from dystop.mechanisms.shared.server import first_to_finish, in_reach_of_server, server_round
from dystop.mechanisms.staleness_weighted import StalenessWeighting, freshness
from dystop.params import param
from dystop.plan import Plan, no_links
from dystop.sparse import ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View


@dataclass(frozen=True)
class FedAsync(Mechanism):
    """The first worker to finish uploads; the server mixes its model in, less if it is stale.

    server = (1 - a_k) server + a_k x_i, where a_k = share * s(k) and k counts the updates of the
    server since worker i downloaded its model. Then i downloads the new server model. The server is
    node N, as in FedAvg. The source defines the update and the three functions s. Among workers
    that have finished, the one that began earliest goes first (our choice).
    """

    name: ClassVar[str] = "fedasync"
    provenance: ClassVar[str] = "reference"
    summary: ClassVar[str] = "a server takes in one worker at a time, stale ones at a smaller share"

    share: Annotated[float, Gt(0), Le(1)] = param(
        0.6, "a: weight of a fresh model in the new server model"
    )
    decay: Literal["constant", "polynomial", "hinge"] = param(
        "polynomial", "how the weight falls with staleness k (the default is our choice)"
    )
    exponent: Annotated[float, Ge(0)] = param(0.5, "polynomial: (k + 1)^-exponent")
    slope: Annotated[float, Ge(0)] = param(10.0, "hinge: 1 / (slope (k - limit) + 1)")
    limit: Annotated[int, Ge(0)] = param(4, "hinge: largest k at which a model counts as fresh")

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", server=True)

    def init(self, fleet: Fleet) -> Memory:
        """Return the number of server updates, and how many each worker's model contains."""
        return {"updates": 0, "seen": np.zeros(fleet.workers, np.int64)}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Upload one worker's model and download the result; train alone if none is in reach."""
        memory = self._learn(memory, view)
        near = in_reach_of_server(view)
        candidates = near if len(near) else np.flatnonzero(view.alive)
        chosen = first_to_finish(candidates, view.remaining_s, view.staleness, 1)
        if not len(near):
            return Plan(chosen, no_links()), memory
        behind = int(memory["updates"] - memory["seen"][chosen[0]])
        share = self.share_of(behind)
        notes = {"share": share, "updates_behind": float(behind)}
        return server_round(view, chosen, share, notes), memory

    def share_of(self, behind: int) -> float:
        """Return the share a_k of a model that is k server updates behind.

        >>> FedAsync().share_of(3), round(FedAsync(decay="hinge").share_of(6), 6)
        (0.3, 0.028571)
        """
        rule = StalenessWeighting(self.decay, self.share, self.exponent, self.slope, self.limit)
        return float(freshness(rule, ints([behind]))[0])

    def _learn(self, memory: Memory, view: View) -> Memory:
        """Count the last upload if it arrived, and store who downloaded the result."""
        last, hub = view.last, view.fleet.workers
        if last is None or not len(last.dst):
            return memory
        updates = memory["updates"] + int((~last.lost & (last.dst == hub)).any())
        seen = memory["seen"].copy()
        seen[last.dst[~last.lost & (last.src == hub)]] = updates
        return {"updates": updates, "seen": seen}
