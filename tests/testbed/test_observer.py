"""The observer with worker processes."""

import numpy as np
import pytest

from dystop.testbed.observer import Observer, ObserverComponents
from dystop.testbed.protocol.messages import Evaluate, Heartbeat, Scored
from dystop.testbed.protocol.messages import Stop as StopNow
from dystop.testbed.transport.memory import MemoryTransport
from dystop.training.evaluate import Evaluation
from support.worker_process_fixtures import SOON_S, TOY, running_testbed


@pytest.fixture
def testbed():
    with running_testbed() as testbed:
        yield testbed


class MeanEvaluator:
    """An evaluator whose accuracy is the mean of the weights."""

    def evaluate(self, models, counters, samples=None):
        mean = models.mean(dim=1).double().numpy()
        return Evaluation(mean / 10, np.where(mean > 2.5, np.inf, mean))


def test_the_observer_tests_all_models_and_the_global_one(testbed):
    testbed.coordinator.warm = True
    for node in range(3):
        testbed.add(node)
        testbed.coordinator.wait_report(f"w{node:02d}", 0, "trained")
    observer = Observer(
        ObserverComponents(
            transport=MemoryTransport(testbed.hub, "observer"),
            coordinator=testbed.coordinator.address,
            schema=TOY,
            trainer=MeanEvaluator(),
            counters=np.zeros(1, np.int64),
            data_size=np.array([1, 1, 2, 5]),
            pull_s=1.0,
        )
    )
    testbed.nodes.append(observer)
    observer.start()
    testbed.coordinator.wait(lambda who, m: who == "observer" and isinstance(m, Heartbeat))
    testbed.coordinator.send("observer", Evaluate(1, 4, (0, 1, 2, 3)))
    score = testbed.coordinator.wait(lambda who, m: isinstance(m, Scored))
    assert (score.round, score.missing, score.diverged) == (4, (3,), 1)
    assert score.accuracy == pytest.approx(0.2)
    assert score.accuracy_global == pytest.approx((1 + 2 + 2 * 3) / 40)
    assert score.loss == pytest.approx(1.5)
    testbed.coordinator.send("observer", StopNow(1, "over"))
    assert observer.wait(SOON_S).code == 0
