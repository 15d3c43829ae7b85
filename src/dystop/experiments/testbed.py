"""From a specification to the testbed: who is enrolled, on which device, and what is refused.

Free of torch, so that a coordinator starts in a moment. What needs data and models is in
`dystop.experiments.testbed_parts`.
"""

import hashlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dystop.errors import ConfigError, RunFolderError
from dystop.experiments.durable import write_atomic
from dystop.experiments.fleets import fleet_of, keeps_topology, steps_of
from dystop.experiments.spec import Experiment, to_toml
from dystop.runtime.coordinator_setup import Setup
from dystop.runtime.members import Enrolled as Member
from dystop.sparse import Floats, Ints
from dystop.types import Fleet
from dystop.world import Surroundings, TraceWorld, Transfer, World, read_trace
from dystop.world.compute import jetson_factors

ENROLMENT, STATUS = "enrolment.json", "coordinator.json"
KIND = "testbed"  # in `run.json`
COORDINATOR, OBSERVER, SERVER = "coordinator", "observer", "server"


def worker_name(node: int, workers: int) -> str:
    """Name of a worker: w00, w01, ...

    >>> worker_name(3, 15), worker_name(3, 200)
    ('w03', 'w003')
    """
    return f"w{node:0{max(2, len(str(workers - 1)))}d}"


def node_names(experiment: Experiment) -> list[str]:
    """Names of all nodes in order: the workers, then the server where the mechanism has one."""
    count = experiment.fleet.workers
    names = [worker_name(node, count) for node in range(count)]
    return [*names, SERVER] if experiment.mechanism.server else names


def node_of(experiment: Experiment, name: str) -> int:
    """Number of a node by its name."""
    names = node_names(experiment)
    if name not in names:
        raise ConfigError(
            f"--name {name!r}: no such worker in this experiment; there are {names[0]} to "
            f"{names[-1]}"
        )
    return names.index(name)


@dataclass(frozen=True)
class Enrolled:
    """What an operator vouches for: a worker's name, its data size and label counts."""

    name: str
    data_size: int
    label_counts: tuple[int, ...]


@dataclass(frozen=True)
class Enrolment:
    """Who may take part in a run, and with which model."""

    run: str  # identity of the run
    schema: str  # fingerprint of the model's tensors
    model_bytes: int
    workers: tuple[Enrolled, ...]

    def fleet(self, experiment: Experiment) -> Fleet:
        """The fleet as enrolled."""
        counts = np.array([worker.label_counts for worker in self.workers], np.int64)
        return fleet_of(experiment, counts, self.model_bytes)


def new_run_id() -> str:
    """Identity of a run: 16 random bytes."""
    return secrets.token_hex(16)


def run_id_of(experiment: Experiment) -> str:
    """Identity that all hosts work out from the same settings; places on a host do not count."""
    everywhere = replace(
        experiment,
        data=replace(experiment.data, root="", download=True),
        training=replace(experiment.training, device="auto", lanes=None),
        testbed=replace(experiment.testbed, host="", port=0),
    )
    return hashlib.sha256(to_toml(everywhere).encode()).hexdigest()[:32]


def write_enrolment(folder: Path, enrolment: Enrolment) -> None:
    """Write `enrolment.json`: one worker to a line, for people to read and compare."""
    head = {"format": 1, **{k: v for k, v in asdict(enrolment).items() if k != "workers"}}
    rows = ",\n    ".join(json.dumps(asdict(worker)) for worker in enrolment.workers)
    text = json.dumps(head, indent=2)[:-2] + f',\n  "workers": [\n    {rows}\n  ]\n}}\n'
    write_atomic(folder / ENROLMENT, text.encode())


def read_enrolment(folder: Path, experiment: Experiment) -> Enrolment:
    """Read `enrolment.json` and check that it fits the experiment."""
    path = folder / ENROLMENT
    try:
        raw = json.loads(path.read_bytes())
        enrolment = _enrolment(raw)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path}: not an enrolment: {error}") from None
    names = [worker.name for worker in enrolment.workers]
    wanted = node_names(experiment)[: experiment.fleet.workers]
    if names != wanted:
        raise RunFolderError(
            f"{path}: enrols {len(names)} workers ({names[0] if names else 'none'} ...); the "
            f"experiment has {wanted[0]} to {wanted[-1]}"
        )
    return enrolment


