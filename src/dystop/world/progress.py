"""What is under way when a round opens: local trainings, and messages that wait or travel.

The models themselves are elsewhere: a message carries the number of a snapshot.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.acceleration import accelerated
from dystop.control.laws import remaining_compute_s
from dystop.plan import Mix
from dystop.sparse import Bools, Floats, Ids, Ints
from dystop.types import Mailbox, no_mail

IntTable = NDArray[np.int64]  # [columns, letters]
Table = NDArray[np.float64]

SAME_S = 1e-9  # moments closer than this are one moment


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages that were pushed, one entry for each in every column. Checkpoints hold the names."""

    arrival_s: Floats  # time of delivery
    dst: Ints
    src: Ints
    version: Ints  # trainings the sender had finished
    sent: Ints  # round of sending
    snapshot: Ints  # number of the model that the message carries
    weight: Floats  # share at which it is mixed in on arrival; NaN: it waits in the mailbox
    in_mailboxes: int = 0  # the first ones, which have arrived


class Letters:
    """All messages of a run, one after another: columns that rounds share and only append to."""

    __slots__ = ("moment", "number", "used")

    def __init__(self, number: IntTable, moment: Table, used: int) -> None:
        self.number = number  # [5, capacity]: dst, src, version, sent, snapshot
        self.moment = moment  # [2, capacity]: arrival_s, weight
        self.used = used  # letters that are written


class InFlight:
    """Messages that were pushed and not consumed yet.

    The first `in_mailboxes` of them wait for their receivers, sorted by (dst, src), one for each
    pair. The others travel, in the order of sending. A fleet may have tens of thousands of
    messages, of which a round changes twenty: a message is written once (`Letters`), and a round
    copies only the numbers of those that wait.
    """

    __slots__ = ("_end", "_letters", "_travelling", "_waiting", "snapshots_kept")

    _letters: Letters
    _end: int  # letters that are known here; later rounds may have written more
    _waiting: Ids  # numbers of letters, sorted by (dst, src)
    _travelling: Ids
    snapshots_kept: int  # when those that no message carries were dropped last

    def __init__(self, messages: Messages, more: int = 0) -> None:
        """Take messages, and leave room for more."""
        size = len(messages.dst)
        self._letters, self._end = _room_for(size + more), size
        _write(self._letters, 0, messages)
        order = np.arange(size, dtype=np.int32)
        self._waiting, self._travelling = np.split(order, [messages.in_mailboxes])
        self.snapshots_kept = 0

    def _with(self, waiting: Ids, travelling: Ids) -> "InFlight":
        """Return other ones of the same letters."""
        new = object.__new__(InFlight)
        new._letters, new._end = self._letters, self._end
        new._waiting, new._travelling = waiting, travelling
        new.snapshots_kept = self.snapshots_kept
        return new

    def __len__(self) -> int:
        return len(self._waiting) + len(self._travelling)

    @property
    def in_mailboxes(self) -> int:
        """Number of messages that wait for their receivers."""
        return len(self._waiting)

    @property
    def travelling(self) -> int:
        """Number of messages that have not been delivered."""
        return len(self._travelling)

    @property
    def parts(self) -> tuple[IntTable, Table, Ids, Ids]:
        """The two tables of letters, and the numbers of those that wait and that travel."""
        letters = self._letters
        return letters.number, letters.moment, self._waiting, self._travelling

    @property
    def order(self) -> Ids:
        """Numbers of the letters: first those that wait, then those that travel."""
        return np.concatenate([self._waiting, self._travelling])

    def messages(self) -> Messages:
        """Return all columns, those that wait first."""
        order, letters = self.order, self._letters
        arrival_s, weight = letters.moment[:, order]
        dst, src, version, sent, snapshot = letters.number[:, order]
        count = len(self._waiting)
        return Messages(arrival_s, dst, src, version, sent, snapshot, weight, count)

    @property
    def snapshot(self) -> Ints:
        """Number of the model that each message carries."""
        carried: Ints = self._letters.number[4, self.order]
        return carried

    def take(self, keep: Bools) -> "InFlight":
        """Return the messages that a mask selects."""
        count = len(self._waiting)
        return self._with(self._waiting[keep[:count]], self._travelling[keep[count:]])

    def add(self, other: Messages) -> "InFlight":
        """Return these messages followed by others that travel."""
        size, letters, end = len(other.dst), self._letters, self._end
        if letters.used != end or end + size > letters.number.shape[1]:
            return InFlight(self.messages(), more=size).add(other)  # in letters of their own
        _write(letters, end, other)
        new_ids = np.arange(end, end + size, dtype=np.int32)
        travelling = np.concatenate([self._travelling, new_ids])
        new = self._with(self._waiting, travelling)
        new._end = end + size
        return new

    def due(self, now_s: float) -> Bools | None:
        """Return which messages have arrived and are to be mixed in on arrival; None: none."""
        moment = self._letters.moment
        mixed = ~np.isnan(moment[1, self._travelling])
        if not mixed.any():
            return None
        mixed &= moment[0, self._travelling] <= now_s
        return np.append(np.zeros(len(self._waiting), bool), mixed) if mixed.any() else None

    def delivered(self, now_s: float) -> "InFlight":
        """Put what has arrived into the mailboxes, which keep the newest message of a sender."""
        if not len(self._travelling):
            return self
        waiting, travelling = deliver(self, now_s)
        return self if len(travelling) == len(self._travelling) else self._with(waiting, travelling)

    def without(self, active: Ints, now_s: float) -> "InFlight":
        """Return what is left after some nodes have emptied their mailboxes.

        A message that still travels, but has arrived by now, is read too.
        """
        waiting, travelling = not_read(self, active, now_s)
        return self._with(waiting, travelling)

    def mailbox(self) -> Mailbox:
        """Return what a mechanism may know of the messages in mailboxes."""
        return WaitingMail(self) if len(self._waiting) else _NO_MAIL

    def snapshots_of(self, rows: Mix, mailed: Bools) -> Ints:
        """Return the snapshot behind each mailed weight of a mix, -1 for the others, [M]."""
        return find_snapshots(self, rows, mailed)


