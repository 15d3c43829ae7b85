"""A round makes the same calls in the same order in the simulator and in the testbed."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from dystop.control.stopping import Stop
from dystop.mechanisms import MECHANISMS
from dystop.record import Added
from dystop.recorders.recorder import Recorder
from dystop.simulator import round as simulated
from dystop.simulator.pipeline import simulate_ahead
from dystop.testbed.coordinator import records, rounds
from support.engine_fixtures import components_for
from virtual.build import Case, play

CALLS = ("build_view", "decide", "advance", "measured", "record_of")
ROUNDS = 3


@dataclass(frozen=True)
class First(Added):
    """A group without a value."""

    first: int


@dataclass(frozen=True)
class Second(Added):
    """Another one."""

    second: int


@dataclass(frozen=True)
class Noting(Recorder):
    """Writes down its calls and counts them."""

    group: ClassVar[type[Added]] = First
    log: list = field(default_factory=list)

    def first(self, workers: int) -> int:
        return 0

    def record(self, memory: int, done: Any) -> tuple[None, int]:
        self.log.append((type(self).__name__, memory, done.view.t))
        return None, memory + 1


class NotingToo(Noting):
    """The same under another name."""

    group: ClassVar[type[Added]] = Second


@pytest.fixture
def log(monkeypatch):
    """The calls of both shells, in order."""
    calls = []

    def noted(name, function):
        def call(*args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

        return call

    for shell in (simulated, rounds, records):
        for name in CALLS:
            if (function := vars(shell).get(name)) is not None:
                monkeypatch.setattr(shell, name, noted(name, function))
    return calls


def noting(log):
    return (Noting(log), NotingToo(log))


def calls_of_testbed(name, log):
    play(Case(MECHANISMS[name](), rounds=ROUNDS, recorders=noting(log)))
    return log.copy()


def components_of(name, log):
    return components_for(MECHANISMS[name](), 4, stop=Stop(rounds=ROUNDS), recorders=noting(log))


@pytest.mark.parametrize("name", ["dystop", "d-psgd", "fedavg", "ad-psgd", "sa-adfl"])
def test_both_shells_make_the_same_calls_in_the_same_order(name, log):
    in_testbed = calls_of_testbed(name, log)
    log.clear()
    components = components_of(name, log)
    assert len([*simulated.simulate(components, simulated.begin(components))]) == ROUNDS
    assert log == in_testbed
    one = [*CALLS[:-1], ("Noting", 0, 1), ("NotingToo", 0, 1), CALLS[-1]]
    assert log[: len(one)] == one
    assert len(log) == ROUNDS * len(one)


def test_a_pipeline_makes_them_in_the_same_order_in_each_round(log):
    in_testbed = calls_of_testbed("ad-psgd", log)
    log.clear()
    components = components_of("ad-psgd", log)
    assert (
        len([*simulate_ahead(components, simulated.begin(components), lambda t: False)]) == ROUNDS
    )
    decided = [call for call in in_testbed if call in CALLS[:3]]
    recorded = [call for call in in_testbed if call not in CALLS[:3]]
    assert [call for call in log if call in CALLS[:3]] == decided
    assert [call for call in log if call not in CALLS[:3]] == recorded


def test_a_recorder_with_a_field_that_a_record_has_is_refused():
    components = components_for(MECHANISMS["d-psgd"](), 4, recorders=(Noting(), Noting()))
    with pytest.raises(Exception, match="Noting adds the field 'first', which a record has"):
        simulated.begin(components)
    simulated.begin(replace(components, recorders=noting([])))
