"""Real nodes with threads, over the memory transport: rounds, doors, diaries."""

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
    PullBroken,
    Report,
    Roster,
    Row,
    Stage,
)
from dystop.testbed.protocol.messages import Stop as StopNow
from dystop.testbed.worker.history import History, read_history
from dystop.testbed.worker.process import resources
from support.worker_process_fixtures import SOON_S, GrpcStand, order, plus, pull, standing


@pytest.fixture
def stand():
    with standing() as stand:
        yield stand


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
    quiet = LogThrottle(clock=lambda: now[0])

    def say(text):
        record = logging.makeLogRecord({"msg": text})
        return record.getMessage() if quiet.filter(record) and record else None

    assert [say("a") is not None for _ in range(8)] == [True] * 5 + [False] * 3
    assert say("b") == "b"
    now[0] = 61.0
    record = logging.makeLogRecord({"msg": "a"})
    assert quiet.filter(record)
    assert record.getMessage() == "a (and 3 times more)"
