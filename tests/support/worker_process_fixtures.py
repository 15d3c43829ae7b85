"""Real nodes with threads, and a coordinator that follows a script."""

import threading
import time
from contextlib import contextmanager

import numpy as np

from dystop.testbed.events import Train, TrainingDone
from dystop.testbed.launch import failpoints
from dystop.testbed.protocol.codec import decode, encode
from dystop.testbed.protocol.messages import (
    Execute,
    Heartbeat,
    Join,
    JoinOk,
    Peer,
    PullRequest,
    Report,
    ReportAck,
    Roster,
    Row,
    Stage,
)
from dystop.testbed.protocol.payload import PayloadReceiver, Schema
from dystop.testbed.security import authority
from dystop.testbed.security.identity import load_identity
from dystop.testbed.transport.admission import AllowList, anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.interface import PullTimeouts
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from dystop.testbed.worker.process import WorkerComponents, WorkerProcess
from dystop.testbed.worker.state import WorkerSetup

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
        door = AllowList("observer")
        zero = (np.zeros(schema.width, np.float32), np.zeros(1, np.int64))
        parts = WorkerComponents(
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
        worker = WorkerProcess(parts)
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


class GrpcStand(Stand):
    """The same over mutual TLS."""

    listen = "127.0.0.1:0"

    def __init__(self, folder):
        authority.init(folder)
        self.folder = folder
        super().__init__()

    def transport(self, name, door=anyone):
        authority.issue(self.folder, name)
        return GrpcTransport(load_identity(self.folder, name), door)


@contextmanager
def standing():
    """A stand that is closed at the end, with no thread left behind."""
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
    parcel = PayloadReceiver(TOY)
    transport = MemoryTransport(stand.hub, name)
    peer = stand.coordinator.peers[f"w{node:02d}"]
    request = PullRequest(RUN, **{"round": 99, **request})
    transport.pull(peer.name, peer.address, request, parcel, PullTimeouts(), threading.Event())
    return parcel.header, parcel.finish()
