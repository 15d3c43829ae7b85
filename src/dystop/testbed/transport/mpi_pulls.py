"""Pulls over MPI frames: the server uses one thread per transfer, the puller its own.

The sender may be `WINDOW` chunks ahead of what the puller has received, so that a slow puller does
not fill its memory.
"""

import queue
import threading
import time
from concurrent.futures import Future
from typing import TypeVar

from dystop.testbed.params import Limits
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.pulls import (
    ModelHeader,
    PullBroken,
    PullDenied,
    PullRefused,
    PullRequest,
)
from dystop.testbed.transport.admission import (
    BUSY_S,
    Allowed,
    PullLimiter,
    PullSlot,
    request_model,
    result_of,
)
from dystop.testbed.transport.interface import ModelSink, ModelSource, PullTimeouts, ServedModel
from dystop.testbed.transport.mpi_router import Frame, FrameKind, FrameRouter
from dystop.testbed.transport.pacing import paced

WINDOW = 4
_POLL_S = 0.05  # how often a wait checks whether it was cancelled
Message = TypeVar("Message", ModelHeader, PullRefused)


class _Transfer:
    """One model that is sent to a peer."""

    def __init__(
        self, server: "MpiModelServer", frame: Frame, request: PullRequest, slot: PullSlot
    ) -> None:
        self.server, self.frame, self.request, self.slot = server, frame, request, slot
        self.credits = threading.Semaphore(WINDOW)
        self.thread = threading.Thread(target=self._run, name="mpi-pull", daemon=True)

    def _run(self) -> None:
        try:
            found = self._answer(request_model(self.server.source, self.frame.name, self.request))
            if isinstance(found, PullRefused):
                self._reply(FrameKind.REFUSED, encode(found))
            elif found is not None:
                self._reply(FrameKind.HEAD, encode(found.header))
                self._stream(found)
        finally:
            self._reply(FrameKind.END)
            self.server.done(self)

    def _answer(
        self, asked: "Future[ServedModel | PullRefused]"
    ) -> ServedModel | PullRefused | None:
        """Return the answer of the source; None if the puller gives up before."""
        asked.add_done_callback(lambda _: self.slot.wake.set())
        while not asked.done() and not self.slot.ended.is_set():
            self.slot.wake.wait()
        asked.cancel()  # does nothing once it is done
        return None if self.slot.ended.is_set() else result_of(asked)

    def _stream(self, model: ServedModel) -> None:
        for chunk in paced(model, self.slot.ended):
            while not self.credits.acquire(timeout=_POLL_S):
                if self.slot.ended.is_set():
                    return
            self._reply(FrameKind.CHUNK, chunk)

    def _reply(self, kind: FrameKind, body: bytes | memoryview = b"") -> None:
        self.server.router.reply(kind, self.frame, body)


