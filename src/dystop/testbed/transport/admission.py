"""Who may connect, and how many models are served at once."""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future

from dystop.errors import TransportError
from dystop.testbed.params import Limits
from dystop.testbed.protocol.codec import MAX_MESSAGE_BYTES
from dystop.testbed.protocol.messages import Peer
from dystop.testbed.protocol.pulls import PullRefused, PullRequest
from dystop.testbed.transport.interface import ModelSource, ServedModel

_LOG = logging.getLogger(__name__)
BUSY_S = 0.2  # after which a peer that is refused as one too many should ask again

Allowed = Callable[[str, str], bool]
"""Whether a peer of this name and certificate fingerprint may connect; both may be empty."""


class AllowList:
    """The peers that may connect: those in the roster, with the certificate that it names.

    The transport calls it for every peer (`Allowed`); the worker updates it from the roster.

    >>> allow = AllowList("observer")
    >>> allow("w01", ""), allow("observer", "")
    (False, True)
    >>> allow.update([Peer("w01", 1, "memory:1", "aa")])
    set()
    >>> allow("w01", "aa"), allow("w01", "bb"), allow.update([])
    (True, False, {'w01'})

    A roster without a fingerprint keeps the known one: a restarted coordinator has not seen every
    worker yet.
    """

    def __init__(self, *preapproved: str) -> None:
        """Allow these names before a roster names them; the authority has verified them."""
        self._preapproved = set(preapproved)
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, fingerprint: str) -> bool:
        """Return whether a peer may connect. Fingerprints count if both sides have one."""
        with self._lock:
            known = self._known.get(name, "" if name in self._preapproved else None)
        return known is not None and (not known or not fingerprint or known == fingerprint)

    def update(self, peers: Iterable[Peer]) -> set[str]:
        """Set the members; return those that were removed or have another certificate."""
        with self._lock:
            before = self._known
            known = {p.name: p.fingerprint or before.get(p.name, "") for p in peers}
            self._known = known
            self._preapproved -= set(known)  # from now on the roster alone decides
        # A peer that had no fingerprint before has only now joined: it keeps what it has begun.
        same = {name for name, mark in before.items() if mark in ("", known.get(name))}
        return set(before) - (same & set(known))


def anyone(name: str, fingerprint: str) -> bool:
    """Allow every peer that the transport itself accepts."""
    return True


def check_size(message: bytes) -> None:
    """Refuse a message that the other end would refuse."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise TransportError(
            f"a control message of {len(message)} bytes is too long; at most {MAX_MESSAGE_BYTES} "
            "are allowed: send fewer or shorter entries"
        )


class PullSlot:
    """One transfer in progress; `ended` is set when it is cancelled."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = threading.Event()
        self.wake = threading.Event()  # set with `ended`, and when the model to send is ready
        self.on_cancel: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        """End the transfer from outside."""
        self.ended.set()
        self.wake.set()
        self.on_cancel()


class PullLimiter:
    """Limits the number of transfers, in total and per peer, before anything is allocated.

    >>> limiter = PullLimiter(Limits(pulls=2, pulls_per_peer=1))
    >>> one = limiter.enter("w01")
    >>> limiter.enter("w01") is None, limiter.enter("w02") is None, limiter.enter("w03") is None
    (True, False, True)
    >>> limiter.leave(one); limiter.enter("w03") is None
    False
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._lock = limits, threading.Lock()
        self._slots: set[PullSlot] = set()
        self._closed = False

    def enter(self, name: str) -> PullSlot | None:
        """Give a peer a slot; None if there are too many, or if the limiter is closed."""
        with self._lock:
            same = sum(slot.name == name for slot in self._slots)
            full = len(self._slots) >= self._limits.pulls or same >= self._limits.pulls_per_peer
            if full or self._closed:
                return None
            slot = PullSlot(name)
            self._slots.add(slot)
            return slot

    def leave(self, slot: PullSlot) -> None:
        """Free a slot."""
        with self._lock:
            self._slots.discard(slot)

    def drop(self, name: str) -> None:
        """Cancel every transfer of a peer."""
        with self._lock:
            dropped = [slot for slot in self._slots if slot.name == name]
        for slot in dropped:
            slot.cancel()

    def close(self) -> None:
        """Cancel every transfer and refuse new ones."""
        with self._lock:
            self._closed = True
            dropped = list(self._slots)
        for slot in dropped:
            slot.cancel()


def request_model(
    source: ModelSource, name: str, request: PullRequest
) -> "Future[ServedModel | PullRefused]":
    """Request a model from its source; a source that raises an error has no model."""
    try:
        return source.requested(name, request)
    except Exception:  # the peer must not learn about errors of the source
        _LOG.exception("a model source raised an error when %s requested a model", name)
        refused: Future[ServedModel | PullRefused] = Future()
        refused.set_result(PullRefused("no_model"))
        return refused


def result_of(asked: "Future[ServedModel | PullRefused]") -> ServedModel | PullRefused:
    """Return the result of a finished future; an error or a cancelled future means no model."""
    try:
        return asked.result(timeout=0)
    except CancelledError:
        return PullRefused("no_model")
    except Exception:  # as in `request_model`
        _LOG.exception("the answer of a model source is an error")
        return PullRefused("no_model")
