"""Who may fetch models at the moment: counted before anything is allocated, cut at a word."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

from dystop.runtime.params import Limits
from dystop.runtime.wire.interface import MAX_MESSAGE_BYTES, Shipment, Store, TransportError
from dystop.runtime.wire.messages import PullRefused, PullRequest

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


class Visit:
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


class Gate:
    """Counts transfers, in all and per peer.

    >>> gate = Gate(Limits(pulls=2, pulls_per_peer=1))
    >>> one = gate.enter("w01")
    >>> gate.enter("w01") is None, gate.enter("w02") is None, gate.enter("w03") is None
    (True, False, True)
    >>> gate.leave(one); gate.enter("w03") is None
    False
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._lock = limits, threading.Lock()
        self._visits: set[Visit] = set()
        self._closed = False

    def enter(self, name: str) -> Visit | None:
        """Let a peer in; None if there are too many, or if all is over."""
        with self._lock:
            same = sum(visit.name == name for visit in self._visits)
            full = len(self._visits) >= self._limits.pulls or same >= self._limits.pulls_per_peer
            if full or self._closed:
                return None
            visit = Visit(name)
            self._visits.add(visit)
            return visit

    def leave(self, visit: Visit) -> None:
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


def ask(store: Store, name: str, request: PullRequest) -> "Future[Shipment | PullRefused]":
    """Ask a store; a store that raises an error has no model."""
    try:
        return store.asked(name, request)
    except Exception:  # a mistake of the store is not the peer's business
        _LOG.exception("a store raised an error when %s asked for a model", name)
        refused: Future[Shipment | PullRefused] = Future()
        refused.set_result(PullRefused("no_model"))
        return refused


def answer_of(asked: "Future[Shipment | PullRefused]") -> Shipment | PullRefused:
    """What a finished future holds; an error or a cancelled answer means no model."""
    try:
        return asked.result(timeout=0)
    except CancelledError:
        return PullRefused("no_model")
    except Exception:  # as in `ask`
        _LOG.exception("a store's answer is an error")
        return PullRefused("no_model")
