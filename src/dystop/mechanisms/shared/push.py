"""Push mechanisms: who sends, how receivers are chosen, and how mail is mixed.

Functions take the sender's side, but `(dst, src)` still means *dst receives from src*.
"""

import math
import sys
from dataclasses import replace
from typing import Literal

import numpy as np

from dystop.acceleration import accelerated
from dystop.control.aggregation import size_weights
from dystop.control.priority import emd, label_shares
from dystop.control.topology import connect, default_degree, ranked_candidates
from dystop.mechanisms.shared.server import first_to_finish
from dystop.plan import Mix, mix_of
from dystop.sparse import Floats, Graph, Ints, graph_of_sorted
from dystop.types import Fleet, View

_TOGETHER_S = 1e-9

Wakes = Literal["all", "one"]
"""Who is active where several workers have finished: all of them, or one."""


def senders(view: View, wakes: Wakes) -> Ints:
    """Return the workers that are active: the first to finish, and with "all" those beside it.

    With "one", the least remaining training decides, then the largest staleness, then the lowest
    id.
    """
    alive = np.flatnonzero(view.alive)
    if wakes == "one":
        return first_to_finish(alive, view.remaining_s, view.staleness, 1)
    return finished_together(alive, view.remaining_s)


def finished_together(candidates: Ints, remaining_s: Floats) -> Ints:
    """Return the worker whose training ends first, and those that end within a nanosecond of it.

    >>> finished_together(np.array([0, 1, 3]), np.array([2.0, 0.0, 0.0, 0.0])).tolist()
    [1, 3]
    """
    left = remaining_s[candidates]
    first: Ints = candidates[left <= left.min(initial=np.inf) + _TOGETHER_S]
    return first


def push_cap(configured: int | None, workers: int) -> int:
    """Return the most receivers of a push: as configured, or ceil(log2 N)."""
    return configured if configured is not None else default_degree(workers)


def outgoing(reach: Graph, active: Ints) -> Ints:
    """Return the numbers of the links in reach that start at an active worker."""
    if len(active) == 1:
        return np.flatnonzero(reach.src == active[0])
    sends = np.zeros(reach.n, bool)
    sends[active] = True
    return np.flatnonzero(sends[reach.src])


def slowest_push_s(reach: Graph, link_s: Floats, workers: int) -> Floats:
    """Return the seconds that each worker needs to push to all in reach; 0 without any, [N].

    Rounds whose network did not change share their arrays, which are read-only then. While it is
    asked about the same ones, the last answer is given again.
    """
    global _last_slowest
    if _last_slowest is None or _last_slowest[0] is not reach or _last_slowest[1] is not link_s:
        slowest = np.zeros(reach.n)
        np.maximum.at(slowest, reach.src, link_s)
        if link_s.flags.writeable or reach.src.flags.writeable:
            return slowest[:workers]
        slowest.flags.writeable = False
        _last_slowest = reach, link_s, slowest
    return _last_slowest[2][:workers]


_last_slowest: tuple[Graph, Floats, Floats] | None = None  # (reach, link_s, answer)


def label_distance(fleet: Fleet, dst: Ints, src: Ints) -> Floats:
    """Return the distance of the labels of both ends of each link (eq:EMD)."""
    if 2 * len(dst) > fleet.workers:
        return emd(label_shares(fleet.label_counts), dst, src)
    shares = label_shares(fleet.label_counts[np.concatenate([dst, src])])  # of these ends only
    receiver = np.arange(len(dst))
    return emd(shares, receiver, receiver + len(dst))


@accelerated("dystop.kernels.choices:share_of_sender_max")
def share_of_sender_max(values: Floats, sender: Ints) -> Floats:
    """Divide values by the largest value of their sender; 0 if that is 0.

    >>> share_of_sender_max(np.array([1.0, 4.0, 0.0]), np.array([2, 2, 0])).tolist()
    [0.25, 1.0, 0.0]
    """
    top = np.zeros(int(sender.max(initial=-1)) + 1)
    np.maximum.at(top, sender, values)
    return values / np.where(top > 0, top, 1.0)[sender]


def push_priority(quality: Floats, link_s: Floats, sender: Ints, lam: float) -> Floats:
    """Return lam * quality + (1 - lam) * (1 - c / c_max) for each link.

    `quality` lies in 0..1. c is the link time; c_max is the maximum over the candidates of the same
    sender, because a sender knows no others.
    """
    return lam * quality + (1.0 - lam) * (1.0 - share_of_sender_max(link_s, sender))


def choose_receivers(
    active: Ints, pair: tuple[Ints, Ints], priority: Floats, view: View, cap: int
) -> tuple[Ints, Ints]:
    """Choose the best `cap` receivers of every sender within the budgets, ties to the lower id.

    Senders take turns, as pulling workers do in alg:topology. A push costs one model at both ends.

    Args:
        active: the senders.
        pair: (dst, src) of the candidate links; every src is a sender.
        priority: priority of each candidate link; larger is better.
        view: knows the models that each node may send and receive.
        cap: most receivers of a sender.

    Returns:
        (dst, src) of the chosen links, in the order of dst, then src.
    """
    dst, src = pair
    if len(active) == 1:
        budget = view.budget_of(np.concatenate([dst, active]))
        receiver = best_of_one(dst, priority, budget[:-1], min(cap, _whole(float(budget[-1]))))
        return receiver, np.full(len(receiver), active[0])
    budget, order = view.budget, np.lexsort((dst, src))
    by_sender = graph_of_sorted(len(budget), src[order], dst[order])
    bounds, ranked = ranked_candidates(active, by_sender, priority[order])
    sender, receiver = connect(active, bounds, ranked, budget, cap)
    order = np.lexsort((sender, receiver))
    return receiver[order], sender[order]


@accelerated("dystop.kernels.choices:best_of_one", size=lambda dst, *_: len(dst))
def best_of_one(dst: Ints, priority: Floats, budget: Floats, count: int) -> Ints:
    """Return the best receivers of a single sender that have bandwidth, in id order.

    Args:
        dst: the candidates, each once.
        priority: of each candidate.
        budget: of each candidate.
        count: most receivers.
    """
    order = np.lexsort((dst, -priority))
    order = order[~(budget[order] < 1)]  # this form lets NaN through: no limit
    return np.sort(dst[order[:count]])


def _whole(budget: float) -> int:
    """Return how many whole models a budget allows; NaN is no limit."""
    return int(budget) if math.isfinite(budget) else sys.maxsize


def update_rows(active: Ints, dst: Ints, src: Ints, data_size: Ints, gamma: float) -> Mix:
    """Return rows that add the updates in the mail: y_i = x_i + gamma sum_j w_j delta_j.

    w_j = D_j / (D_i + sum of D over the mail).
    """
    rows = size_weights(active, dst, src, data_size)
    own = rows.dst == rows.source
    return replace(rows, kind="delta", weight=np.where(own, 1.0, gamma * rows.weight))


def after_sending(active: Ints, stages: tuple[Mix, ...]) -> tuple[Mix, ...]:
    """Return mix stages that read only mail, not the pushes of this round.

    A row that names a sender uses a link of the same stage before the mail. If several workers are
    active, one of them may push to another in this round, and its row would use that push. The
    pushes therefore get their own first stage, in which all workers keep their models.
    """
    if len(active) == 1:
        return stages
    return (mix_of(active, active, np.ones(len(active))), *stages)
