"""A coordinator machine with scripted workers in virtual time: no sockets, no models."""

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dystop.control.stopping import Evaluate as EvaluateRule
from dystop.control.stopping import Stop as StopRule
from dystop.errors import StorageError
from dystop.format import FORMAT
from dystop.mechanisms import MECHANISMS
from dystop.recorders.emulated_trainings import EmulatedTrainingsRecorder
from dystop.recorders.time_spent import TimeSpentRecorder
from dystop.recorders.topology import TopologyRecorder
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.members import Enrolled
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.events import (
    CloseSession,
    Commit,
    CommitFailed,
    EpochFound,
    FinishRun,
    LookUpEpoch,
    MemberDisconnected,
    MessageFromMember,
    PublishLateScore,
    PublishRecord,
    RestartFromLedger,
    SendToMember,
    Tick,
)
from dystop.testbed.ledger.tables import restore
from dystop.testbed.names import member_name
from dystop.testbed.params import TestbedParams, Timeouts
from dystop.testbed.protocol.messages import (
    Evaluate,
    Execute,
    ExecuteAck,
    Heartbeat,
    Join,
    JoinOk,
    Judge,
    Leave,
    Report,
    Scored,
    Stop,
    Used,
)
from dystop.types import Fleet
from dystop.world import World
from support.engine_fixtures import STABLE_WORLD, line
from support.testbed.memory_ledger import MemoryLedger

RUN, SCHEMA = "ab" * 16, "cd" * 32
QUICK = TestbedParams(links="free", observer=False, timeouts=Timeouts(gather_s=5.0))


def setup_for(mechanism: Any, n: int = 5, rounds: int = 8, **changes: Any) -> CoordinatorSetup:
    if isinstance(mechanism, str):
        mechanism = MECHANISMS[mechanism]()
    counts = np.full((n, 2), 4)
    server = mechanism.capabilities().server
    fleet = Fleet(counts.sum(axis=1), counts, 8, 40_000, rounds, 0, server)
    members = [Enrolled(member_name(k, n), k, 8, (4, 4), f"{k:064d}") for k in range(n)]
    members += [Enrolled("server", n)] if server else []
    members += [Enrolled("observer", fleet.nodes)]
    params = changes.pop("world", STABLE_WORLD)
    setup = CoordinatorSetup(
        run=RUN,
        fleet=fleet,
        mechanism=mechanism,
        world=World(params, n, fleet.model_bytes, 0, server, changes.pop("position", line(n))),
        steps=fleet.epoch_steps,
        members=tuple(members),
        schema=SCHEMA,
        params=QUICK,
        stop=StopRule(rounds=rounds),
        evaluate=EvaluateRule(every_rounds=4),
        recorders=(TimeSpentRecorder(), EmulatedTrainingsRecorder(), TopologyRecorder()),
    )
    return replace(setup, **changes)


@dataclass
class ScriptedWorker:
    """A worker that executes its orders in a given time."""

    name: str
    node: int
    data_size: int = 8
    label_counts: tuple[int, ...] = (4, 4)
    step_s: float = 1.0
    pull_s: float = 0.2
    claims: float = 1.0  # factor on the seconds that it reports
    up: bool = True
    mute: bool = False  # accepts orders but never answers
    incarnation: int = 0
    version: int = 1
    number: int = -1
    last_round: int = 0
    epoch: int = 0
    training: bool = False
    queued: Execute | None = None
    orders: list[int] = field(default_factory=list)  # rounds whose orders were executed
    unacked: dict[tuple[int, str], Report] = field(default_factory=dict)


