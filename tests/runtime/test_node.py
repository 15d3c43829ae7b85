"""Real nodes with threads, over the memory transport, and a coordinator that follows a script."""

import logging
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dystop.data import load, take
from dystop.engine.params import Laws, Stop
from dystop.engine.rounds import begin, simulate
from dystop.errors import StorageError
from dystop.plan import Plan, links, mix_of
from dystop.runtime import failpoints, pki
from dystop.runtime.codec import decode, encode
from dystop.runtime.door import Door
from dystop.runtime.events import Train, TrainingDone
from dystop.runtime.history import History, read_history
from dystop.runtime.identity import load_identity
from dystop.runtime.local_trainer import local_trainer
from dystop.runtime.messages import (
    Evaluate,
    Execute,
    ExecuteAck,
    Heartbeat,
    Join,
    JoinOk,
    Leave,
    Peer,
    Pull,
    PullRequest,
    Reject,
    Report,
    ReportAck,
    Roster,
    Row,
    Scored,
    Stage,
)
from dystop.runtime.messages import (
    Stop as StopNow,
)
from dystop.runtime.node import NodeParts, WorkerNode, resources
from dystop.runtime.observer import Observer, ObserverParts
from dystop.runtime.orders import orders_of
from dystop.runtime.payload import ModelParcel, Schema, schema_of
from dystop.runtime.quiet import Quiet
from dystop.runtime.transport.base import Patience, PullBroken
from dystop.runtime.transport.gate import anyone
from dystop.runtime.transport.grpc import GrpcTransport
from dystop.runtime.transport.memory import MemoryHub, MemoryTransport
from dystop.runtime.vault import Vault
from dystop.runtime.worker_state import WorkerSetup
from dystop.trainer.evaluate import Evaluation
from dystop.trainer.models import build_model
from dystop.trainer.params import TrainerParams
from dystop.trainer.samples import Arrays
from dystop.trainer.trainer import Trainer
from stage import Script, parts_for

RUN = "ab" * 16
TOY = Schema((("w", (2, 2)), ("b", (2,))))
SOON_S = 10.0


class Coordinator:
    """Lets everybody in, acknowledges reports, echoes heartbeats, and remembers what it heard."""

    def __init__(self, transport, listen="memory:0", warm=False):
        self.links, self.peers, self.heard = {}, {}, []
        self.warm, self.refuse = warm, None
        self._changed = threading.Condition()
        self.transport = transport
        self.served = transport.serve_control(listen, self)
        self.address = self.served.address

    def opened(self, name, link):
        self.links[name] = link

    def closed(self, name, link):
        self.links.pop(name, None)

    def said(self, name, link, message):
        told = decode(message, "coordinator")
        if isinstance(told, Join) and self.refuse:
            link.send(encode(self.refuse))
        elif isinstance(told, Join):
            self._welcome(name, told)
        elif isinstance(told, Report):
            link.send(encode(ReportAck(told.round, told.kind)))
        elif isinstance(told, Heartbeat):
            link.send(encode(told))
        with self._changed:
            self.heard.append((name, told))
            self._changed.notify_all()

    def _welcome(self, name, told):
        if name.startswith("w"):
            self.peers[name] = Peer(name, int(name[1:]), told.address, "")
        peers = tuple(self.peers.values())
        self.tell(name, JoinOk(RUN, 1, 1, 0.05, self.warm, peers))
        for other in set(self.links) - {name}:
            self.tell(other, Roster(1, peers))

    def tell(self, name, message):
        self.links[name].send(encode(message))

    def wait(self, holds, what=""):
        """Wait until something that was heard fulfils a condition."""
        until = time.monotonic() + SOON_S
        with self._changed:
            while not (found := [m for m in self.heard if holds(*m)]):
                assert self._changed.wait(until - time.monotonic()), what or "not heard in time"
        return found[0][1]

    def wait_report(self, name, round_, kind):
        def holds(who, told):
            return who == name and isinstance(told, Report) and (told.round, told.kind) == key

        key = (round_, kind)
        return self.wait(holds, f"{name} {key}")


