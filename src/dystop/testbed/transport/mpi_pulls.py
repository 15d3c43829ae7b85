"""Pulls over an MPI line: a thread for each on the serving side, the puller's own on the other.

The sender may be `WINDOW` chunks ahead of what the puller has taken, so that a slow puller does not
fill its memory.
"""

import queue
import threading
import time
from concurrent.futures import Future
from typing import TypeVar

from dystop.testbed.params import Limits
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.interface import (
    ModelSink,
    ModelSource,
    PullBroken,
    PullDenied,
    PullTimeouts,
    ServedModel,
)
from dystop.testbed.protocol.messages import ModelHeader, PullRefused, PullRequest
from dystop.testbed.transport.admission import (
    BUSY_S,
    Allowed,
    PullLimiter,
    PullSlot,
    answer_of,
    ask,
)
from dystop.testbed.transport.mpi_switch import Frame, Kind, Switch
from dystop.testbed.transport.pacing import paced

WINDOW = 4
_LOOK_S = 0.05  # how often somebody who waits looks whether it is still wanted
Message = TypeVar("Message", ModelHeader, PullRefused)


class _Errand:
    """One model on its way out."""

    def __init__(self, shop: "Shop", frame: Frame, request: PullRequest, visit: PullSlot) -> None:
        self.shop, self.frame, self.request, self.visit = shop, frame, request, visit
        self.credits = threading.Semaphore(WINDOW)
        self.thread = threading.Thread(target=self._run, name="mpi-pull", daemon=True)

    def _run(self) -> None:
        try:
            found = self._answer(ask(self.shop.store, self.frame.name, self.request))
            if isinstance(found, PullRefused):
                self._reply(Kind.REFUSED, encode(found))
            elif found is not None:
                self._reply(Kind.HEAD, encode(found.header))
                self._stream(found)
        finally:
            self._reply(Kind.END)
            self.shop.done(self)

    def _answer(
        self, asked: "Future[ServedModel | PullRefused]"
    ) -> ServedModel | PullRefused | None:
        """What the store says, as soon as it does; None if the puller has gone before."""
        asked.add_done_callback(lambda _: self.visit.wake.set())
        while not asked.done() and not self.visit.over.is_set():
            self.visit.wake.wait()
        asked.cancel()  # does nothing once it is done
        return None if self.visit.over.is_set() else answer_of(asked)

    def _stream(self, shipment: ServedModel) -> None:
        for chunk in paced(shipment, self.visit.over):
            while not self.credits.acquire(timeout=_LOOK_S):
                if self.visit.over.is_set():
                    return
            self._reply(Kind.CHUNK, chunk)

    def _reply(self, kind: Kind, body: bytes | memoryview = b"") -> None:
        self.shop.switch.reply(kind, self.frame, body)


class Shop:
    """Where a worker serves models."""

    def __init__(
        self, switch: Switch, name: str, store: ModelSource, limits: Limits, allowed: Allowed
    ) -> None:
        self.switch, self.name, self.store, self.allowed = switch, name, store, allowed
        self.address = ""
        self._gate, self._lock = PullLimiter(limits), threading.Lock()
        self._errands: dict[tuple[int, int], _Errand] = {}  # by rank and conversation

    def heard(self, frame: Frame) -> None:
        """A frame has come."""
        if frame.kind is Kind.ASK:
            self.switch.dispatcher.post(lambda: self._begin(frame))
            return
        with self._lock:
            errand = self._errands.get((frame.rank, frame.talk))
        if errand is None:
            return
        if frame.kind is Kind.CREDIT:
            errand.credits.release()
        elif frame.kind is Kind.GONE:
            errand.visit.cut()

    def _begin(self, frame: Frame) -> None:
        wanted, _, request = bytes(frame.body).partition(b"\n")
        if wanted != self.name.encode():
            self.switch.reply(Kind.END, frame)
            return
        found = self._let_in(frame, request)
        if isinstance(found, PullRefused):
            self.switch.reply(Kind.REFUSED, frame, encode(found))
            return
        with self._lock:
            self._errands[frame.rank, frame.talk] = found
        found.thread.start()

    def _let_in(self, frame: Frame, body: bytes) -> _Errand | PullRefused:
        """Decide before anything is allocated."""
        if not self.allowed(frame.name, ""):
            return PullRefused("not_authorised")
        try:
            request = decode(body, "peer")
        except BadMessage:
            return PullRefused("malformed")
        if not isinstance(request, PullRequest):
            return PullRefused("malformed")
        visit = self._gate.enter(frame.name)
        if visit is None:
            return PullRefused("busy", BUSY_S)
        return _Errand(self, frame, request, visit)

    def done(self, errand: _Errand) -> None:
        """An errand is over."""
        self._gate.leave(errand.visit)
        with self._lock:
            self._errands.pop((errand.frame.rank, errand.frame.talk), None)

    def drop(self, name: str) -> None:
        """Cut the pulls of a peer."""
        self._gate.drop(name)

    def stop(self) -> None:
        """Cut everything; returns when all threads are gone."""
        self.switch.release(self.address)
        self._gate.close()
        self.switch.dispatcher.flush()
        with self._lock:
            errands = list(self._errands.values())
        for errand in errands:
            errand.thread.join()


class _Inbox:
    """What has arrived for a puller."""

    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()

    def heard(self, frame: Frame) -> None:
        self.frames.put(frame)

    def next(self, at_most_s: float, cancelled: threading.Event) -> Frame:
        """The next frame; PullBroken if none comes in time, or if nobody wants it any more."""
        until = time.monotonic() + at_most_s
        while not cancelled.is_set() and (left_s := until - time.monotonic()) > 0:
            try:
                return self.frames.get(timeout=min(left_s, _LOOK_S))
            except queue.Empty:
                continue
        raise PullBroken("timeout")


def pull_once(
    switch: Switch,
    who: int,
    peer: tuple[str, str],
    request: PullRequest,
    parcel: ModelSink,
    patience: PullTimeouts,
    cancelled: threading.Event,
) -> None:
    """Pull in this thread; see `Transport.pull`. `peer` is name and address."""
    inbox, (name, address) = _Inbox(), peer
    talk = switch.begin(inbox)
    switch.call(Kind.ASK, who, address, talk, name.encode() + b"\n" + encode(request))
    try:
        left = _begin(inbox.next(patience.first_byte_s, cancelled), parcel)
        while left > 0:
            frame = inbox.next(patience.progress_s, cancelled)
            if frame.kind is not Kind.CHUNK:
                raise PullBroken("unreachable")
            parcel.write(frame.body)
            left -= len(frame.body)
            switch.call(Kind.CREDIT, who, address, talk)
    except BaseException:
        switch.call(Kind.GONE, who, address, talk)
        raise
    finally:
        switch.end(talk)


def _begin(frame: Frame, parcel: ModelSink) -> int:
    """Read the answer; returns the bytes that are to come."""
    if frame.kind is Kind.REFUSED:
        refused = _decoded(frame, PullRefused)
        raise PullDenied(refused.code, refused.retry_s)
    if frame.kind is not Kind.HEAD:
        raise PullBroken("unreachable")
    header = _decoded(frame, ModelHeader)
    parcel.begin(header)
    return header.size - header.offset


def _decoded(frame: Frame, wanted: type[Message]) -> Message:
    try:
        found = decode(bytes(frame.body), "peer")
    except BadMessage:
        raise PullBroken("malformed") from None
    if not isinstance(found, wanted):
        raise PullBroken("malformed")
    return found
