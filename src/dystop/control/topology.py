"""PTCA, the phase-aware topology construction algorithm (alg:topology)."""

import numpy as np

from dystop.sparse import Floats, Graph, Ints, ints


def ranked_candidates(active: Ints, reach: Graph, priority: Floats) -> tuple[Ints, Ints]:
    """Candidates of each active worker, best first, ties to the lower id.

    Returns:
        (bounds, ranked): the candidates of active[k] are ranked[bounds[k]:bounds[k + 1]].
    """
    sizes = reach.degree[active]
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    turn = np.repeat(np.arange(len(active)), sizes)
    edge = np.arange(bounds[-1]) - np.repeat(bounds[:-1] - reach.indptr[active], sizes)
    order = np.lexsort((reach.src[edge], -priority[edge], turn))
    return ints(bounds), reach.src[edge[order]]


def connect(
    active: Ints, bounds: Ints, ranked: Ints, budget: Floats, cap: int
) -> tuple[Ints, Ints]:
    """Choose links within the bandwidth budgets, one per active worker and turn (alg:topology).

    Turn by turn, each active worker takes its best remaining candidate that still has bandwidth; a
    link costs one model at both ends, B_t^i <= budget. `cap` bounds the in-neighbours of a worker
    (the s of the evaluation, ADR 0004). A worker that finds nothing in one turn never will later,
    because budgets only shrink, so it leaves the circle; the result is the one of the paper's loop.

    Args:
        active: active workers, in the order in which they take turns.
        bounds: where the candidates of each active worker lie in `ranked`, [A + 1].
        ranked: candidates, best first.
        budget: models each node may send and receive, [nodes].
        cap: in-neighbours a worker may have.

    Returns:
        (dst, src) of the chosen links, in the order of choice.
    """
    # Plain lists: the loop is sequential by nature and indexing a list is cheaper than an array.
    left = budget.tolist()
    worker, choice = active.tolist(), ranked.tolist()
    cursor, end = bounds[:-1].tolist(), bounds[1:].tolist()
    dst: list[int] = []
    src: list[int] = []
    turn = list(range(len(worker))) if cap > 0 else []
    taken = 0
    while turn:
        again = []
        for k in turn:
            i = worker[k]
            if left[i] < 1:
                continue
            at, last = cursor[k], end[k]
            while at < last and left[choice[at]] < 1:
                at += 1
            cursor[k] = at + 1
            if at >= last:
                continue
            left[i] -= 1
            left[choice[at]] -= 1
            dst.append(i)
            src.append(choice[at])
            again.append(k)
        taken += 1
        turn = again if taken < cap else []
    return ints(dst), ints(src)


def bandwidth_use(dst: Ints, src: Ints, nodes: int) -> Ints:
    """Models that each node receives and sends, B_t^i / b (unlabelled, section "Problem")."""
    return np.bincount(dst, minlength=nodes) + np.bincount(src, minlength=nodes)
