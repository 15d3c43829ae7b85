"""Messages on their way and messages waiting: what was pushed and not consumed yet.

Only the envelopes live here, as arrays; the models they carry are snapshots kept by `Models`.
"""

from dataclasses import dataclass

import numpy as np

from dystop.sparse import Bools, Floats, Ints
from dystop.types import Mailbox


@dataclass(frozen=True, slots=True)
class InFlight:
    """Envelopes, in the order of sending."""

    arrival_s: Floats  # simulated time of delivery
    dst: Ints
    src: Ints
    version: Ints  # trainings the sender had finished
    sent: Ints  # round of sending
    snapshot: Ints  # which snapshot the envelope carries
    weight: Floats  # share at which it is mixed in on arrival; NaN: it waits in the mailbox

    def take(self, keep: Bools) -> "InFlight":
        """The envelopes that a mask selects."""
        return InFlight(*(getattr(self, name)[keep] for name in self.__slots__))

    def add(self, other: "InFlight") -> "InFlight":
        """These and, after them, the others."""
        both = ((getattr(self, n), getattr(other, n)) for n in self.__slots__)
        return InFlight(*(np.concatenate(pair) for pair in both))

    def waiting(self, now_s: float) -> Bools:
        """Which envelopes lie in a mailbox now."""
        return (self.arrival_s <= now_s) & np.isnan(self.weight)

    def due(self, now_s: float) -> Bools:
        """Which envelopes have arrived and want to be mixed in on arrival."""
        return (self.arrival_s <= now_s) & ~np.isnan(self.weight)

    def newest(self, now_s: float) -> "InFlight":
        """Drop a waiting envelope where the same sender sent a later one that waits too."""
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
        """What a mechanism may know of the waiting messages."""
        here = self.take(self.waiting(now_s))
        order = np.lexsort((here.src, here.dst))
        return Mailbox(here.dst[order], here.src[order], here.version[order], here.sent[order])

    def snapshot_of(self, now_s: float, dst: Ints, src: Ints) -> Ints:
        """Snapshot carried by the waiting message of each pair (each pair has one)."""
        here = self.take(self.waiting(now_s))
        base = int(max(here.dst.max(), here.src.max(), dst.max(), src.max())) + 1
        keys = here.dst * base + here.src
        order = np.argsort(keys)
        return here.snapshot[order[np.searchsorted(keys[order], dst * base + src)]]


def nothing_in_flight() -> InFlight:
    """Nothing was sent yet."""
    i, f = np.zeros(0, np.int64), np.zeros(0)
    return InFlight(f, i, i, i, i, i, f)
