"""The observer: a process that evaluates all published models, and checks refused ones.

The coordinator therefore never holds a model. The observer has a name and a session of its own, but
it is no worker. Only the records wait for it.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dystop.control.aggregation import global_weights
from dystop.format import FORMAT
from dystop.sparse import Ints
from dystop.testbed.events import (
    Counters,
    Exit,
    MessageFromCoordinator,
    PullFailed,
    PullFinished,
    SessionLost,
    SessionOpened,
    StartPull,
    Vector,
)
from dystop.testbed.judgement import ModelCheck
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.launch.health import Health, HealthState
from dystop.testbed.log_throttle import shown, throttled_logger
from dystop.testbed.params import Guards, Timeouts
from dystop.testbed.protocol.coded import CodedReceiver, NothingHeld
from dystop.testbed.protocol.messages import (
    Evaluate,
    Heartbeat,
    Join,
    JoinOk,
    Judge,
    Leave,
    NotTestable,
    Peer,
    Reject,
    Roster,
    Scored,
    Stop,
)
from dystop.testbed.protocol.payload import PayloadReceiver, Schema, wanted
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.transport.interface import Listener, Transport
from dystop.testbed.worker.pulls import pull
from dystop.testbed.worker.session_client import SessionClient, SessionEvent
from dystop.units import known

if TYPE_CHECKING:
    from dystop.training.trainer import Trainer

_LOG = throttled_logger(__name__)
MAX_PARALLEL_PULLS = 4
CHECK_S = 20.0  # to pull a refused model, and others to compare it with
TICK_S = 0.1


@dataclass(frozen=True)
class ObserverComponents:
    """The parts of an observer."""

    transport: Transport
    coordinator: str  # its address
    schema: Schema
    trainer: "Trainer"  # or any object with its `evaluate`
    counters: Counters  # integers of the initial model; they do not affect the evaluation
    data_size: Ints  # D_i, [N]
    samples: int | None = None  # test samples per model; None: all
    left_out: frozenset[int] = frozenset()  # workers whose models do not count
    per_worker: bool = False  # report the results of single workers, too
    pull_s: float = 15.0  # to pull all models of a round
    software: str = ""
    timeouts: Timeouts = field(default_factory=Timeouts)
    guards: Guards = field(default_factory=Guards)


class Observer:
    """Answers every `Evaluate` and `Judge`: `start`, then `wait`; or `run` for both.

    One round is evaluated at a time. A round that waits for its turn gives way to a newer one. The
    last answer is sent again when the coordinator repeats its request, for example after a restart.
    """

    def __init__(self, components: ObserverComponents) -> None:
        """Prepare the observer; nothing runs yet."""
        self.components = components
        self._events: queue.SimpleQueue[SessionEvent] = queue.SimpleQueue()
        self._session = SessionClient(self._events.put)
        self._evaluator = ThreadPoolExecutor(1, "evaluate")
        self._checker = ThreadPoolExecutor(1, "check")
        self._pool = ThreadPoolExecutor(MAX_PARALLEL_PULLS, "pull")
        self._over, self._ended = threading.Event(), threading.Event()
        self._turn = threading.Lock()  # guards the next three
        self._evaluating = 0  # the round that is being evaluated; 0: none
        self._waiting: Evaluate | None = None
        self._answer: Scored | NotTestable | None = None  # the last one
        self._peers: dict[int, Peer] = {}
        self._incarnation = 0  # given by the coordinator
        self._epoch = self._seq = 0
        self._run = ""  # learned from the coordinator
        self._keys = itertools.count(1)
        self._next_heartbeat_s: float | None = None  # None: not joined
        self._next_join_s: float | None = None
        self._heartbeat_s = components.timeouts.heartbeat_s
        self._listener: Listener | None = None
        self._turned_s = time.monotonic()  # when the loop turned last
        self._thread = threading.Thread(target=self._loop, name="observer", daemon=True)
        self._message_handlers: dict[type, Callable[[Any], None]] = {
            JoinOk: self._on_join_ok,
            Roster: self._on_roster,
            Reject: self._on_reject,
            Evaluate: self._on_evaluate,
            Judge: self._on_judge,
            Stop: self._on_stop,
        }
        self.exit: Exit | None = None

    def start(self) -> None:
        """Open the session to the coordinator."""
        self._thread.start()
        address, transport = self.components.coordinator, self.components.transport
        self._listener = transport.open_session(address, self._session)

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the end; return None after `timeout_s`."""
        return self.exit if self._ended.wait(timeout_s) else None

    def health(self) -> Health:
        """Return whether the observer works and has joined; callable from any thread."""
        state: HealthState = "waiting" if self._next_heartbeat_s is None else "joined"
        return Health("observer", state, self._turned_s)

    def run(self) -> Exit:
        """Start and wait for the end."""
        self.start()
        self._ended.wait()
        return self.exit or Exit(1)

    def stop(self, text: str = "stopped") -> None:
        """Leave and end; return immediately."""
        self._events.put(MessageFromCoordinator(Stop(2**62, text)))

    def close(self) -> None:
        """End without a message and wait for all threads."""
        self._end(Exit(1, "closed"))
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _end(self, reason: Exit) -> None:
        if self._over.is_set():
            return
        self.exit = reason
        self._over.set()
        self._session.close()
        if self._listener is not None:
            self._listener.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._evaluator.shutdown(wait=True, cancel_futures=True)
        self._checker.shutdown(wait=True, cancel_futures=True)
        self._ended.set()

    # The session -------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._over.is_set():
                self._turned_s = time.monotonic()
                with suppress(queue.Empty):
                    self._handle(self._events.get(timeout=TICK_S))
                self._tick(time.monotonic())
        except Exception as error:
            _LOG.exception("the observer cannot continue")
            self._end(Exit(1, f"{type(error).__name__}: {error}"))

    def _handle(self, event: SessionEvent) -> None:
        if isinstance(event, SessionOpened):
            self._join()
        elif isinstance(event, SessionLost):
            self._next_heartbeat_s = self._next_join_s = None
        elif getattr(event.message, "epoch", self._epoch) >= self._epoch:
            handler = self._message_handlers.get(type(event.message))
            if handler:
                handler(event.message)

    def _join(self) -> None:
        self._next_join_s = None
        self._session.send(
            Join(
                format=FORMAT,
                run=self._run,
                incarnation=self._incarnation,
                address="",
                schema=self.components.schema.hash,
                software=self.components.software,
                data_size=0,
                label_counts=(),
                version=0,
                number=-1,
                last_round=0,
                phase="idle",
                epoch=self._epoch,
            )
        )

    def _tick(self, now_s: float) -> None:
        if self._next_join_s is not None and now_s >= self._next_join_s:
            self._join()
        if self._next_heartbeat_s is not None and now_s >= self._next_heartbeat_s:
            self._next_heartbeat_s = now_s + self._heartbeat_s
            self._seq += 1
            self._session.send(Heartbeat(self._seq, self._epoch))

    def _on_join_ok(self, message: JoinOk) -> None:
        self._epoch, self._run = message.epoch, message.run
        self._incarnation = message.incarnation
        self._heartbeat_s = message.heartbeat_s or self._heartbeat_s
        self._next_heartbeat_s = time.monotonic()
        self._peers = {p.node: p for p in message.peers}

    def _on_roster(self, message: Roster) -> None:
        self._peers = {p.node: p for p in message.peers}

    def _on_reject(self, message: Reject) -> None:
        if message.retry_s <= 0:
            self._end(Exit(2, f"the coordinator refused: {message.code}: {message.text}"))
        else:
            self._next_join_s = time.monotonic() + message.retry_s

    def _on_stop(self, message: Stop) -> None:
        self._session.send(Leave(message.text))
        self._end(Exit(0, message.text))

    # Evaluation --------------------------------------------------------------------------------

    def _on_evaluate(self, message: Evaluate) -> None:
        """Evaluate the newest round in a thread, so that heartbeats continue."""
        skipped: Evaluate | None = None
        with self._turn:
            answer = self._answer
            if answer is None or answer.round != message.round:
                answer = None
                if message.round != self._evaluating:
                    skipped, self._waiting = self._waiting, message
                    if skipped is None:
                        self._evaluator.submit(self._evaluate_waiting)
        if answer is not None:
            self._session.send(answer)
        if skipped is not None and skipped.round != message.round:
            self._session.send(NotTestable(skipped.round, "a newer round came before its turn"))

    def _evaluate_waiting(self) -> None:
        with self._turn:
            message, self._waiting = self._waiting, None
            assert message is not None  # it is submitted with one, and only replaced
            self._evaluating = message.round
        answer = self._evaluate(message)
        with self._turn:
            self._evaluating, self._answer = 0, answer
        if not self._over.is_set():
            self._session.send(answer)

    def _evaluate(self, message: Evaluate) -> Scored | NotTestable:
        try:
            reach("observer.before_evaluate")
            return self._score(message)
        except Exception as error:
            _LOG.exception("the models of round %d could not be evaluated", message.round)
            return NotTestable(message.round, shown(f"{type(error).__name__}: {error}"))

    def _score(self, message: Evaluate) -> Scored | NotTestable:
        round_, wanted = message.round, message.nodes
        models = self._pull_all(round_, [self._peers[k] for k in wanted if k in self._peers])
        missing = tuple(k for k in wanted if k not in models)
        if missing:
            _LOG.warning(
                "round %d: %d of %d models arrived; those of nodes %s are missing",
                round_, len(models), len(wanted), shown(str(list(missing))),
            )  # fmt: skip
        score = evaluate_models(self.components, models)
        if score is None:
            return NotTestable(round_, f"none of {len(wanted)} models arrived")
        return Scored(round_, **score, missing=missing)

    def _pull_all(self, round_: int, peers: list[Peer]) -> dict[int, Vector]:
        """Return the published models of rounds up to this one, by node."""
        deadline_s = time.monotonic() + self.components.pull_s
        models = self._pool.map(lambda peer: self._pull(round_, peer, deadline_s), peers)
        return {p.node: m for p, m in zip(peers, models, strict=True) if m is not None}

    def _pull(self, round_: int, peer: Peer, deadline_s: float) -> Vector | None:
        event = self._pull_model(peer, PullRequest(self._run, round_ + 1), deadline_s)
        return event.vector if isinstance(event, PullFinished) else None

    def _pull_model(
        self, peer: Peer, request: PullRequest, deadline_s: float
    ) -> PullFinished | PullFailed:
        components, key = self.components, next(self._keys)
        action = StartPull(key, peer.node, peer.name, peer.address, request, deadline_s)
        make = partial(_receiver, components.schema, peer.node, request)
        return pull(components.transport, action, make, components.timeouts, self._over)

    # Refused models ----------------------------------------------------------------------------

    def _on_judge(self, message: Judge) -> None:
        """Check one model after another in a thread, so that heartbeats continue."""
        self._checker.submit(self._judge, message, dict(self._peers))

    def _judge(self, message: Judge, peers: dict[int, Peer]) -> None:
        components, deadline_s = self.components, time.monotonic() + CHECK_S
        check = ModelCheck(
            components.schema,
            components.guards,
            lambda peer, request: self._pull_model(peer, request, deadline_s),
        )
        try:
            self._session.send(check.judge(message, self._run, peers))
        except Exception:
            _LOG.exception("a model of node %d could not be checked", message.node)


