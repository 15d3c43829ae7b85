"""The turn-taking of PTCA (alg:topology), compiled: sequential by nature, a few steps per link."""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.sparse import Floats, Ints

Ids = NDArray[np.int32]
Models = NDArray[np.int16] | NDArray[np.int32]


def whole_models(budget: Floats) -> Models:
    """Whole models that each budget pays for, in as little room as they fit.

    The largest number of its kind stands for a budget without a limit, which is never used up.

    >>> whole_models(np.array([2.5, -1.0, np.inf])).tolist()
    [2, 0, 32767]
    """
    limited = budget < np.iinfo(np.int32).max  # not so: infinite, or no number at all
    whole = np.floor(np.maximum(budget[limited], 0.0))
    small = whole.max(initial=0.0) < np.iinfo(np.int16).max
    out: Models = np.empty(len(budget), np.int16) if small else np.empty(len(budget), np.int32)
    out[:] = np.iinfo(out.dtype).max
    out[limited] = whole
    return out


@compiled
def ptca_loop(
    active: Ints,
    bounds: Ints,
    ranked: Ids,
    left: Models,
    plenty: int,
    cap: int,
    chosen: tuple[Ints, Ints],
) -> int:
    """Choose links turn by turn; returns how many, or -1 where an id is out of bounds.

    `left` counts down, except from `plenty`. See `dystop.control.topology.connect` for the rules.
    Who still takes turns is kept with where its list stands, in the order of turns: read and
    rewritten in one go.
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
            left[i] -= left[i] != plenty
            left[j] -= left[j] != plenty
            chosen[0][count], chosen[1][count] = i, j
            circle[stay, 0], circle[stay, 1], circle[stay, 2] = i, at + 1, end
            count, stay = count + 1, stay + 1
        waiting = stay
        if waiting == 0:
            break
    return count


@compiled
def _inside(ids: Ints | Ids, nodes: int) -> bool:
    """Whether all ids are among 0 .. nodes - 1."""
    fine = True
    for k in range(len(ids)):
        fine &= (ids[k] >= 0) & (ids[k] < nodes)
    return fine
