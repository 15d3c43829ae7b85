"""Asynchronous parameter servers: who uploads first, and how the server aggregates."""

import numpy as np

from dystop.acceleration import accelerated
from dystop.plan import Mix, Plan, join_links, links, mix_of
from dystop.sparse import Floats, Ints, ints, remembered, two_way
from dystop.types import View

_ONE, _TWO = ints([0, 1]), ints([0, 2])  # ends of a row of one weight, and of two
_STAGES, _PUSHED = ints([0, 1]), np.array([True, False])  # of an upload and a download


_two_way = remembered(two_way)


def in_reach_of_server(view: View) -> Ints:
    """Return the workers with links from and to the server, in id order."""
    return _two_way(view.reach, view.fleet.workers)


def first_to_finish(candidates: Ints, remaining_s: Floats, staleness: Ints, count: int) -> Ints:
    """Return the `count` workers whose training ends first, in id order.

    Among workers that have finished, the one that began its training in an earlier round goes
    first, then the lower id. Otherwise two fast workers could exclude all others.

    >>> first_to_finish(np.arange(3), np.array([0.0, 5.0, 0.0]), np.array([0, 9, 4]), 1).tolist()
    [2]
    """
    if count == 1:  # found without a sort of all
        return first_of(candidates, remaining_s, staleness)
    left = remaining_s[candidates]
    order = np.lexsort((candidates, -staleness[candidates], left))
    return np.sort(candidates[order[:count]])


@accelerated("dystop.kernels.choices:first_of")
def first_of(candidates: Ints, remaining_s: Floats, staleness: Ints) -> Ints:
    """Return the worker whose training ends first, as `first_to_finish` orders them, [1]."""
    left = remaining_s[candidates]
    first = candidates[left == left.min(initial=np.inf)]
    first = first[staleness[first] == staleness[first].max(initial=0)]
    return np.sort(first)[:1]


def server_round(view: View, chosen: Ints, share: float, notes: dict[str, float]) -> Plan:
    """Plan the upload of the chosen workers, the server's update, and their download.

    server = (1 - share) * server + share * (average of the chosen by data size)

    The plan is synchronous because the server, which never trains, waits for the training of the
    chosen workers. No other worker waits.
    """
    if len(chosen) == 1:
        return _round_of_one(view, chosen, share, notes)
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


def _round_of_one(view: View, chosen: Ints, share: float, notes: dict[str, float]) -> Plan:
    """Return the plan of `server_round` for a single worker, without sorting its two links."""
    hub, size = ints([view.fleet.workers]), float(view.fleet.data_size[chosen[0]])
    pair, weight = ints([chosen[0], hub[0]]), np.array([share * size / size, 1.0 - share])
    gather = Mix(hub, _TWO, pair, weight)
    spread = Mix(chosen, _ONE, hub, np.ones(1))
    both = links(pair[::-1], pair, stage=_STAGES, pushed=_PUSHED)
    return Plan(chosen, both, (gather, spread), synchronous=True, notes=notes)
