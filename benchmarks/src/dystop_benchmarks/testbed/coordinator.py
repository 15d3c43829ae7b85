"""Benchmark of a coordinator under load.

It runs as in a real testbed: it encodes, checks and decodes every message, commits
every round to SQLite before an order leaves, and publishes records and traces. Only its workers are
replaced by `EchoWorker`, which answers at once and learns nothing. Workers and coordinator share
one interpreter, so the time of the workers' messages is part of the result.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from dystop.conformance.echo_workers import echo_workers
from dystop.control.round import advance, build_view, decide, initial_state, record_of
from dystop.control.stopping import Stop
from dystop.mechanisms.dystop import DySTop
from dystop.plan import Plan
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.members import Enrolled
from dystop.testbed.coordinator.observations import Observations
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import restore
from dystop.testbed.names import member_name
from dystop.testbed.params import TestbedParams, Timeouts
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from dystop.types import Fleet, Outcome
from dystop.world import World, WorldParams
from dystop_benchmarks.planning import fleet_of
from dystop_benchmarks.result import Line
from dystop_benchmarks.settings import Settings
from dystop_benchmarks.stopwatch import in_turns

Say = Callable[[str], None]
WORKERS = 200
GOAL = 20.0  # rounds a second
_WARM, _ROUNDS, _LEAST_ROUNDS = 10, 60, 10
_BED = TestbedParams(
    links="free",
    devices="free",
    observer=False,
    timeouts=Timeouts(heartbeat_s=5.0, suspect_s=60.0, dead_s=90.0, gather_s=60.0),
)


def coordinator_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure rounds per second of a coordinator, and of its decisions alone."""
    n = settings.workers or WORKERS
    rounds = min(_ROUNDS, max(_LEAST_ROUNDS, int(_ROUNDS * settings.scale.at_least_s)))
    name = f"coordinator of {n} in-process workers"
    say(name)
    setup = setup_of(n, _WARM + rounds, settings.seed)
    decision_rounds_per_s(setup)  # loads compiled functions
    seen: list[dict[str, float]] = []

    def measure() -> float:
        with tempfile.TemporaryDirectory(dir=settings.folder) as folder:
            seen.append(coordinator_speed(setup, Path(folder)))
        return seen[-1]["rounds_per_s"]

    value, reference = in_turns([measure, lambda: decision_rounds_per_s(setup)], settings.repeat)
    middle = {key: float(np.median([one[key] for one in seen])) for key in seen[0]}
    yield Line(
        what="testbed",
        name=name,
        unit="rounds/s",
        value=value,
        reference="the same decisions without messages and disk",
        reference_value=reference,
        better="higher",
        detail={"goal_rounds_per_s": GOAL, "rounds": rounds, **middle},
    )


def setup_of(workers: int, rounds: int, seed: int = 0) -> CoordinatorSetup:
    """Return the setup of a coordinator that runs DySTop in the default world."""
    fleet = fleet_of(workers, rounds, seed)
    members = [
        Enrolled(member_name(k, workers), k, int(row.sum()), tuple(row.tolist()))
        for k, row in enumerate(fleet.label_counts)
    ]
    return CoordinatorSetup(
        run="ab" * 16,
        fleet=fleet,
        mechanism=DySTop(),
        world=World(WorldParams(), workers, fleet.model_bytes, seed),
        steps=fleet.epoch_steps,
        members=tuple(members),
        schema="cd" * 32,
        params=_BED,
        stop=Stop(rounds=rounds),
    )


def coordinator_speed(setup: CoordinatorSetup, folder: Path) -> dict[str, float]:
    """Return rounds per second and processor seconds per round, after a few warm-up rounds."""
    times: list[tuple[float, float, float]] = []
    with ExitStack() as stack:
        hub = MemoryHub()
        stack.callback(hub.close)
        ledger = stack.enter_context(closing(SqliteLedger(folder / "state.db")))
        machine = CoordinatorMachine(setup, restore(ledger))
        coordinator = CoordinatorProcess(
            MemoryTransport(hub, "coordinator"),
            machine,
            ledger,
            "bench",
            lambda record: times.append(
                (time.perf_counter(), time.process_time(), time.thread_time())
            ),
        )
        for worker in echo_workers(hub, setup):
            stack.callback(worker.transport.close)
            worker.start(coordinator.address)
        coordinator.run()
    wall_s, all_s, own_s = np.subtract(times[-1], times[_WARM - 1]) / (len(times) - _WARM)
    return {
        "rounds_per_s": float(1.0 / wall_s),
        "cpu_s_per_round": float(all_s),  # workers included
        "coordinator_cpu_s_per_round": float(own_s),
    }


def decision_rounds_per_s(setup: CoordinatorSetup) -> float:
    """Return rounds per second of observing, deciding and settling alone."""
    fleet, mechanism = setup.fleet, setup.mechanism
    observations = Observations(fleet, setup.steps, setup.params)
    control, here = initial_state(fleet, mechanism), np.ones(fleet.nodes, bool)
    began = time.perf_counter()
    for t in range(setup.stop.rounds):
        if t == _WARM:
            began = time.perf_counter()
        world_state = setup.world.observe(control.t, control.clock_s)
        view = build_view(fleet, control, observations.observe(world_state, here, control.clock_s))
        plan, control = decide(mechanism, control, view)
        outcome, before = _outcome(fleet, plan), control
        control = advance(mechanism, control, view, plan, outcome)
        record_of(before, control, view, plan, outcome)
    return (setup.stop.rounds - _WARM) / (time.perf_counter() - began)


def _outcome(fleet: Fleet, plan: Plan) -> Outcome:
    """Return the outcome of a round in which every transfer arrives."""
    links, none = plan.links, np.zeros(len(plan.active))
    return Outcome(
        duration_s=1.0 / GOAL,
        comm_s=none,
        link_s=np.zeros(len(links)),
        link_bytes=np.full(len(links), fleet.model_bytes),
        lost=np.zeros(len(links), bool),
        loss=none,
        samples=0,
        idle_s=0.0,
        active=plan.active,
        dst=links.dst,
        src=links.src,
    )
