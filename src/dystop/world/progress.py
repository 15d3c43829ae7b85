"""What is under way when a round opens: local trainings, and messages that wait or travel.

The models themselves are elsewhere: a message carries the number of a snapshot.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dystop.acceleration import accelerated
from dystop.control.timing import remaining_compute_s
from dystop.sparse import Bools, Floats, Ints, mask_of
from dystop.types import Mailbox

SAME_S = 1e-9  # moments closer than this are one moment


@dataclass(frozen=True, slots=True)
class InFlight:
    """Messages that were pushed and not consumed yet.

    The first `in_mailboxes` of them wait for their receivers, sorted by (dst, src), one for each
    pair. The others travel, in the order of sending.
    """

    arrival_s: Floats  # time of delivery
    dst: Ints
    src: Ints
    version: Ints  # trainings the sender had finished
    sent: Ints  # round of sending
    snapshot: Ints  # number of the model that the message carries
    weight: Floats  # share at which it is mixed in on arrival; NaN: it waits in the mailbox
    in_mailboxes: int = 0

    def __len__(self) -> int:
        return len(self.dst)

    def take(self, keep: Bools) -> "InFlight":
        """Return the messages that a mask selects."""
        return self._rows(keep.nonzero()[0], int(np.count_nonzero(keep[: self.in_mailboxes])))

    def add(self, other: "InFlight") -> "InFlight":
        """Return these messages followed by others that travel."""
        both: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _COLUMNS
        }
        return InFlight(**both, in_mailboxes=self.in_mailboxes)

    def due(self, now_s: float) -> Bools:
        """Return which messages have arrived and are to be mixed in on arrival."""
        return (self.arrival_s <= now_s) & ~np.isnan(self.weight)

    def delivered(self, now_s: float) -> "InFlight":
        """Put what has arrived into the mailboxes, which keep the newest message of a sender."""
        count = self.in_mailboxes
        arrived = (self.arrival_s[count:] <= now_s) & np.isnan(self.weight[count:])
        new = count + arrived.nonzero()[0]
        if not len(new):
            return self
        merge = merge_arrived if len(new) <= _FEW else merge_arrived.reference
        held = merge(self, new)
        return self._rows(np.concatenate([held, count + (~arrived).nonzero()[0]]), len(held))

    def read_by(self, active: Ints, now_s: float) -> Bools:
        """Return which messages have arrived for some nodes and wait in their mailboxes."""
        if len(active) == 1:
            read: Bools = self.dst == active[0]
        else:
            nodes = int(max(self.dst.max(initial=0), active.max(initial=0))) + 1
            read = mask_of(nodes, active)[self.dst]
        travels = slice(self.in_mailboxes, None)
        read[travels] &= (self.arrival_s[travels] <= now_s) & np.isnan(self.weight[travels])
        return read

    def mailbox(self) -> Mailbox:
        """Return what a mechanism may know of the messages in mailboxes."""
        here = slice(0, self.in_mailboxes)
        return Mailbox(self.dst[here], self.src[here], self.version[here], self.sent[here])

    def snapshot_of(self, dst: Ints, src: Ints) -> Ints:
        """Return the snapshot in the mailbox of dst from each src; every pair has exactly one."""
        inboxes = self.dst[: self.in_mailboxes]
        first = int(np.searchsorted(inboxes, dst.min()))
        keys = self.pairs(slice(first, int(np.searchsorted(inboxes, dst.max(), "right"))))
        return self.snapshot[first + np.searchsorted(keys, dst * _BASE + src)]

    def _rows(self, rows: Ints, in_mailboxes: int) -> "InFlight":
        columns: dict[str, Any] = {name: getattr(self, name).take(rows) for name in _COLUMNS}
        return InFlight(**columns, in_mailboxes=in_mailboxes)

    def pairs(self, rows: slice | Ints) -> Ints:
        """Return one number for the receiver and the sender of each message."""
        return self.dst[rows] * _BASE + self.src[rows]

    def newest(self, rows: Ints) -> Ints:
        """Return the newest message of each pair among some messages, in the order of pairs."""
        keys = self.pairs(rows)
        order = np.lexsort((self.sent[rows], keys))
        last = np.append(np.diff(keys[order]) > 0, True)[: len(order)]
        newest: Ints = rows[order[last]]
        return newest

    def is_later(self, new: Ints, old: Ints) -> Bools:
        """Return whether messages were sent after others; a later snapshot has a higher number."""
        after: Bools = self.sent[new] > self.sent[old]
        together = self.sent[new] == self.sent[old]
        out: Bools = after | (together & (self.snapshot[new] > self.snapshot[old]))
        return out


_COLUMNS = tuple(column.name for column in fields(InFlight) if column.name != "in_mailboxes")
_BASE = 2**31  # above every id
_FEW = 256  # messages that a kernel sorts one by one


@accelerated("dystop.kernels.mailboxes:merge_arrived")
def merge_arrived(messages: InFlight, new: Ints) -> Ints:
    """Return the numbers of the messages in the mailboxes after those of `new` have arrived.

    A mailbox keeps the newest message of a sender. One that was overtaken is dropped.
    """
    count, new = messages.in_mailboxes, messages.newest(new)
    old, keys = messages.pairs(slice(0, count)), messages.pairs(new)
    at = np.searchsorted(old, keys)
    known = at < count
    known[known] = old[at[known]] == keys[known]
    later = known.copy()
    later[known] = messages.is_later(new[known], at[known])
    held = np.arange(count)
    held[at[later]] = new[later]
    return np.insert(held, at[~known], new[~known])


def nothing_in_flight() -> InFlight:
    """Return an empty set of messages."""
    i, f = np.zeros(0, np.int64), np.zeros(0)
    return InFlight(f, i, i, i, i, i, f)


@dataclass(frozen=True)
class Progress:
    """The newest local training of every node, and the messages in flight."""

    started_s: Floats  # when the training began, or will begin, [nodes]
    training_s: Floats  # its length, 0 for a server, [nodes]
    in_flight: InFlight

    @property
    def finish_s(self) -> Floats:
        """When each training ends, [nodes]."""
        return self.started_s + self.training_s

    def remaining_s(self, now_s: float) -> Floats:
        """Return the seconds that each training still runs (eq:h_comp), [nodes]."""
        return remaining_compute_s(self.training_s, now_s - self.started_s)

    def begun_by(self, time_s: float) -> Bools:
        """Return which trainings have begun by a time; rounding errors do not decide."""
        begun: Bools = self.started_s <= time_s + SAME_S
        return begun

    def done_by(self, time_s: float | Floats) -> Bools:
        """Return which trainings have ended by a time; rounding errors do not decide."""
        return self.finish_s <= time_s + SAME_S
