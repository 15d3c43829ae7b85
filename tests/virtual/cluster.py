"""A whole testbed in virtual time: one coordinator machine, worker machines, a bad network.

All events are drawn from a seed, so that a failure can be repeated. The cluster carries out the
actions of the machines as the real processes do: actions that wait for a write are carried out only
after the write succeeded, and a process that dies leaves nothing but its disk.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from dystop.rng import stream
from dystop.testbed.events import (
    AnswerPull,
    CancelPull,
    CheckpointFailed,
    CheckpointSaved,
    CloseSession,
    Commit,
    CommitFailed,
    EpochFound,
    Exit,
    FinishRun,
    LogWarning,
    LookUpEpoch,
    Publication,
    PublishRecord,
    PullFailed,
    PullFinished,
    PullRequested,
    PullWithdrawn,
    RestartFromLedger,
    SaveCheckpoint,
    SendToCoordinator,
    SendToMember,
    StartPull,
    StartTraining,
    Tick,
    TrainingFinished,
)
from dystop.testbed.ledger.tables import RoundLine
from dystop.testbed.protocol.messages import Execute
from dystop.testbed.protocol.pulls import ModelHeader, PullRefused
from dystop.testbed.worker.history import EventLogger
from virtual.faults import CALM, Episode, Faults, draw_episodes
from virtual.processes import Crash, Process
from virtual.schedule import Schedule
from virtual.sessions import Sessions
from virtual.toy import WIDTH, on_the_wire, train, wire_digest

TICK_S = 0.5
DETECT_S = 3.0  # until a cut is noticed
MakeWorker = Callable[[Process], Any]  # (process with disk and life) -> WorkerMachine
MakeCoordinator = Callable[[Process], Any]


@dataclass
class RunningPull:
    """A pull in progress: its receiver, its sender, and the receiver's key."""

    receiver: Process
    life: int
    key: int
    server: Process
    action: StartPull
    until_s: float
    begun_s: float
    over: bool = False
    refused: int = 0


