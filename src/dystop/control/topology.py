"""PTCA, the phase-aware topology construction algorithm (alg:topology)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dystop.kernels.buffers import buffer
from dystop.kernels.ptca import ptca_loop, whole_models
from dystop.kernels.sorting import rank_rows
from dystop.parallel import as_readonly, run_in_blocks
from dystop.sparse import Floats, Graph, Ints, ints

Edges = slice | Ints
"""Numbers of some edges of a graph; a slice where they follow each other."""

Ids = NDArray[np.int32] | NDArray[np.int64]

_MOST = 2**31 - 1  # candidates that an int32 can number
_WORKERS = 1 << 11  # ranked together: their candidates fit a processor's cache


def ranked_candidates(
    active: Ints, reach: Graph, priority: Floats | Callable[[Edges], Floats]
) -> tuple[Ints, Ids]:
    """Candidates of each active worker, best first, ties to the lower id.

    Args:
        active: active workers, in any order.
        reach: who may receive from whom.
        priority: of every edge in reach, or a function that gives it for some edges, so that only
            those of active workers are ever worked out, block by block.

    Returns:
        (bounds, ranked): the candidates of active[k] are ranked[bounds[k]:bounds[k + 1]].
    """
    bounds = np.concatenate([[0], np.cumsum(reach.degree[active])])
    order = _by_id(active, reach.n)
    ranked = buffer(bounds[-1], np.int32)  # half the room; it is the largest array of a round
    worth = priority if callable(priority) else priority.__getitem__

    def rank(lo: int, hi: int) -> None:
        turn = order[lo:hi]
        indptr, edges = edges_of(reach, active[turn])
        key, src = -worth(edges), reach.src[edges]
        rows = (0, len(turn))
        rank_rows(
            as_readonly(key),
            as_readonly(src),
            as_readonly(indptr),
            rows,
            as_readonly(bounds[turn]),
            ranked,
        )

    run_in_blocks(rank, len(active), _WORKERS)
    return ints(bounds), ranked


def _by_id(active: Ints, n: int) -> Ints:
    """Positions of the active workers in ascending order of id: neighbours lie close in memory."""
    turn = np.full(n, -1)
    turn[active] = np.arange(len(active))
    order = turn[turn >= 0]
    return order if len(order) == len(active) else np.argsort(active, kind="stable")


def edges_of(graph: Graph, rows: Ints) -> tuple[Ints, Edges]:
    """Edges into some nodes: (where those of each node begin among them, their numbers)."""
    begin, size = graph.indptr[rows], graph.indptr[rows + 1] - graph.indptr[rows]
    indptr = ints(np.concatenate([[0], np.cumsum(size)]))
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return indptr, slice(begin[0], begin[0] + indptr[-1])
    return indptr, np.arange(indptr[-1]) + np.repeat(begin - indptr[:-1], size)


def connect(active: Ints, bounds: Ints, ranked: Ids, budget: Floats, cap: int) -> tuple[Ints, Ints]:
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
    if len(bounds) != len(active) + 1 or bounds[-1] != len(ranked) or len(ranked) > _MOST:
        raise IndexError(f"{len(active)} workers with {len(ranked)} candidates: bounds do not fit")
    most = int(np.minimum(np.diff(bounds), cap).sum())
    chosen = buffer(most, np.int64), buffer(most, np.int64)
    left, listed = whole_models(budget), as_readonly(ranked.astype(np.int32, copy=False))
    plenty = int(np.iinfo(left.dtype).max)
    count = ptca_loop(as_readonly(active), as_readonly(bounds), listed, left, plenty, cap, chosen)
    if count < 0:
        raise IndexError(f"a worker or candidate outside of the {len(budget)} nodes with a budget")
    return chosen[0][:count], chosen[1][:count]


def bandwidth_use(dst: Ints, src: Ints, nodes: int) -> Ints:
    """Models that each node receives and sends, B_t^i / b (unlabelled, section "Problem")."""
    return np.bincount(dst, minlength=nodes) + np.bincount(src, minlength=nodes)
