"""Worker processes that stop, crash, restart, or fail."""

import threading

import numpy as np
import pytest

from dystop.errors import StorageError
from dystop.testbed.launch import failpoints
from dystop.testbed.protocol.messages import (
    Execute,
    Heartbeat,
    Incident,
    Join,
    Leave,
    Pull,
    Reject,
    Row,
    Stage,
)
from dystop.testbed.protocol.messages import Stop as StopNow
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.state import first_state
from support.codecs import codec_for
from support.testbed.worker_process_fixtures import SOON_S, TOY, order, plus, pull


def test_a_killed_worker_resumes_from_its_checkpoint(testbed, tmp_path):
    released, checkpoints = threading.Event(), CheckpointStore(tmp_path / "ckpt.safetensors")
    testbed.coordinator.warm = True
    first = testbed.add(0, plus(0, released), checkpoints=checkpoints)
    dying = threading.Thread(target=first.close)
    dying.start()
    assert first.wait(SOON_S)
    released.set()  # the result comes too late
    dying.join()
    testbed.coordinator.messages.clear()
    second = testbed.add(0, checkpoints=checkpoints)
    report = testbed.coordinator.wait_report("w00", 0, "trained")
    assert (first.machine.state.incarnation, second.machine.state.incarnation) == (1, 2)
    np.testing.assert_allclose(pull(testbed, 0)[1], 1.0)
    assert report.version > 60  # what the first one may have handed out is not used again


def test_stop_saves_and_leaves(testbed, tmp_path):
    checkpoints = CheckpointStore(tmp_path / "ckpt.safetensors")
    node = testbed.add(0, checkpoints=checkpoints)
    testbed.coordinator.send("w00", StopNow(1, "over"))
    assert node.wait(SOON_S).code == 0
    testbed.coordinator.wait(lambda who, m: isinstance(m, Leave))
    assert checkpoints.load().state.epoch == 1


@pytest.mark.parametrize("damaged", [1, 2])
def test_the_coordinator_is_told_of_damaged_checkpoints(testbed, tmp_path, damaged):
    checkpoints = CheckpointStore(tmp_path / "ckpt.safetensors")
    state = first_state(np.zeros(TOY.width, np.float32), np.zeros(1, np.int64), deltas=False)
    for _ in range(2):
        checkpoints.save(state)
    for file in (checkpoints.path, checkpoints.before)[:damaged]:
        file.write_bytes(file.read_bytes()[:-1])
    testbed.add(0, checkpoints=checkpoints)
    told = testbed.coordinator.wait(lambda who, m: isinstance(m, Incident))
    assert (told.node, told.kind, told.count) == (0, "damaged_checkpoint", 1)
    assert told.text.count("ckpt.safetensors") == damaged
    assert ("starts untrained" in told.text) == (damaged == 2)


def test_a_worker_can_stop_itself(testbed):
    node = testbed.add(0)
    node.stop("ctrl-c")
    assert node.wait(SOON_S).code == 0
    assert testbed.coordinator.wait(lambda who, m: isinstance(m, Leave)).text == "ctrl-c"


def test_a_refusal_ends_the_process_with_its_text(testbed):
    testbed.coordinator.refuse = Reject("schema", "b is [3] instead of [2]")
    node = testbed.add(0, started=False)
    node.start()
    end = node.wait(SOON_S)
    assert end.code == 2
    assert "[3]" in end.text


def test_a_lost_session_is_opened_again_and_reports_are_repeated(testbed):
    released = threading.Event()
    testbed.coordinator.warm = True
    testbed.add(0, plus(0, released))
    testbed.coordinator.messages.clear()
    testbed.coordinator.served.drop("w00")
    testbed.coordinator.wait(lambda who, m: isinstance(m, Join) and m.phase == "training")
    released.set()
    testbed.coordinator.wait_report("w00", 0, "trained")


class FullDisk(CheckpointStore):
    full = False

    def save(self, state):
        if self.full:
            raise StorageError("no space left")
        super().save(state)


def test_a_full_disk_fails_the_order_and_shows_in_the_heartbeat(testbed, tmp_path):
    checkpoints = FullDisk(tmp_path / "ckpt.safetensors")
    testbed.add(0, checkpoints=checkpoints)
    checkpoints.full = True
    testbed.coordinator.send("w00", order(1))
    assert "no space left" in testbed.coordinator.wait_report("w00", 1, "failed").text
    testbed.coordinator.wait(lambda who, m: isinstance(m, Heartbeat) and m.disk_full)
    pull(testbed, 0)


@pytest.mark.parametrize("site", ["before_pull", "after_header", "mid_chunk", "after_digest"])
def test_an_error_in_a_pull_costs_that_model_only(testbed, site):
    for node in range(2):
        testbed.add(node)
    testbed.wait_for_peers(2)
    failpoints.arm(f"worker.{site}:error")
    stages = (Stage((Pull(1),), Row((0, 1), (0.5, 0.5))),)
    testbed.coordinator.send("w00", Execute(1, 1, True, stages, steps=1, budget_s=3.0))
    assert len(testbed.coordinator.wait_report("w00", 1, "mixed").rejected) == 1


@pytest.mark.parametrize(
    "site", ["after_accept", "after_aggregate", "before_publish", "after_rename_before_report"]
)
def test_an_error_in_the_updating_thread_ends_the_worker(testbed, site, tmp_path):
    node = testbed.add(0, checkpoints=CheckpointStore(tmp_path / "c"))
    failpoints.arm(f"worker.{site}:error")
    testbed.coordinator.send("w00", order(1))
    end = node.wait(SOON_S)
    assert end.code == 1
    assert site in end.text


def test_an_error_in_training_is_reported(testbed):
    testbed.add(0)
    failpoints.arm("worker.mid_train:error")
    testbed.coordinator.send("w00", order(1))
    assert "mid_train" in testbed.coordinator.wait_report("w00", 1, "trained").text


@pytest.mark.parametrize("kind", ["topk", "randomk", "sign"])
@pytest.mark.parametrize("restarted", [0, 1])  # the worker that pulls, the worker that serves
def test_compressed_links_survive_the_end_of_either_worker(testbed, tmp_path, kind, restarted):
    """Who lost its copies gets all messages, or a whole model; then single messages again."""
    schema = Schema((("w", (50, 4)),), codec=codec_for(kind, 0.05, (200,), 1))
    whole, stores = schema.size(), {}

    def start(node):
        stores.setdefault(node, CheckpointStore(tmp_path / f"{node}.safetensors"))
        return testbed.add(node, schema=schema, checkpoints=stores[node])

    def pulled_bytes(round_):
        testbed.wait_for_peers(2)
        row = Row((0, 1), (0.5, 0.5))
        for node, stage in ((1, Stage()), (0, Stage((Pull(1),), row))):
            name = f"w{node:02d}"
            testbed.coordinator.send(name, Execute(1, round_, True, (stage,), 2, budget_s=5.0))
            testbed.coordinator.wait_report(name, round_, "trained")
        return testbed.coordinator.wait_report("w00", round_, "mixed").used[0].bytes

    workers = {node: start(node) for node in (0, 1)}
    before = [pulled_bytes(round_) for round_ in range(1, 8)]
    one_message = before[1]  # in round 1 there is nothing new
    assert set(before[1:]) == {one_message}
    workers[restarted].close()
    testbed.nodes.remove(workers[restarted])
    start(restarted)
    after = [pulled_bytes(round_) for round_ in range(8, 10)]
    assert after[0] == whole if restarted == 1 else one_message < after[0] <= whole
    assert after[1] == one_message
