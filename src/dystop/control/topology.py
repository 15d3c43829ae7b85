"""PTCA, the phase-aware topology construction algorithm (alg:topology)."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dystop.acceleration import accelerated
from dystop.sparse import Edges, Floats, Graph, Ids, Ints, check_ids

_MOST_CANDIDATES = 2**31 - 1  # candidates that an int32 can number


def default_degree(workers: int) -> int:
    """Return ceil(log2 N), at least 1: the number of neighbours where none is configured."""
    return max(1, math.ceil(math.log2(workers)))


@accelerated("dystop.kernels.topology:ranked_candidates")
def ranked_candidates(
    active: Ints, reach: Graph, priority: Floats | Callable[[Edges], Floats]
) -> tuple[Ints, Ids]:
    """Rank the candidates of each active worker, best first, ties to the lower id.

    Args:
        active: active workers, in any order.
        reach: who may receive from whom.
        priority: the priority of every edge in reach, or a function that returns it for some edges.
            With a function, only edges into active workers are evaluated.

    Returns:
        (bounds, ranked): the candidates of active[k] are ranked[bounds[k]:bounds[k + 1]].
    """
    bounds, edges = reach.edges_into(active)
    value = priority(edges) if callable(priority) else priority[edges]
    order = np.lexsort((-value, np.repeat(np.arange(len(active)), np.diff(bounds))))
    return bounds, reach.src[edges][order].astype(np.int32)


def connect(
    active: Ints, bounds: Ints, ranked: Ids | Ints, budget: Floats, cap: int
) -> tuple[Ints, Ints]:
    """Choose links within the bandwidth budgets, one per active worker and turn (alg:topology).

    Turn by turn, each active worker takes its best remaining candidate that still has bandwidth. A
    link costs one model at both ends, B_t^i <= budget. `cap` bounds the in-neighbours of a worker
    (the s of the evaluation, ADR 0004).

    Args:
        active: active workers, in the order in which they take turns.
        bounds: where the candidates of each active worker begin in `ranked`, [A + 1].
        ranked: candidates, best first.
        budget: models each node may send and receive, [nodes].
        cap: in-neighbours a worker may have.

    Returns:
        (dst, src) of the chosen links, in the order of choice.
    """
    fits = len(bounds) == len(active) + 1 and bounds[-1] == len(ranked)
    if not fits or len(ranked) > _MOST_CANDIDATES:
        raise IndexError(
            f"bounds do not fit {len(active)} workers with {len(ranked)} candidates"
            f" (at most {_MOST_CANDIDATES})"
        )
    check_ids(len(budget), active, ranked)
    return ptca_loop(active, bounds, ranked.astype(np.int32, copy=False), budget, cap)


@accelerated("dystop.kernels.topology:ptca_loop")
def ptca_loop(
    active: Ints, bounds: Ints, ranked: Ids, budget: Floats, cap: int
) -> tuple[Ints, Ints]:
    """Take turns as in alg:topology; `connect` checks the arguments and documents them.

    A worker that finds no candidate in one turn leaves: budgets only shrink, so it would never find
    one later. A budget that is not a number counts as unlimited.
    """
    left = np.where(np.isnan(budget), np.inf, np.floor(budget)).tolist()
    candidates, workers = ranked.tolist(), active.tolist()
    at, end = bounds[:-1].tolist(), bounds[1:].tolist()
    turn, chosen = list(range(len(workers))), list[tuple[int, int]]()
    for _ in range(cap):
        waiting = []
        for k in turn:
            i = workers[k]
            while at[k] < end[k] and left[candidates[at[k]]] < 1:
                at[k] += 1
            if left[i] < 1 or at[k] == end[k]:
                continue
            j = candidates[at[k]]
            left[i] -= 1
            left[j] -= 1
            at[k] += 1
            chosen.append((i, j))
            waiting.append(k)
        turn = waiting
    links: NDArray[np.int64] = np.array(chosen, np.int64).reshape(-1, 2)
    return links[:, 0].copy(), links[:, 1].copy()


def bandwidth_use(dst: Ints, src: Ints, nodes: int) -> Ints:
    """Return the models that each node receives and sends, B_t^i / b (section "Problem")."""
    return np.bincount(dst, minlength=nodes) + np.bincount(src, minlength=nodes)
