"""Orders that a worker cannot execute: refused, and the next one is executed."""

from dataclasses import replace

import pytest

from dystop.testbed.events import StartTraining
from dystop.testbed.protocol.messages import Complaint, Execute, Pull, Row, Stage
from dystop.testbed.worker.orders import MAX_ROUND
from support.testbed.worker_fixtures import WorkerHarness, of, sent

GOOD = Row((0, 1), (0.5, 0.5))
BAD_STAGES = {
    "lengths": Stage((), replace(GOOD, weights=(1.0,))),
    "twice": Stage((), Row((1, 1), (0.5, 0.5))),
    "updates": Stage((), replace(GOOD, kind="delta")),
    "weights": Stage((), replace(GOOD, weights=(1e300, -1e300))),
    "mask": Stage((Pull(1, mask=(3, 0.5)),), GOOD),
    "pulls": Stage((Pull(1), Pull(1)), GOOD),
}


@pytest.mark.parametrize("stage", BAD_STAGES.values(), ids=BAD_STAGES)
def test_an_order_that_cannot_be_executed_is_refused(stage):
    harness = WorkerHarness()
    harness.join()
    (complaint,) = sent(harness.receive(Execute(1, 1, True, (stage,), steps=2)), Complaint)
    assert complaint.text.startswith("round 1: ")
    assert of(harness.receive(Execute(1, 2, True, (Stage((), Row((0,), (1.0,))),))), StartTraining)


def test_a_round_that_no_run_can_have_is_refused():
    harness = WorkerHarness()
    harness.join()
    stages = (Stage((), Row((0,), (1.0,))),)
    (complaint,) = sent(harness.receive(Execute(1, MAX_ROUND + 1, True, stages)), Complaint)
    assert str(MAX_ROUND) in complaint.text
    assert harness.machine.state.last_round == 0
    assert of(harness.receive(Execute(1, 1, True, stages)), StartTraining)
