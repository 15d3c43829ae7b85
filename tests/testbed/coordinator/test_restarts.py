"""A run that is resumed: its clock stands while nobody coordinates, and nobody is called hung."""

from dataclasses import replace
from itertools import pairwise

import pytest

from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.ledger.tables import restore
from support.testbed.coordinator_fixtures import QUICK, CoordinatorHarness, check_history, setup_for

ROUNDS = 12
SLOW = replace(QUICK, timeouts=replace(QUICK.timeouts, gather_s=60.0, round_s=4.0))


def started(mechanism="dystop", step_s=1.0, **changes):
    harness = CoordinatorHarness(setup_for(mechanism, 5, ROUNDS, **changes))
    for worker in harness.workers.values():
        worker.step_s = step_s
    harness.join_all()
    return harness


def stop_everything(harness):
    """End all processes; their state on the disk stays."""
    harness.machine = None
    harness.queue = []
    for worker in harness.workers.values():
        worker.up, worker.queued, worker.incarnation = False, None, 0
        worker.last_round = max(
            worker.orders, default=0
        )  # an exchange that was cut off is repeated


def resume(harness, after_s, joins_s):
    """Start a coordinator some time later, and each worker when it has loaded its modules."""
    harness.now_s += after_s
    harness.machine = CoordinatorMachine(harness.setup, restore(harness.ledger))
    for name, at_s in zip(list(harness.workers)[: len(joins_s)], joins_s, strict=True):
        harness.later(at_s, lambda name=name: come_back(harness, name))


def come_back(harness, name):
    worker = harness.workers[name]
    harness.join(name)
    harness.later(1.0, lambda: harness.beat(name))
    if worker.training:  # its process begins the training again
        harness.train(worker, worker.last_round, 1)


def clocks(harness):
    return [record.clock_s for record in harness.records]


@pytest.mark.parametrize("mid_round", [True, False])
def test_the_clock_stands_while_no_coordinator_runs_and_workers_start(mid_round):
    whole = started(params=SLOW)
    whole.run(1e4)
    longest = max(b - a for a, b in pairwise([0.0, *clocks(whole)]))

    harness = started(params=SLOW)
    if mid_round:
        harness.run(1e4, until=lambda: len(harness.records) == 4 and harness.machine.rounds.current)
        harness.run(0.1)
    else:
        harness.run(1e4, until=lambda: len(harness.records) == 4)
    stop_everything(harness)
    resume(harness, 500.0, [20.0, 25.0, 30.0, 35.0, 40.0])
    harness.run(1e4)
    check_history(harness, ROUNDS)
    steps = [b - a for a, b in pairwise([0.0, *clocks(harness)])]
    assert min(steps) >= 0
    assert max(steps) < longest + 5.0
    assert harness.machine.state.incidents.written == ()


def test_a_coordinator_that_is_killed_while_the_clock_stands_changes_nothing():
    harness = started(params=SLOW)
    harness.run(1e4, until=lambda: len(harness.records) == 4)
    harness.run(0.1)
    before = max(clocks(harness))
    stop_everything(harness)
    for _ in range(3):
        resume(harness, 100.0, [5.0, 6.0])
        harness.run(10.0)  # two of five are too few
        stop_everything(harness)
    resume(harness, 100.0, [20.0] * 5)
    harness.run(1e4, until=lambda: len(harness.records) == 6)
    assert max(clocks(harness)) < before + 15.0


def test_workers_whose_long_trainings_begin_again_are_not_hung():
    """A round may take longer than the shortest limit; its own limit holds after a restart."""
    params = replace(QUICK, timeouts=replace(QUICK.timeouts, gather_s=5.0, round_s=4.0))
    harness = started("d-psgd", step_s=6.0, params=params)
    harness.run(1e4, until=lambda: len(harness.records) == 8)
    harness.run(5.0)
    stopped_s = harness.machine.state.at_s
    stop_everything(harness)
    resume(harness, 50.0, [1.0, 2.0, 3.0, 4.0, 4.5])
    harness.run(1e4)
    check_history(harness, ROUNDS)
    late = [e for e in harness.machine.state.incidents.written if e.last_s > stopped_s]
    assert late == []
