"""Real workers with threads, and a scripted coordinator."""

import threading
import time
from collections import Counter
from contextlib import contextmanager

import numpy as np

from dystop.testbed.events import StartTraining, TrainingFinished
from dystop.testbed.launch import failpoints
from dystop.testbed.protocol.codec import decode, encode
from dystop.testbed.protocol.messages import (
    Execute,
    Heartbeat,
    Join,
    JoinOk,
    Peer,
    Report,
    ReportAck,
    Roster,
    Row,
    Stage,
)
from dystop.testbed.protocol.payload import PayloadReceiver, Schema
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.security import authority
from dystop.testbed.security.identity import load_identity
from dystop.testbed.transport.admission import AllowList, anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.interface import PullTimeouts
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from dystop.testbed.worker.process import WorkerComponents, WorkerProcess
from dystop.testbed.worker.state import Introduction, WorkerSetup

RUN = "ab" * 16
TOY = Schema((("w", (2, 2)), ("b", (2,))))
SOON_S = 10.0


class Coordinator:
    """Accepts every join, acknowledges reports, echoes heartbeats, and records all messages."""

    def __init__(self, transport, listen="memory:0", warm=False):
        self.links, self.peers, self.messages, self.processes = {}, {}, [], Counter()
        self.warm, self.refuse = warm, None
        self._changed = threading.Condition()
        self.transport = transport
        self.served = transport.serve_control(listen, self)
        self.address = self.served.address

    def opened(self, name, link):
        self.links[name] = link

    def closed(self, name, link):
        self.links.pop(name, None)

    def received(self, name, link, data):
        message = decode(data, "coordinator")
        if isinstance(message, Join) and self.refuse:
            link.send(encode(self.refuse))
        elif isinstance(message, Join):
            self._accept(name, message)
        elif isinstance(message, Report):
            link.send(encode(ReportAck(message.round, message.kind)))
        elif isinstance(message, Heartbeat):
            link.send(encode(message))
        with self._changed:
            self.messages.append((name, message))
            self._changed.notify_all()

    def _accept(self, name, message):
        if name.startswith("w"):
            self.peers[name] = Peer(name, int(name[1:]), message.address, "")
        self.processes[name] += message.incarnation == 0
        peers = tuple(self.peers.values())
        self.send(name, JoinOk(RUN, 1, 1, 0.05, self.warm, peers, self.processes[name]))
        for other in set(self.links) - {name}:
            self.send(other, Roster(1, peers))

    def send(self, name, message):
        self.links[name].send(encode(message))

    def wait(self, holds, what=""):
        """Wait for a message that fulfils a condition."""
        until = time.monotonic() + SOON_S
        with self._changed:
            while not (found := [m for m in self.messages if holds(*m)]):
                assert self._changed.wait(until - time.monotonic()), (
                    what or "no such message in time"
                )
        return found[0][1]

    def wait_report(self, name, round_, kind):
        def holds(who, message):
            return (
                who == name and isinstance(message, Report) and (message.round, message.kind) == key
            )

        key = (round_, kind)
        return self.wait(holds, f"{name} {key}")


def plus(node, released=None):
    """Training adds node + 1; optionally it waits until it is released."""

    def train(order: StartTraining) -> TrainingFinished:
        if released is not None:
            released.wait(SOON_S)
        vector = order.vector + np.float32(node + 1) * np.float32(order.rate)
        return TrainingFinished(order.number, vector, order.counters + order.steps, 0.5, 8, 0.0)

    return train


class WorkerTestbed:
    """Workers over the memory transport; `close` ends everything."""

    listen = "memory:0"

    def __init__(self):
        self.hub = MemoryHub()
        self.coordinator = Coordinator(self.transport("coordinator"), self.listen)
        self.nodes = []

    def transport(self, name, allow_list=anyone):
        return MemoryTransport(self.hub, name, allowed=allow_list)

    def add(self, node, train=None, schema=TOY, initial=None, started=True, setup=None, **more):
        name = f"w{node:02d}"
        allow_list = AllowList("observer")
        zero = (np.zeros(schema.width, np.float32), np.zeros(1, np.int64))
        components = WorkerComponents(
            transport=self.transport(name, allow_list),
            coordinator=self.coordinator.address,
            setup=setup or WorkerSetup(name, node, Introduction(schema.hash), first_steps=1),
            schema=schema,
            initial=initial or zero,
            train=train or plus(node),
            listen=self.listen,
            allow_list=allow_list,
            **more,
        )
        worker = WorkerProcess(components)
        self.nodes.append(worker)
        if started:
            worker.start()
            self.coordinator.wait(lambda who, m: who == name and isinstance(m, Heartbeat))
        return worker

    def wait_for_peers(self, count):
        until = time.monotonic() + SOON_S
        while any(len(n.machine.pulls.peers) < count - 1 for n in self.nodes):
            assert time.monotonic() < until
            time.sleep(0.01)

    def close(self):
        for node in self.nodes:
            node.close()
            node.components.transport.close()
        self.coordinator.transport.close()
        self.hub.close()


class GrpcTestbed(WorkerTestbed):
    """Workers over gRPC with mutual TLS."""

    listen = "127.0.0.1:0"

    def __init__(self, folder):
        authority.init(folder)
        self.folder = folder
        super().__init__()

    def transport(self, name, allow_list=anyone):
        authority.issue(self.folder, name)
        return GrpcTransport(load_identity(self.folder, name), allow_list)


@contextmanager
def running_testbed():
    """Run a testbed, close it, and check that no thread is left."""
    before = threading.active_count()
    testbed = WorkerTestbed()
    yield testbed
    testbed.close()
    failpoints.arm("")
    until = time.monotonic() + 1200
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


def order(round_, *pulls, train=True, weights=None, rate=1.0):
    nodes = sorted({p.node for p in pulls})
    row = Row(tuple(nodes), weights) if weights else None
    pulled = tuple(p for p in pulls if p.bytes_per_s >= 0)
    return Execute(1, round_, train, (Stage(pulled, row),), steps=2, rate=rate, budget_s=5.0)


def pull(testbed, node, name="observer", **request):
    """Pull a model without a worker."""
    receiver = PayloadReceiver(TOY)
    transport = MemoryTransport(testbed.hub, name)
    peer = testbed.coordinator.peers[f"w{node:02d}"]
    request = PullRequest(RUN, **{"round": 99, **request})
    transport.pull(peer.name, peer.address, request, receiver, PullTimeouts(), threading.Event())
    return receiver.header, receiver.finish()