def plus(node, gate=None):
    """Training adds node + 1; optionally waits for leave to end."""

    def train(order: Train) -> TrainingDone:
        if gate is not None:
            gate.wait(SOON_S)
        vector = order.vector + np.float32(node + 1) * np.float32(order.rate)
        return TrainingDone(order.number, vector, order.counters + order.steps, 0.5, 8, 0.0)

    return train


class Stand:
    """A hub with nodes; everything is closed at the end."""

    listen = "memory:0"

    def __init__(self):
        self.hub = MemoryHub()
        self.coordinator = Coordinator(self.transport("coordinator"), self.listen)
        self.nodes = []

    def transport(self, name, door=anyone):
        return MemoryTransport(self.hub, name, allowed=door)

    def add(self, node, train=None, schema=TOY, initial=None, started=True, setup=None, **more):
        name = f"w{node:02d}"
        door = Door("observer")
        zero = (np.zeros(schema.width, np.float32), np.zeros(1, np.int64))
        parts = NodeParts(
            transport=self.transport(name, door),
            coordinator=self.coordinator.address,
            setup=setup or WorkerSetup(name, node, schema.hash, first_steps=1),
            schema=schema,
            initial=initial or zero,
            train=train or plus(node),
            listen=self.listen,
            door=door,
            **more,
        )
        worker = WorkerNode(parts)
        self.nodes.append(worker)
        if started:
            worker.start()
            self.coordinator.wait(lambda who, m: who == name and isinstance(m, Heartbeat))
        return worker

    def everybody_knows(self, count):
        until = time.monotonic() + SOON_S
        while any(len(n.machine.fetches.peers) < count - 1 for n in self.nodes):
            assert time.monotonic() < until
            time.sleep(0.01)

    def close(self):
        for node in self.nodes:
            node.close()
            node.parts.transport.close()
        self.coordinator.transport.close()
        self.hub.close()


@pytest.fixture
def stand():
    before = threading.active_count()
    stand = Stand()
    yield stand
    stand.close()
    failpoints.arm("")
    until = time.monotonic() + 2.0
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


def order(round_, *pulls, train=True, weights=None, rate=1.0):
    nodes = sorted({p.node for p in pulls})
    row = Row(tuple(nodes), weights) if weights else None
    pulled = tuple(p for p in pulls if p.bytes_per_s >= 0)
    return Execute(1, round_, train, (Stage(pulled, row),), steps=2, rate=rate, budget_s=5.0)


def pull(stand, node, name="observer", **request):
    """Fetch a model by hand."""
    parcel = ModelParcel(TOY)
    transport = MemoryTransport(stand.hub, name)
    peer = stand.coordinator.peers[f"w{node:02d}"]
    request = PullRequest(RUN, **{"round": 99, **request})
    transport.pull(peer.name, peer.address, request, parcel, Patience(), threading.Event())
    return parcel.header, parcel.finish()


# Rounds -----------------------------------------------------------------------------------------


def test_three_nodes_exchange_mix_and_train(stand):
    stand.coordinator.warm = True
    for node in range(3):
        stand.add(node)
    stand.everybody_knows(3)
    for node in range(3):
        stand.coordinator.wait_report(f"w{node:02d}", 0, "trained")
    stages = (Stage((Pull(1), Pull(2)), Row((0, 1, 2), (0.5, 0.25, 0.25))),)
    stand.coordinator.tell("w00", Execute(1, 1, True, stages, steps=2, rate=0.5, budget_s=5.0))
    mixed = stand.coordinator.wait_report("w00", 1, "mixed")
    assert [(u.node, u.number) for u in sorted(mixed.used, key=lambda u: u.node)] == [
        (1, 0),
        (2, 0),
    ]
    assert all(len(u.digest) == 64 and u.bytes > 24 and u.seconds >= 0 for u in mixed.used)
    trained = stand.coordinator.wait_report("w00", 1, "trained")
    header, vector = pull(stand, 0)
    np.testing.assert_allclose(vector, 0.5 * 1 + 0.25 * 2 + 0.25 * 3 + 0.5)
    assert (header.number, header.round, header.version) == (1, 1, trained.version)
    assert header.sha256 == trained.digest
    assert trained.loss == 0.5


