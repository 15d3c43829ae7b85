"""The turn-taking of PTCA (alg:topology), compiled: sequential by nature, a few steps per link."""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.sparse import Floats, Ints

Small = NDArray[np.int32]

_PLENTY = 2**31 - 1


def whole_models(budget: Floats) -> Small:
    """Whole models that each budget pays for; one that is never used up counts as plenty.

    >>> whole_models(np.array([2.5, -1.0, np.inf])).tolist()
    [2, 0, 2147483647]
    """
    most = np.where(budget < _PLENTY, budget, _PLENTY)  # also where there is no number: no limit
    return np.maximum(np.floor(most), 0.0).astype(np.int32)


@compiled
def take_turns(
    active: Ints, bounds: Ints, ranked: Small, left: Small, cap: int, chosen: tuple[Ints, Ints]
) -> int:
    """Choose links turn by turn; returns how many, or -1 where an id is out of bounds.

    `left` counts down. See `dystop.control.topology.connect` for the rules. Who still takes turns
    is kept with where its list stands, in the order of turns: read and rewritten in one go.
    """
    circle, count = np.empty((len(active), 3), np.int32), 0
    for k in range(len(active)):
        circle[k, 0], circle[k, 1], circle[k, 2] = active[k], bounds[k], bounds[k + 1]
    if not (_inside(active, len(left)) and _inside(ranked, len(left))):
        return -1
    waiting = len(active)
    for _ in range(cap):
        stay = 0
        for k in range(waiting):
            i, at, end = circle[k, 0], circle[k, 1], circle[k, 2]
            if left[i] < 1:
                continue
            while at < end and left[ranked[at]] < 1:
                at += 1
            if at == end:
                continue
            j = ranked[at]
            left[i] -= 1
            left[j] -= 1
            chosen[0][count], chosen[1][count] = i, j
            circle[stay, 0], circle[stay, 1], circle[stay, 2] = i, at + 1, end
            count, stay = count + 1, stay + 1
        waiting = stay
        if waiting == 0:
            break
    return count


@compiled
def _inside(ids: Ints | Small, nodes: int) -> bool:
    """Whether all ids are among 0 .. nodes - 1."""
    fine = True
    for k in range(len(ids)):
        fine &= (ids[k] >= 0) & (ids[k] < nodes)
    return fine
