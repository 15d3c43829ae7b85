"""The rounds that a coordinator plays before members may join."""

from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.errors import DystopError
from dystop.mechanisms import MECHANISMS
from dystop.mechanisms.dystop import DySTop
from dystop.testbed.coordinator.rounds import Rounds
from dystop.testbed.coordinator.warm_up import ROUNDS, warm_up
from dystop.testbed.setup import coordinator_run
from support.testbed.coordinator_fixtures import CoordinatorHarness, play, setup_for


@pytest.fixture
def closed(monkeypatch):
    """Numbers of the rounds that are closed."""
    numbers, close = [], Rounds.close

    def spy(rounds):
        numbers.append(rounds.current.t)
        return close(rounds)

    monkeypatch.setattr(Rounds, "close", spy)
    return numbers


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_plays_all_rounds(name, closed):
    warm_up(setup_for(name))
    assert closed == list(range(1, ROUNDS + 1))


@pytest.mark.parametrize("name", ["dystop", "asydfl", "sa-adfl", "fedasync"])
def test_the_run_is_the_same_afterwards(name):
    setup = setup_for(name, rounds=6)
    warm_up(setup)
    harness = CoordinatorHarness(setup)
    harness.join_all()
    harness.run(600.0)
    assert harness.records == play(name, rounds=6).records


@dataclass(frozen=True)
class Broken(DySTop):
    def plan(self, memory, view):
        if view.t > 2:
            raise ZeroDivisionError("no\nworker")
        return super().plan(memory, view)


def test_an_error_ends_the_warm_up_and_is_logged_in_one_line(closed, caplog):
    warm_up(setup_for(Broken()))
    assert closed == [1, 2]
    (line,) = [record.getMessage() for record in caplog.records]
    for fact in (f"2 of {ROUNDS} rounds", "ZeroDivisionError", "worker"):
        assert fact in line
    assert "\n" not in line


def test_a_warm_up_without_an_error_says_nothing(caplog):
    warm_up(setup_for("dystop"))
    assert not caplog.records


def test_a_coordinator_warms_up_before_it_listens(monkeypatch, tmp_path, closed):
    """Otherwise round 1 lasts as long as compiling takes, and no message is read meanwhile."""

    def begin(*_):
        raise DystopError(f"the run begins after {len(closed)} rounds")

    monkeypatch.setattr(coordinator_run, "CoordinatorMachine", begin)
    words = ["data.name=synthetic", "model.name=softmax", "fleet.workers=2", "stop.rounds=1"]
    command = ["testbed", "--transport", "memory", "--out", str(tmp_path), "--no-report", *words]
    result = CliRunner().invoke(app, command)
    assert f"the run begins after {ROUNDS} rounds" in result.output
