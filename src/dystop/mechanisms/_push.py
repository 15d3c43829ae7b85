"""Pushing: who has something to send, to whom it is worth sending, and what the mail is mixed with.

Links here are written from the sender's side, but `(dst, src)` still means *dst receives from src*.
"""

import math
from dataclasses import replace

import numpy as np

from dystop.control.aggregation import size_weights
from dystop.control.topology import connect, ranked_candidates
from dystop.plan import Mix, mix_of
from dystop.sparse import Bools, Floats, Graph, Ints, graph_of_sorted
from dystop.types import Mailbox

_TOGETHER_S = 1e-9


def finished_together(candidates: Ints, remaining_s: Floats) -> Ints:
    """The worker whose training ends first, and those that end within a nanosecond of it.

    >>> finished_together(np.array([0, 1, 3]), np.array([2.0, 0.0, 0.0, 0.0])).tolist()
    [1, 3]
    """
    left = remaining_s[candidates]
    first: Ints = candidates[left <= left.min(initial=np.inf) + _TOGETHER_S]
    return first


def push_cap(asked: int | None, workers: int) -> int:
    """Receivers of a push: as asked, or ceil(log2 N)."""
    return asked if asked is not None else max(1, math.ceil(math.log2(workers)))


def outgoing(reach: Graph, active: Ints) -> Ints:
    """Numbers of the links in reach that leave an active worker."""
    sends = np.zeros(reach.n, bool)
    sends[active] = True
    return np.flatnonzero(sends[reach.src])


def slowest_push_s(reach: Graph, link_s: Floats, workers: int) -> Floats:
    """Seconds each worker needs to push to everyone in reach; 0 where nobody is, [N]."""
    slowest = np.zeros(reach.n)
    np.maximum.at(slowest, reach.src, link_s)
    return slowest[:workers]


def share_of_sender_max(values: Floats, sender: Ints) -> Floats:
    """Values divided by the largest one of their sender; 0 where that is 0.

    >>> share_of_sender_max(np.array([1.0, 4.0, 0.0]), np.array([2, 2, 0])).tolist()
    [0.25, 1.0, 0.0]
    """
    top = np.zeros(int(sender.max(initial=-1)) + 1)
    np.maximum.at(top, sender, values)
    return values / np.where(top > 0, top, 1.0)[sender]


def push_priority(quality: Floats, link_s: Floats, sender: Ints, lam: float) -> Floats:
    """Trade what a receiver would learn against what it costs to reach it.

    lam * quality + (1 - lam) * (1 - c / c_max), with `quality` in 0..1 already and c_max over the
    candidates of each sender, which is all that the sender itself can know.
    """
    return lam * quality + (1.0 - lam) * (1.0 - share_of_sender_max(link_s, sender))


def choose_receivers(
    active: Ints, pair: tuple[Ints, Ints], priority: Floats, budget: Floats, cap: int
) -> tuple[Ints, Ints]:
    """The best `cap` receivers of every sender that bandwidth allows, ties to the lower id.

    Senders choose in turn, as pullers do in alg:topology; a push costs one model at both ends.

    Args:
        active: the senders.
        pair: (dst, src) of the links to choose from, all of which leave a sender.
        priority: of each of these links; larger is better.
        budget: models each node may send and receive, [nodes].
        cap: receivers a sender may have.

    Returns:
        (dst, src) of the chosen links, in the order of dst, then src.
    """
    dst, src = pair
    order = np.lexsort((dst, src))
    by_sender = graph_of_sorted(len(budget), src[order], dst[order])
    bounds, ranked = ranked_candidates(active, by_sender, priority[order])
    sender, receiver = connect(active, bounds, ranked, budget, cap)
    order = np.lexsort((sender, receiver))
    return receiver[order], sender[order]


def mail_of(mailbox: Mailbox, active: Ints) -> Bools:
    """Which waiting messages are addressed to an active worker."""
    return np.isin(mailbox.dst, active)


def update_rows(active: Ints, dst: Ints, src: Ints, data_size: Ints, gamma: float) -> Mix:
    """Rows that add the updates in the mail to the own one: y_i = x_i + gamma sum_j w_j delta_j.

    w_j = D_j / (D_i + sum of D over the mail).
    """
    rows = size_weights(active, dst, src, data_size)
    own = rows.dst == rows.source
    return replace(rows, kind="delta", weight=np.where(own, 1.0, gamma * rows.weight))


def after_sending(active: Ints, stages: tuple[Mix, ...]) -> tuple[Mix, ...]:
    """Mix stages that read only mail, also where a sender of this round wakes with its receiver.

    A row that names the sender of an older message would take the push of this round instead, which
    is still on its way. So where several wake at once, the pushes get a stage of their own in which
    everyone keeps its model.
    """
    if len(active) == 1:
        return stages
    return (mix_of(active, active, np.ones(len(active))), *stages)
