"""A coordinator over gRPC with many workers: every open session has its threads, none starves."""

import threading
from collections import Counter
from dataclasses import replace

import pytest

from dystop.bench.testbed import EchoWorker
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.coordinator.setup import OBSERVER
from dystop.testbed.ledger.tables import MemoryLedger, restore
from dystop.testbed.params import Timeouts
from dystop.testbed.security import authority
from dystop.testbed.transport.grpc import GrpcTransport
from support.coordinator_fixtures import QUICK, setup_for

WORKERS = 72  # more than any usual pool of threads
ROUNDS = 4
CALM = Timeouts(heartbeat_s=5.0, suspect_s=60.0, dead_s=90.0, round_s=60.0)


@pytest.fixture
def join(tmp_path):
    """Makes transports of one federation, and closes them."""
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


class Caller(EchoWorker):
    """An echo over the network; all of it runs in the thread of its session."""

    def __init__(self, transport, setup, who):
        super().__init__(None, setup, who)
        self.transport = transport


def test_many_workers_take_part_in_every_round(join):
    """With fewer threads than sessions some would be open and never be heard."""
    params = replace(QUICK, timeouts=CALM)
    setup = setup_for("d-psgd", WORKERS, ROUNDS, params=params)
    ledger = MemoryLedger()
    seat = CoordinatorProcess(
        join("coordinator"), CoordinatorMachine(setup, restore(ledger)), ledger, "127.0.0.1:0"
    )
    workers = [who for who in setup.members if who.name != OBSERVER]
    callers = [Caller(join(who.name), setup, who) for who in workers]
    thread = threading.Thread(target=seat.run, daemon=True)
    thread.start()
    for caller in callers:
        caller.start(seat.address)
    thread.join(30.0)
    assert seat.finish is not None
    assert seat.finish.reason == f"{ROUNDS} rounds are over"
    assert {o.outcome for o in ledger.rows("orders")} == {"DONE"}
    for caller in callers:
        assert Counter(caller.orders) == Counter(range(1, ROUNDS + 1))