class CoordinatorHarness:
    """One coordinator machine, scripted workers, one clock."""

    def __init__(self, setup: CoordinatorSetup, ledger: Any = None) -> None:
        self.setup, self.ledger = setup, ledger or MemoryLedger()
        self.now_s, self._count = 100.0, 0
        self.queue: list[tuple[float, int, Any]] = []
        self.sent: list[tuple[str, Any]] = []
        self.records: list[Any] = []
        self.traces: list[dict[str, Any]] = []
        self.late_scores: list[Any] = []
        self.finished: FinishRun | None = None
        self.commits = 0
        self.crash_after: int | None = None  # this many commits
        self.crash_before = False  # ... and then refuse to write
        self.disk_full = False
        self.deliver: Any = lambda name, message: True
        self.judge: Any = lambda question: None  # the observer's answer; None: it says nothing
        self.workers = {
            e.name: ScriptedWorker(e.name, e.node, e.data_size, e.label_counts)
            for e in setup.members
        }
        self.machine = CoordinatorMachine(setup, restore(self.ledger))

    # Time ---------------------------------------------------------------------------------------

    def later(self, seconds: float, call: Any) -> None:
        self._count += 1
        heapq.heappush(self.queue, (self.now_s + seconds, self._count, call))

    def run(self, seconds: float, until: Any = lambda: False) -> None:
        end = self.now_s + seconds
        tick = self.now_s
        while self.now_s < end and not self.finished and not until():
            at = min(self.queue[0][0] if self.queue else end, tick)
            self.now_s = max(at, self.now_s)
            if self.queue and self.queue[0][0] <= self.now_s:
                heapq.heappop(self.queue)[2]()
            else:
                tick = self.now_s + 0.1
                self.event(Tick())

    # The coordinator ----------------------------------------------------------------------------

    def event(self, event: Any) -> None:
        try:
            self.execute_actions(self.machine.handle(event, self.now_s))
        except Crashed:
            self.restart()

    def execute_actions(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, SendToMember):
                self.sent.append((action.name, action.message))
                if self.deliver(action.name, action.message):
                    self.later(0.0, lambda a=action: self.deliver_to(a.name, a.message))
            elif isinstance(action, Commit):
                if not self.commit(action):
                    self.execute_actions(
                        self.machine.handle(CommitFailed(action, "full"), self.now_s)
                    )
                    return
                self.execute_actions(action.after_commit)
            elif isinstance(action, PublishRecord):
                self.records.append(action.record)
                self.traces.append(action.trace)
            elif isinstance(action, PublishLateScore):
                self.late_scores.append(action.record)
            elif isinstance(action, FinishRun):
                self.finished = action
            elif isinstance(action, LookUpEpoch):
                answer = EpochFound(action.claim, self.ledger.epoch())
                self.later(0.0, lambda a=answer: self.event(a))
            elif isinstance(action, RestartFromLedger):
                self.restart(action)
            elif isinstance(action, CloseSession):
                pass

    def commit(self, action: Commit) -> bool:
        if self.disk_full:
            return False
        self.commits += 1
        due = self.crash_after is not None and self.commits == self.crash_after
        if due and self.crash_before:
            raise Crashed
        try:
            self.ledger.write(action.entries)
        except StorageError:
            return False
        if due:
            raise Crashed
        return True

    def restart(self, after: RestartFromLedger | None = None) -> None:
        """Replace the coordinator by a new one; all members join again."""
        old, self.machine = self.machine, CoordinatorMachine(self.setup, restore(self.ledger))
        if after is not None:
            self.machine.continue_after(old, after)
        self.now_s += 0.5
        for worker in self.workers.values():
            if worker.up and worker.name != "observer":
                self.join(worker.name)
        if self.setup.params.observer:
            self.join("observer")

    def receive(self, name: str, message: Any) -> None:
        self.event(MessageFromMember(name, message))

    # Workers ------------------------------------------------------------------------------------

    def join(self, name: str, **changes: Any) -> None:
        p = self.workers[name]
        p.up = True
        message = Join(
            FORMAT, RUN, p.incarnation, f"mem:{name}", SCHEMA, "test", p.data_size,
            p.label_counts, p.version, p.number, p.last_round,
            "training" if p.training else "idle", p.epoch,
        )  # fmt: skip
        self.receive(name, replace(message, **changes))

    def join_all(self) -> None:
        for name in self.workers:
            if name != "observer" or self.setup.params.observer:
                self.join(name)
        for name in self.workers:
            self.later(1.0, lambda n=name: self.beat(n))

    def beat(self, name: str) -> None:
        p = self.workers[name]
        if p.up:
            self.receive(name, Heartbeat(1, p.epoch, "idle", p.last_round))
            for report in list(p.unacked.values()):
                self.receive(name, report)
        self.later(1.0, lambda: self.beat(name))

    def deliver_to(self, name: str, message: Any) -> None:
        p = self.workers.get(name)
        if p is None or not p.up or p.mute:
            return
        if isinstance(message, JoinOk):
            p.epoch, p.incarnation = max(p.epoch, message.epoch), message.incarnation
            if message.warm_start and p.number == -1 and not p.training:
                self.train(p, 0, 1)
        elif isinstance(message, Execute):
            self.execute(p, message)
        elif isinstance(message, Evaluate):
            scored = Scored(message.round, 0.5, 0.1, 0.6, 1.0, 1.1, 0)
            self.later(0.5, lambda: self.receive(name, scored))
        elif isinstance(message, Judge):
            answer = self.judge(message)
            if answer is not None:
                self.later(0.3, lambda: self.receive(name, answer))
        elif isinstance(message, Stop):
            p.up = False
            self.receive(name, Leave("bye"))
        elif type(message).__name__ == "ReportAck":
            p.unacked.pop((message.round, message.kind), None)

    def execute(self, p: ScriptedWorker, order: Execute) -> None:
        if order.epoch < p.epoch:
            self.receive(p.name, ExecuteAck(order.round, "stale_epoch", p.epoch))
            return
        p.epoch = order.epoch
        if order.round <= p.last_round:
            self.receive(p.name, ExecuteAck(order.round, "duplicate"))
            return
        p.last_round = order.round
        if order.train and p.training:
            p.queued = order
            return
        self.exchange(p, order)

    def exchange(self, p: ScriptedWorker, order: Execute) -> None:
        pulls = [(k, x) for k, s in enumerate(order.stages) for x in s.pulls]
        self.later(p.pull_s if pulls else 0.0, lambda: self.mixed(p, order, pulls))

    def mixed(self, p: ScriptedWorker, order: Execute, pulls: Any) -> None:
        if not p.up:
            return
        p.orders.append(order.round)
        size = self.setup.fleet.model_bytes
        used = tuple(
            Used(x.node, k, 1, self.number_of(x.node), "", size, p.pull_s * p.claims, distance=1.0)
            for k, x in pulls
        )
        spent = p.pull_s * p.claims if pulls else 0.0
        self.send_report(
            p, Report(order.round, "mixed", used, (), p.version, p.number, seconds=spent)
        )
        if order.train:
            self.train(p, order.round, order.steps)

    def number_of(self, node: int) -> int:
        return next(q.number for q in self.workers.values() if q.node == node)

    def train(self, p: ScriptedWorker, round_: int, steps: int) -> None:
        p.training = True
        self.later(p.step_s * steps, lambda: self.trained(p, round_, steps, p.incarnation))

    def trained(self, p: ScriptedWorker, round_: int, steps: int, incarnation: int) -> None:
        if not p.up or incarnation != p.incarnation:
            return
        p.training, p.number, p.version = False, p.number + 1, p.version + 1
        report = Report(
            round_, "trained", (), (), p.version, p.number, seconds=p.step_s * p.claims,
            steps=steps, samples=8 * steps, loss=0.5,
        )  # fmt: skip
        self.send_report(p, report)
        if p.queued:
            order, p.queued = p.queued, None
            self.exchange(p, order)

    def send_report(self, p: ScriptedWorker, report: Report) -> None:
        p.unacked[report.round, report.kind] = report
        if p.up and not p.mute:
            self.receive(p.name, report)

    def kill(self, name: str) -> None:
        p = self.workers[name]
        p.up, p.training, p.queued = False, False, None
        self.event(MemberDisconnected(name))


class Crashed(Exception):
    """The coordinator's process ended."""


def rows(harness: CoordinatorHarness, table: str) -> list[Any]:
    return list(harness.ledger.rows(table))


def sent(harness, kind, name=None):
    return [m for n, m in harness.sent if isinstance(m, kind) and name in (None, n)]


def play(mechanism="dystop", rounds=8, n=5, seconds=600.0, **changes):
    harness = CoordinatorHarness(setup_for(mechanism, n, rounds, **changes))
    harness.join_all()
    harness.run(seconds)
    return harness


def check_history(harness, rounds):
    """Check that every round closed once and that every order has one correct outcome."""
    closed = rows(harness, "rounds")
    assert [r.round for r in closed] == list(range(1, rounds + 1))
    assert all(r.closed_s is not None for r in closed)
    orders = rows(harness, "orders")
    assert {o.outcome for o in orders} <= {"DONE", "FAILED", "LATE", "CANCELLED"}
    applied = {(o.round, o.node) for o in orders if o.outcome in ("DONE", "LATE")}
    did = Counter((r, p.node) for p in harness.workers.values() for r in p.orders)
    assert set(did) == applied
    assert max(did.values()) == 1
    assert sorted({r.round for r in harness.records}) == list(range(1, rounds + 1))
