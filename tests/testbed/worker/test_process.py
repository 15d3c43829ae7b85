"""Worker processes with threads over the memory transport: rounds, access, event logs."""

import logging
import threading
import time

import numpy as np
import pytest

from dystop.testbed.log_throttle import LogThrottle
from dystop.testbed.protocol.messages import (
    Execute,
    ExecuteAck,
    Heartbeat,
    Leave,
    Peer,
    Pull,
    Reject,
    Report,
    Roster,
    Row,
    Stage,
)
from dystop.testbed.protocol.messages import Stop as StopNow
from dystop.testbed.protocol.pulls import PullBroken
from dystop.testbed.worker.history import EventLog, process_resources, read_event_log
from support.testbed.transport_parties import until
from support.testbed.worker_process_fixtures import SOON_S, GrpcTestbed, order, plus, pull

# Rounds -----------------------------------------------------------------------------------------


def test_three_nodes_exchange_mix_and_train(testbed):
    testbed.coordinator.warm = True
    for node in range(3):
        testbed.add(node)
    testbed.wait_for_peers(3)
    for node in range(3):
        testbed.coordinator.wait_report(f"w{node:02d}", 0, "trained")
    stages = (Stage((Pull(1), Pull(2)), Row((0, 1, 2), (0.5, 0.25, 0.25))),)
    testbed.coordinator.send("w00", Execute(1, 1, True, stages, steps=2, rate=0.5, budget_s=5.0))
    mixed = testbed.coordinator.wait_report("w00", 1, "mixed")
    assert [(u.node, u.number) for u in sorted(mixed.used, key=lambda u: u.node)] == [
        (1, 0),
        (2, 0),
    ]
    assert all(len(u.digest) == 64 and u.bytes > 24 and u.seconds >= 0 for u in mixed.used)
    trained = testbed.coordinator.wait_report("w00", 1, "trained")
    header, vector = pull(testbed, 0)
    np.testing.assert_allclose(vector, 0.5 * 1 + 0.25 * 2 + 0.25 * 3 + 0.5)
    assert (header.number, header.round, header.version) == (1, 1, trained.version)
    assert header.sha256 == trained.digest
    assert trained.loss == 0.5


def test_heartbeats_and_pulls_go_on_while_training(testbed):
    released = threading.Event()
    testbed.coordinator.warm = True
    testbed.add(0, plus(0, released))
    seen = []

    def three_heartbeats(who, message):
        if isinstance(message, Heartbeat) and message.phase == "training":
            seen.append(message.seq)
        return len(set(seen)) >= 3

    testbed.coordinator.wait(three_heartbeats)
    assert pull(testbed, 0)[0].version == 0
    released.set()
    testbed.coordinator.wait_report("w00", 0, "trained")


def test_an_exact_pull_waits_for_the_training_of_its_round(testbed):
    released = threading.Event()
    testbed.coordinator.warm = True
    testbed.add(0)
    testbed.add(1, plus(1, released))
    testbed.wait_for_peers(2)
    testbed.coordinator.wait_report("w00", 0, "trained")
    stages = (Stage((Pull(1, exact=True),), Row((0, 1), (0.5, 0.5))),)
    testbed.coordinator.send("w00", Execute(1, 1, True, stages, steps=1, budget_s=5.0))
    testbed.coordinator.send("w01", Execute(1, 1, True, (), steps=1, budget_s=5.0))
    testbed.coordinator.wait(lambda who, m: isinstance(m, ExecuteAck) and m.state == "queued")
    time.sleep(0.1)
    assert not any(
        isinstance(m, Report) and m.kind == "mixed" for _, m in testbed.coordinator.messages
    )
    released.set()
    used = testbed.coordinator.wait_report("w00", 1, "mixed").used
    assert [(u.node, u.number) for u in used] == [(1, 0)]


def test_a_training_lasts_as_long_as_the_device_would_take(testbed):
    testbed.coordinator.warm = True
    testbed.add(0, step_s=0.3)
    assert testbed.coordinator.wait_report("w00", 0, "trained").seconds >= 0.3


def test_closing_does_not_wait_for_an_emulated_training(testbed):
    testbed.coordinator.warm = True
    node = testbed.add(0, step_s=100.0)
    began = time.monotonic()
    node.close()
    assert time.monotonic() - began < 2.0


def test_a_training_that_raises_is_reported(testbed, caplog):
    def broken(order):
        raise ValueError("no\ndata")

    testbed.coordinator.warm = True
    testbed.add(0, broken)
    assert "no\\ndata" in testbed.coordinator.wait_report("w00", 0, "trained").text


