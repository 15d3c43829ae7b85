"""Simulator and testbed execute the same steps of a round in the same order (alg:dystop)."""

import pytest

from dystop.mechanisms import DySTop
from dystop.simulator import loop
from dystop.testbed.coordinator import rounds
from support.engine_fixtures import components_for, run_to_end
from support.testbed.coordinator_fixtures import play as play_testbed

STEPS = ("build_view", "decide", "settle")
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

    for shell in (loop, rounds):
        for name in STEPS:
            monkeypatch.setattr(shell, name, recorded(name, getattr(shell, name)))
    return taken


def run_simulator():
    run_to_end(components_for(DySTop(), 5))


def run_testbed():
    play_testbed(DySTop(), rounds=ROUNDS)


@pytest.mark.parametrize("run", [run_simulator, run_testbed])
def test_every_round_is_viewed_decided_and_settled(run, calls):
    run()
    assert [name for name, *_ in calls] == list(STEPS) * ROUNDS
    steps = iter(calls)
    for t, (viewed, decided, settled) in enumerate(zip(steps, steps, steps, strict=True), 1):
        view, (plan, control) = viewed[2], decided[2]
        record, after = settled[2]
        assert decided[1][2] is view
        assert settled[1][1] is control
        assert settled[1][3] is plan
        assert (view.t, settled[1][2].t, record.round, after.t) == (t, t, t, t + 1)
