"""Simulator and testbed execute the same steps of a round in the same order (alg:dystop)."""

import pytest

from dystop.mechanisms import DySTop
from dystop.simulator import round as simulated
from dystop.testbed.coordinator import records, rounds
from support.engine_fixtures import components_for, run_to_end
from support.testbed.coordinator_fixtures import play as play_testbed

STEPS = ("build_view", "decide", "advance", "record_of")
ROUNDS = 3


@pytest.fixture
def calls(monkeypatch):
    """The steps that are taken, with their arguments and results."""
    taken = []

    def recorded(name, step):
        def call(*args):
            result = step(*args)
            taken.append((name, args, result))
            return result

        return call

    for shell in (simulated, rounds, records):
        for name in STEPS:
            if hasattr(shell, name):
                monkeypatch.setattr(shell, name, recorded(name, getattr(shell, name)))
    return taken


def run_simulator():
    run_to_end(components_for(DySTop(), 5))


def run_testbed():
    play_testbed(DySTop(), rounds=ROUNDS)


@pytest.mark.parametrize("run", [run_simulator, run_testbed])
def test_every_round_is_viewed_decided_advanced_and_recorded(run, calls):
    run()
    assert [name for name, *_ in calls] == list(STEPS) * ROUNDS
    steps = iter(calls)
    groups = zip(steps, steps, steps, steps, strict=True)
    for t, (viewed, decided, advanced, recorded) in enumerate(groups, 1):
        view, (plan, control), after = viewed[2], decided[2], advanced[2]
        assert decided[1][2] is view
        assert advanced[1][1] is control
        assert advanced[1][3] is plan
        assert recorded[1][0] is control
        assert recorded[1][3] is plan
        assert (view.t, advanced[1][2].t, recorded[2].round, after.t) == (t, t, t, t + 1)