def test_heartbeats_and_pulls_go_on_while_training(stand):
    gate = threading.Event()
    stand.coordinator.warm = True
    stand.add(0, plus(0, gate))
    seen = []

    def thrice(who, told):
        if isinstance(told, Heartbeat) and told.phase == "training":
            seen.append(told.seq)
        return len(set(seen)) >= 3

    stand.coordinator.wait(thrice)
    assert pull(stand, 0)[0].version == 0
    gate.set()
    stand.coordinator.wait_report("w00", 0, "trained")


def test_an_exact_pull_waits_for_the_training_of_its_round(stand):
    gate = threading.Event()
    stand.coordinator.warm = True
    stand.add(0)
    stand.add(1, plus(1, gate))
    stand.everybody_knows(2)
    stand.coordinator.wait_report("w00", 0, "trained")
    stages = (Stage((Pull(1, exact=True),), Row((0, 1), (0.5, 0.5))),)
    stand.coordinator.tell("w00", Execute(1, 1, True, stages, steps=1, budget_s=5.0))
    stand.coordinator.tell("w01", Execute(1, 1, True, (), steps=1, budget_s=5.0))
    stand.coordinator.wait(lambda who, m: isinstance(m, ExecuteAck) and m.state == "queued")
    time.sleep(0.1)
    assert not any(isinstance(m, Report) and m.kind == "mixed" for _, m in stand.coordinator.heard)
    gate.set()
    used = stand.coordinator.wait_report("w00", 1, "mixed").used
    assert [(u.node, u.number) for u in used] == [(1, 0)]


def test_a_training_lasts_as_long_as_the_device_would_take(stand):
    stand.coordinator.warm = True
    stand.add(0, step_s=0.3)
    assert stand.coordinator.wait_report("w00", 0, "trained").seconds >= 0.3


def test_closing_does_not_wait_for_an_emulated_training(stand):
    stand.coordinator.warm = True
    node = stand.add(0, step_s=100.0)
    began = time.monotonic()
    node.close()
    assert time.monotonic() - began < 2.0


def test_a_training_that_raises_is_reported(stand, caplog):
    def broken(order):
        raise ValueError("no\nluck")

    stand.coordinator.warm = True
    stand.add(0, broken)
    assert "no\\nluck" in stand.coordinator.wait_report("w00", 0, "trained").text


class GrpcStand(Stand):
    """The same over mutual TLS."""

    listen = "127.0.0.1:0"

    def __init__(self, folder):
        pki.init(folder)
        self.folder = folder
        super().__init__()

    def transport(self, name, door=anyone):
        pki.issue(self.folder, name)
        return GrpcTransport(load_identity(self.folder, name), door)


def test_a_round_over_grpc(tmp_path):
    stand = GrpcStand(tmp_path)
    stand.coordinator.warm = True
    try:
        nodes = [stand.add(node) for node in range(2)]
        stand.everybody_knows(2)
        for node in range(2):
            stand.coordinator.wait_report(f"w{node:02d}", 0, "trained")
        stages = (Stage((Pull(1),), Row((0, 1), (0.5, 0.5))),)
        stand.coordinator.tell("w00", Execute(1, 1, True, stages, steps=1, budget_s=5.0))
        stand.coordinator.wait_report("w00", 1, "trained")
        np.testing.assert_allclose(nodes[0].machine.state.published, 2.5)
        stand.coordinator.tell("w00", StopNow(1, "over"))
        assert nodes[0].wait(SOON_S).code == 0
        stand.coordinator.wait(lambda who, m: who == "w00" and isinstance(m, Leave))
        nodes[1].stop("ctrl-c")
        assert nodes[1].wait(SOON_S).code == 0
        stand.coordinator.wait(lambda who, m: who == "w01" and isinstance(m, Leave))
    finally:
        stand.close()


