"""Who may come in: those in the roster, with the certificate that the roster names."""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future

from dystop.testbed.params import Limits
from dystop.testbed.protocol.interface import (
    MAX_MESSAGE_BYTES,
    ModelSource,
    ServedModel,
    TransportError,
)
from dystop.testbed.protocol.messages import Peer, PullRefused, PullRequest


class AllowList:
    """Asked by the transport for every peer (`Allowed`), told by the node what the roster says.

    >>> door = AllowList("observer")
    >>> door("w01", ""), door("observer", "")
    (False, True)
    >>> door.update([Peer("w01", 1, "memory:1", "aa")])
    set()
    >>> door("w01", "aa"), door("w01", "bb"), door.update([])
    (True, False, {'w01'})

    A roster without a fingerprint leaves the one that is known: a coordinator that was started
    again has not seen everybody yet.
    """

    def __init__(self, *always: str) -> None:
        """These come in before a roster names them; the authority vouches for their names."""
        self._always = set(always)
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, fingerprint: str) -> bool:
        """Whether a peer may come in. Fingerprints count where both sides have one."""
        with self._lock:
            known = self._known.get(name, "" if name in self._always else None)
        return known is not None and (not known or not fingerprint or known == fingerprint)

    def update(self, peers: Iterable[Peer]) -> set[str]:
        """These are in now; tells who was before and is not, or has another certificate."""
        with self._lock:
            before = self._known
            known = {p.name: p.fingerprint or before.get(p.name, "") for p in peers}
            self._known = known
            self._always -= set(known)  # from now on the roster alone says whether they are in
        # A mark where there was none: it has only now joined, and keeps what it has begun.
        same = {name for name, mark in before.items() if mark in ("", known.get(name))}
        return set(before) - (same & set(known))


# MERGED: Who may fetch models at the moment: counted before anything is allocated, cut at a word.


_LOG = logging.getLogger(__name__)
BUSY_S = 0.2  # when to come back, told to a peer that found too many others

Allowed = Callable[[str, str], bool]  # name and fingerprint of a peer; empty where there is none


def anyone(name: str, fingerprint: str) -> bool:
    """Allow every peer that the transport itself lets in."""
    return True


def check_size(message: bytes) -> None:
    """Refuse a message that the other end would refuse."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise TransportError(
            f"a control message of {len(message)} bytes is too long; at most {MAX_MESSAGE_BYTES} "
            "are allowed: send fewer or shorter entries"
        )


class PullSlot:
    """One transfer that is going on; `over` is set when it has been cut."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.over = threading.Event()
        self.wake = threading.Event()  # set with `over`, and by whatever else the sender waits for
        self.on_cut: Callable[[], None] = lambda: None

    def cut(self) -> None:
        """End the transfer from outside."""
        self.over.set()
        self.wake.set()
        self.on_cut()


class PullLimiter:
    """Counts transfers, in all and per peer.

    >>> gate = PullLimiter(Limits(pulls=2, pulls_per_peer=1))
    >>> one = gate.enter("w01")
    >>> gate.enter("w01") is None, gate.enter("w02") is None, gate.enter("w03") is None
    (True, False, True)
    >>> gate.leave(one); gate.enter("w03") is None
    False
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._lock = limits, threading.Lock()
        self._visits: set[PullSlot] = set()
        self._closed = False

    def enter(self, name: str) -> PullSlot | None:
        """Let a peer in; None if there are too many, or if all is over."""
        with self._lock:
            same = sum(visit.name == name for visit in self._visits)
            full = len(self._visits) >= self._limits.pulls or same >= self._limits.pulls_per_peer
            if full or self._closed:
                return None
            visit = PullSlot(name)
            self._visits.add(visit)
            return visit

    def leave(self, visit: PullSlot) -> None:
        """Make room for the next."""
        with self._lock:
            self._visits.discard(visit)

    def drop(self, name: str) -> None:
        """Cut every transfer of a peer."""
        with self._lock:
            cut = [visit for visit in self._visits if visit.name == name]
        for visit in cut:
            visit.cut()

    def close(self) -> None:
        """Cut everything and let nobody in again."""
        with self._lock:
            self._closed = True
            cut = list(self._visits)
        for visit in cut:
            visit.cut()


def ask(store: ModelSource, name: str, request: PullRequest) -> "Future[ServedModel | PullRefused]":
    """Ask a store; a store that raises an error has no model."""
    try:
        return store.asked(name, request)
    except Exception:  # a mistake of the store is not the peer's business
        _LOG.exception("a store raised an error when %s asked for a model", name)
        refused: Future[ServedModel | PullRefused] = Future()
        refused.set_result(PullRefused("no_model"))
        return refused


def answer_of(asked: "Future[ServedModel | PullRefused]") -> ServedModel | PullRefused:
    """What a finished future holds; an error or a cancelled answer means no model."""
    try:
        return asked.result(timeout=0)
    except CancelledError:
        return PullRefused("no_model")
    except Exception:  # as in `ask`
        _LOG.exception("a store's answer is an error")
        return PullRefused("no_model")
