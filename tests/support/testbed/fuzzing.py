"""Random sequences of events for both state machines, from members with valid certificates.

Values are valid in form, and often at their bounds: 0, the largest number, the smallest float, the
current round and its neighbours. Orders are sometimes answered as an honest member would. Every
sequence has a number, and the number alone decides its content.

    PYTHONPATH=src:tests python -m support.testbed.fuzzing 100000
"""

import sys
import time
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, Gt, Le, Len

from dystop.control.aggregation import kept_coordinates
from dystop.format import FORMAT
from dystop.rng import stream
from dystop.testbed.audit.check import check_facts
from dystop.testbed.audit.facts import facts_of
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.events import (
    CancelPull,
    CheckpointFailed,
    CheckpointSaved,
    Commit,
    CommitFailed,
    EpochFound,
    Exit,
    LookUpEpoch,
    MemberDisconnected,
    MessageFromCoordinator,
    MessageFromMember,
    PeerIncident,
    PullFailed,
    PullFinished,
    PullRequested,
    PullWithdrawn,
    RestartFromLedger,
    SaveCheckpoint,
    SendToMember,
    SessionLost,
    SessionOpened,
    StartPull,
    StartTraining,
    Tick,
    TrainingFailed,
    TrainingFinished,
)
from dystop.testbed.ledger.tables import restore
from dystop.testbed.protocol import messages as m
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.pulls import ModelHeader, PullRequest
from dystop.testbed.worker.machine import WorkerMachine
from dystop.testbed.worker.state import Introduction, WorkerSetup, first_state
from support.testbed.coordinator_fixtures import RUN, SCHEMA, setup_for
from support.testbed.memory_ledger import MemoryLedger

MECHANISMS = ("dystop", "sa-adfl", "asyng", "gossipfl", "fedasync", "d-cliques", "hadfl")
WORKERS, EVENTS, WIDTH = 4, 16, 3
HUGE = 2**63 - 1
PAUSES_S = (0.0, 0.0, 0.05, 0.5, 2.0, 15.0)
REALS = (0.0, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 1e3, 1e9, 1e300, -1.0, -1e300)
_HINTS: dict[type, dict[str, Any]] = {}


class Values:
    """Draws values of any annotated type; `near` holds plausible values by the name of a field."""

    def __init__(self, rng: np.random.Generator, near: dict[str, tuple[Any, ...]]) -> None:
        self.rng, self.near = rng, near

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def message(self, kind: type) -> Any:
        """Return a message with random fields."""
        if kind not in _HINTS:
            _HINTS[kind] = get_type_hints(kind, include_extras=True)
        hints = _HINTS[kind]
        return kind(**{f.name: self.value(hints[f.name], f.name) for f in fields(kind)})

    def value(self, hint: Any, name: str = "") -> Any:
        if name in self.near and self.rng.random() < 0.85:
            return self.pick(self.near[name])
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._bounded(args[0], args[1:], name)
        if origin is Literal:
            return self.pick(args)
        if origin is Union or type(hint).__name__ == "UnionType":
            return self.value(self.pick(args), name)
        if origin is tuple and args[-1] is not Ellipsis:
            return tuple(self.value(a) for a in args)
        if origin is tuple:
            return self._several(args[0], self.pick((0, 0, 1, 2, 5)), name)
        if is_dataclass(hint):
            return self.message(hint)
        return self._plain(hint)

    def _several(self, hint: Any, count: int, name: str) -> tuple[Any, ...]:
        return tuple(self.value(hint) for _ in range(count))

    def _plain(self, hint: Any) -> Any:
        if hint is bool:
            return bool(self.rng.integers(2))
        if hint is type(None) or hint is None:
            return None
        return self.pick(REALS) if hint is float else self.pick((0, 1, 7, HUGE))

    def _bounded(self, kind: Any, bounds: tuple[Any, ...], name: str) -> Any:
        least = next((b.ge for b in bounds if isinstance(b, Ge)), None)
        least = next((b.gt for b in bounds if isinstance(b, Gt)), least)
        most = next((b.le for b in bounds if isinstance(b, Le)), None)
        if kind is int:
            low, high = least or 0, HUGE if most is None else most
            options = {low, low + 1, 2, 3, high - 1, high}
            return self.pick(sorted(v for v in options if low <= v <= high))
        if kind is float:
            above = [v for v in REALS if least is None or v >= least]
            return self.pick([v for v in above if most is None or v <= most])
        length = next(b for b in bounds if isinstance(b, Len))
        if kind is str:
            return self.pick(("", "a", "\x00\x1b[2J", "x" * (length.max_length or 10)))
        return self._several(get_args(kind)[0], self.pick((0, 0, 1, 2, 5)), name)