# Who may come in --------------------------------------------------------------------------------


def test_strangers_are_refused_and_those_who_leave_too(stand):
    stand.add(0)
    with pytest.raises(PullBroken) as refused:
        pull(stand, 0, name="w07")
    assert refused.value.code == "not_authorised"
    stand.coordinator.tell("w00", Roster(1, (Peer("w07", 7, "memory:7", ""),)))
    until = time.monotonic() + SOON_S
    while 7 not in stand.nodes[0].machine.fetches.peers:
        assert time.monotonic() < until
        time.sleep(0.01)
    pull(stand, 0, name="w07")
    stand.coordinator.tell("w00", Roster(1, ()))
    while 7 in stand.nodes[0].machine.fetches.peers:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(PullBroken):
        pull(stand, 0, name="w07")


# Lives and deaths -------------------------------------------------------------------------------


def test_a_node_that_died_goes_on_from_its_checkpoint(stand, tmp_path):
    gate, vault = threading.Event(), Vault(tmp_path / "ckpt.safetensors")
    stand.coordinator.warm = True
    first = stand.add(0, plus(0, gate), vault=vault)
    dying = threading.Thread(target=first.close)
    dying.start()
    assert first.wait(SOON_S)
    gate.set()  # the result comes too late
    dying.join()
    stand.coordinator.heard.clear()
    second = stand.add(0, vault=vault)
    report = stand.coordinator.wait_report("w00", 0, "trained")
    assert second.machine.setup.incarnation > first.machine.setup.incarnation
    np.testing.assert_allclose(pull(stand, 0)[1], 1.0)
    assert report.version > 60  # what the first one may have handed out is not used again


def test_stop_saves_and_says_goodbye(stand, tmp_path):
    vault = Vault(tmp_path / "ckpt.safetensors")
    node = stand.add(0, vault=vault)
    stand.coordinator.tell("w00", StopNow(1, "over"))
    assert node.wait(SOON_S).code == 0
    stand.coordinator.wait(lambda who, m: isinstance(m, Leave))
    assert vault.load().state.epoch == 1


def test_a_node_can_be_stopped_from_its_own_side(stand):
    node = stand.add(0)
    node.stop("ctrl-c")
    assert node.wait(SOON_S).code == 0
    assert stand.coordinator.wait(lambda who, m: isinstance(m, Leave)).text == "ctrl-c"


def test_a_refusal_ends_the_process_with_its_text(stand):
    stand.coordinator.refuse = Reject("schema", "b is [3] instead of [2]")
    node = stand.add(0, started=False)
    node.start()
    end = node.wait(SOON_S)
    assert end.code == 2
    assert "b is [3] instead of [2]" in end.text


def test_a_lost_session_is_opened_again_and_reports_are_repeated(stand):
    gate = threading.Event()
    stand.coordinator.warm = True
    stand.add(0, plus(0, gate))
    stand.coordinator.heard.clear()
    stand.coordinator.served.drop("w00")
    stand.coordinator.wait(lambda who, m: isinstance(m, Join) and m.phase == "training")
    gate.set()
    stand.coordinator.wait_report("w00", 0, "trained")


class FullVault(Vault):
    full = False

    def save(self, state):
        if self.full:
            raise StorageError("no space left")
        super().save(state)


def test_a_full_disk_fails_the_order_and_shows_in_the_heartbeat(stand, tmp_path):
    vault = FullVault(tmp_path / "ckpt.safetensors")
    stand.add(0, vault=vault)
    vault.full = True
    stand.coordinator.tell("w00", order(1))
    assert "no space left" in stand.coordinator.wait_report("w00", 1, "failed").text
    stand.coordinator.wait(lambda who, m: isinstance(m, Heartbeat) and m.disk_full)
    pull(stand, 0)