class Cluster(Sessions):
    """All processes of a run. `run` lasts until the coordinator finishes the run."""

    def __init__(
        self,
        make_coordinator: MakeCoordinator,
        make_worker: MakeWorker,
        names: Sequence[str],
        seed: int = 0,
        faults: Faults = CALM,
    ) -> None:
        self.seed, self.faults = seed, faults
        self.rng = stream(seed, "virtual", "events")
        self.schedule = Schedule()
        self.make_coordinator, self.make_worker = make_coordinator, make_worker
        self.coordinator = Process("coordinator", -1)
        self.nodes = [Process(name, k) for k, name in enumerate(names)]
        self.by_name = {a.name: a for a in self.nodes}
        self.sessions: dict[str, int] = {}  # name -> number of its open session
        self.numbers = count(1)
        self.requests: dict[int, RunningPull] = {}  # by the server's key
        self.running: dict[tuple[str, int, int], RunningPull] = {}  # by (receiver, life, its key)
        self.cuts: list[frozenset[int]] = []
        self.last_at: dict[tuple[str, str], float] = {}  # order of a session
        self.finished: str | None = None
        self.published: list[PublishRecord] = []
        self.warnings: list[str] = []  # lines of the coordinator's log
        self.shipped: dict[tuple[int, int, str], Any] = {}  # (src, version, digest) -> vector
        self.committed: set[int] = set()  # rounds whose plans are on the disk
        self.served: list[tuple[Any, Any]] = []  # requests of models, and the headers of answers
        self.sent: list[tuple[float, str, Any]] = []  # every message from the coordinator
        self.received: list[tuple[float, str, Any]] = []  # and to it
        self.warnings: list[str] = []  # of the coordinator
        self.slow = {a.node: 10.0 if self.rng.random() < faults.slow else 1.0 for a in self.nodes}
        self.step_s = {a.node: 0.2 + 0.4 * self.rng.random() for a in self.nodes}

    # Start and crash ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes and schedule the fault episodes of the seed."""
        self.boot(self.coordinator)
        for process in self.nodes:
            self.boot(process)
        for episode in draw_episodes(self.faults, len(self.nodes), self.seed):
            self.schedule.after(episode.at_s, lambda e=episode: self.strike(e))

    def boot(self, process: Process) -> None:
        """Start a process from its disk."""
        process.life += 1
        process.offset_s = float(self.rng.uniform(0, 1e5))
        process.frozen, process.crash_in, process.waiting = False, None, []
        make = self.make_coordinator if process is self.coordinator else self.make_worker
        process.machine = make(process)
        if process is not self.coordinator:
            process.logger = EventLogger(
                lambda kind, **f: process.log_lines.append({"kind": kind, **f})
            )
            state = process.machine.state
            process.logger.started(
                incarnation=state.incarnation,
                version=state.version,
                number=state.number,
                round=state.last_round,
                epoch=state.epoch,
            )
            self.later(process, self.between(0.0, 0.3), lambda: self.connect(process))
        self.tick(process)

    def crash(self, process: Process) -> None:
        """End a process; its peers see their sessions break."""
        process.machine, process.crash_in, process.waiting = None, None, []
        process.life += 1
        if process is self.coordinator:
            for name in list(self.sessions):
                self.break_session(name)
        else:
            self.break_session(process.name)
        for pull in list(self.requests.values()):
            if pull.server is process:
                self.fail(pull, "unreachable")
            elif pull.receiver is process:
                self.forget(pull)

    def strike(self, episode: Episode) -> None:
        """Start a fault episode and schedule its end."""
        if self.finished is not None:
            return
        if episode.kind == "cut":
            self.cut(frozenset(episode.nodes), episode.lasts_s)
            return
        process = self.coordinator if episode.nodes[0] < 0 else self.nodes[episode.nodes[0]]
        if not process.up or process.frozen:
            return
        if episode.kind == "crash":
            process.crash_in = episode.at_action
            self.schedule.after(episode.lasts_s, lambda: self.revive(process))
        elif episode.kind == "freeze":
            self.freeze(process, episode.lasts_s)
        else:
            process.full = True
            self.schedule.after(episode.lasts_s, lambda: setattr(process, "full", False))

    def revive(self, process: Process) -> None:
        """Restart a crashed process; crash it first if it still runs."""
        if process.exits:
            return
        if process.up:
            self.crash(process)
        self.boot(process)

    def freeze(self, process: Process, lasts_s: float) -> None:
        process.frozen, life = True, process.life

        def thaw() -> None:
            if process.life != life or not process.up:
                return
            process.frozen = False
            waiting, process.waiting = process.waiting, []
            for event in waiting:
                if process.life == life:
                    self.handle(process, event)

        self.schedule.after(lasts_s, thaw)

    def cut(self, side: frozenset[int], lasts_s: float) -> None:
        """Isolate these nodes: they reach each other only."""
        self.cuts.append(side)

        def notice() -> None:
            if side in self.cuts:
                for node in side:
                    self.break_session(self.nodes[node].name)
                for pull in list(self.requests.values()):
                    if self.is_cut(pull.receiver.node, pull.server.node):
                        self.fail(pull, "unreachable")

        self.schedule.after(DETECT_S, notice)
        self.schedule.after(lasts_s, lambda: self.cuts.remove(side))

    def is_cut(self, a: int, b: int) -> bool:
        return any((a in side) != (b in side) for side in self.cuts)

    # Events to machines ------------------------------------------------------------------------

    def between(self, lo: float, hi: float) -> float:
        return float(self.rng.uniform(lo, hi))

    def clock_s(self, process: Process) -> float:
        return self.schedule.now_s + process.offset_s

    def later(self, process: Process, delay_s: float, call: Callable[[], None]) -> None:
        """Schedule a call that is skipped if the process has ended by then."""
        life = process.life
        self.schedule.after(
            delay_s, lambda: call() if process.life == life and process.up else None
        )

    def give(self, process: Process, delay_s: float, event: Any) -> None:
        self.later(process, delay_s, lambda: self.handle(process, event))

    def tick(self, process: Process) -> None:
        if process.up and not process.frozen:
            self.handle(process, Tick())
        self.later(process, TICK_S, lambda: self.tick(process))

    def handle(self, process: Process, event: Any) -> None:
        """Let a machine handle an event and execute its actions."""
        if process.frozen:
            process.waiting.append(event)
            return
        if process.logger is not None:
            process.logger.event(event)
        try:
            self.perform(process, process.machine.handle(event, self.clock_s(process)))
        except Crash:
            self.crash(process)

    def perform(self, process: Process, actions: Sequence[Any]) -> None:
        for action in actions:
            process.count_action()
            if not process.up:
                return
            if process.logger is not None:
                process.logger.action(action)
            getattr(self, _handler_name(action))(process, action)

    # Actions of workers ------------------------------------------------------------------------

    def on_send_to_coordinator(self, process: Process, action: SendToCoordinator) -> None:
        self.received.append((self.schedule.now_s, process.name, action.message))
        self.transmit(process.name, "up", action.message)

    def on_save_checkpoint(self, process: Process, action: SaveCheckpoint) -> None:
        if process.full:
            self.perform(
                process, process.machine.handle(CheckpointFailed("full"), self.clock_s(process))
            )
            return
        process.disk = action.state
        self.perform(process, process.machine.handle(CheckpointSaved(), self.clock_s(process)))
        self.perform(process, action.after_save)

    def on_start_training(self, process: Process, action: StartTraining) -> None:
        steps = self.slow[process.node] * self.step_s[process.node] * max(action.steps, 1)
        vector = train(action.vector, process.node, action.number, action.steps, action.rate)
        seconds = steps * self.between(0.9, 1.1)
        done = TrainingFinished(action.number, vector, action.counters, 1.0, action.steps, seconds)
        self.give(process, seconds, done)

    def on_start_pull(self, process: Process, action: StartPull) -> None:
        server = self.by_name[action.name]
        patience = max(action.deadline_s - self.clock_s(process), 0.0)
        now_s = self.schedule.now_s
        pull = RunningPull(
            process, process.life, action.key, server, action, now_s + patience, now_s
        )
        self.running[process.name, process.life, action.key] = pull
        self.schedule.after(patience, lambda: self.fail(pull, "timeout"))
        self.request(pull)

    def request(self, pull: RunningPull) -> None:
        """Send a pull request to the server under a new key."""
        number = next(self.numbers)
        self.requests[number] = pull
        delay = self.between(*self.faults.delay_s)
        bad = self.rng.random() < self.faults.pull_fails
        if bad or not pull.server.up or self.is_cut(pull.receiver.node, pull.server.node):
            self.schedule.after(delay, lambda: self.fail(pull, "unreachable"))
            return
        self.give(
            pull.server, delay, PullRequested(number, pull.receiver.name, pull.action.request)
        )

    def on_answer_pull(self, process: Process, action: AnswerPull) -> None:
        pull = self.requests.pop(action.key, None)
        if pull is None or pull.over:
            return
        if isinstance(action.answer, PullRefused):
            self.refuse(pull, action.answer)
            return
        self.ship(process, pull, action.answer)

    def refuse(self, pull: RunningPull, answer: PullRefused) -> None:
        """Repeat a refused pull after a pause, as a worker does."""
        pull.refused += answer.code in ("not_authorised", "no_model")
        pause_s = answer.retry_s or (0.3 if 0 < pull.refused <= 4 else 0.0)
        if pause_s > 0 and self.schedule.now_s + pause_s < pull.until_s:
            self.schedule.after(pause_s, lambda: None if pull.over else self.request(pull))
            return
        self.fail(pull, answer.code)

    def ship(self, server: Process, pull: RunningPull, publication: Publication) -> None:
        request = pull.action.request
        digest = wire_digest(publication.vector, request)
        header = ModelHeader(
            publication.version, publication.number, publication.round, 4 * WIDTH, digest, "toy"
        )
        server.logger.served(header, request)
        self.served.append((request, header))
        vector = np.array(on_the_wire(publication.vector, request))
        self.shipped[server.node, publication.version, digest] = np.array(publication.vector)
        self.end_pull(
            server, pull, lambda took: PullFinished(pull.key, header, vector, 4 * WIDTH, took)
        )

    def end_pull(
        self,
        server: Process,
        pull: RunningPull,
        end: Callable[[float], PullFinished | PullFailed],
    ) -> None:
        """Tell the receiver after a while how its pull ended, unless nobody waits for it."""

        def tell() -> None:
            if pull.over or self.is_cut(pull.receiver.node, server.node):
                return
            self.forget(pull)
            took = self.schedule.now_s - pull.begun_s
            if pull.receiver.life == pull.life and pull.receiver.up:
                self.handle(pull.receiver, end(took))

        self.schedule.after(self.between(0.02, 0.1), tell)

    def fail(self, pull: RunningPull, code: Any) -> None:
        if pull.over:
            return
        self.forget(pull)
        if pull.receiver.life == pull.life and pull.receiver.up:
            seconds = self.schedule.now_s - pull.begun_s
            self.handle(pull.receiver, PullFailed(pull.key, code, 0, seconds))

    def forget(self, pull: RunningPull) -> None:
        """End a pull; a server that still holds it gets `PullWithdrawn`."""
        pull.over = True
        self.running.pop((pull.receiver.name, pull.life, pull.key), None)
        for number in [k for k, a in self.requests.items() if a is pull]:
            del self.requests[number]
            self.give(pull.server, self.between(*self.faults.delay_s), PullWithdrawn(number))

    def on_cancel_pull(self, process: Process, action: CancelPull) -> None:
        pull = self.running.get((process.name, process.life, action.key))
        if pull is not None:
            self.forget(pull)

    def on_exit(self, process: Process, action: Exit) -> None:
        process.exits.append(action)
        self.crash(process)

    # Actions of the coordinator ----------------------------------------------------------------

    def on_send_to_member(self, process: Process, action: SendToMember) -> None:
        message = action.message
        if isinstance(message, Execute):  # no order leaves before its plan is committed
            assert message.round in self.committed
        self.sent.append((self.schedule.now_s, action.name, message))
        self.transmit(action.name, "down", message)

    def on_close_session(self, process: Process, action: CloseSession) -> None:
        self.schedule.after(self.faults.delay_s[1], lambda: self.break_session(action.name))

    def on_commit(self, process: Process, action: Commit) -> None:
        if process.full:
            self.perform(
                process, process.machine.handle(CommitFailed(action, "full"), self.clock_s(process))
            )
            return
        process.disk.write(action.entries)
        self.committed |= {e.round for e in action.entries if isinstance(e, RoundLine)}
        self.perform(process, action.after_commit)

    def on_look_up_epoch(self, process: Process, action: LookUpEpoch) -> None:
        self.give(process, 0.0, EpochFound(action.claim, process.disk.epoch()))

    def on_log_warning(self, process: Process, action: LogWarning) -> None:
        self.warnings.append(action.text)

    def on_restart_from_ledger(self, process: Process, action: RestartFromLedger) -> None:
        raise action.error  # no machine of the tests may meet an unexpected error

    def on_publish_record(self, process: Process, action: PublishRecord) -> None:
        self.published.append(action)

    def on_finish_run(self, process: Process, action: FinishRun) -> None:
        self.finished = action.reason

    # The end -----------------------------------------------------------------------------------

    def run(self, limit_s: float = 3600.0, after_s: float = 30.0) -> None:
        """Run until the coordinator finishes, and `after_s` longer for messages on their way."""
        self.start()
        while self.finished is None and self.schedule.now_s < limit_s and self.schedule.step():
            pass
        end_s = self.schedule.now_s + after_s
        while self.schedule.now_s < end_s and self.schedule.step():
            pass


def _handler_name(action: Any) -> str:
    """Return the name of the method for an action, such as `on_start_pull`."""
    return "on" + re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", type(action).__name__)


def names_of(nodes: int, server: bool = False) -> list[str]:
    names = [f"w{k:02d}" for k in range(nodes)]
    return [*names, "server"] if server else names
