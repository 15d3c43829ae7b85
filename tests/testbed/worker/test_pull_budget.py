"""Peers get as many models as orders can name; one that pulls in a loop is refused early."""

import threading
import time

import numpy as np
import pytest

from dystop.testbed.events import PeerIncident, Publication, PullRequested
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.protocol.pulls import PullBroken, PullRequest
from dystop.testbed.security import authority
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.worker.history import EventLogger
from dystop.testbed.worker.model_server import (
    MAX_RESERVE,
    RESERVE_PER_S,
    ModelEncoder,
    PublishedModelServer,
    PullBudget,
)
from dystop.testbed.worker.outgoing import Outgoing
from dystop.testbed.worker.process import write_nothing
from support.testbed.transport_fixtures import ANY, certificates, closing_all
from support.testbed.transport_parties import QUICK, BufferSink

SCHEMA = Schema((("w", (1000,)),))
LOOPS = 8


@pytest.mark.parametrize("stages", [1, 3])
def test_orders_are_never_refused(stages):
    """Thirty rounds a second, known late: from a heartbeat a second, or from an order in ten."""
    now_s = [0.0]
    for known in (lambda t: t % 30 == 0, lambda t: t % 10 == 0):
        budget = PullBudget(lambda: now_s[0])
        budget.joined(1)
        budget.round_known(1, stages)
        for t in range(1, 2000):
            now_s[0] += 1 / 30
            if known(t):
                budget.round_known(t, stages)
            assert all(budget.take("w01") for _ in range(stages))
            assert t % 5 or budget.take("observer")


def test_a_restored_ledger_gives_the_same_budget():
    budget = PullBudget(lambda: 0.0)
    budget.joined(900)
    while budget.take("w01"):
        pass
    budget.joined(800)  # an older coordinator round after a restore
    for t in range(801, 850):
        budget.round_known(t)
        assert budget.take("w01")


class AnsweringServer(PublishedModelServer):
    """A model server whose machine answers at once; counts what reaches the machine."""

    def __init__(self):
        encoder, logger = ModelEncoder(SCHEMA), EventLogger(write_nothing)
        super().__init__(encoder, logger, self._handle, Outgoing())
        self.model = Publication(1, 0, 0, np.arange(1000, dtype=np.float32))
        self.reached, self.incidents = [], []

    def _handle(self, event):
        if isinstance(event, PullRequested):
            self.reached.append(event.peer)
            self.answer(event.key, self.model)
        elif isinstance(event, PeerIncident):
            self.incidents.append((event.peer, event.kind))


def test_a_member_that_pulls_in_a_loop_takes_little_from_the_others(tmp_path):
    folder, source = certificates(tmp_path / "pki"), AnsweringServer()
    over, calls = threading.Event(), []

    def loop(transport, address):
        while not over.is_set():
            calls.append(1)
            try:
                transport.pull("w00", address, PullRequest("ab", 10**6), BufferSink(), QUICK, over)
            except PullBroken:
                continue

    with closing_all() as closing:

        def party(name):
            identity = authority.load_identity(folder, name)
            return closing(GrpcTransport(identity, lambda *_: True))

        address = party("w00").serve_models(ANY, source).address
        greedy, honest = party("w02"), party("w01")
        threads = [threading.Thread(target=loop, args=(greedy, address)) for _ in range(LOOPS)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for t in range(30):
            source.budget.round_known(t)
            honest.pull("w00", address, PullRequest("ab", t), BufferSink(), QUICK, over)
            time.sleep(0.1)
        elapsed_s = time.monotonic() - began
        over.set()
        for thread in threads:
            thread.join()
        source.close()
    assert source.reached.count("w01") == 30
    assert source.reached.count("w02") <= MAX_RESERVE + 30 + RESERVE_PER_S * elapsed_s + 1
    assert len(calls) <= source.reached.count("w02") + 2 * LOOPS * elapsed_s + 20
    assert set(source.incidents) == {("w02", "flood")}
