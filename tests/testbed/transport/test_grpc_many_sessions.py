"""A coordinator over gRPC with more workers than a usual thread pool has threads."""

import threading
from collections import Counter
from dataclasses import replace

import pytest

from dystop.conformance.echo_workers import EchoWorker
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.ledger.tables import restore
from dystop.testbed.names import OBSERVER
from dystop.testbed.params import Timeouts
from dystop.testbed.security import authority
from dystop.testbed.transport.grpc import GrpcTransport
from support.testbed.coordinator_fixtures import QUICK, setup_for
from support.testbed.memory_ledger import MemoryLedger

WORKERS = 72  # more than any usual pool of threads
ROUNDS = 4
CALM = Timeouts(heartbeat_s=5.0, suspect_s=60.0, dead_s=90.0, round_s=60.0)


@pytest.fixture
def join(tmp_path):
    """Return a function that makes transports of one authority; close them at the end."""
    folder, made = tmp_path / "pki", []
    authority.init(folder)

    def transport(name):
        authority.issue(folder, name)
        identity = authority.load_identity(folder, name)
        made.append(GrpcTransport(identity, lambda name, fingerprint: True))
        return made[-1]

    yield transport
    for each in reversed(made):
        each.close()


class GrpcEchoWorker(EchoWorker):
    """An echo worker over gRPC that runs in the thread of its session."""

    def __init__(self, transport, setup, who):
        super().__init__(None, setup, who)
        self.transport, self.address = transport, "127.0.0.1:1"  # nobody pulls from it


def test_many_workers_take_part_in_every_round(join):
    """With fewer threads than sessions, some open sessions would never be read."""
    params = replace(QUICK, timeouts=CALM)
    setup = setup_for("d-psgd", WORKERS, ROUNDS, params=params)
    ledger = MemoryLedger()
    process = CoordinatorProcess(
        join("coordinator"), CoordinatorMachine(setup, restore(ledger)), ledger, "127.0.0.1:0"
    )
    workers = [who for who in setup.members if who.name != OBSERVER]
    echoes = [GrpcEchoWorker(join(who.name), setup, who) for who in workers]
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    for echo in echoes:
        echo.start(process.address)
    thread.join(30.0)
    assert process.finish is not None
    assert process.finish.reason == f"{ROUNDS} rounds are over"
    assert {o.outcome for o in ledger.rows("orders")} == {"DONE"}
    for echo in echoes:
        assert Counter(echo.orders) == Counter(range(1, ROUNDS + 1))
