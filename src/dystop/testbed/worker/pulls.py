"""Pull models from peers: resume after breaks, back off, and respect deadlines.

A peer that says "busy" is asked again for a while; then the pull has failed. A peer whose pulls
failed before gets less time to answer, so that it costs a round less each time.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dystop.rng import stream
from dystop.testbed.events import PeerIncident, PullFailed, PullFinished, StartPull, Vector
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.log_throttle import shown, throttled_logger
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.coded import CodedReceiver, CopyStore
from dystop.testbed.protocol.messages import RejectCode
from dystop.testbed.protocol.payload import PayloadReceiver, Schema, wanted
from dystop.testbed.protocol.pulls import ModelHeader, PullBroken, PullDenied
from dystop.testbed.transport.interface import PullTimeouts, Transport

_LOG = throttled_logger(__name__)
MAX_PARALLEL_PULLS = 16
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 1.5  # bounds of the pause between attempts, before jitter
_TRANSIENT = ("not_authorised", "no_model")  # may end soon: a new roster is on its way
_TRANSIENT_TRIES = 3
_CORRUPT = ("digest", "malformed")  # the received bytes are useless; restart once
BUSY_SHARE = 1 / 3  # of the time of a pull in which its peer may be busy
FAILURE, SUCCESS = 2, 1  # a failed pull weighs as much as two successful ones
MAX_FAILURES = 12
SHORTEST_WAIT_S, SHORTEST_BUSY_S = 1.0, 0.25  # for a peer whose pulls always fail
_PERMANENT = ("wrong_run", "schema", "size", "not_finite")

Clock = Callable[[], float]


class _CancelledOrExpired(threading.Event):
    """Set when another event is set, or when the deadline has passed."""

    def __init__(self, other: threading.Event, clock: Clock, deadline_s: float) -> None:
        super().__init__()
        self._other, self._clock, self._deadline_s = other, clock, deadline_s

    def is_set(self) -> bool:
        return self._other.is_set() or self._clock() >= self._deadline_s


@dataclass
class _Attempts:
    """The history of a pull, which decides whether another attempt makes sense."""

    without_progress: int = 0  # attempts in a row that delivered no byte
    refused: int = 0
    corrupt: int = 0
    broken_since_s: float | None = None  # first break since the last byte
    busy_since_s: float | None = None  # start of the first refused attempt since the last byte
    resumes: int = 0
    discarded_bytes: int = 0
    last_code: RejectCode = "timeout"

    def progress(self) -> None:
        """Register received bytes."""
        self.without_progress, self.broken_since_s, self.busy_since_s = 0, None, None

    def gives_up_after(
        self, error: PullBroken, began_s: float, now_s: float, waits: "_Waits"
    ) -> bool:
        """Register an attempt that broke; return whether to give up, for example after silence."""
        self.last_code = error.code
        self.without_progress += 1
        if error.code in _PERMANENT:
            return True
        if error.code in _CORRUPT:
            self.corrupt += 1
            return self.corrupt > 1
        if isinstance(error, PullDenied):
            return self._gives_up_after_denial(error, began_s, now_s, waits.busy_s)
        if self.broken_since_s is None:
            self.broken_since_s = now_s
        return now_s - self.broken_since_s >= waits.away_s

    def _gives_up_after_denial(
        self, error: PullDenied, began_s: float, now_s: float, busy_s: float
    ) -> bool:
        self.broken_since_s = None  # the peer is reachable
        if error.code == "busy":
            if self.busy_since_s is None:
                self.busy_since_s = began_s
            return now_s - self.busy_since_s >= busy_s
        if error.code in _TRANSIENT and error.retry_s == 0:
            self.refused += 1
            return self.refused >= _TRANSIENT_TRIES
        return error.code == "timeout"  # the sender has closed the round


@dataclass(frozen=True)
class _Waits:
    """How long a pull waits for a peer that does not send."""

    connect_s: float
    first_byte_s: float
    away_s: float
    busy_s: float

    @classmethod
    def of(cls, timeouts: Timeouts, pull_s: float, patience: float) -> "_Waits":
        """Return the waits of a pull that may last `pull_s`, shortened by `patience`."""
        full = (timeouts.connect_s, timeouts.first_byte_s, timeouts.away_s)
        connect_s, first_s, away_s = (max(patience * s, min(s, SHORTEST_WAIT_S)) for s in full)
        busy_s = max(patience * BUSY_SHARE * pull_s, SHORTEST_BUSY_S)
        return cls(connect_s, first_s, away_s, busy_s)


@dataclass
class _PullJob:
    """One pull in progress."""

    transport: Transport
    action: StartPull
    make_receiver: Callable[[], PayloadReceiver]
    timeouts: Timeouts
    over: _CancelledOrExpired
    clock: Clock
    sleep: Callable[[float], object]
    receiver: PayloadReceiver = field(init=False)
    attempts: _Attempts = field(default_factory=_Attempts)

    def __post_init__(self) -> None:
        self.receiver = self.make_receiver()
        self._rng = stream(self.action.key, "fetch pause", self.action.name)
        pull_s = self.action.deadline_s - self.clock()
        self._waits = _Waits.of(self.timeouts, pull_s, self.action.patience)

    def run(self) -> PullFinished | PullFailed:
        began_s = self.clock()
        while not self.over.is_set():
            attempt_s = self.clock()
            try:
                self._attempt()
                return self._finished(self.clock() - began_s)
            except PullBroken as error:
                if self.attempts.gives_up_after(error, attempt_s, self.clock(), self._waits):
                    break
                if error.code in _CORRUPT:
                    self._restart()
                self.sleep(self._pause_s(error))
        total = self.attempts.discarded_bytes + self.receiver.total
        code = self.attempts.last_code
        announced = self.receiver.announced
        return PullFailed(self.action.key, code, total, self.clock() - began_s, announced)

    def _attempt(self) -> None:
        """Try once; return when the model is complete."""
        action, receiver, offset = self.action, self.receiver, self.receiver.received
        if receiver.complete:
            return
        request = receiver.request(action.request)
        self.attempts.resumes += offset > 0
        total = receiver.total
        try:
            self.transport.pull(
                action.name, action.address, request, receiver, self._timeouts(), self.over
            )
        except PullBroken:
            if not receiver.complete:
                raise  # otherwise only the end of the stream was lost
        finally:
            if receiver.total > total:
                self.attempts.progress()

    def _timeouts(self) -> PullTimeouts:
        """Return the timeouts of one attempt; an exact pull may wait until the deadline."""
        left_s = max(0.001, self.action.deadline_s - self.clock())
        connect_s = min(self._waits.connect_s, left_s)
        first_s = min(self._waits.first_byte_s, left_s)
        if self.attempts.broken_since_s is not None:  # connect and first byte share `away_s`
            until_s = self.attempts.broken_since_s + self._waits.away_s
            away_s = max(0.2, until_s - self.clock())
            connect_s = min(connect_s, away_s)
            first_s = min(first_s, away_s - connect_s)
        if self.action.request.exact:
            first_s = left_s
        return PullTimeouts(connect_s, first_s, self.timeouts.progress_s)

    def _finished(self, seconds: float) -> PullFinished:
        receiver, attempts = self.receiver, self.attempts
        vector = receiver.finish()
        assert receiver.header is not None
        total = attempts.discarded_bytes + receiver.total
        key, resumes = self.action.key, attempts.resumes
        return PullFinished(key, receiver.header, vector, total, seconds, resumes)

    def _restart(self) -> None:
        self.attempts.discarded_bytes += self.receiver.total
        self.receiver = self.make_receiver()

    def _pause_s(self, error: PullBroken) -> float:
        """Return a pause with full jitter, so that peers do not all return at the same time.

        A peer may ask for a longer pause, but not for longer than `LONGEST_PAUSE_S`.
        """
        doublings = max(0, self.attempts.without_progress - 1)
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)
        asked_s = min(error.retry_s, LONGEST_PAUSE_S)
        pause_s = max(asked_s, float(self._rng.uniform(0.0, longest_s)))
        return min(pause_s, self._waits.busy_s, max(0.0, self.action.deadline_s - self.clock()))


def pull(
    transport: Transport,
    action: StartPull,
    make_receiver: Callable[[], PayloadReceiver],
    timeouts: Timeouts,
    cancelled: threading.Event,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], object] | None = None,
) -> PullFinished | PullFailed:
    """Pull a model; block until it has arrived or the pull is given up.

    Args:
        transport: The transport to the peer.
        action: What to pull from whom, until when on `clock`.
        make_receiver: Makes an empty receiver for this request.
        timeouts: How long a pull may make no progress.
        cancelled: Set when the model is no longer needed.
        clock: The machine's time.
        sleep: Waits between attempts; None: wait for `cancelled`.

    Returns:
        `PullFailed` with the last cause if the deadline passed, the peer was silent for too long,
        or another attempt cannot succeed. If the bytes do not match their digest, the model is
        pulled once more from the start.
    """
    over = _CancelledOrExpired(cancelled, clock, action.deadline_s)
    pause = sleep or cancelled.wait
    return _PullJob(transport, action, make_receiver, timeouts, over, clock, pause).run()


class PeerFailures:
    """How often pulls from each peer failed lately. Safe for several threads.

    >>> failures = PeerFailures()
    >>> for failed in (True, True, False):
    ...     failures.pull_ended("w01", failed)
    >>> failures.patience("w01"), failures.patience("w02")
    (0.125, 1.0)

    Peers that are busy count together as well: a worker that all others refuse notices it soon.
    """

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._busy = 0
        self._lock = threading.Lock()

    def pull_ended(self, peer: str, failed: bool, busy: bool = False) -> None:
        """Count a pull."""
        with self._lock:
            self._count[peer] = _counted(self._count.get(peer, 0), failed)
            self._busy = _counted(self._busy, busy)

    def patience(self, peer: str) -> float:
        """Return the factor on the time that a peer has to answer."""
        with self._lock:
            return float(0.5 ** max(self._count.get(peer, 0), self._busy))


def _counted(count: int, failed: bool) -> int:
    return min(max(count + (FAILURE if failed else -SUCCESS), 0), MAX_FAILURES)


class PullThreads:
    """A pool of threads that pull; results go to `put`, except those of cancelled pulls."""

    def __init__(
        self,
        transport: Transport,
        schema: Schema,
        timeouts: Timeouts,
        put: Callable[[PullFinished | PullFailed | PeerIncident], None],
        copies: CopyStore | None = None,
    ) -> None:
        """Prepare the threads; `copies` are needed under a codec of differences."""
        self._transport, self._schema, self._timeouts = transport, schema, timeouts
        self._put, self._copies = put, copies
        self._pool = ThreadPoolExecutor(MAX_PARALLEL_PULLS, "pull")
        self._cancelled: dict[int, threading.Event] = {}
        self._failures = PeerFailures()

    def start(self, action: StartPull) -> None:
        """Pull as soon as a thread is free."""
        cancelled = self._cancelled[action.key] = threading.Event()
        with suppress(RuntimeError):  # the pool is closed: the process ends
            self._pool.submit(self._run, action, cancelled)

    def cancel(self, key: int) -> None:
        """Give up a pull; no event follows."""
        cancelled = self._cancelled.get(key)
        if cancelled is not None:
            cancelled.set()

    def close(self) -> None:
        """Cancel all pulls and wait for the threads to end."""
        for cancelled in list(self._cancelled.values()):
            cancelled.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, action: StartPull, cancelled: threading.Event) -> None:
        event: PullFinished | PullFailed
        try:
            reach("worker.before_pull")
            make = self._receiver_factory(action)
            action = replace(action, patience=self._failures.patience(action.name))
            event = pull(self._transport, action, make, self._timeouts, cancelled)
        except Exception as error:  # a failpoint or a defect: the round continues without the model
            _LOG.error("pull from %s: %s", shown(action.name), shown(repr(error)))
            event = PullFailed(action.key, "unreachable")
        self._cancelled.pop(action.key, None)
        if not cancelled.is_set():
            self._count(action, event)
            self._put(event)

    def _count(self, action: StartPull, event: PullFinished | PullFailed) -> None:
        code = event.code if isinstance(event, PullFailed) else None
        failed, busy = code in ("busy", "timeout", "unreachable"), code == "busy"
        self._failures.pull_ended(action.name, failed, busy)
        if busy:
            text = f"no model of round {action.request.round} within {event.seconds:.1f} s"
            self._put(PeerIncident(action.name, "busy", text))

    def _receiver_factory(self, action: StartPull) -> Callable[[], PayloadReceiver]:
        schema, copies, delta = self._schema, self._copies, action.request.delta
        if schema.codec is not None and copies is not None:
            return lambda: _CodedWithFailpoints(schema, action.node, copies, delta=delta)
        kind, kept = wanted(schema, action.request)
        return lambda: _ReceiverWithFailpoints(schema, kind, kept)


class _ReceiverWithFailpoints(PayloadReceiver):
    """A receiver that reaches the failpoints of a pull."""

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


class _CodedWithFailpoints(_ReceiverWithFailpoints, CodedReceiver):
    """A receiver of a codec's messages that reaches the same failpoints."""
