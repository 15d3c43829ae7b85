"""Compiled mailboxes: messages that arrive are put between those that wait, and are read.

A message is a letter: a column of two tables, (dst, src, version, sent, snapshot) and (arrival_s,
weight). What waits and what travels are the numbers of letters (`dystop.world.progress.InFlight`).
"""

import numpy as np

from dystop.compiled import BOOLS, FLOAT, IDS, INT, INT_TABLE, INTS, POINTS, compiled, compiled_for
from dystop.plan import Mix
from dystop.sparse import Bools, Ids, Ints
from dystop.world.progress import InFlight, IntTable, Table

DST, SRC, VERSION, SENT, SNAPSHOT = range(5)  # rows of a table of numbers
ARRIVAL, WEIGHT = range(2)  # rows of a table of moments


def mail_to(messages: InFlight, nodes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the mail of some nodes; see `dystop.world.progress.mail_to`."""
    number, _, waiting, _ = messages.parts
    return _mail_to(number, waiting, nodes if len(nodes) == 1 else np.unique(nodes))


def find_snapshots(messages: InFlight, rows: Mix, mailed: Bools) -> Ints:
    """Return the snapshots of mail; see `dystop.world.progress.find_snapshots`."""
    number, _, waiting, _ = messages.parts
    return _find_snapshots(number, waiting, (rows.receiver, rows.indptr, rows.source), mailed)


def deliver(messages: InFlight, now_s: float) -> tuple[Ids, Ids]:
    """Deliver what has arrived; see `dystop.world.progress.deliver`."""
    return _deliver(*messages.parts, now_s)


def not_read(messages: InFlight, active: Ints, now_s: float) -> tuple[Ids, Ids]:
    """Return what is left; see `dystop.world.progress.not_read`."""
    return _not_read(*messages.parts, active, now_s)


def finished_trainings(version: Ints, active: Ints, src: Ints, t: int) -> Ints:
    """Return what senders have finished; see `dystop.simulator.mailbox.finished_trainings`."""
    return _finished_trainings(version, active, src, t)


@compiled_for(INTS, INTS, INTS, INT)
def _finished_trainings(version: Ints, active: Ints, src: Ints, t: int) -> Ints:
    """Return the trainings that each sender has finished; of a server, the round."""
    out = np.empty(len(src), np.int64)
    for k in range(len(src)):
        out[k] = version[src[k]] if src[k] < len(version) else t
        for a in range(len(active)):
            out[k] += src[k] == active[a] and src[k] < len(version)
    return out


@compiled
def _first_of(number: IntTable, waiting: Ids, dst: int, src: int) -> int:
    """Return the place of the first waiting letter from (dst, src) on."""
    lo, hi = 0, len(waiting)
    while lo < hi:
        middle = (lo + hi) >> 1
        letter = waiting[middle]
        is_before = number[DST, letter] < dst or (
            number[DST, letter] == dst and number[SRC, letter] < src
        )
        if is_before:
            lo = middle + 1
        else:
            hi = middle
    return lo


@compiled_for(INT_TABLE, IDS, INTS)
def _mail_to(number: IntTable, waiting: Ids, nodes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return dst, src, version and sent of the letters that wait for ascending nodes."""
    count = 0
    for k in range(len(nodes)):
        at = _first_of(number, waiting, nodes[k], 0)
        while at < len(waiting) and number[DST, waiting[at]] == nodes[k]:
            at, count = at + 1, count + 1
    dst, src = np.empty(count, np.int64), np.empty(count, np.int64)
    version, sent = np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for k in range(len(nodes)):
        at = _first_of(number, waiting, nodes[k], 0)
        while at < len(waiting) and number[DST, waiting[at]] == nodes[k]:
            letter = waiting[at]
            dst[count], src[count] = number[DST, letter], number[SRC, letter]
            version[count], sent[count] = number[VERSION, letter], number[SENT, letter]
            at, count = at + 1, count + 1
    return dst, src, version, sent


@compiled_for(INT_TABLE, IDS, (INTS, INTS, INTS), BOOLS)
def _find_snapshots(
    number: IntTable, waiting: Ids, rows: tuple[Ints, Ints, Ints], mailed: Bools
) -> Ints:
    """Return the snapshot behind each mailed weight, -1 for the others."""
    receiver, indptr, source = rows
    out = np.full(len(mailed), -1)
    for r in range(len(receiver)):
        for k in range(indptr[r], indptr[r + 1]):
            if mailed[k]:
                at = _first_of(number, waiting, receiver[r], source[k])
                out[k] = number[SNAPSHOT, waiting[at]]
    return out


@compiled
def _has_arrived(moment: Table, letter: int, now_s: float) -> bool:
    """Return whether a letter has arrived that waits in a mailbox."""
    arrived: bool = moment[ARRIVAL, letter] <= now_s and np.isnan(moment[WEIGHT, letter])
    return arrived


@compiled
def _is_before(number: IntTable, a: int, b: int) -> bool:
    """Return whether letter a comes before b: by receiver, sender, round of sending, snapshot."""
    for row in (DST, SRC, SENT, SNAPSHOT):
        if number[row, a] != number[row, b]:
            less: bool = number[row, a] < number[row, b]
            return less
    return False


@compiled
def _is_same_pair(number: IntTable, a: int, b: int) -> bool:
    """Return whether two letters have the same receiver and the same sender."""
    same: bool = number[DST, a] == number[DST, b] and number[SRC, a] == number[SRC, b]
    return same


@compiled
def _arrived(number: IntTable, moment: Table, travelling: Ids, now_s: float) -> Ids:
    """Return the letters that have arrived, in the order of mailboxes, the newest of each pair."""
    new, count = np.empty(len(travelling), np.int32), 0
    for k in range(len(travelling)):
        letter = travelling[k]
        if not _has_arrived(moment, letter, now_s):
            continue
        at = count
        while at > 0 and _is_before(number, letter, new[at - 1]):
            new[at] = new[at - 1]
            at -= 1
        new[at] = letter
        count += 1
    kept = 0
    for k in range(count):
        if k + 1 == count or not _is_same_pair(number, new[k], new[k + 1]):
            new[kept] = new[k]
            kept += 1
    return new[:kept]


@compiled_for(INT_TABLE, POINTS, IDS, IDS, FLOAT)
def _deliver(
    number: IntTable, moment: Table, waiting: Ids, travelling: Ids, now_s: float
) -> tuple[Ids, Ids]:
    """Return the letters that wait, with those that have arrived, and those that travel."""
    new = _arrived(number, moment, travelling, now_s)
    out, end, begin = np.empty(len(waiting) + len(new), np.int32), 0, 0
    for k in range(len(new)):
        letter = new[k]
        at = _first_of(number, waiting, number[DST, letter], number[SRC, letter])
        out[end : end + at - begin] = waiting[begin:at]
        end, begin = end + at - begin, at
        if at < len(waiting) and _is_same_pair(number, waiting[at], letter):
            if not _is_before(number, waiting[at], letter):
                letter = waiting[at]
            begin = at + 1
        out[end] = letter
        end += 1
    out[end : end + len(waiting) - begin] = waiting[begin:]
    end += len(waiting) - begin
    still, count = np.empty(len(travelling), np.int32), 0
    for k in range(len(travelling)):
        if not _has_arrived(moment, travelling[k], now_s):
            still[count] = travelling[k]
            count += 1
    return out[:end], still[:count]


@compiled_for(INT_TABLE, POINTS, IDS, IDS, INTS, FLOAT)
def _not_read(
    number: IntTable, moment: Table, waiting: Ids, travelling: Ids, active: Ints, now_s: float
) -> tuple[Ids, Ids]:
    """Return the letters that still wait and travel after some nodes have read theirs."""
    out, end, begin = np.empty(len(waiting), np.int32), 0, 0
    order = np.sort(active)
    for k in range(len(order)):
        at = max(begin, _first_of(number, waiting, order[k], 0))
        out[end : end + at - begin] = waiting[begin:at]
        end, begin = end + at - begin, at
        while begin < len(waiting) and number[DST, waiting[begin]] == order[k]:
            begin += 1
    out[end : end + len(waiting) - begin] = waiting[begin:]
    end += len(waiting) - begin
    still, count = np.empty(len(travelling), np.int32), 0
    for k in range(len(travelling)):
        is_read = False
        if _has_arrived(moment, travelling[k], now_s):
            for a in range(len(active)):
                is_read |= number[DST, travelling[k]] == active[a]
        if not is_read:
            still[count] = travelling[k]
            count += 1
    return out[:end], still[:count]
