"""Handlers, a model source and a sink that the tests of transports share."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from dystop.testbed.protocol.pulls import ModelHeader, PullBroken, PullRefused, PullRequest
from dystop.testbed.transport.interface import PullTimeouts, ServedModel

SOON = 10.0
RUN = "ab"
QUICK = PullTimeouts(connect_s=5.0, first_byte_s=5.0, progress_s=3.0)


def until(condition: Callable[[], bool], at_most_s: float = SOON) -> bool:
    end = time.monotonic() + at_most_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class RecordedEvents:
    """The events that a handler received, in order."""

    def __init__(self) -> None:
        self.events = queue.Queue()
        self.link = None
        self.links = {}
        self.incidents = []

    def next(self, at_most_s: float = SOON):
        return self.events.get(timeout=at_most_s)

    def until(self, wanted, at_most_s: float = SOON):
        """Take events until the wanted one; returns all that came before."""
        seen = []
        while (event := self.next(at_most_s)) != wanted:
            seen.append(event)
        return seen


class RecordingSessionHandler(RecordedEvents):
    def opened(self, name, link):
        self.links[name] = link
        self.events.put(("opened", name))

    def received(self, name, link, message):
        self.events.put(("received", name, message))

    def closed(self, name, link):
        self.events.put(("closed", name))

    def incident(self, name, kind, text):
        self.incidents.append((name, kind, text))


class RecordingClientHandler(RecordedEvents):
    def opened(self, link):
        self.link = link
        self.events.put(("opened",))

    def received(self, message):
        self.events.put(("received", message))

    def closed(self, reason):
        self.events.put(("closed",))
        self.reason = reason


class FakeModelSource:
    """A source with one payload; records all requests."""

    def __init__(self, payload: bytes = b"", bytes_per_s: float = 0.0, refuse=None, defer=False):
        self.payload, self.bytes_per_s, self.refuse, self.defer = (
            payload,
            bytes_per_s,
            refuse,
            defer,
        )
        self.requests = []
        self.deferred = []
        self.incidents = []

    def header(self, offset: int = 0) -> ModelHeader:
        return ModelHeader(3, 2, 1, len(self.payload), "0" * 64, "5c", offset)

    def requested(self, name: str, request: PullRequest) -> Future:
        self.requests.append((name, request))
        answer = Future()
        if self.defer:
            self.deferred.append(answer)
        else:
            answer.set_result(self.answer(request))
        return answer

    def incident(self, name: str, kind: str, text: str) -> None:
        self.incidents.append((name, kind, text))

    def answer(self, request: PullRequest) -> ServedModel | PullRefused:
        if self.refuse:
            return self.refuse
        view, half = memoryview(self.payload), len(self.payload) // 3
        parts = (view[:half], view[half:])
        return ServedModel(self.header(request.offset), parts, self.bytes_per_s)


class BufferSink:
    """A sink that keeps all bytes."""

    def __init__(self) -> None:
        self.header = None
        self.got = bytearray()
        self.first = threading.Event()

    def begin(self, header: ModelHeader) -> None:
        self.header = header

    def write(self, chunk: memoryview) -> None:
        self.got += chunk
        self.first.set()


def broken(call: Callable[[], None]) -> PullBroken:
    """Return the PullBroken that a call raises."""
    try:
        call()
    except PullBroken as error:
        return error
    raise AssertionError("the pull succeeded")


class BackgroundCall:
    """A call in a thread, with its result or its error."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._result = Future()
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call) -> None:
        try:
            self._result.set_result(call())
        except BaseException as error:
            self._result.set_exception(error)

    def result(self, at_most_s: float = SOON):
        return self._result.result(at_most_s)

    def broken(self, at_most_s: float = SOON) -> PullBroken:
        return broken(lambda: self.result(at_most_s))