class MpiModelServer:
    """A worker's listener for pulls."""

    def __init__(
        self, router: FrameRouter, name: str, source: ModelSource, limits: Limits, allowed: Allowed
    ) -> None:
        self.router, self.name, self.source, self.allowed = router, name, source, allowed
        self.address = ""
        self._limiter, self._lock = PullLimiter(limits), threading.Lock()
        self._transfers: dict[tuple[int, int], _Transfer] = {}  # by rank and conversation

    def handle(self, frame: Frame) -> None:
        """Handle a frame."""
        if frame.kind is FrameKind.ASK:
            self.router.dispatcher.post(lambda: self._begin(frame))
            return
        with self._lock:
            transfer = self._transfers.get((frame.rank, frame.conversation))
        if transfer is None:
            return
        if frame.kind is FrameKind.CREDIT:
            transfer.credits.release()
        elif frame.kind is FrameKind.GONE:
            transfer.slot.cancel()

    def _begin(self, frame: Frame) -> None:
        wanted, _, request = bytes(frame.body).partition(b"\n")
        if wanted != self.name.encode():
            self.router.reply(FrameKind.END, frame)
            return
        found = self._admit(frame, request)
        if isinstance(found, PullRefused):
            self.router.reply(FrameKind.REFUSED, frame, encode(found))
            return
        with self._lock:
            self._transfers[frame.rank, frame.conversation] = found
        found.thread.start()

    def _admit(self, frame: Frame, body: bytes) -> _Transfer | PullRefused:
        """Accept or refuse a pull before anything is allocated."""
        if not self.allowed(frame.name, ""):
            return PullRefused("not_authorised")
        try:
            request = decode(body, "peer")
        except BadMessage:
            return PullRefused("malformed")
        if not isinstance(request, PullRequest):
            return PullRefused("malformed")
        slot = self._limiter.enter(frame.name)
        if slot is None:
            return PullRefused("busy", BUSY_S)
        return _Transfer(self, frame, request, slot)

    def done(self, transfer: _Transfer) -> None:
        """Remove a transfer that has ended."""
        self._limiter.leave(transfer.slot)
        with self._lock:
            self._transfers.pop((transfer.frame.rank, transfer.frame.conversation), None)

    def drop(self, name: str) -> None:
        """Cancel the pulls of a peer."""
        self._limiter.drop(name)

    def stop(self) -> None:
        """Cancel all pulls; returns when all threads have ended."""
        self.router.release(self.address)
        self._limiter.close()
        self.router.dispatcher.flush()
        with self._lock:
            transfers = list(self._transfers.values())
        for transfer in transfers:
            transfer.thread.join()


class _Inbox:
    """The frames that have arrived for a puller."""

    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()

    def handle(self, frame: Frame) -> None:
        self.frames.put(frame)

    def next(self, at_most_s: float, cancelled: threading.Event) -> Frame:
        """Return the next frame; raises PullBroken if none arrives in time or on `cancelled`."""
        until = time.monotonic() + at_most_s
        while not cancelled.is_set() and (left_s := until - time.monotonic()) > 0:
            try:
                return self.frames.get(timeout=min(left_s, _POLL_S))
            except queue.Empty:
                continue
        raise PullBroken("timeout")


def pull_once(
    router: FrameRouter,
    sender: int,
    peer: tuple[str, str],
    request: PullRequest,
    sink: ModelSink,
    timeouts: PullTimeouts,
    cancelled: threading.Event,
) -> None:
    """Pull in this thread; see `Transport.pull`. `peer` is name and address."""
    inbox, (name, address) = _Inbox(), peer
    conversation = router.open_conversation(inbox)
    router.call(
        FrameKind.ASK, sender, address, conversation, name.encode() + b"\n" + encode(request)
    )
    try:
        left = _begin(inbox.next(timeouts.first_byte_s, cancelled), sink)
        while left > 0:
            frame = inbox.next(timeouts.progress_s, cancelled)
            if frame.kind is not FrameKind.CHUNK:
                raise PullBroken("unreachable")
            sink.write(frame.body)
            left -= len(frame.body)
            router.call(FrameKind.CREDIT, sender, address, conversation)
    except BaseException:
        router.call(FrameKind.GONE, sender, address, conversation)
        raise
    finally:
        router.close_conversation(conversation)


def _begin(frame: Frame, sink: ModelSink) -> int:
    """Read the answer and return how many bytes follow."""
    if frame.kind is FrameKind.REFUSED:
        refused = _decoded(frame, PullRefused)
        raise PullDenied(refused.code, refused.retry_s)
    if frame.kind is not FrameKind.HEAD:
        raise PullBroken("unreachable")
    header = _decoded(frame, ModelHeader)
    sink.begin(header)
    return header.size - header.offset


def _decoded(frame: Frame, wanted: type[Message]) -> Message:
    try:
        found = decode(bytes(frame.body), "peer")
    except BadMessage:
        raise PullBroken("malformed") from None
    if not isinstance(found, wanted):
        raise PullBroken("malformed")
    return found
