"""Compiled choices of mechanisms that wake one worker at a time: who is active, and its row.

They read the remaining seconds and the staleness of every worker once, where NumPy makes an array
for each comparison.
"""

import numpy as np

from dystop.compiled import FLOAT, FLOATS, INT, INTS, compiled, compiled_for
from dystop.plan import Mix
from dystop.sparse import Floats, Graph, Ints, check_ids, ints


def first_of(candidates: Ints, remaining_s: Floats, staleness: Ints) -> Ints:
    """Return who finishes first; see `dystop.mechanisms.shared.server.first_of`."""
    at = _first_of(candidates, remaining_s, staleness)
    return candidates[at : at + 1]


def activate_one(
    candidates: Ints, cost_s: Floats, queue: Floats, staleness: Ints, V: float
) -> Ints:
    """Return the worker of the least objective; see `dystop.control.activation.activate_one`."""
    at = _activate_one(candidates, cost_s, queue, staleness, V)
    return candidates[at : at + 1]


def two_way(graph: Graph, i: int) -> Ints:
    """Return the neighbours in both directions; see `dystop.sparse.two_way`."""
    return _two_way(graph.indptr, graph.src, i)


def size_row(receiver: Ints, src: Ints, data_size: Ints) -> Mix:
    """Return one row by data size; see `dystop.control.aggregation.size_row`."""
    source, weight, is_known = _size_row(receiver[0], src, data_size)
    if not is_known:
        check_ids(len(data_size), source)
    return Mix(receiver, ints([0, len(source)]), source, weight)


def best_of_one(dst: Ints, priority: Floats, budget: Floats, count: int) -> Ints:
    """Return the best receivers; see `dystop.mechanisms.shared.push.best_of_one`."""
    return _best_of_one(dst, priority, budget, count)


def share_of_sender_max(values: Floats, sender: Ints) -> Floats:
    """Return shares of the largest; see `dystop.mechanisms.shared.push.share_of_sender_max`."""
    return _share_of_sender_max(values, sender)


@compiled_for(INTS, FLOATS, INTS)
def _first_of(candidates: Ints, remaining_s: Floats, staleness: Ints) -> int:
    """Return which candidate has least remaining time, then largest staleness, then lowest id."""
    at = 0
    for k in range(len(candidates)):
        i = candidates[k]
        if k > 0:
            best = candidates[at]
            if remaining_s[i] > remaining_s[best]:
                continue
            if remaining_s[i] == remaining_s[best] and (
                staleness[i] < staleness[best] or (staleness[i] == staleness[best] and i > best)
            ):
                continue
        at = k
    return at


@compiled_for(INTS, FLOATS, FLOATS, INTS, FLOAT)
def _activate_one(
    candidates: Ints, cost_s: Floats, queue: Floats, staleness: Ints, V: float
) -> int:
    """Return which candidate has the least score, ties to the lower id; NaN counts as least."""
    at, best, is_known = 0, 0.0, False
    for k in range(len(candidates)):
        i = candidates[k]
        score = V * cost_s[i] - queue[i] * (staleness[i] + 1.0)
        is_less = score < best or (np.isnan(score) and not np.isnan(best))
        is_same = (score == best or (np.isnan(score) and np.isnan(best))) and i < candidates[at]
        if not is_known or is_less or is_same:
            at, best, is_known = k, score, True
    return at


@compiled_for(INTS, INTS, INT)
def _two_way(indptr: Ints, src: Ints, i: int) -> Ints:
    """Return the sources of row i whose own rows hold i."""
    out, count = np.empty(indptr[i + 1] - indptr[i], np.int64), 0
    for k in range(indptr[i], indptr[i + 1]):
        j = src[k]
        if _has(src, indptr[j], indptr[j + 1], i):
            out[count] = j
            count += 1
    return out[:count]


@compiled
def _has(values: Ints, lo: int, hi: int, wanted: int) -> bool:
    """Return whether the ascending values[lo:hi] hold a number."""
    while lo < hi:
        middle = (lo + hi) >> 1
        if values[middle] == wanted:
            return True
        if values[middle] < wanted:
            lo = middle + 1
        else:
            hi = middle
    return False


@compiled_for(INT, INTS, INTS)
def _size_row(own: int, src: Ints, data_size: Ints) -> tuple[Ints, Floats, bool]:
    """Return sources in id order with their share of the data, and whether all ids exist."""
    source = np.empty(len(src) + 1, np.int64)
    source[0], is_known, total = own, True, 0
    for k in range(len(src)):  # few, and nearly in order
        at = k + 1
        while at > 0 and source[at - 1] > src[k]:
            source[at] = source[at - 1]
            at -= 1
        source[at] = src[k]
    for k in range(len(source)):
        is_known &= 0 <= source[k] < len(data_size)
        total += data_size[source[k]] if is_known else 0
    weight = np.zeros(len(source))
    for k in range(len(source)):
        if is_known:
            weight[k] = data_size[source[k]] / total
    return source, weight, is_known


@compiled_for(INTS, FLOATS, FLOATS, INT)
def _best_of_one(dst: Ints, priority: Floats, budget: Floats, count: int) -> Ints:
    """Return the candidates of the highest priority with a budget of one or more, in id order."""
    order, size = np.empty(len(dst), np.int64), 0
    for k in range(len(dst)):
        if budget[k] < 1:
            continue
        at = size
        while at > 0 and _is_better(dst, priority, k, order[at - 1]):
            order[at] = order[at - 1]
            at -= 1
        order[at] = k
        size += 1
    return np.sort(dst[order[: min(size, max(count, 0))]])


@compiled
def _is_better(dst: Ints, priority: Floats, a: int, b: int) -> bool:
    """Return whether candidate a comes before b: by priority, NaN last, then by id."""
    if np.isnan(priority[a]) or np.isnan(priority[b]):
        if np.isnan(priority[a]) and np.isnan(priority[b]):
            return bool(dst[a] < dst[b])
        return bool(np.isnan(priority[b]))
    if priority[a] != priority[b]:
        return bool(priority[a] > priority[b])
    return bool(dst[a] < dst[b])


@compiled_for(FLOATS, INTS)
def _share_of_sender_max(values: Floats, sender: Ints) -> Floats:
    """Return each value divided by the largest one of its sender, 0 where that is 0."""
    last = -1
    for k in range(len(sender)):
        last = max(last, sender[k])
    top, out = np.zeros(last + 1), np.empty(len(values))
    for k in range(len(values)):
        top[sender[k]] = max(top[sender[k]], values[k])
    for k in range(len(values)):
        most = top[sender[k]]
        out[k] = values[k] / (most if most > 0 else 1.0)
    return out
