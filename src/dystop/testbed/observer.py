"""The observer: tests everybody's published model, so that the coordinator never holds any.

It has a session and a name of its own, is no worker, and nobody waits for it but the records.
"""

import itertools
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dystop.control.aggregation import global_weights
from dystop.sparse import Ints
from dystop.testbed.events import (
    Counters,
    Exit,
    Fetch,
    Fetched,
    SessionLost,
    SessionOpened,
    Told,
    Vector,
)
from dystop.testbed.log_throttle import throttled_logger
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import (
    PROTOCOL,
    Evaluate,
    Heartbeat,
    Join,
    JoinOk,
    Leave,
    Peer,
    PullRequest,
    Reject,
    Roster,
    Scored,
    Stop,
)
from dystop.testbed.protocol.payload import PayloadReceiver, Schema
from dystop.testbed.transport.interface import Listener, Transport
from dystop.testbed.worker.process import SessionClient
from dystop.testbed.worker.pulls import pull

if TYPE_CHECKING:
    from dystop.training.trainer import Trainer

_LOG = throttled_logger(__name__)
AT_ONCE = 4  # models fetched side by side
TICK_S = 0.1


@dataclass(frozen=True)
class ObserverComponents:
    """What an observer is made of."""

    transport: Transport
    coordinator: str  # its address
    schema: Schema
    trainer: "Trainer"  # anything with its `evaluate`
    counters: Counters  # integers of the initial model; they do not change a test
    data_size: Ints  # D_i, [N]
    samples: int | None = None  # test images per model; None: all
    fetch_s: float = 15.0  # for fetching all models of a round
    software: str = ""
    timeouts: Timeouts = field(default_factory=Timeouts)


