"""Build a cluster for a mechanism, run it, and check the result."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dystop.control.stopping import Evaluate, Stop
from dystop.exchange import Exchange
from dystop.exchange.codecs import Codec
from dystop.mechanisms import MECHANISMS
from dystop.recorders.emulated_trainings import EmulatedTrainingsRecorder
from dystop.recorders.recorder import Recorders
from dystop.recorders.time_spent import TimeSpentRecorder
from dystop.recorders.topology import TopologyRecorder
from dystop.testbed.audit.check import Finding, check_facts
from dystop.testbed.audit.facts import RunFacts, facts_of
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.members import Enrolled
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.ledger.tables import read_blob, restore
from dystop.testbed.params import TestbedParams, Timeouts
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.worker.machine import WorkerMachine
from dystop.testbed.worker.state import Introduction, WorkerSetup, first_state
from dystop.types import Fleet, Mechanism
from dystop.world import World
from support.engine_fixtures import STABLE_WORLD, line
from support.testbed.memory_ledger import MemoryLedger
from virtual.cluster import Cluster, names_of
from virtual.coded import CodedCluster
from virtual.faults import CALM, Faults, random_faults
from virtual.processes import Process
from virtual.reference import NEAR, Reference, Use
from virtual.toy import FIRST, NO_COUNTERS, WIDTH, digest

RUN = "ab" * 16
SCHEMA = "toy"
QUICK = Timeouts(
    heartbeat_s=1.0, suspect_s=3.0, dead_s=8.0, pull_s=2.0, round_s=5.0, round_cap_s=20.0,
    gather_s=5.0, exclude_s=3.0, report_s=0.5,
)  # fmt: skip


RECORDERS = (TimeSpentRecorder(), EmulatedTrainingsRecorder(), TopologyRecorder())
RANDOM_MECHANISMS = (
    "dystop",
    "dystop",
    "dystop",
    "sa-adfl",
    "ad-psgd",
    "gossipfl",
    "fedasync",
    "asyng",
)


@dataclass(frozen=True)
class Case:
    """The parameters of a virtual run."""

    mechanism: Mechanism
    workers: int = 4
    rounds: int = 20
    seed: int = 0
    faults: Faults = CALM
    timeouts: Timeouts = QUICK
    codec: Codec | None = None  # of differences
    recorders: Recorders = RECORDERS

    @property
    def fleet(self) -> Fleet:
        size = 8 * (1 + np.arange(self.workers) % 3)
        counts = np.stack([size // 2, size // 2], axis=1)
        server = self.mechanism.capabilities().server
        return Fleet(size, counts, 8, 4 * WIDTH, self.rounds, self.seed, server)

    @property
    def members(self) -> tuple[Enrolled, ...]:
        fleet = self.fleet
        known = [
            Enrolled(name, k, int(fleet.data_size[k]), tuple(fleet.label_counts[k].tolist()))
            for k, name in enumerate(names_of(self.workers))
        ]
        return (
            (*known, Enrolled("server", self.workers))
            if self.mechanism.capabilities().server
            else (*known,)
        )

    @property
    def setup(self) -> CoordinatorSetup:
        fleet, server = self.fleet, self.mechanism.capabilities().server
        place = line(self.workers)
        return CoordinatorSetup(
            run=RUN,
            fleet=fleet,
            mechanism=self.mechanism,
            world=World(STABLE_WORLD, self.workers, fleet.model_bytes, self.seed, server, place),
            steps=fleet.epoch_steps,
            members=self.members,
            schema=SCHEMA,
            params=TestbedParams(observer=False, timeouts=self.timeouts, links="free"),
            stop=Stop(rounds=self.rounds),
            evaluate=Evaluate(every_rounds=1000),
            recorders=self.recorders,
        )

    def worker_setup(self, process: Process) -> WorkerSetup:
        enrolled, fleet = self.members[process.node], self.fleet
        trains = process.node < self.workers
        return WorkerSetup(
            name=process.name,
            node=process.node,
            introduction=Introduction(
                schema=SCHEMA,
                address=f"there:{process.node}",
                data_size=enrolled.data_size,
                label_counts=enrolled.label_counts,
            ),
            first_steps=int(fleet.epoch_steps[process.node]) if trains else 0,
            deltas=self.mechanism.capabilities().deltas,
            params=TestbedParams(timeouts=self.timeouts),
            digest=digest,
            exchange=Exchange(codec=self.codec),
        )


def random_case(seed: int, workers: int, rounds: int) -> Case:
    """Return a run with random faults; the seed chooses the mechanism, too."""
    mechanism = MECHANISMS[RANDOM_MECHANISMS[seed % len(RANDOM_MECHANISMS)]]()
    return Case(mechanism, workers=workers, rounds=rounds, seed=seed, faults=random_faults(seed))


def cluster_of(case: Case) -> Cluster:
    setup = case.setup

    def coordinator(process: Process) -> Any:
        process.disk = process.disk or MemoryLedger()
        return CoordinatorMachine(setup, restore(process.disk))

    def worker(process: Process) -> Any:
        state = process.disk or first_state(
            FIRST, NO_COUNTERS, deltas=case.mechanism.capabilities().deltas
        )
        setup = case.worker_setup(process)
        if isinstance(cluster, CodedCluster):
            setup = replace(setup, own_copy=cluster.copies[process.name].at)
        return WorkerMachine(setup, state)

    names = names_of(case.workers, case.mechanism.capabilities().server)
    parts = coordinator, worker, names, case.seed, case.faults
    if case.codec is None:
        cluster = Cluster(*parts)
    else:
        schema = Schema((("toy", (WIDTH,)),), codec=case.codec)
        cluster = CodedCluster(*parts, schema=schema)
    return cluster


def run_facts(cluster: Cluster) -> RunFacts:
    unconfirmed = {
        a.node: frozenset(r.round for r in a.disk.reports if r.kind == "mixed")
        for a in cluster.nodes
        if a.disk
    }
    logs = {a.node: a.log_lines for a in cluster.nodes}
    return facts_of(cluster.coordinator.disk.rows, logs, unconfirmed)


def findings_of(cluster: Cluster) -> list[Finding]:
    return check_facts(run_facts(cluster))


def play(case: Case, **options: Any) -> Cluster:
    cluster = cluster_of(case)
    cluster.run(**options)
    return cluster


def plans_of(cluster: Cluster) -> dict[int, Any]:
    return {r.round: read_blob(r.plan)["plan"] for r in cluster.coordinator.disk.rows("rounds")}


def reference_of(case: Case, cluster: Cluster) -> Reference:
    """Execute the plans of a run again with the reference."""
    fleet = case.fleet
    ref = Reference(
        fleet.nodes, fleet.workers, fleet.epoch_steps, case.mechanism.capabilities().warm_start
    )
    uses, numbers = _reported(cluster)
    for round_, plan in sorted(plans_of(cluster).items()):
        ref.play(round_, plan, uses.get(round_, {}), numbers.get(round_, {}))
    return ref


def _reported(cluster: Cluster) -> tuple[Any, Any]:
    """Return the models of each round and the trainings of each node, as reported."""
    uses: dict[int, Any] = {}
    numbers: dict[int, Any] = {}
    for _, name, message in cluster.received:
        if getattr(message, "kind", "") != "mixed":
            continue
        node = cluster.by_name[name].node
        begun = _number_before(cluster.by_name[name].log_lines, message.round)
        numbers.setdefault(message.round, {})[node] = (begun, message.number)
        for u in message.used:
            vector = cluster.shipped[u.node, u.version, u.digest]
            uses.setdefault(message.round, {})[u.stage, node, u.node] = Use(u.number, vector)
    return uses, numbers


def _number_before(lines: list[Any], round_: int) -> int:
    """Return the last training that a node had finished when an order arrived."""
    number = -1
    for entry in lines:
        if entry["kind"] == "order" and entry["round"] == round_:
            return number
        if entry["kind"] == "trained":
            number = entry["number"]
    return number


def assert_as_planned(case: Case, cluster: Cluster) -> None:
    """Assert that every node has the model that the plans imply."""
    ref = reference_of(case, cluster)
    for process, node in zip(cluster.nodes, ref.refs, strict=True):
        state = process.disk
        if node.training is not None and state.number >= node.training[0]:
            ref.finish_training(process.node)
        assert state.number == node.last.number, (process.name, state.number, node.last.number)
        np.testing.assert_allclose(state.published, node.last.vector, atol=NEAR)
        if node.training is not None:
            np.testing.assert_allclose(state.models.latest, node.training[1], atol=NEAR)