def _enrolment(raw: Any) -> Enrolment:
    workers = tuple(_enrolled(row) for row in raw["workers"])
    return Enrolment(str(raw["run"]), str(raw["schema"]), int(raw["model_bytes"]), workers)


def _enrolled(row: Any) -> Enrolled:
    counts = tuple(int(count) for count in row["label_counts"])
    if min(counts, default=0) < 0 or sum(counts) != row["data_size"]:
        raise ValueError(f"{row['name']}: data_size is not the sum of label_counts")
    return Enrolled(str(row["name"]), int(row["data_size"]), counts)


def check_testbed(experiment: Experiment) -> None:
    """Refuse what only a simulator can do."""
    if experiment.engine.timing == "overlap":
        raise ConfigError(
            "engine.timing = 'overlap': the testbed runs the paper's rounds; use 'paper'"
        )
    if experiment.staleness.rule == "compensate":
        raise ConfigError(
            "staleness.rule = 'compensate' needs models that only a simulator has; use another "
            "rule ('dystop list keys --describe staleness.rule')"
        )
    if experiment.testbed.links == "trace" and not experiment.testbed.trace:
        raise ConfigError("testbed.links = 'trace' needs testbed.trace, the folder of a run")


def step_seconds(experiment: Experiment, world: World) -> Floats:
    """Seconds per mini-batch of every worker: emulated, or a first guess where it runs free."""
    batch_s = experiment.world.compute.batch_s
    if experiment.testbed.devices == "jetson" and not isinstance(batch_s, str):
        return batch_s * jetson_factors(experiment.fleet.workers)
    return world.observe(1, 0.0).step_s


class Emulation:
    """The surroundings that a coordinator goes by: the channel model, with devices of its own."""

    def __init__(self, world: World, step_s: Floats) -> None:
        self._world, self._step_s = world, step_s

    def observe(self, t: int, now_s: float) -> Surroundings:
        """What may be known when round t opens."""
        return replace(self._world.observe(t, now_s), step_s=self._step_s)

    def transfer(
        self, t: int, now_s: float, dst: Ints, src: Ints, fraction: float | Floats
    ) -> Transfer:
        """What moving a share of a model over each link takes."""
        return self._world.transfer(t, now_s, dst, src, fraction)


def world_of(experiment: Experiment, fleet: Fleet) -> World:
    """The surroundings that positions, reach, budgets and first guesses come from."""
    place = experiment.world, fleet.workers, fleet.model_bytes, experiment.seed, fleet.server
    if experiment.testbed.links == "trace":
        return TraceWorld(read_trace(Path(experiment.testbed.trace)), *place)
    return World(*place)


def coordinator_setup(experiment: Experiment, enrolment: Enrolment) -> Setup:
    """What a coordinator is made of; needs neither data nor models."""
    check_testbed(experiment)
    fleet = enrolment.fleet(experiment)
    world = world_of(experiment, fleet)
    topology = keeps_topology(experiment)
    return Setup(
        run=enrolment.run,
        fleet=fleet,
        mechanism=experiment.mechanism,
        world=Emulation(world, step_seconds(experiment, world)),
        steps=steps_of(experiment, fleet),
        members=_members(experiment, enrolment),
        schema=enrolment.schema,
        params=experiment.testbed,
        stop=experiment.stop,
        evaluate=experiment.evaluate,
        remedy=experiment.staleness,
        topology=topology,
        moving=topology and experiment.world.mobility.enabled,
    )


def _members(experiment: Experiment, enrolment: Enrolment) -> tuple[Member, ...]:
    """The workers as enrolled, the server, and the observer as one more node."""
    known = {worker.name: worker for worker in enrolment.workers}
    members = []
    for node, name in enumerate(node_names(experiment)):
        worker = known.get(name, Enrolled(name, 0, ()))
        members.append(Member(name, node, worker.data_size, worker.label_counts))
    if experiment.testbed.observer:
        members.append(Member(OBSERVER, len(members)))
    return tuple(members)


def write_status(folder: Path, **facts: Any) -> None:
    """Say where the coordinator listens and how many have joined; for the launcher's eyes."""
    part = folder / f".{STATUS}.tmp-{os.getpid()}"
    with suppress(OSError):  # nobody's work depends on it
        part.write_text(json.dumps(facts))
        part.replace(folder / STATUS)


def read_status(folder: Path) -> dict[str, Any]:
    """What the coordinator said last; empty before its first word."""
    try:
        found = json.loads((folder / STATUS).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
