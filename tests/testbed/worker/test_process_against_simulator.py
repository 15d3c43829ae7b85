"""Worker processes and the simulator compute the same models."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from dystop.control.stopping import Stop
from dystop.data import load, take
from dystop.plan import Plan, links, mix_of
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin, simulate
from dystop.testbed.coordinator.orders import RoundLimits, orders_from_plan
from dystop.testbed.protocol.payload import schema_of
from dystop.testbed.worker.state import Introduction, WorkerSetup
from dystop.testbed.worker.training_thread import local_trainer
from dystop.training.models.build import build_model
from dystop.training.params import TrainerParams
from dystop.training.samples import Arrays
from dystop.training.trainer import Trainer
from support.engine_fixtures import Script, components_for
from support.testbed.worker_process_fixtures import SOON_S, running_testbed


@pytest.fixture
def testbed():
    with running_testbed() as testbed:
        yield testbed


def test_two_rounds_equal_the_simulators(testbed):
    """Same plans, same trainer, same numbers: mixing and training agree with the engine."""
    data = take(load("fmnist-mini"), 240, 50, seed=0)
    shards = np.array_split(np.arange(240), 3)
    arrays = Arrays(data.x_train, data.y_train, data.x_test, data.y_test, data.mean, data.std)
    module = build_model("cnn", 1, (28, 28), data.classes, 0)
    trainer = Trainer(module, arrays, shards, TrainerParams(batch=40, lanes=1), 0)
    first = Plan(
        np.array([0]),
        links(np.array([0, 0]), np.array([1, 2])),
        (mix_of(np.array([0, 0, 0]), np.arange(3), np.array([0.5, 0.2, 0.3])),),
    )
    second = Plan(
        np.array([1, 2]),
        links(np.array([1, 2]), np.array([0, 1])),
        (mix_of(np.array([1, 1, 2, 2]), np.array([0, 1, 1, 2]), np.array([0.4, 0.6, 0.7, 0.3])),),
        steps=np.array([1, 2]),
    )
    components = components_for(
        Script(plans=(first, second)),
        3,
        trainer=trainer,
        engine=EngineParams(publish="on_completion"),
        stop=Stop(rounds=2),
        steps=np.array([2, 2, 2]),
    )
    state = begin(components)
    for _, after in simulate(components, state):
        state = after
    expected = state.models.latest.numpy()

    vector, counters = trainer.initial()
    schema, lock, released = schema_of(trainer.layout), threading.Lock(), threading.Event()
    testbed.coordinator.warm = True
    for node in range(3):
        train_node = local_trainer(trainer, node)

        def train(order, train_node=train_node, node=node):
            if node == 0 and order.number == 1:
                released.wait(
                    SOON_S
                )  # still busy when the second round reads it, as in the simulator
            with lock:
                return train_node(order)

        setup = WorkerSetup(f"w{node:02d}", node, Introduction(schema.hash), first_steps=2)
        testbed.add(
            node, train, schema=schema, initial=(vector.numpy(), counters.numpy()), setup=setup
        )
    testbed.wait_for_peers(3)
    for node in range(3):
        testbed.coordinator.wait_report(f"w{node:02d}", 0, "trained")
    for round_, plan in ((1, first), (2, second)):
        view = replace_view(components, round_)
        steps = np.full(len(plan.active), 2) if plan.steps is None else plan.steps
        rates = np.zeros(len(plan.links))
        pull_s = np.full(view.fleet.nodes, 5.0)
        limits, apart_s = RoundLimits(0.0, 0.0, pull_s, pull_s, rates), np.zeros(len(plan.active))
        orders = orders_from_plan(plan, view, components.mechanism, steps, limits, apart_s, epoch=1)
        for node, execute in orders.items():
            testbed.coordinator.send(f"w{node:02d}", execute)
        for node in orders:
            testbed.coordinator.wait_report(f"w{node:02d}", round_, "mixed")
    released.set()
    for node, round_ in ((0, 1), (1, 2), (2, 2)):
        testbed.coordinator.wait_report(f"w{node:02d}", round_, "trained")
    found = np.stack([n.machine.state.published for n in testbed.nodes])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert not np.allclose(expected[0], expected[1], atol=1e-3)


def replace_view(components, round_):
    from dystop.control.round import build_view, initial_state
    from dystop.types import Observation

    control = replace(initial_state(components.fleet, components.mechanism), t=round_)
    seen = components.world.observe(round_, 0.0)
    observation = Observation(
        seen.alive,
        seen.reach,
        seen.distance_m,
        seen.link_s,
        seen.step_s,
        np.zeros(3),
        seen.budget_of,
    )
    return build_view(components.fleet, control, observation)