def _receiver(schema: Schema, node: int, request: PullRequest) -> PayloadReceiver:
    """Return a receiver for what an observer requests: it tests models, and judges copies."""
    if request.holds is not None:
        return CodedReceiver(schema, node, NothingHeld(), delta=request.delta)
    return PayloadReceiver(schema, *wanted(schema, request))


def evaluate_models(
    components: ObserverComponents, models: dict[int, Vector]
) -> dict[str, Any] | None:
    """Evaluate the model of each worker and the global model, as the simulator does.

    The global model is the mean of the available models, weighted by data size (eq:weightedmodel).
    The models of a server and of those that are left out are not evaluated. Returns None if no
    model is left.
    """
    import torch

    from dystop.training.evaluate import score_from, with_workers

    workers = range(len(components.data_size))
    nodes = sorted(k for k in models if k in workers and k not in components.left_out)
    if not nodes:
        return None
    stack = torch.from_numpy(np.stack([models[k] for k in nodes]))
    counters = torch.from_numpy(np.array(components.counters, np.int64)).expand(len(nodes), -1)
    each = components.trainer.evaluate(stack, counters, components.samples)
    share = torch.from_numpy(global_weights(components.data_size[nodes])).to(stack)
    whole = components.trainer.evaluate((share @ stack)[None], counters[:1], components.samples)
    found = score_from(each, whole)
    if components.per_worker:
        found = with_workers(found, each, np.array(nodes), len(workers))
    score = asdict(found) | {"tested": len(nodes)}
    del score["name"]  # the coordinator knows it
    # Messages hold only finite numbers.
    return score | {name: known(score[name]) for name in ("loss", "loss_global")}