@pytest.mark.parametrize(
    "site",
    ["before_pull", "after_header", "mid_chunk", "after_digest"],
)
def test_an_error_in_a_pull_costs_that_model_only(stand, site):
    for node in range(2):
        stand.add(node)
    stand.everybody_knows(2)
    failpoints.arm(f"worker.{site}:error")
    stages = (Stage((Pull(1),), Row((0, 1), (0.5, 0.5))),)
    stand.coordinator.tell("w00", Execute(1, 1, True, stages, steps=1, budget_s=3.0))
    assert len(stand.coordinator.wait_report("w00", 1, "mixed").rejected) == 1


@pytest.mark.parametrize(
    "site", ["after_accept", "after_aggregate", "before_publish", "after_rename_before_report"]
)
def test_an_error_in_the_updating_thread_ends_the_node(stand, site, tmp_path):
    node = stand.add(0, vault=Vault(tmp_path / "c"))
    failpoints.arm(f"worker.{site}:error")
    stand.coordinator.tell("w00", order(1))
    end = node.wait(SOON_S)
    assert end.code == 1
    assert site in end.text


def test_an_error_in_training_is_reported(stand):
    stand.add(0)
    failpoints.arm("worker.mid_train:error")
    stand.coordinator.tell("w00", order(1))
    assert "mid_train" in stand.coordinator.wait_report("w00", 1, "trained").text


# Diary, logs, resources -------------------------------------------------------------------------


def test_the_diary_tells_what_happened(stand, tmp_path):
    history = History(tmp_path / "history.jsonl")
    node = stand.add(0, note=history.note)
    stand.coordinator.tell("w00", order(1))
    stand.coordinator.wait_report("w00", 1, "trained")
    pull(stand, 0)
    node.close()
    history.close()
    kinds = [line["kind"] for line in read_history(tmp_path / "history.jsonl")]
    assert {"start", "epoch", "order", "applied", "training", "trained", "published", "sample"} <= {
        *kinds
    }


def test_resources_are_told():
    assert resources()["threads"] >= 1


def test_the_same_line_is_written_five_times_a_minute():
    now = [0.0]
    quiet = Quiet(clock=lambda: now[0])

    def say(text):
        record = logging.makeLogRecord({"msg": text})
        return record.getMessage() if quiet.filter(record) and record else None

    assert [say("a") is not None for _ in range(8)] == [True] * 5 + [False] * 3
    assert say("b") == "b"
    now[0] = 61.0
    record = logging.makeLogRecord({"msg": "a"})
    assert quiet.filter(record)
    assert record.getMessage() == "a (and 3 times more)"


# The observer -----------------------------------------------------------------------------------


class Judge:
    """Accuracy is the mean of the weights."""

    def evaluate(self, models, counters, samples=None):
        mean = models.mean(dim=1).double().numpy()
        return Evaluation(mean / 10, np.where(mean > 2.5, np.inf, mean))


def test_the_observer_tests_all_models_and_the_global_one(stand):
    stand.coordinator.warm = True
    for node in range(3):
        stand.add(node)
        stand.coordinator.wait_report(f"w{node:02d}", 0, "trained")
    observer = Observer(
        ObserverParts(
            transport=MemoryTransport(stand.hub, "observer"),
            coordinator=stand.coordinator.address,
            schema=TOY,
            trainer=Judge(),
            counters=np.zeros(1, np.int64),
            data_size=np.array([1, 1, 2, 5]),
            fetch_s=1.0,
        )
    )
    stand.nodes.append(observer)
    observer.start()
    stand.coordinator.wait(lambda who, m: who == "observer" and isinstance(m, Heartbeat))
    stand.coordinator.tell("observer", Evaluate(1, 4, (0, 1, 2, 3)))
    score = stand.coordinator.wait(lambda who, m: isinstance(m, Scored))
    assert (score.round, score.missing, score.diverged) == (4, (3,), 1)
    assert score.accuracy == pytest.approx(0.2)
    assert score.accuracy_global == pytest.approx((1 + 2 + 2 * 3) / 40)
    assert score.loss == pytest.approx(1.5)
    stand.coordinator.tell("observer", StopNow(1, "over"))
    assert observer.wait(SOON_S).code == 0


