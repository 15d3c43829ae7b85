"""BrainTorrent: all workers average with all, or one worker at a time pulls newer models."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dystop.control.aggregation import size_weights
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Ints, PairCounts, ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View


@dataclass(frozen=True)
class BrainTorrent(Mechanism):
    """Averaging by data size without a server.

    The DySTop paper describes an all-to-all exchange in every round (`alltoall`). The original
    method is sequential (`original`): a random worker asks all peers for their versions, pulls the
    models that are newer than those it last saw, averages them with its own and trains while the
    others wait. Version requests are free here: they take a few bytes. Peers out of reach are not
    asked. A model that was lost is requested again.
    """

    name: ClassVar[str] = "braintorrent"
    provenance: ClassVar[str] = "abstract"
    summary: ClassVar[str] = "all-to-all averaging by data size, or one caller at a time"

    variant: Literal["alltoall", "original"] = param(
        "alltoall",
        "alltoall: all workers exchange models; original: one random worker pulls the models that "
        "are newer than its copies",
    )

    def capabilities(self) -> Capabilities:
        """Return the capabilities; in `original`, only the caller trains."""
        return Capabilities(
            mode="sync" if self.variant == "alltoall" else "async",
            warm_start=self.variant == "alltoall",
        )

    def init(self, fleet: Fleet) -> Memory:
        """Return the versions that each caller holds, by pair dst * N + src; none at first."""
        if self.variant == "alltoall":
            return {}
        return {"pair": ints([]), "version": ints([])}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Exchange between all workers, or draw one caller."""
        if self.variant == "original":
            memory = _learn(memory, view)
            return _call(memory, view), memory
        active = np.flatnonzero(view.alive)
        dst, src = view.reach.dst, view.reach.src
        rows = size_weights(active, dst, src, view.fleet.data_size)
        return Plan(active, links(dst, src), (rows,), synchronous=True), memory


def _call(memory: Memory, view: View) -> Plan:
    """Let one random worker pull from the peers whose version has increased."""
    caller = int(view.rng("caller").choice(np.flatnonzero(view.alive)))
    peers = view.reach.row(caller)
    to = np.full(len(peers), caller)
    seen = PairCounts(view.fleet.workers, memory["pair"], memory["version"]).get(to, peers)
    newer = view.version[peers] > seen
    dst, src = to[newer], peers[newer]
    active = ints([caller])
    rows = size_weights(active, dst, src, view.fleet.data_size)
    return Plan(active, links(dst, src), (rows,), join=True)


def _learn(memory: Memory, view: View) -> Memory:
    """Store the versions that arrived in the last round; only its caller has trained since."""
    if view.last is None or not len(view.last.dst):
        return memory
    arrived = ~view.last.lost
    dst, src = view.last.dst[arrived], view.last.src[arrived]
    fresh = dst * view.fleet.workers + src
    kept = ~np.isin(memory["pair"], fresh)
    pair: Ints = np.concatenate([memory["pair"][kept], fresh])
    version = np.concatenate([memory["version"][kept], view.version[src]])
    order = np.argsort(pair)
    return {"pair": pair[order], "version": version[order]}
