"""The observer with worker processes."""

import threading
import time

import numpy as np
import pytest

from dystop.testbed.events import AnswerPull
from dystop.testbed.observer import Observer, ObserverComponents
from dystop.testbed.protocol.messages import Evaluate, Heartbeat, NotTestable, Reject, Scored
from dystop.testbed.protocol.messages import Stop as StopNow
from dystop.testbed.protocol.pulls import PullRefused
from dystop.testbed.transport.memory import MemoryTransport
from dystop.training.evaluate import Evaluation
from support.testbed.transport_parties import until
from support.testbed.worker_process_fixtures import SOON_S, TOY, running_testbed


@pytest.fixture
def testbed():
    with running_testbed() as testbed:
        yield testbed


class MeanEvaluator:
    """An evaluator whose accuracy is the mean of the weights."""

    def evaluate(self, models, counters, samples=None):
        mean = models.mean(dim=1).double().numpy()
        return Evaluation(mean / 10, np.where(mean > 2.5, np.inf, mean))


def start_observer(testbed, trainer, **more):
    components = ObserverComponents(
        transport=MemoryTransport(testbed.hub, "observer"),
        coordinator=testbed.coordinator.address,
        schema=TOY,
        trainer=trainer,
        counters=np.zeros(1, np.int64),
        data_size=np.array([1, 1, 2, 5]),
        **{"pull_s": 1.0, **more},
    )
    observer = Observer(components)
    testbed.nodes.append(observer)
    observer.start()
    testbed.coordinator.wait(lambda who, m: who == "observer" and isinstance(m, Heartbeat))
    return observer


def answer_to(testbed, round_):
    kinds = (Scored, NotTestable)
    return testbed.coordinator.wait(lambda who, m: isinstance(m, kinds) and m.round == round_)


def answers(testbed):
    return [m for _, m in testbed.coordinator.messages if isinstance(m, (Scored, NotTestable))]


def test_the_observer_tests_all_models_and_the_global_one(testbed):
    testbed.coordinator.warm = True
    for node in range(3):
        testbed.add(node)
        testbed.coordinator.wait_report(f"w{node:02d}", 0, "trained")
    observer = start_observer(testbed, MeanEvaluator(), per_worker=True)
    testbed.coordinator.send("observer", Evaluate(1, 4, (0, 1, 2, 3)))
    score = answer_to(testbed, 4)
    assert (score.round, score.missing, score.diverged, score.tested) == (4, (3,), 1, 3)
    assert score.accuracy == pytest.approx(0.2)
    assert score.accuracy_global == pytest.approx((1 + 2 + 2 * 3) / 40)
    assert score.loss == pytest.approx(1.5)
    assert score.worker_accuracy == (
        pytest.approx(0.1),
        pytest.approx(0.2),
        pytest.approx(0.3),
        None,
    )
    assert score.worker_loss == (pytest.approx(1.0), pytest.approx(2.0), None, None)
    testbed.coordinator.send("observer", StopNow(1, "over"))
    assert observer.wait(SOON_S).code == 0


class BrokenEvaluator:
    """An evaluator that fails."""

    def evaluate(self, models, counters, samples=None):
        raise ValueError("no memory")


def refuse(worker, monkeypatch, refusal):
    """Let a worker answer every pull in the same way."""
    monkeypatch.setattr(
        worker.machine.durable.published,
        "answer",
        lambda requested, now_s, *, expected: [AnswerPull(requested.key, refusal)],
    )


def test_the_observer_answers_when_it_gets_no_model(testbed, monkeypatch):
    refuse(testbed.add(0), monkeypatch, PullRefused("no_model"))
    start_observer(testbed, MeanEvaluator())
    testbed.coordinator.send("observer", Evaluate(1, 4, (0, 1)))
    assert answer_to(testbed, 4) == NotTestable(4, "none of 2 models arrived")


def test_the_observer_answers_when_it_fails(testbed):
    testbed.coordinator.warm = True
    testbed.add(0)
    testbed.coordinator.wait_report("w00", 0, "trained")
    start_observer(testbed, BrokenEvaluator())
    testbed.coordinator.send("observer", Evaluate(1, 4, (0,)))
    assert answer_to(testbed, 4) == NotTestable(4, "ValueError: no memory")


def test_a_worker_that_is_always_busy_holds_a_test_up_for_a_bounded_time(testbed, monkeypatch):
    testbed.coordinator.warm = True
    for node in range(2):
        testbed.add(node)
        testbed.coordinator.wait_report(f"w{node:02d}", 0, "trained")
    refuse(testbed.nodes[1], monkeypatch, PullRefused("busy", retry_s=1e9))
    start_observer(testbed, MeanEvaluator(), pull_s=1.0)
    began = time.monotonic()
    testbed.coordinator.send("observer", Evaluate(1, 4, (0, 1)))
    score = answer_to(testbed, 4)
    assert (score.missing, score.tested) == ((1,), 1)
    assert time.monotonic() - began < 3.0


class WaitingEvaluator(MeanEvaluator):
    """An evaluator that waits until it is released."""

    def __init__(self):
        self.begun, self.released = threading.Event(), threading.Event()

    def evaluate(self, models, counters, samples=None):
        self.begun.set()
        assert self.released.wait(SOON_S)
        return super().evaluate(models, counters, samples)


def test_a_round_that_waits_gives_way_to_a_newer_one(testbed):
    testbed.coordinator.warm = True
    testbed.add(0)
    testbed.coordinator.wait_report("w00", 0, "trained")
    trainer = WaitingEvaluator()
    start_observer(testbed, trainer)
    testbed.coordinator.send("observer", Evaluate(1, 4, (0,)))
    assert trainer.begun.wait(SOON_S)
    for round_ in (4, 6, 6, 8):  # the first one is in progress
        testbed.coordinator.send("observer", Evaluate(1, round_, (0,)))
    assert isinstance(answer_to(testbed, 6), NotTestable)
    trainer.released.set()
    assert isinstance(answer_to(testbed, 8), Scored)
    assert [(m.round, type(m)) for m in answers(testbed)] == [
        (6, NotTestable), (4, Scored), (8, Scored),
    ]  # fmt: skip


def test_a_repeated_request_gets_the_same_answer_again(testbed):
    testbed.coordinator.warm = True
    testbed.add(0)
    testbed.coordinator.wait_report("w00", 0, "trained")
    start_observer(testbed, MeanEvaluator())
    testbed.coordinator.send("observer", Evaluate(1, 4, (0,)))
    first = answer_to(testbed, 4)
    testbed.coordinator.messages.clear()
    testbed.coordinator.send("observer", Evaluate(2, 4, (0,)))
    assert answer_to(testbed, 4) == first


def test_the_observer_knows_whether_it_has_joined(testbed):
    observer = start_observer(testbed, MeanEvaluator())
    health = observer.health()
    assert (health.party, health.state, health.address) == ("observer", "joined", "")
    testbed.coordinator.refuse = Reject("epoch", "later", retry_s=60.0)
    testbed.coordinator.links["observer"].close()
    assert until(lambda: observer.health().state == "waiting", SOON_S)
    assert observer.health().alive_s > health.alive_s