def test_a_round_over_grpc(tmp_path):
    testbed = GrpcTestbed(tmp_path)
    testbed.coordinator.warm = True
    try:
        nodes = [testbed.add(node) for node in range(2)]
        testbed.wait_for_peers(2)
        for node in range(2):
            testbed.coordinator.wait_report(f"w{node:02d}", 0, "trained")
        stages = (Stage((Pull(1),), Row((0, 1), (0.5, 0.5))),)
        testbed.coordinator.send("w00", Execute(1, 1, True, stages, steps=1, budget_s=5.0))
        testbed.coordinator.wait_report("w00", 1, "trained")
        np.testing.assert_allclose(nodes[0].machine.state.published, 2.5)
        testbed.coordinator.send("w00", StopNow(1, "over"))
        assert nodes[0].wait(SOON_S).code == 0
        testbed.coordinator.wait(lambda who, m: who == "w00" and isinstance(m, Leave))
        nodes[1].stop("ctrl-c")
        assert nodes[1].wait(SOON_S).code == 0
        testbed.coordinator.wait(lambda who, m: who == "w01" and isinstance(m, Leave))
    finally:
        testbed.close()


# Who may come in --------------------------------------------------------------------------------


def test_strangers_and_members_that_left_are_refused(testbed):
    testbed.add(0)
    with pytest.raises(PullBroken) as refused:
        pull(testbed, 0, name="w07")
    assert refused.value.code == "not_authorised"
    testbed.coordinator.send("w00", Roster(1, (Peer("w07", 7, "memory:7", ""),)))
    until = time.monotonic() + SOON_S
    while 7 not in testbed.nodes[0].machine.pulls.peers:
        assert time.monotonic() < until
        time.sleep(0.01)
    pull(testbed, 0, name="w07")
    testbed.coordinator.send("w00", Roster(1, ()))
    while 7 in testbed.nodes[0].machine.pulls.peers:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(PullBroken):
        pull(testbed, 0, name="w07")


# Event log, logs, resources ---------------------------------------------------------------------


def test_the_event_log_contains_what_happened(testbed, tmp_path):
    history = EventLog(tmp_path / "history.jsonl")
    node = testbed.add(0, write_line=history.write)
    testbed.coordinator.send("w00", order(1))
    testbed.coordinator.wait_report("w00", 1, "trained")
    pull(testbed, 0)
    node.close()
    history.close()
    kinds = [line["kind"] for line in read_event_log(tmp_path / "history.jsonl")]
    assert {"start", "epoch", "order", "applied", "training", "trained", "published", "sample"} <= {
        *kinds
    }


def test_resources_of_this_process():
    assert process_resources()["threads"] >= 1


def test_the_same_line_is_written_five_times_a_minute():
    now = [0.0]
    quiet = LogThrottle(clock=lambda: now[0])

    def logged(text):
        record = logging.makeLogRecord({"msg": text})
        return record.getMessage() if quiet.filter(record) and record else None

    assert [logged("a") is not None for _ in range(8)] == [True] * 5 + [False] * 3
    assert logged("b") == "b"
    now[0] = 61.0
    record = logging.makeLogRecord({"msg": "a"})
    assert quiet.filter(record)
    assert record.getMessage() == "a (and 3 times more)"


def test_a_worker_knows_whether_it_has_joined(testbed):
    worker = testbed.add(0)
    health = worker.health()
    assert (health.party, health.state) == ("w00", "joined")
    assert health.address == testbed.coordinator.peers["w00"].address
    assert time.monotonic() - health.alive_s < SOON_S
    testbed.coordinator.refuse = Reject("epoch", "later", retry_s=60.0)
    testbed.coordinator.links["w00"].close()
    assert until(lambda: worker.health().state == "waiting", SOON_S)


def test_a_loop_that_hangs_makes_the_worker_look_old(testbed, monkeypatch):
    worker, released = testbed.add(0), threading.Event()
    handle = worker.machine.handle
    monkeypatch.setattr(worker.machine, "handle", lambda *a: released.wait(SOON_S) and handle(*a))
    try:
        time.sleep(0.3)  # whatever it was doing is done
        first = worker.health().alive_s
        time.sleep(0.3)
        assert worker.health().alive_s == first
    finally:
        released.set()
    assert until(lambda: worker.health().alive_s > first, SOON_S)
