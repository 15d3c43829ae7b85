"""Whom to pull from: label distance and the two priorities of PTCA."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dystop.kernels.buffers import buffer
from dystop.kernels.label_distance import MOST_CLASSES, label_distance
from dystop.kernels.second_phase import second_phase_each, second_phase_links
from dystop.parallel import as_readonly, run_in_blocks
from dystop.sparse import Floats, Ints, PairCounts


def label_shares(label_counts: Ints) -> Floats:
    """Share of each class in each worker's data, D_i^k / D_i, [N, K]; 0 where there are no data."""
    size = np.maximum(label_counts.sum(axis=1, keepdims=True), 1)
    shares: Floats = label_counts / size
    return shares


def emd(shares: Floats, dst: Ints, src: Ints, block: int = 1 << 16) -> Floats:
    """Distance of the label distributions of each pair, between 0 and 2 (eq:EMD).

    `block` pairs are handled in one go.
    """
    out, given = (
        buffer(len(dst), np.float64),
        (as_readonly(shares), as_readonly(dst), as_readonly(src)),
    )

    def few(lo: int, hi: int) -> None:
        if not label_distance(*given, lo, hi, out):
            raise IndexError(f"a pair names a worker beyond the {len(shares)} with labels")

    def many(lo: int, hi: int) -> None:
        out[lo:hi] = np.abs(shares[dst[lo:hi]] - shares[src[lo:hi]]).sum(axis=1)

    run_in_blocks(few if shares.shape[1] <= MOST_CLASSES else many, len(dst), block)
    return out


class Extremes(NamedTuple):
    """The largest values among all links in range: EMD_max and Dist_max of eq:priority1."""

    emd: float
    distance_m: float


def first_phase_priority(emd_ij: Floats, distance_m: Floats, top: Extremes | None = None) -> Floats:
    """Different data and short ways first, p_1 (eq:priority1).

    EMD_max and Dist_max are those of the links given unless told otherwise; where all are zero the
    term is zero.

    >>> first_phase_priority(np.array([2.0, 1.0]), np.array([10.0, 5.0])).tolist()
    [1.0, 1.0]
    """
    top = top or Extremes(emd_ij.max(initial=0.0), distance_m.max(initial=0.0))
    return _share_of(top.emd, emd_ij) + (1.0 - _share_of(top.distance_m, distance_m))


def second_phase_priority(pulls: Ints, t: int, staleness_gap: Ints) -> Floats:
    """Rarely asked and equally stale neighbours first, p_2 (eq:priority2).

    >>> second_phase_priority(np.array([0, 2]), 4, np.array([1, 0])).tolist()
    [0.5, 0.5]
    """
    out = np.empty(len(pulls))
    second_phase_each(as_readonly(pulls), t, as_readonly(staleness_gap), out)
    return out


def second_phase_in(pulls: PairCounts, t: int, staleness: Ints) -> Callable[[Ints, Ints], Floats]:
    """The same as a function of links (dst, src), fastest for links in ascending order.

    Counts and gaps of all links are never written down.
    """
    counted = pulls.n, as_readonly(pulls.keys), as_readonly(pulls.counts)
    small = as_readonly(staleness.astype(np.int32))

    def priority(dst: Ints, src: Ints) -> Floats:
        out = np.empty(len(dst))
        if not second_phase_links(counted, t, small, (as_readonly(dst), as_readonly(src)), out):
            raise IndexError(f"a link names a node beyond the {len(small)} workers")
        return out

    return priority


def _share_of(top: float, values: Floats) -> Floats:
    return values / top if top > 0 else np.zeros_like(values)
