"""Asynchronous parameter servers: who uploads first, and how the server aggregates."""

import numpy as np

from dystop.plan import Plan, join_links, links, mix_of
from dystop.sparse import Floats, Ints
from dystop.types import View


def in_reach_of_server(view: View) -> Ints:
    """Return the workers with links from and to the server, in id order."""
    hub = view.fleet.workers
    up = view.reach.row(hub)
    return up[view.reach.find(up, np.full(len(up), hub)) >= 0]


def first_to_finish(candidates: Ints, remaining_s: Floats, staleness: Ints, count: int) -> Ints:
    """Return the `count` workers whose training ends first, in id order.

    Among workers that have finished, the one that began its training in an earlier round goes
    first, then the lower id. Otherwise two fast workers could exclude all others.

    >>> first_to_finish(np.arange(3), np.array([0.0, 5.0, 0.0]), np.array([0, 9, 4]), 1).tolist()
    [2]
    """
    left = remaining_s[candidates]
    if count == 1 and len(candidates):  # found without a sort of all
        first = candidates[left == left.min()]
        first = first[staleness[first] == staleness[first].max()]
        return np.sort(first)[:1]
    order = np.lexsort((candidates, -staleness[candidates], left))
    return np.sort(candidates[order[:count]])


def server_round(view: View, chosen: Ints, share: float, notes: dict[str, float]) -> Plan:
    """Plan the upload of the chosen workers, the server's update, and their download.

    server = (1 - share) * server + share * (average of the chosen by data size)

    The plan is synchronous because the server, which never trains, waits for the training of the
    chosen workers. No other worker waits.
    """
    hub = np.full(len(chosen), view.fleet.workers)
    size = view.fleet.data_size[chosen].astype(float)
    gather = mix_of(
        np.append(hub, hub[0]),
        np.append(chosen, hub[0]),
        np.append(share * size / size.sum(), 1.0 - share),
    )
    spread = mix_of(chosen, hub, np.ones(len(chosen)))
    up, down = links(hub, chosen, stage=0, pushed=True), links(chosen, hub, stage=1)
    return Plan(chosen, join_links([up, down]), (gather, spread), synchronous=True, notes=notes)
