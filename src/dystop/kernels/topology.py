"""Compiled planning of a topology: expected exchange times, ranked candidates, the loop of PTCA."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.kernels.buffers import buffer
from dystop.kernels.sorting import kth_of_rows, rank_rows
from dystop.parallel import as_readonly, run_in_blocks
from dystop.sparse import Edges, Floats, Graph, Ids, Ints, ints

Models = NDArray[np.int16] | NDArray[np.int32]

_WORKERS = 1 << 11  # ranked in one block: their candidates fit a processor's cache
_ROWS = 1 << 15  # rows of link times in one block


def expected_exchange_s(reach: Graph, link_s: Floats, rank: int) -> Floats:
    """Return the rank-th smallest link time of each worker.

    See `dystop.control.laws.expected_exchange_s`.
    """
    expected, link_s, indptr = np.empty(reach.n), as_readonly(link_s), as_readonly(reach.indptr)
    run_in_blocks(
        lambda lo, hi: kth_of_rows(link_s, indptr, rank, lo, hi, expected), reach.n, _ROWS
    )
    return expected


def ranked_candidates(
    active: Ints, reach: Graph, priority: Floats | Callable[[Edges], Floats]
) -> tuple[Ints, Ids]:
    """Rank the candidates of each active worker; see `dystop.control.topology.ranked_candidates`.

    Priorities are evaluated block by block, so that those of all edges never exist together.
    """
    bounds = np.concatenate([[0], np.cumsum(reach.degree[active])])
    order = _by_id(active, reach.n)
    ranked = buffer(bounds[-1], np.int32)  # the largest array of a round
    priority_of = priority if callable(priority) else priority.__getitem__

    def rank(lo: int, hi: int) -> None:
        part = order[lo:hi]
        indptr, edges = reach.edges_into(active[part])
        rank_rows(
            as_readonly(-priority_of(edges)),
            as_readonly(reach.src[edges]),
            as_readonly(indptr),
            (0, len(part)),
            as_readonly(bounds[part]),
            ranked,
        )

    run_in_blocks(rank, len(active), _WORKERS)
    return ints(bounds), ranked


def _by_id(active: Ints, n: int) -> Ints:
    """Return the order of the active workers by id, so that their edges lie close in memory."""
    position = np.full(n, -1)
    position[active] = np.arange(len(active))
    order = position[position >= 0]
    return order if len(order) == len(active) else np.argsort(active, kind="stable")


def ptca_loop(
    active: Ints, bounds: Ints, ranked: Ids, budget: Floats, cap: int
) -> tuple[Ints, Ints]:
    """Take turns as in alg:topology; see `dystop.control.topology.ptca_loop`."""
    most = int(np.minimum(np.diff(bounds), cap).sum())
    chosen = buffer(most, np.int64), buffer(most, np.int64)
    left = whole_models(budget)
    unlimited = int(np.iinfo(left.dtype).max)
    given = as_readonly(active), as_readonly(bounds), as_readonly(ranked)
    count = _ptca_loop(*given, left, unlimited, cap, chosen)
    return chosen[0][:count], chosen[1][:count]


def whole_models(budget: Floats) -> Models:
    """Return the whole models that each budget pays for, in the smallest integer type that fits.

    The largest number of that type stands for an unlimited budget, which is never used up.

    >>> whole_models(np.array([2.5, -1.0, np.inf])).tolist()
    [2, 0, 32767]
    """
    limited = budget < np.iinfo(np.int32).max  # False also where the budget is not a number
    whole = np.floor(np.maximum(budget[limited], 0.0))
    small = whole.max(initial=0.0) < np.iinfo(np.int16).max
    out: Models = np.empty(len(budget), np.int16) if small else np.empty(len(budget), np.int32)
    out[:] = np.iinfo(out.dtype).max
    out[limited] = whole
    return out


@compiled
def _ptca_loop(
    active: Ints,
    bounds: Ints,
    ranked: Ids,
    left: Models,
    unlimited: int,
    cap: int,
    chosen: tuple[Ints, Ints],
) -> int:
    """Choose links turn by turn and return their number; `left` counts down below `unlimited`.

    The workers that still take turns are kept in order, each with the rest of its candidates, so
    that one pass reads and rewrites them.
    """
    waiting, count = np.empty((len(active), 3), np.int32), 0
    for k in range(len(active)):
        waiting[k, 0], waiting[k, 1], waiting[k, 2] = active[k], bounds[k], bounds[k + 1]
    size = len(active)
    for _ in range(cap):
        stay = 0
        for k in range(size):
            i, at, end = waiting[k, 0], waiting[k, 1], waiting[k, 2]
            if left[i] < 1:
                continue
            while at < end and left[ranked[at]] < 1:
                at += 1
            if at == end:
                continue
            j = ranked[at]
            left[i] -= left[i] != unlimited
            left[j] -= left[j] != unlimited
            chosen[0][count], chosen[1][count] = i, j
            waiting[stay, 0], waiting[stay, 1], waiting[stay, 2] = i, at + 1, end
            count, stay = count + 1, stay + 1
        size = stay
        if size == 0:
            break
    return count