class Observer:
    """Answers `Evaluate` with `Scored`: `start`, then `wait`; or `run` for both."""

    def __init__(self, parts: ObserverComponents) -> None:
        """Nothing runs yet."""
        self.parts = parts
        self._events: queue.SimpleQueue[SessionOpened | SessionLost | Told] = queue.SimpleQueue()
        self._line = SessionClient(self._events.put)
        self._examiner = ThreadPoolExecutor(1, "examiner")
        self._pool = ThreadPoolExecutor(AT_ONCE, "fetch")
        self._over, self._ended = threading.Event(), threading.Event()
        self._peers: dict[int, Peer] = {}
        self._incarnation = time.time_ns()
        self._epoch = self._seq = 0
        self._run = ""  # learned from the coordinator
        self._keys = itertools.count(1)
        self._beat_s: float | None = None  # when the next heartbeat is due; None: not joined
        self._join_s: float | None = None  # when to ask again
        self._heartbeat_s = parts.timeouts.heartbeat_s
        self._session: Listener | None = None
        self._thread = threading.Thread(target=self._listen, name="observer", daemon=True)
        self._told: dict[type, Callable[[Any], None]] = {
            JoinOk: self._join_ok,
            Roster: self._roster,
            Reject: self._reject,
            Evaluate: self._evaluate,
            Stop: self._stop,
        }
        self.exit: Exit | None = None

    def start(self) -> None:
        """Call the coordinator."""
        self._thread.start()
        self._session = self.parts.transport.open_session(self.parts.coordinator, self._line)

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the end; None where it has not come in time."""
        return self.exit if self._ended.wait(timeout_s) else None

    def run(self) -> Exit:
        """Start and wait for the end."""
        self.start()
        self._ended.wait()
        return self.exit or Exit(1)

    def stop(self, text: str = "stopped") -> None:
        """Say goodbye and end; returns at once."""
        self._events.put(Told(Stop(2**62, text)))

    def close(self) -> None:
        """End without a word, and leave no thread behind."""
        self._end(Exit(1, "closed"))
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _end(self, why: Exit) -> None:
        if self._over.is_set():
            return
        self.exit = why
        self._over.set()
        self._line.hang_up()
        if self._session is not None:
            self._session.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._examiner.shutdown(wait=True, cancel_futures=True)
        self._ended.set()

    # The conversation --------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while not self._over.is_set():
                with suppress(queue.Empty):
                    self._handle(self._events.get(timeout=TICK_S))
                self._tick(time.monotonic())
        except Exception as error:
            _LOG.exception("the observer cannot go on")
            self._end(Exit(1, f"{type(error).__name__}: {error}"))

    def _handle(self, event: SessionOpened | SessionLost | Told) -> None:
        if isinstance(event, SessionOpened):
            self._join()
        elif isinstance(event, SessionLost):
            self._beat_s = self._join_s = None
        elif getattr(event.message, "epoch", self._epoch) >= self._epoch:
            handler = self._told.get(type(event.message))
            if handler:
                handler(event.message)

    def _join(self) -> None:
        self._join_s = None
        parts = self.parts
        self._line.say(
            Join(
                protocol=PROTOCOL,
                run=self._run,
                incarnation=self._incarnation,
                address="",
                schema=parts.schema.hash,
                software=parts.software,
                data_size=0,
                label_counts=(),
                version=0,
                number=-1,
                last_round=0,
                phase="idle",
                epoch=self._epoch,
            )
        )

    def _tick(self, now: float) -> None:
        if self._join_s is not None and now >= self._join_s:
            self._join()
        if self._beat_s is not None and now >= self._beat_s:
            self._beat_s = now + self._heartbeat_s
            self._seq += 1
            self._line.say(Heartbeat(self._seq, self._epoch))

    def _join_ok(self, message: JoinOk) -> None:
        self._epoch, self._run = message.epoch, message.run
        self._heartbeat_s = message.heartbeat_s or self._heartbeat_s
        self._beat_s = time.monotonic()
        self._peers = {p.node: p for p in message.peers}

    def _roster(self, message: Roster) -> None:
        self._peers = {p.node: p for p in message.peers}

    def _reject(self, message: Reject) -> None:
        if message.retry_s <= 0:
            self._end(Exit(2, f"the coordinator refused: {message.code}: {message.text}"))
        else:
            self._join_s = time.monotonic() + message.retry_s

    def _stop(self, message: Stop) -> None:
        self._line.say(Leave(message.text))
        self._end(Exit(0, message.text))

    # The test ----------------------------------------------------------------------------------

    def _evaluate(self, message: Evaluate) -> None:
        """Test in a thread of its own, so that heartbeats go on; one round after another."""
        peers = [self._peers[k] for k in message.nodes if k in self._peers]
        self._examiner.submit(self._score, message, peers)

    def _score(self, message: Evaluate, peers: list[Peer]) -> None:
        try:
            models = self._gather(message.round, peers)
            score = score_of(self.parts, models)
            missing = tuple(k for k in message.nodes if k not in models)
            if score is not None and not self._over.is_set():
                self._line.say(Scored(message.round, **score, missing=missing))
        except Exception:
            _LOG.exception("the models of round %d could not be tested", message.round)

    def _gather(self, round_: int, peers: list[Peer]) -> dict[int, Vector]:
        """Published models by node: those that come from rounds up to this one."""
        deadline_s = time.monotonic() + self.parts.fetch_s
        found = self._pool.map(lambda peer: self._fetch(round_, peer, deadline_s), peers)
        return {p.node: v for p, v in zip(peers, found, strict=True) if v is not None}

    def _fetch(self, round_: int, peer: Peer, deadline_s: float) -> Vector | None:
        request = PullRequest(self._run, round_ + 1)
        action = Fetch(next(self._keys), peer.node, peer.name, peer.address, request, deadline_s)
        event = pull(
            self.parts.transport,
            action,
            lambda: PayloadReceiver(self.parts.schema),
            self.parts.timeouts,
            self._over,
        )
        return event.vector if isinstance(event, Fetched) else None


def score_of(parts: ObserverComponents, models: dict[int, Vector]) -> dict[str, Any] | None:
    """Accuracy of every worker's own model and of the global one, as the simulator works it out.

    The global model is weighted by data size over the models that are there (eq:weightedmodel). A
    server's is not tested. None where no model came.
    """
    import torch

    from dystop.training.evaluate import score_from

    nodes = sorted(k for k in models if k < len(parts.data_size))
    if not nodes:
        return None
    stack = torch.from_numpy(np.stack([models[k] for k in nodes]))
    counters = torch.from_numpy(np.array(parts.counters, np.int64)).expand(len(nodes), -1)
    each = parts.trainer.evaluate(stack, counters, parts.samples)
    share = torch.from_numpy(global_weights(parts.data_size[nodes])).to(stack)
    whole = parts.trainer.evaluate((share @ stack)[None], counters[:1], parts.samples)
    score = asdict(score_from(each, whole))
    return score | {name: _finite(score[name]) for name in ("loss", "loss_global")}


def _finite(value: float) -> float | None:
    """Return the number, or None where it is not finite: messages hold only finite numbers."""
    return value if math.isfinite(value) else None
