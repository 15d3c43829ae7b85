"""Asynchronous parameter servers: who arrives first, and what the server does with it."""

import numpy as np

from dystop.plan import Plan, join_links, links, mix_of
from dystop.sparse import Floats, Ints
from dystop.types import View


def in_touch(view: View) -> Ints:
    """Workers that hear the server and are heard by it, in id order."""
    hub = view.fleet.workers
    up = view.reach.row(hub)
    return up[view.reach.find(up, np.full(len(up), hub)) >= 0]


def first_to_finish(candidates: Ints, remaining_s: Floats, staleness: Ints, count: int) -> Ints:
    """The `count` workers whose training ends first, in id order.

    Workers that have finished already stand in line: who began its training in an earlier round
    goes first, then the lower id. Without that, two fast workers could keep the others out.

    >>> first_to_finish(np.arange(3), np.array([0.0, 5.0, 0.0]), np.array([0, 9, 4]), 1).tolist()
    [2]
    """
    order = np.lexsort((candidates, -staleness[candidates], remaining_s[candidates]))
    return np.sort(candidates[order[:count]])


def server_round(view: View, chosen: Ints, share: float, notes: dict[str, float]) -> Plan:
    """The chosen upload, the server moves towards their average, and they take its model.

    server = (1 - share) * server + share * (average of the chosen by data size)

    The plan calls itself synchronous because the server, which never trains, waits for the training
    of those it hears; nobody else waits.
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