# The coordinator --------------------------------------------------------------------------------


class CoordinatorFuzz:
    """One coordinator machine under random messages; `run` raises what the machine raises."""

    def __init__(self, number: int) -> None:
        self.rng = stream(number, "fuzz", "coordinator")
        mechanism = MECHANISMS[number % len(MECHANISMS)]
        self.setup = _setups(mechanism)
        self.ledger, self.now_s = MemoryLedger(), 10.0
        self.machine = CoordinatorMachine(self.setup, restore(self.ledger))
        self.members = {e.name: e for e in self.setup.members}
        self.orders: list[tuple[str, m.Execute]] = []
        self.found: list[EpochFound] = []
        self.accepted = 0

    def run(self) -> None:
        for name in self.members:
            self.send(name, self.joined(name))
        for _ in range(EVENTS):
            self.now_s += PAUSES_S[int(self.rng.integers(len(PAUSES_S)))]
            self.step()
        self.check()

    def values(self, name: str) -> Values:
        t, epoch = self.machine.round, self.machine.epoch
        enrolled = self.members.get(name)
        near: dict[str, tuple[Any, ...]] = {
            "format": (FORMAT,), "run": (RUN,), "schema": (SCHEMA,),
            "node": tuple(range(WORKERS + 2)), "stage": (0, 0, 1), "round": (t, t, t - 1, t + 1, 1),
            "epoch": (epoch, 0, epoch + 1), "last_round": (0, t - 1, t),
            "number": (-1, 0, t, t + 1), "version": (0, 1, t), "incarnation": (1, 2),
        }  # fmt: skip
        if enrolled is not None:
            near |= {
                "data_size": (enrolled.data_size,),
                "label_counts": (enrolled.label_counts,),
            }
        near = {k: tuple(v for v in vs if v != -1 or k == "number") for k, vs in near.items()}
        return Values(self.rng, near)

    def joined(self, name: str) -> m.Join:
        e = self.members[name]
        return m.Join(
            FORMAT, RUN, 1, "here", SCHEMA, "", e.data_size, e.label_counts, 1, -1, 0, "idle", 0
        )

    def step(self) -> None:
        chance = self.rng.random()
        names = [*self.members, "stranger"]
        name = names[int(self.rng.integers(len(names)))]
        if chance < 0.35 and self.orders:
            self.answer()
        elif chance < 0.80:
            kinds = get_args(m.ToCoordinator)
            self.send(name, self.values(name).message(kinds[int(self.rng.integers(len(kinds)))]))
        elif chance < 0.84:
            self.event(MemberDisconnected(name))
        elif chance < 0.90 and name in self.members:
            self.send(name, self.joined(name))
        elif chance < 0.91:
            self.machine = CoordinatorMachine(self.setup, restore(self.ledger))
        else:
            self.event(Tick())

    def answer(self) -> None:
        """Answer an order as an honest worker does, or with one changed field."""
        name, order = self.orders.pop(int(self.rng.integers(len(self.orders))))
        pulls = [(k, p) for k, s in enumerate(order.stages) for p in s.pulls]
        used = tuple(m.Used(p.node, k, 1, order.round - 1, "", 100, 0.1) for k, p in pulls)
        report = m.Report(order.round, "mixed", used, seconds=0.1)
        if self.rng.random() < 0.4:
            values = self.values(name)
            key = values.pick([f.name for f in fields(m.Report)])
            report = replace(report, **{key: getattr(values.message(m.Report), key)})
        self.send(name, report)
        if order.train:
            trained = m.Report(order.round, "trained", steps=1, samples=8, loss=0.5)
            self.send(name, trained)

    def send(self, name: str, message: Any) -> None:
        try:
            message = decode(encode(message), "coordinator")
        except BadMessage:
            return
        self.accepted += 1
        self.event(MessageFromMember(name, message, remote=""))

    def event(self, event: Any) -> None:
        self.perform(self.machine.handle(event, self.now_s))
        while self.found:  # as in the process, the ledger is read after all actions
            self.perform(self.machine.handle(self.found.pop(0), self.now_s))

    def perform(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, RestartFromLedger):
                raise action.error
            if isinstance(action, Commit):
                if self.rng.random() < 0.02:
                    self.perform(self.machine.handle(CommitFailed(action, "full"), self.now_s))
                    continue
                self.ledger.write(action.entries)
                self.perform(action.after_commit)
            elif isinstance(action, SendToMember):
                encode(action.message)
                if isinstance(action.message, m.Execute):
                    self.orders = [*self.orders[-20:], (action.name, action.message)]
            elif isinstance(action, LookUpEpoch):
                self.found.append(EpochFound(action.claim, self.ledger.epoch()))

    def check(self) -> None:
        """The ledger can be read, and the control state follows from it."""
        CoordinatorMachine(self.setup, restore(self.ledger))
        findings = check_facts(facts_of(self.ledger.rows, {}, {}))
        wrong = [f for f in findings if f.rule in ("I1", "I2", "I5")]
        assert not wrong, wrong
        assert all(np.isfinite(v) for v in self.machine.state.observations.links.values())


