"""Priorities of candidate links: label distance and the two phases of PTCA."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dystop.acceleration import accelerated
from dystop.sparse import Floats, Ints, PairCounts, check_ids


def label_shares(label_counts: Ints) -> Floats:
    """Return the share of each class in each worker's data, D_i^k / D_i, [N, K].

    The shares of a worker without data are 0.
    """
    size = np.maximum(label_counts.sum(axis=1, keepdims=True), 1)
    shares: Floats = label_counts / size
    return shares


@accelerated("dystop.kernels.priority:emd")
def emd(shares: Floats, dst: Ints, src: Ints) -> Floats:
    """Return the distance of the label distributions of each pair, between 0 and 2 (eq:EMD)."""
    check_ids(len(shares), dst, src)
    distance: Floats = np.abs(shares[dst] - shares[src]).sum(axis=1)
    return distance


class Extremes(NamedTuple):
    """The largest values among all links in range: EMD_max and Dist_max of eq:priority1."""

    emd: float
    distance_m: float


def first_phase_priority(emd_ij: Floats, distance_m: Floats, top: Extremes | None = None) -> Floats:
    """Return p_1, which is high for different data and short distances (eq:priority1).

    EMD_max and Dist_max default to those of the given links. A term whose maximum is zero is zero.

    >>> first_phase_priority(np.array([2.0, 1.0]), np.array([10.0, 5.0])).tolist()
    [1.0, 1.0]
    """
    top = top or Extremes(emd_ij.max(initial=0.0), distance_m.max(initial=0.0))
    return _share_of(top.emd, emd_ij) + (1.0 - _share_of(top.distance_m, distance_m))


def second_phase_priority(pulls: Ints, t: int, staleness_gap: Ints) -> Floats:
    """Return p_2, which is high for rarely pulled and equally stale neighbours (eq:priority2).

    >>> second_phase_priority(np.array([0, 2]), 4, np.array([1, 0])).tolist()
    [0.5, 0.5]
    """
    priority: Floats = (1.0 - pulls / t) / (1.0 + np.abs(staleness_gap))
    return priority


@accelerated("dystop.kernels.priority:second_phase_of_links")
def second_phase_of_links(
    pulls: PairCounts, t: int, staleness: Ints
) -> Callable[[Ints, Ints], Floats]:
    """Return p_2 (eq:priority2) as a function of links (dst, src).

    The function is fastest for links in ascending order. It raises IndexError where a link names a
    node that is not a worker.

    Args:
        pulls: how often each pair was pulled so far.
        t: the round.
        staleness: tau_t^i, [N].
    """

    def priority(dst: Ints, src: Ints) -> Floats:
        check_ids(len(staleness), dst, src)
        return second_phase_priority(pulls.get(dst, src), t, staleness[dst] - staleness[src])

    return priority


def _share_of(top: float, values: Floats) -> Floats:
    return values / top if top > 0 else np.zeros_like(values)
