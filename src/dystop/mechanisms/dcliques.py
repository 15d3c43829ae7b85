"""D-Cliques: cliques with the label distribution of the whole data set, sparsely linked."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from dystop.control.aggregation import metropolis
from dystop.mechanisms.graphs.cliques import (
    InterClique,
    global_share,
    greedy_swap,
    inter_edges,
    out_of_reach,
    random_cliques,
    skew,
)
from dystop.mechanisms.graphs.undirected import both_ways
from dystop.params import param
from dystop.plan import Mix, Plan, join_links, links
from dystop.rng import stream
from dystop.sparse import Bools, Graph, Ints, graph_of, ints
from dystop.types import Capabilities, Mechanism, Memory, View

_MANY = 200  # workers from which linking all cliques costs too much


@dataclass(frozen=True)
class DCliques(Mechanism):
    """Workers average updates within their clique, then models with all of their neighbours.

    The random cliques, the greedy swaps, the edges between cliques and the Metropolis weights are
    those of the author's simulator. It averages the gradients of single steps within a clique; we
    average the update of the whole local training (`clique_avg`). It assumes that all workers reach
    each other. Otherwise, the swaps also bring together workers in reach of each other (our
    choice), and a round omits links out of reach. The topology is built in the first round and then
    fixed; workers absent in the first round count as in reach of all. The note `unreachable` counts
    the pairs of present members of one clique that are out of reach of each other.
    """

    name: ClassVar[str] = "d-cliques"
    provenance: ClassVar[str] = "authors' code"
    summary: ClassVar[str] = "synchronous averaging in cliques of balanced labels, sparsely linked"

    clique_size: Annotated[int, Ge(1)] = param(10, "M: largest number of members of a clique")
    swaps: Annotated[int, Ge(0)] = param(1000, "K: steps of the greedy swap")
    inter: Literal["auto", "ring", "fractal", "smallworld", "full"] = param(
        "auto", "edges between cliques; auto: full below 200 workers, smallworld from 200 on"
    )
    clique_avg: bool = param(True, "whether a clique averages its updates before models are mixed")

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="sync", deltas=True, doubly_stochastic=True)

    def our_parts(self) -> tuple[str, ...]:
        """Return what the author's simulator does not do: it averages gradients of single steps."""
        return ("average of updates",) if self.clique_avg else ()

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Exchange over the edges of the topology that are in reach."""
        memory = memory or self._build(view)
        inside, everywhere = _graphs(memory, view)
        active = np.flatnonzero(view.alive)
        models = links(everywhere.dst, everywhere.src, stage=int(self.clique_avg))
        mixes: tuple[Mix, ...] = (metropolis(everywhere, active),)
        if self.clique_avg:
            updates = links(inside.dst, inside.src, delta=True)
            models = join_links([updates, models])
            mixes = (replace(metropolis(inside, active), kind="delta"), *mixes)
        notes = {"skew": memory["skew"], "unreachable": _unreachable(memory, view, inside)}
        return Plan(active, models, mixes, synchronous=True, notes=notes), memory

    def _build(self, view: View) -> Memory:
        """Partition the workers and link the cliques."""
        fleet = view.fleet
        n, counts = fleet.workers, fleet.label_counts
        apart = out_of_reach(view.reach, view.alive)
        cliques = random_cliques(n, self.clique_size, stream(fleet.seed, "d-cliques", "cliques"))
        swap = stream(fleet.seed, "d-cliques", "swap")
        cliques = greedy_swap(cliques, counts, apart, self.swaps, swap)
        link = stream(fleet.seed, "d-cliques", "link")
        i, j = inter_edges(self._inter(n), cliques, counts.shape[1], apart, link)
        number = np.empty(n, np.int64)
        for k, members in enumerate(cliques):
            number[members] = k
        pooled = ints([counts[members].sum(axis=0) for members in cliques])
        mean_skew = float(skew(pooled, global_share(counts)).mean())
        return {"clique": number, "i": i, "j": j, "skew": mean_skew}

    def _inter(self, workers: int) -> InterClique:
        if self.inter == "auto":
            return "smallworld" if workers >= _MANY else "full"
        return self.inter


def _graphs(memory: Memory, view: View) -> tuple[Graph, Graph]:
    """Return the edges in reach in both directions: of the cliques, and of the whole topology."""
    n, reach, clique = view.fleet.workers, view.reach, memory["clique"]
    own = (clique[reach.dst] == clique[reach.src]) & _in_reach(reach, reach.src, reach.dst)
    inside = reach.keep(own)
    dst, src = both_ways(memory["i"], memory["j"])
    usable = _in_reach(reach, dst, src) & _in_reach(reach, src, dst)
    dst = np.concatenate([inside.dst, dst[usable]])
    src = np.concatenate([inside.src, src[usable]])
    return inside, graph_of(n, dst, src)


def _in_reach(reach: Graph, dst: Ints, src: Ints) -> Bools:
    found: Bools = reach.find(dst, src) >= 0
    return found


def _unreachable(memory: Memory, view: View, inside: Graph) -> float:
    """Count the pairs of present members of one clique that are out of reach of each other."""
    size = np.bincount(memory["clique"][view.alive])
    return float((size * (size - 1) // 2).sum() - inside.edges // 2)
