"""Peers pull models while a worker writes its checkpoint."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.testbed.events import (
    AnswerPull,
    CheckpointFailed,
    CheckpointSaved,
    Publication,
    PullRequested,
    PullWithdrawn,
    SaveCheckpoint,
    StartPull,
    StartTraining,
)
from dystop.testbed.protocol.messages import Execute, Pull, Report
from dystop.testbed.protocol.pulls import PullRefused, PullRequest
from dystop.testbed.worker.checkpoint import CheckpointStore
from support.testbed.worker_fixtures import RUN, WorkerHarness, of
from support.testbed.worker_process_fixtures import SOON_S, order, plus, pull

# The machine


class SlowDisk(WorkerHarness):
    """A driver that passes pulls to the machine while a save is under way, as the process does."""

    def __init__(self, requests=(), **more):
        super().__init__(**more)
        self.requests = requests  # made during every save
        self.early, self.late = {}, {}  # answers by key: before a save ended, and at its end
        self.found = {}  # by key: what the worker has for the request right after the save
        self.keys = 0

    def _execute(self, actions):
        for action in actions:
            self.done.append(action)
            if isinstance(action, SaveCheckpoint):
                self._save(action)

    def _save(self, action):
        asked = {}
        for request in self.requests:
            self.keys += 1
            asked[self.keys] = PullRequest(RUN, **request)
            event = PullRequested(self.keys, "w01", asked[self.keys])
            self.early |= answers(self.machine.handle(event, self.now))
        self.disk = action.state if self.disk_ok else self.disk
        ended = CheckpointSaved() if self.disk_ok else CheckpointFailed("full")
        after = self.machine.handle(ended, self.now)
        self.late |= answers(after)
        published = self.machine.durable.published
        self.found |= {key: published.find(request) for key, request in asked.items()}
        self._execute(after)
        if self.disk_ok:
            self._execute(action.after_save)


def answers(actions):
    return {action.key: action.answer for action in of(actions, AnswerPull)}


def test_a_published_model_is_served_while_the_exchange_is_saved():
    worker = SlowDisk([{"round": 1}])
    worker.join()
    worker.execute(1)
    assert worker.early.keys() == {1, 2}  # one save at the join, one of the exchange
    assert not worker.late
    np.testing.assert_array_equal(worker.early[2].vector, [0, 0])


def test_a_snapshot_is_served_while_the_exchange_is_saved():
    worker = SlowDisk()
    worker.join()
    (started,) = of(worker.execute(1, Pull(1)), StartPull)
    worker.requests = [{"round": 1, "stage": 1, "exact": True}]
    worker.finish_pull(started, 4, 4)
    np.testing.assert_array_equal(worker.early[1].vector, [2, 2])


def test_the_result_of_a_training_is_served_after_it_is_saved():
    worker = SlowDisk()
    worker.join()
    worker.execute(1)
    worker.requests = [{"round": 2}, {"round": 1}]
    worker.end_training(5, 5)
    np.testing.assert_array_equal(worker.late[1].vector, [5, 5])
    assert worker.late[1].version == worker.disk.version
    np.testing.assert_array_equal(worker.early[2].vector, [0, 0])  # that of before round 1


def test_a_passive_mix_that_is_undone_is_served_to_nobody():
    worker = SlowDisk()
    worker.join()
    (started,) = of(worker.execute(1, Pull(1), train=False), StartPull)
    worker.disk_ok, worker.requests = False, [{"round": 9}]
    worker.finish_pull(started, 4, 4)
    assert not worker.early
    np.testing.assert_array_equal(worker.late[1].vector, [0, 0])


def test_a_pull_that_is_withdrawn_during_a_save_is_not_answered():
    worker = WorkerHarness()
    worker.join()
    worker.execute(1)
    number = worker.state.training.number
    machine, now = worker.machine, worker.now
    worker._execute = lambda actions: None  # the save goes on
    worker.end_training(5, 5, number=number)
    assert machine.handle(PullRequested(7, "w01", PullRequest(RUN, round=2)), now) == []
    assert machine.handle(PullWithdrawn(7), now) == []
    assert not answers(machine.handle(CheckpointSaved(), now))


REQUESTS = st.fixed_dictionaries(
    {"round": st.integers(0, 6), "exact": st.booleans(), "stage": st.integers(0, 2)}
)


@given(
    st.lists(st.sampled_from(["active", "passive", "trained", "full", "space"]), max_size=12),
    st.lists(REQUESTS, max_size=4),
)
def test_a_pull_during_a_save_gets_what_it_would_get_after_it(steps, requests):
    worker = SlowDisk(requests)
    worker.join()
    for step in steps:
        before, served = worker.state.version, set(worker.early)
        take_step(worker, step)
        new = {key: answer for key, answer in worker.early.items() if key not in served}
        for answer in publications(new, requests):
            assert answer.version <= before  # none that the save writes for the first time
    assert not worker.early.keys() & worker.late.keys()
    for key, model in worker.found.items():
        answer = (worker.early | worker.late).get(key)
        if model is None:
            assert answer is None or isinstance(answer, PullRefused)
        else:
            assert answer.version == model.publication.version


def take_step(worker, step):
    worker.disk_ok = {"full": False, "space": True}.get(step, worker.disk_ok)
    round_ = worker.machine.orders.newest_round + 1
    if step in ("active", "passive"):
        for started in of(worker.execute(round_, Pull(1), train=step == "active"), StartPull):
            worker.finish_pull(started, round_, 1.0)
    elif step == "trained" and worker.state.training is not None:
        worker.end_training(round_, 2.0)


def publications(found, requests):
    """Return the models that requests got which are not exact."""
    exact = [request["exact"] for request in requests]
    return [
        a
        for k, a in found.items()
        if isinstance(a, Publication) and not exact[(k - 1) % len(exact)]
    ]


# The process


class HeldStore(CheckpointStore):
    """A disk that holds every save until the test releases it."""

    def __init__(self, path):
        super().__init__(path)
        self.began, self.released = threading.Event(), threading.Event()
        self.released.set()

    def save(self, state):
        self.began.set()
        assert self.released.wait(SOON_S)
        super().save(state)

    def hold(self):
        self.began.clear()
        self.released.clear()


@pytest.fixture
def store(tmp_path):
    return HeldStore(tmp_path / "worker.safetensors")


def is_report(kind):
    return lambda who, message: isinstance(message, Report) and message.kind == kind


def test_a_worker_serves_peers_while_it_saves_and_reports_afterwards(testbed, store):
    started = []

    def train(request: StartTraining):
        started.append(request)
        return plus(0)(request)

    testbed.add(0, train, checkpoints=store)
    store.hold()
    testbed.coordinator.send("w00", order(1))
    assert store.began.wait(SOON_S)
    header, model = pull(testbed, 0, round=1)
    np.testing.assert_array_equal(model, 0.0)
    assert pull(testbed, 0, round=1, stage=1, exact=True)[0].version == header.version
    assert not started
    assert not [m for _, m in testbed.coordinator.messages if is_report("mixed")("w00", m)]
    store.released.set()
    testbed.coordinator.wait_report("w00", 1, "mixed")
    testbed.coordinator.wait_report("w00", 1, "trained")
    assert len(started) == 1


def test_a_new_model_is_served_once_it_is_on_disk(testbed, store):
    released = threading.Event()
    testbed.add(0, plus(0, released), checkpoints=store)
    testbed.coordinator.send("w00", order(1))
    testbed.coordinator.wait_report("w00", 1, "mixed")
    store.hold()
    released.set()
    assert store.began.wait(SOON_S)
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(pull, testbed, 0, round=2)
        assert pull(testbed, 0, round=1)[0].version < 1  # an older model does not wait
        assert not pulled.done()
        store.released.set()
        header, model = pulled.result(SOON_S)
    np.testing.assert_array_equal(model, 1.0)
    assert store.load().state.version == header.version


def test_a_pull_does_not_overtake_an_order(testbed, store):
    """A pull that comes after an order, and during a save, is answered after the order began."""
    testbed.add(0, checkpoints=store)
    store.hold()
    testbed.coordinator.send("w00", order(1, train=False))
    assert store.began.wait(SOON_S)
    testbed.coordinator.send("w00", order(2, train=False))
    delayed = testbed.nodes[0]._delayed
    until(lambda: any(isinstance(getattr(e, "message", None), Execute) for e in [*delayed]))
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(pull, testbed, 0, round=2, exact=True)
        with pytest.raises(TimeoutError):
            pulled.result(0.2)
        assert not [m for _, m in testbed.coordinator.messages if isinstance(m, Report)]
        store.released.set()
        pulled.result(SOON_S)
    for round_ in (1, 2):
        testbed.coordinator.wait_report("w00", round_, "mixed")
    sent = [m for _, m in testbed.coordinator.messages if is_report("mixed")("w00", m)]
    assert [m.round for m in sent] == [1, 2]


def test_an_error_that_is_none_of_the_disk_ends_the_worker(testbed, store):
    node = testbed.add(0, checkpoints=store)
    store.save = broken
    testbed.coordinator.send("w00", order(1))
    end = node.wait(SOON_S)
    assert end.code == 1
    assert "cannot be packed" in end.text


def broken(state):
    raise TypeError("cannot be packed")


def until(holds):
    limit_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < limit_s
        time.sleep(0.01)