# The simulator ----------------------------------------------------------------------------------


def test_two_rounds_equal_the_simulators(stand):
    """Same plans, same trainer, same numbers: mixing and training agree with the engine."""
    data = take(load("fmnist-mini"), 240, 50, seed=0)
    shards = np.array_split(np.arange(240), 3)
    arrays = Arrays(data.x_train, data.y_train, data.x_test, data.y_test, data.mean, data.std)
    module = build_model("cnn", 1, (28, 28), data.classes, 0)
    trainer = Trainer(module, arrays, shards, TrainerParams(batch=40, lanes=1), 0)
    first = Plan(
        np.array([0]),
        links(np.array([0, 0]), np.array([1, 2])),
        (mix_of(np.array([0, 0, 0]), np.arange(3), np.array([0.5, 0.2, 0.3])),),
    )
    second = Plan(
        np.array([1, 2]),
        links(np.array([1, 2]), np.array([0, 1])),
        (mix_of(np.array([1, 1, 2, 2]), np.array([0, 1, 1, 2]), np.array([0.4, 0.6, 0.7, 0.3])),),
        steps=np.array([1, 2]),
    )
    parts = parts_for(
        Script(plans=(first, second)),
        3,
        trainer=trainer,
        laws=Laws(publish="on_completion"),
        stop=Stop(rounds=2),
        steps=np.array([2, 2, 2]),
    )
    state = begin(parts)
    for _, after in simulate(parts, state):
        state = after
    expected = state.models.latest.numpy()

    vector, counters = trainer.initial()
    schema, lock, gate = schema_of(trainer.layout), threading.Lock(), threading.Event()
    stand.coordinator.warm = True
    for node in range(3):
        lesson = local_trainer(trainer, node)

        def train(order, lesson=lesson, node=node):
            if node == 0 and order.number == 1:
                gate.wait(SOON_S)  # still busy when the second round reads it, as in the simulator
            with lock:
                return lesson(order)

        setup = WorkerSetup(f"w{node:02d}", node, schema.hash, first_steps=2)
        stand.add(
            node, train, schema=schema, initial=(vector.numpy(), counters.numpy()), setup=setup
        )
    stand.everybody_knows(3)
    for node in range(3):
        stand.coordinator.wait_report(f"w{node:02d}", 0, "trained")
    for round_, plan in ((1, first), (2, second)):
        view = replace_view(parts, round_)
        steps = np.full(len(plan.active), 2) if plan.steps is None else plan.steps
        rates = np.zeros(len(plan.links))
        orders = orders_of(plan, view, parts.mechanism, steps, rates, 5.0, epoch=1)
        for node, execute in orders.items():
            stand.coordinator.tell(f"w{node:02d}", execute)
        for node in orders:
            stand.coordinator.wait_report(f"w{node:02d}", round_, "mixed")
    gate.set()
    for node, round_ in ((0, 1), (1, 2), (2, 2)):
        stand.coordinator.wait_report(f"w{node:02d}", round_, "trained")
    found = np.stack([n.machine.state.published for n in stand.nodes])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert not np.allclose(expected[0], expected[1], atol=1e-3)


def replace_view(parts, round_):
    from dystop.control.round import look, open_books
    from dystop.types import Observation

    books = replace(open_books(parts.fleet, parts.mechanism), t=round_)
    seen = parts.world.observe(round_, 0.0)
    observation = Observation(
        seen.alive, seen.reach, seen.distance_m, seen.link_s, seen.step_s, np.zeros(3), seen.budget
    )
    return look(parts.fleet, books, observation)
