"""What is under way when a round opens: local trainings, and messages that wait or travel.

The models themselves are elsewhere: a message carries the number of a snapshot.
"""

from dataclasses import dataclass

import numpy as np

from dystop.control.timing import remaining_compute_s
from dystop.sparse import Bools, Floats, Ints
from dystop.types import Mailbox

SAME_S = 1e-9  # moments closer than this are one moment


@dataclass(frozen=True, slots=True)
class InFlight:
    """Messages that were pushed and not consumed yet, in the order of sending."""

    arrival_s: Floats  # time of delivery
    dst: Ints
    src: Ints
    version: Ints  # trainings the sender had finished
    sent: Ints  # round of sending
    snapshot: Ints  # number of the model that the message carries
    weight: Floats  # share at which it is mixed in on arrival; NaN: it waits in the mailbox

    def take(self, keep: Bools) -> "InFlight":
        """Return the messages that a mask selects."""
        return InFlight(*(getattr(self, name)[keep] for name in self.__slots__))

    def add(self, other: "InFlight") -> "InFlight":
        """Return these messages followed by the others."""
        both = ((getattr(self, n), getattr(other, n)) for n in self.__slots__)
        return InFlight(*(np.concatenate(pair) for pair in both))

    def waiting(self, now_s: float) -> Bools:
        """Return which messages lie in a mailbox at this time."""
        return (self.arrival_s <= now_s) & np.isnan(self.weight)

    def due(self, now_s: float) -> Bools:
        """Return which messages have arrived and are to be mixed in on arrival."""
        return (self.arrival_s <= now_s) & ~np.isnan(self.weight)

    def newest(self, now_s: float) -> "InFlight":
        """Drop a waiting message where a later one of the same sender waits too."""
        if not len(self.dst):
            return self
        waiting = np.flatnonzero(self.waiting(now_s))
        order = waiting[np.lexsort((waiting, self.sent[waiting]))]
        pairs = np.stack([self.dst[order], self.src[order]])[:, ::-1]
        _, first = np.unique(pairs, axis=1, return_index=True)
        keep = np.ones(len(self.dst), bool)
        keep[waiting] = False
        keep[order[::-1][first]] = True
        return self.take(keep)

    def mailbox(self, now_s: float) -> Mailbox:
        """Return what a mechanism may know of the waiting messages."""
        here = self.take(self.waiting(now_s))
        order = np.lexsort((here.src, here.dst))
        return Mailbox(here.dst[order], here.src[order], here.version[order], here.sent[order])

    def snapshot_of(self, now_s: float, dst: Ints, src: Ints) -> Ints:
        """Return the snapshot in the waiting message of each pair; every pair has exactly one."""
        here = self.take(self.waiting(now_s))
        base = int(max(here.dst.max(), here.src.max(), dst.max(), src.max())) + 1
        keys = here.dst * base + here.src
        order = np.argsort(keys)
        return here.snapshot[order[np.searchsorted(keys[order], dst * base + src)]]


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