_SETUPS: dict[str, Any] = {}


def _setups(mechanism: str) -> Any:
    if mechanism not in _SETUPS:
        _SETUPS[mechanism] = setup_for(mechanism, WORKERS, 1000)
    return _SETUPS[mechanism]


# The worker -------------------------------------------------------------------------------------

PEERS = tuple(m.Peer(f"w0{k}", k, f"memory:{k}", "") for k in range(WORKERS))


class WorkerFuzz:
    """One worker machine under random messages of its peers and its coordinator."""

    def __init__(self, number: int) -> None:
        self.rng = stream(number, "fuzz", "worker")
        self.deltas = bool(number % 2)
        self.setup = WorkerSetup("w00", 0, Introduction("s"), first_steps=3, deltas=self.deltas)
        self.disk = first_state(np.ones(WIDTH, np.float32), np.zeros(1), deltas=self.deltas)
        self.machine = WorkerMachine(self.setup, self.disk)
        self.now_s, self.round, self.accepted = 0.0, 0, 0
        self.pulls: dict[int, StartPull] = {}
        self.training: StartTraining | None = None
        self.keys = 0

    def run(self) -> None:
        self.event(SessionOpened())
        self.receive(m.JoinOk(RUN, 1, 1, 1.0, bool(self.rng.integers(2)), PEERS))
        for _ in range(EVENTS):
            self.now_s += PAUSES_S[int(self.rng.integers(len(PAUSES_S)))]
            self.step()
        state = self.machine.state
        assert np.isfinite(state.published).all()
        most = self.round + 2 * m.MAX_LEAD
        assert all(max(e.number, e.round) <= most for e in state.mailbox.values())

    def values(self) -> Values:
        t = self.round
        near: dict[str, tuple[Any, ...]] = {
            "run": (RUN,), "schema": ("s",), "node": (1, 2, 3), "round": (t, t + 1),
            "stage": (0, 0, 1), "epoch": (1, 1, 1, 2), "peers": (PEERS, PEERS[:2]),
            "number": (0, t), "version": (t, t + 1), "offset": (0,),
        }  # fmt: skip
        return Values(self.rng, near)

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.25 and self.pulls:
            self.end_pull()
        elif chance < 0.35 and self.training is not None:
            self.end_training()
        elif chance < 0.55:
            self.receive(self.order())
        elif chance < 0.70:
            kinds = [k for k in get_args(m.ToWorker) if k not in (m.Execute, m.Reject, m.Stop)]
            self.receive(self.values().message(kinds[int(self.rng.integers(len(kinds)))]))
        elif chance < 0.85:
            self.request_pull()
        else:
            events = (
                Tick(), Tick(), SessionLost(), SessionOpened(), PullWithdrawn(self.keys),
                PeerIncident("w01", "flood", "x"), self.values().message(m.Execute),
            )  # fmt: skip
            event = events[int(self.rng.integers(len(events)))]
            self.receive(event) if isinstance(event, m.Execute) else self.event(event)

    def request_pull(self) -> None:
        self.keys += 1
        request = self.values().message(PullRequest)
        peer = ("w01", "w02", "observer", "stranger")[int(self.rng.integers(4))]
        self.event(PullRequested(self.keys, peer, request))

    def order(self) -> m.Execute:
        """Return an order such as the coordinator sends."""
        self.round += 1
        nodes = [k for k in (1, 2, 3) if self.rng.random() < 0.6]
        mask = (int(self.rng.integers(9)), 0.5) if self.rng.random() < 0.2 else None
        mail = self.rng.random() < 0.3
        background = bool(self.rng.random() < 0.2)
        pulls = tuple(
            m.Pull(k, mask=mask, into="mail" if mail else "row", background=background)
            for k in nodes
        )
        sources = (0, *(() if mail else nodes))
        mailed = tuple(sorted(self.machine.state.mailbox)) if mail else ()
        sources = tuple(sorted({*sources, *mailed}))
        kind: m.MixKind = "masked" if mask and not mail else "linear"
        weights = (1 / len(sources),) * len(sources)
        row = m.Row(sources, weights, kind, None if mail else mask, mailed)
        train = bool(self.rng.random() < 0.6)
        return m.Execute(1, self.round, train, (m.Stage(pulls, row),), steps=2, budget_s=5.0)

    def end_pull(self) -> None:
        key = list(self.pulls)[int(self.rng.integers(len(self.pulls)))]
        pull = self.pulls.pop(key)
        if self.rng.random() < 0.3:
            codes = get_args(m.RejectCode)
            code = codes[int(self.rng.integers(len(codes)))]
            self.event(PullFailed(key, code, 0, 0.5))
            return
        header = replace(self.values().message(ModelHeader), sha256="d" * 64)
        numbers = self.rng.standard_normal(WIDTH).astype(np.float32)
        if self.rng.random() < 0.2:
            numbers[0] = (np.nan, np.inf, 3e38, -3e38)[int(self.rng.integers(4))]
        if pull.request.mask is not None:
            numbers = numbers[kept_coordinates(*pull.request.mask, WIDTH)]
        self.event(PullFinished(key, header, numbers, 100, 0.25, 1))

    def end_training(self) -> None:
        assert self.training is not None
        number, self.training = self.training.number, None
        if self.rng.random() < 0.2:
            self.event(TrainingFailed(number, "an error"))
            return
        vector = self.rng.standard_normal(WIDTH).astype(np.float32)
        self.event(TrainingFinished(number, vector, np.zeros(1, np.int64), 0.5, 16, 1.0))

    def receive(self, message: Any) -> None:
        try:
            message = decode(encode(message), "worker")
        except BadMessage:
            return
        self.accepted += 1
        self.event(MessageFromCoordinator(message))

    def event(self, event: Any) -> None:
        self.perform(self.machine.handle(event, self.now_s))

    def perform(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, SaveCheckpoint):
                full = self.rng.random() < 0.05
                while self.rng.random() < 0.3:  # peers are served during a save
                    self.request_pull()
                if not full:
                    self.disk = action.state
                self.event(CheckpointFailed("full") if full else CheckpointSaved())
                if not full:
                    self.perform(action.after_save)
            elif isinstance(action, StartPull):
                self.pulls[action.key] = action
            elif isinstance(action, CancelPull):
                self.pulls.pop(action.key, None)
            elif isinstance(action, StartTraining):
                self.training = action
            elif isinstance(action, Exit):
                self.machine = WorkerMachine(self.setup, self.disk)
                self.pulls, self.training = {}, None
            elif hasattr(action, "message"):
                encode(action.message)


def run_sequences(first: int, count: int) -> Counter[str]:
    """Run sequences for both machines; return how many messages were valid in form."""
    seen: Counter[str] = Counter()
    for number in range(first, first + count):
        for kind in (CoordinatorFuzz, WorkerFuzz):
            sequence = kind(number)
            try:
                sequence.run()
            except BaseException as error:
                error.add_note(f"{kind.__name__}({number})")
                raise
            seen[kind.__name__] += sequence.accepted
    return seen


if __name__ == "__main__":
    COUNT, BEGAN_S = int(sys.argv[1]), time.monotonic()
    for done in range(0, COUNT, 1000):
        run_sequences(done, min(1000, COUNT - done))
        spent_s = time.monotonic() - BEGAN_S
        print(f"{min(done + 1000, COUNT)} sequences of each machine in {spent_s:.0f} s", flush=True)
