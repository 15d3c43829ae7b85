"""Whom to pull from: label distance and the two priorities of PTCA."""

import numpy as np

from dystop.sparse import Floats, Ints


def label_shares(label_counts: Ints) -> Floats:
    """Share of each class in each worker's data, D_i^k / D_i, [N, K]; 0 where there are no data."""
    size = np.maximum(label_counts.sum(axis=1, keepdims=True), 1)
    shares: Floats = label_counts / size
    return shares


def emd(shares: Floats, dst: Ints, src: Ints, block: int = 1 << 16) -> Floats:
    """Distance of the label distributions of each pair, between 0 and 2 (eq:EMD).

    Computed in blocks, so that a million pairs do not need a million rows of K numbers at once.
    """
    out = np.empty(len(dst))
    for lo in range(0, len(dst), block):
        part = slice(lo, lo + block)
        out[part] = np.abs(shares[dst[part]] - shares[src[part]]).sum(axis=1)
    return out


def first_phase_priority(emd_ij: Floats, distance_m: Floats) -> Floats:
    """Different data and short ways first, p_1 (eq:priority1).

    EMD_max and Dist_max are taken over the links given, the ones in range; where all are zero the
    term is zero.

    >>> first_phase_priority(np.array([2.0, 1.0]), np.array([10.0, 5.0])).tolist()
    [1.0, 1.0]
    """
    return _share_of_max(emd_ij) + (1.0 - _share_of_max(distance_m))


def second_phase_priority(pulls: Ints, t: int, staleness_gap: Ints) -> Floats:
    """Rarely asked and equally stale neighbours first, p_2 (eq:priority2).

    >>> second_phase_priority(np.array([0, 2]), 4, np.array([1, 0])).tolist()
    [0.5, 0.5]
    """
    return (1.0 - pulls / t) / (1.0 + np.abs(staleness_gap))


def _share_of_max(values: Floats) -> Floats:
    top = values.max(initial=0.0)
    return values / top if top > 0 else np.zeros_like(values)
