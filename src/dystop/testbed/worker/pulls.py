"""Fetching one model until it is there or there is no hope: resumes, backs off, keeps deadlines."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dystop.rng import stream
from dystop.testbed.events import Fetch, Fetched, FetchFailed, Vector
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.log_throttle import shown, throttled_logger
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import (
    ModelHeader,
    PullBroken,
    PullDenied,
    PullRequest,
    RejectCode,
)
from dystop.testbed.protocol.payload import PayloadReceiver, Schema, wanted
from dystop.testbed.transport.interface import PullTimeouts, Transport

FIRST_S, MOST_S = 0.2, 1.5  # bounds of the pause between two attempts, before the dice
_CHANGES = ("not_authorised", "no_model")  # may be over in a moment: a roster is on its way
_CHANGES_TRIES = 3
_SPOILT = ("digest", "malformed")  # what came is worth nothing; once more from the beginning
_HOPELESS = ("wrong_run", "schema", "size")

Clock = Callable[[], float]


class _Expiring(threading.Event):
    """Set when another event is, or when the time is up."""

    def __init__(self, other: threading.Event, clock: Clock, deadline_s: float) -> None:
        super().__init__()
        self._other, self._clock, self._deadline_s = other, clock, deadline_s

    def is_set(self) -> bool:
        return self._other.is_set() or self._clock() >= self._deadline_s


@dataclass
class _Attempts:
    """What has been tried, and whether and when to try again."""

    in_vain: int = 0  # attempts in a row that brought no byte
    refused: int = 0
    spoilt: int = 0
    broke_at_s: float | None = None  # first break since the last byte
    resumes: int = 0
    wasted: int = 0  # bytes of parcels that were thrown away
    last: RejectCode = "timeout"

    def progress(self) -> None:
        """Bytes came."""
        self.in_vain, self.broke_at_s = 0, None

    def hopeless(self, error: PullBroken, now_s: float, away_s: float) -> bool:
        """Note a break; whether it is no use to go on, such as after `away_s` without a byte."""
        self.last = error.code
        self.in_vain += 1
        if error.code in _HOPELESS:
            return True
        if error.code in _SPOILT:
            self.spoilt += 1
            return self.spoilt > 1
        if isinstance(error, PullDenied):
            return self._denied(error)
        if self.broke_at_s is None:
            self.broke_at_s = now_s
        return now_s - self.broke_at_s >= away_s

    def _denied(self, error: PullDenied) -> bool:
        self.broke_at_s = None  # it is there
        if error.code in _CHANGES and error.retry_s == 0:
            self.refused += 1
            return self.refused >= _CHANGES_TRIES
        return error.code == "timeout"  # the round is over at the other end


@dataclass
class _Job:
    """One fetch in progress."""

    transport: Transport
    action: Fetch
    make: Callable[[], PayloadReceiver]
    timeouts: Timeouts
    over: _Expiring
    clock: Clock
    sleep: Callable[[float], object]
    parcel: PayloadReceiver = field(init=False)
    tries: _Attempts = field(default_factory=_Attempts)

    def __post_init__(self) -> None:
        self.parcel = self.make()
        self._dice = stream(self.action.key, "fetch pause", self.action.name)

    def run(self) -> Fetched | FetchFailed:
        began_s = self.clock()
        while not self.over.is_set():
            try:
                self._pull()
                return self._fetched(self.clock() - began_s)
            except PullBroken as error:
                if self.tries.hopeless(error, self.clock(), self.timeouts.away_s):
                    break
                if error.code in _SPOILT:
                    self._afresh()
                self.sleep(self._pause_s(error))
        total = self.tries.wasted + self.parcel.total
        return FetchFailed(self.action.key, self.tries.last, total, self.clock() - began_s)

    def _pull(self) -> None:
        """One attempt; returns when the parcel is complete."""
        action, parcel, before = self.action, self.parcel, self.parcel.received
        if parcel.complete:
            return
        request = replace(action.request, version=parcel.version, offset=before)
        self.tries.resumes += before > 0
        total = parcel.total
        try:
            self.transport.pull(
                action.name, action.address, request, parcel, self._patience(), self.over
            )
        except PullBroken:
            if not parcel.complete:
                raise  # else only the goodbye was lost
        finally:
            if parcel.total > total:
                self.tries.progress()

    def _patience(self) -> PullTimeouts:
        """An exact pull waits for its model as long as there is time."""
        left_s = max(0.001, self.action.deadline_s - self.clock())
        connect_s = min(self.timeouts.connect_s, left_s)
        first_s = min(self.timeouts.first_byte_s, left_s)
        if self.tries.broke_at_s is not None:  # connecting and the first byte, both together
            away_s = max(0.2, self.tries.broke_at_s + self.timeouts.away_s - self.clock())
            connect_s = min(connect_s, away_s)
            first_s = min(first_s, away_s - connect_s)
        if self.action.request.exact:
            first_s = left_s
        return PullTimeouts(connect_s, first_s, self.timeouts.progress_s)

    def _fetched(self, seconds: float) -> Fetched:
        parcel, tries = self.parcel, self.tries
        vector = parcel.finish()
        assert parcel.header is not None
        total = tries.wasted + parcel.total
        return Fetched(self.action.key, parcel.header, vector, total, seconds, tries.resumes)

    def _afresh(self) -> None:
        self.tries.wasted += self.parcel.total
        self.parcel = self.make()

    def _pause_s(self, error: PullBroken) -> float:
        """Full jitter, so that those who were cut together do not come back together."""
        most_s = min(MOST_S, FIRST_S * 2.0 ** max(0, self.tries.in_vain - 1))
        pause_s = max(error.retry_s, float(self._dice.uniform(0.0, most_s)))
        return min(pause_s, max(0.0, self.action.deadline_s - self.clock()))


def pull(
    transport: Transport,
    action: Fetch,
    parcel_factory: Callable[[], PayloadReceiver],
    timeouts: Timeouts,
    cancelled: threading.Event,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], object] | None = None,
) -> Fetched | FetchFailed:
    """Fetch a model, blocking, and say what came of it.

    Args:
        transport: The way to the peer.
        action: What to fetch from whom, until when on `clock`.
        parcel_factory: Makes an empty parcel for this request.
        timeouts: How long a pull may stand still.
        cancelled: Set when nobody wants the model any more.
        clock: The machine's time.
        sleep: Waits; None: until `cancelled`.

    Returns:
        `FetchFailed` with the last reason once the deadline is over, the peer stayed away for
        too long, or its answer leaves no hope. After bytes that do not fit their digest the
        model is fetched once more from the beginning, and then given up.
    """
    over = _Expiring(cancelled, clock, action.deadline_s)
    pause = sleep or cancelled.wait
    return _Job(transport, action, parcel_factory, timeouts, over, clock, pause).run()


# MERGED: The threads of a node that fetch models.


_LOG = throttled_logger(__name__)
AT_ONCE = 16


class PullThreads:
    """Fetches in the background; hands what came of it to `put`, unless it was abandoned."""

    def __init__(
        self,
        transport: Transport,
        schema: Schema,
        timeouts: Timeouts,
        put: Callable[[Fetched | FetchFailed], None],
    ) -> None:
        """Nothing is fetched yet."""
        self._transport, self._schema, self._timeouts = transport, schema, timeouts
        self._put = put
        self._pool = ThreadPoolExecutor(AT_ONCE, "fetch")
        self._cancelled: dict[int, threading.Event] = {}

    def begin(self, action: Fetch) -> None:
        """Fetch as soon as a thread is free."""
        cancelled = self._cancelled[action.key] = threading.Event()
        with suppress(RuntimeError):  # closed: the node ends
            self._pool.submit(self._run, action, cancelled)

    def abandon(self, key: int) -> None:
        """Give up a fetch; nothing more is heard of it."""
        cancelled = self._cancelled.get(key)
        if cancelled is not None:
            cancelled.set()

    def close(self) -> None:
        """Give up all; returns when the threads are gone."""
        for cancelled in list(self._cancelled.values()):
            cancelled.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, action: Fetch, cancelled: threading.Event) -> None:
        event: Fetched | FetchFailed
        try:
            reach("worker.before_pull")
            make = self._maker(action.request)
            event = pull(self._transport, action, make, self._timeouts, cancelled)
        except Exception as error:  # a failpoint, or a mistake of ours: the round goes on without
            _LOG.error("fetching from %s: %s", shown(action.name), shown(repr(error)))
            event = FetchFailed(action.key, "unreachable")
        self._cancelled.pop(action.key, None)
        if not cancelled.is_set():
            self._put(event)

    def _maker(self, request: PullRequest) -> Callable[[], PayloadReceiver]:
        kind, kept = wanted(self._schema, request)
        return lambda: _WatchedParcel(self._schema, kind, kept)


class _WatchedParcel(PayloadReceiver):
    """A parcel that passes by the failpoints of a pull."""

    def begin(self, header: ModelHeader) -> None:
        super().begin(header)
        reach("worker.after_header")

    def write(self, chunk: memoryview) -> None:
        super().write(chunk)
        reach("worker.mid_chunk")

    def finish(self) -> Vector:
        vector = super().finish()
        reach("worker.after_digest")
        return vector