def _write(letters: Letters, begin: int, messages: Messages) -> None:
    """Write messages after the letters that are written."""
    end, number, moment = begin + len(messages.dst), letters.number, letters.moment
    number[0, begin:end], number[1, begin:end] = messages.dst, messages.src
    number[2, begin:end], number[3, begin:end] = messages.version, messages.sent
    number[4, begin:end], letters.used = messages.snapshot, end
    moment[0, begin:end], moment[1, begin:end] = messages.arrival_s, messages.weight


def _room_for(size: int) -> Letters:
    """Return letters of which none is written, with room for so many and more."""
    room = 2 * size + _LEAST_ROOM
    return Letters(np.empty((5, room), np.int64), np.empty((2, room)), 0)


_NO_MAIL = no_mail()
_BASE = 2**31  # above every id
_LEAST_ROOM = 256  # letters that fit before the columns are copied


class WaitingMail(Mailbox):
    """The mailboxes of messages in flight; its columns are made when they are read."""

    def __init__(self, in_flight: InFlight) -> None:
        vars(self)["in_flight"] = in_flight

    def __len__(self) -> int:
        return int(vars(self)["in_flight"].in_mailboxes)

    def __getattr__(self, name: str) -> Any:
        if name not in ("dst", "src", "version", "sent"):
            raise AttributeError(name)
        found = vars(self)["in_flight"].messages()
        for column in ("dst", "src", "version", "sent"):
            vars(self)[column] = getattr(found, column)[: found.in_mailboxes]
        return vars(self)[name]

    def to(self, nodes: Ints) -> Mailbox:
        """Return the messages to some nodes."""
        key, found = nodes.tobytes(), vars(self).setdefault("found", {})
        if key not in found:  # deciding, checking and mixing ask about the same nodes
            found[key] = Mailbox(*mail_to(vars(self)["in_flight"], nodes))
        answer: Mailbox = found[key]
        return answer


@accelerated("dystop.kernels.mailboxes:mail_to")
def mail_to(messages: InFlight, nodes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return dst, src, version and sent of the messages in the mailboxes of some nodes."""
    mail = messages.messages()
    here = np.isin(mail.dst[: mail.in_mailboxes], nodes).nonzero()[0]
    return mail.dst[here], mail.src[here], mail.version[here], mail.sent[here]


@accelerated("dystop.kernels.mailboxes:find_snapshots")
def find_snapshots(messages: InFlight, rows: Mix, mailed: Bools) -> Ints:
    """Return the snapshots behind mailed weights; every such pair has exactly one message."""
    mail, out = messages.messages(), np.full(len(mailed), -1)
    keys = (mail.dst * _BASE + mail.src)[: mail.in_mailboxes]
    wanted = rows.dst[mailed] * _BASE + rows.source[mailed]
    out[mailed] = mail.snapshot[np.searchsorted(keys, wanted)]
    return out


@accelerated("dystop.kernels.mailboxes:deliver", size=lambda messages, _: messages.travelling)
def deliver(messages: InFlight, now_s: float) -> tuple[Ids, Ids]:
    """Return the letters that wait and those that travel, after what has arrived is delivered.

    A mailbox keeps the newest message of a sender. One that was overtaken is dropped.
    """
    mail, order, count = messages.messages(), messages.order, messages.in_mailboxes
    arrived = _has_arrived(mail, now_s)
    arrived[:count] = False
    here = np.append(np.arange(count), np.flatnonzero(arrived))
    keys = mail.dst[here] * _BASE + mail.src[here]
    last = np.lexsort((mail.snapshot[here], mail.sent[here], keys))
    newest = np.append(np.diff(keys[last]) > 0, True)[: len(last)]
    return order[here[last[newest]]], order[count:][~arrived[count:]]


@accelerated("dystop.kernels.mailboxes:not_read", size=lambda messages, active, _: len(active))
def not_read(messages: InFlight, active: Ints, now_s: float) -> tuple[Ids, Ids]:
    """Return the letters that still wait and travel, after some nodes have read their mail."""
    mail, order, count = messages.messages(), messages.order, messages.in_mailboxes
    read = np.isin(mail.dst, active)
    read[count:] &= _has_arrived(mail, now_s)[count:]
    return order[:count][~read[:count]], order[count:][~read[count:]]


def _has_arrived(mail: Messages, now_s: float) -> Bools:
    """Return which messages have arrived that wait in a mailbox."""
    return (mail.arrival_s <= now_s) & np.isnan(mail.weight)


def nothing_in_flight() -> InFlight:
    """Return an empty set of messages."""
    i, f = np.zeros(0, np.int64), np.zeros(0)
    return InFlight(Messages(f, i, i, i, i, i, f))


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
