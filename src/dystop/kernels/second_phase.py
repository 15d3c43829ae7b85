"""eq:priority2 for millions of links, compiled: counts, staleness and quotient in one walk."""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.kernels.lookup import seek
from dystop.sparse import Floats, Ints

Pair = tuple[Ints, Ints]
Small = NDArray[np.int32]  # rounds: more of them fit a processor's cache

_CHUNK = 512


@compiled
def second_phase_priority(pulls: int, t: int, gap: int) -> float:
    """p_2 of one link (eq:priority2)."""
    return (1.0 - pulls / t) / (1.0 + abs(gap))


@compiled
def second_phase_each(pulls: Ints, t: int, gap: Ints, out: Floats) -> None:
    """p_2 of every link."""
    for k in range(len(out)):
        out[k] = second_phase_priority(pulls[k], t, gap[k])


@compiled
def second_phase_links(
    counted: tuple[int, Ints, Ints], t: int, staleness: Small, link: Pair, out: Floats
) -> bool:
    """The same for links (dst, src) from pull counts (n, keys, counts); False: no such worker."""
    n, keys, counts = counted
    at, gap = 0, np.empty(_CHUNK, np.int64)
    for lo in range(0, len(out), _CHUNK):
        size = min(_CHUNK, len(out) - lo)
        if not _gaps(staleness, link, lo, size, gap):
            return False
        for k in range(size):
            wanted, pulls = link[0][lo + k] * n + link[1][lo + k], 0
            at = seek(keys, wanted, at)
            if at < len(keys) and keys[at] == wanted:
                pulls = counts[at]
            out[lo + k] = second_phase_priority(pulls, t, gap[k])
    return True


@compiled
def _gaps(staleness: Small, link: Pair, lo: int, size: int, gap: Ints) -> bool:
    """Differences of staleness, in a loop of their own: memory then serves many at a time."""
    workers = len(staleness)
    for k in range(size):
        i, j = link[0][lo + k], link[1][lo + k]
        if not (0 <= i < workers and 0 <= j < workers):
            return False
        gap[k] = staleness[i] - staleness[j]
    return True
