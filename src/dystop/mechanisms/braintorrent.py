"""BrainTorrent: everyone averages with everyone, or one worker at a time calls on its peers."""

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
    """Averages by data size without a server.

    The DySTop paper describes an all-to-all exchange in every round (`alltoall`). The method as
    first published is sequential (`original`): a random worker asks all for their versions, pulls
    the models that are newer than the ones it last saw, averages them with its own and trains while
    the others wait. Asking is free here: a few bytes against whole models. Peers out of reach are
    not asked, and a model that was lost on the way is asked for again.
    """

    name: ClassVar[str] = "braintorrent"
    provenance: ClassVar[str] = "abstract"
    summary: ClassVar[str] = "all-to-all averaging by data size, or one caller at a time"

    variant: Literal["alltoall", "original"] = param(
        "alltoall", "everyone with everyone, or one random caller that pulls what is new to it"
    )

    def capabilities(self) -> Capabilities:
        """Return the capabilities; in `original`, only the caller trains."""
        return Capabilities(
            mode="sync" if self.variant == "alltoall" else "async",
            warm_start=self.variant == "alltoall",
        )

    def init(self, fleet: Fleet) -> Memory:
        """Only callers remember: which version of which peer (dst * N + src) they hold."""
        if self.variant == "alltoall":
            return {}
        return {"pair": ints([]), "version": ints([])}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Let everybody exchange, or draw a caller."""
        if self.variant == "original":
            memory = _learn(memory, view)
            return _call(memory, view), memory
        active = np.flatnonzero(view.alive)
        dst, src = view.reach.dst, view.reach.src
        rows = size_weights(active, dst, src, view.fleet.data_size)
        return Plan(active, links(dst, src), (rows,), synchronous=True), memory


def _call(memory: Memory, view: View) -> Plan:
    """One worker, drawn uniformly, pulls from the peers whose version advanced."""
    caller = int(view.rng("caller").choice(np.flatnonzero(view.alive)))
    peers = view.reach.row(caller)
    to = np.full(len(peers), caller)
    seen = PairCounts(view.fleet.workers, memory["pair"], memory["version"]).get(to, peers)
    news = view.version[peers] > seen
    dst, src = to[news], peers[news]
    active = ints([caller])
    rows = size_weights(active, dst, src, view.fleet.data_size)
    return Plan(active, links(dst, src), (rows,), join=True)


def _learn(memory: Memory, view: View) -> Memory:
    """Note the versions that arrived in the last round; only its caller has trained since."""
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
