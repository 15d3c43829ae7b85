"""A worker that carries vectors beside its model: orders, trainings that fail, and crashes."""

from dataclasses import astuple, dataclass

import numpy as np
import pytest

from dystop.carried import Carried, Carrying, places_of
from dystop.testbed.events import (
    PullFailed,
    SessionOpened,
    StartPull,
    StartTraining,
    TrainingFailed,
)
from dystop.testbed.protocol.messages import CarryingRow, Execute, Pull, Stage
from dystop.testbed.worker.checkpoint import decode_state, encode_state
from dystop.testbed.worker.state import first_state
from dystop.types import Mechanism
from support.testbed.worker_fixtures import WorkerHarness, of, reports, vec

CARRIES = (
    Carried("weight", "own", width=1, first=1.0),
    Carried("moved", "home"),
    Carried("seconds", "home", width=1),
)
PLACES = places_of(CARRIES, parameters=2, width=2, counters=1)


@dataclass(frozen=True)
class Moving(Mechanism):
    """Keeps at home by how much mixing has moved the model."""

    name = "moving"

    def after_mixing(self, own, mixed, dt):
        moved = own["moved"] + mixed["model"] - own["model"]
        return {"moved": moved, "seconds": own["seconds"] + dt}


@pytest.fixture
def harness():
    state = first_state(vec(0, 0, 1), np.zeros(3, np.int64))
    harness = WorkerHarness(state, carrying=Carrying(Moving(), PLACES))
    harness.join()
    return harness


def mixing(harness, weights=(0.5, 0.5), carried=(0.25, 0.75)):
    stage = Stage((Pull(1),), CarryingRow((0, 1), weights, carried=carried))
    order = Execute(1, 1, True, (stage,), steps=4, budget_s=5.0, dt=3.0)
    return of(harness.receive(order), StartPull)


def values(state):
    found = PLACES.values(state.models.latest, state.models.counters)
    return {name: value.tolist() for name, value in found.items()}


def test_weights_of_their_own_mix_the_vectors_that_have_them(harness):
    (pull,) = mixing(harness)
    actions = harness.finish_pull(pull, 4, 8, 2)
    (start,) = of(actions, StartTraining)
    assert values(harness.state) == {
        "model": [2, 4],
        "weight": [1.75],
        "moved": [2, 4],
        "seconds": [3],
    }
    assert start.vector is harness.state.models.latest
    assert start.counters is harness.state.models.counters


def test_a_lost_share_is_missing(harness):
    (pull,) = mixing(harness)
    harness(PullFailed(pull.key, "timeout"))
    assert values(harness.state) == {
        "model": [0, 0],
        "weight": [0.25],
        "moved": [0, 0],
        "seconds": [3],
    }


def test_a_training_that_fails_leaves_all_vectors_as_they_were(harness):
    before = astuple(harness.state.models)
    (pull,) = mixing(harness)
    harness.finish_pull(pull, 4, 8, 2)
    actions = harness(TrainingFailed(harness.state.training.number, "no memory"))
    assert reports(actions) == [(1, "trained")]
    for one, two in zip(astuple(harness.state.models), before, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_killed_worker_trains_again_from_the_same_vectors(harness):
    (pull,) = mixing(harness)
    (start,) = of(harness.finish_pull(pull, 4, 8, 2), StartTraining)
    other = WorkerHarness(decode_state(encode_state(harness.disk)), carrying=harness.setup.carrying)
    (again,) = of(other(SessionOpened()), StartTraining)
    assert (again.number, again.steps) == (start.number, start.steps)
    np.testing.assert_array_equal(again.vector, start.vector)
    np.testing.assert_array_equal(again.counters, start.counters)
    assert values(other.state) == values(harness.state)


@pytest.mark.parametrize("carried", [(0.5,), (0.5, 1e4)])
def test_weights_that_do_not_match_are_refused(harness, carried):
    assert mixing(harness, carried=carried) == []
