"""From a configuration to the testbed: who is enrolled, on which device, and what is refused.

Free of torch, so that a coordinator starts quickly. `dystop.testbed.setup.parts` has what
needs data and models.
"""

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dystop.config import Experiment, read_again, to_tree
from dystop.config.readings import set_by
from dystop.config.tables import without
from dystop.config.write import dumps
from dystop.data.private import Facts
from dystop.errors import ConfigError, RunFolderError
from dystop.folders.run_folder import RunData, check_config
from dystop.foreign_files import JSON_BYTES, read_bounded
from dystop.format import FORMAT, other_format
from dystop.record import ACCURACY
from dystop.recorders import recorders_of
from dystop.recorders.recorder import Setting
from dystop.runs.fleet import fleet_of, mechanism_of, steps_of
from dystop.sparse import Floats, Ints
from dystop.storage import PRIVATE, try_read_json, write_atomic
from dystop.strict_json import parse_json
from dystop.testbed.coordinator.members import Enrolled as Member
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.names import OBSERVER, SERVER, member_name
from dystop.types import Fleet
from dystop.world import TraceWorld, Transfer, World, WorldState, read_trace
from dystop.world.capacity import jetson_factors
from dystop.world.capacity import step_seconds as drawn_step_seconds
from dystop.world.params import WorldParams

ENROLMENT, STATUS, INCIDENTS = "enrolment.json", "coordinator.json", "incidents.json"
KIND, SETTINGS_SHA256 = "testbed", "settings_sha256"  # a value and a key of `run.json`
Parsed = TypeVar("Parsed")


def node_names(experiment: Experiment) -> list[str]:
    """Return the names of all nodes: the workers, then the server if the mechanism has one."""
    count = experiment.fleet.workers
    names = [member_name(node, count) for node in range(count)]
    return [*names, SERVER] if experiment.mechanism.capabilities().server else names


def node_of(experiment: Experiment, name: str) -> int:
    """Return the number of a node by its name."""
    names = node_names(experiment)
    if name not in names:
        raise ConfigError(
            f"--name {name!r}: no such worker in this experiment; there are {names[0]} to "
            f"{names[-1]}"
        )
    return names.index(name)


@dataclass(frozen=True)
class Enrolled:
    """What the operator confirms about a worker: name, data size and label counts."""

    name: str
    data_size: int
    label_counts: tuple[int, ...]


@dataclass(frozen=True)
class Enrolment:
    """Who may take part in a run, and with which model."""

    schema: str  # fingerprint of the model's tensors
    model_bytes: int  # of one message
    workers: tuple[Enrolled, ...]
    score: str = ACCURACY  # name of the score of the task
    whole_bytes: int = 0  # of a whole model, where links carry differences; 0: that of a message
    least_loss: float = -math.inf  # of the task

    def fleet(self, experiment: Experiment) -> Fleet:
        """Return the fleet as enrolled."""
        counts = np.array([worker.label_counts for worker in self.workers], np.int64)
        return fleet_of(experiment, counts, self.model_bytes)


def new_run_id() -> str:
    """Return the identity of a run: 16 random bytes. The ledger and all workers keep it."""
    return secrets.token_hex(16)


def fixed_settings(experiment: Experiment) -> Experiment:
    """Return the settings without name, paths and addresses, which may change during a run."""
    return replace(
        experiment,
        name="",
        data=replace(experiment.data, root="", download=True),
        model=replace(experiment.model, folder="", base=""),
        task=replace(experiment.task, folder=""),
        training=replace(experiment.training, device="auto", lanes=None),
        testbed=replace(experiment.testbed, host="", port=0),
    )


def fixed_settings_sha256(experiment: Experiment) -> str:
    """Return the SHA-256 of the settings that must not change during a run."""
    tree, _ = without(to_tree(fixed_settings(experiment)), ["mechanism", "folder"])
    return hashlib.sha256(dumps(tree).encode()).hexdigest()


def check_settings(run: RunData) -> None:
    """Refuse to resume a run with other settings than it started with."""
    settings = read_again(run.path)
    if run.info.get(SETTINGS_SHA256) != fixed_settings_sha256(settings):
        check_config(run, "dystop testbed")


def write_enrolment(folder: Path, enrolment: Enrolment) -> None:
    """Write `enrolment.json`."""
    head: dict[str, Any] = {"schema": enrolment.schema, "model_bytes": enrolment.model_bytes}
    if enrolment.score != ACCURACY:
        head["score"] = enrolment.score
    if enrolment.whole_bytes:
        head["whole_bytes"] = enrolment.whole_bytes
    if math.isfinite(enrolment.least_loss):
        head["least_loss"] = enrolment.least_loss
    _write_workers(folder / ENROLMENT, head, enrolment.workers)


def check_member_files(files: Sequence[Path]) -> None:
    """Refuse files that are not named after the workers w00, w01, ..., one each."""
    names = [file.stem for file in files]
    wanted = [member_name(node, len(files)) for node in range(len(files))]
    if sorted(names) == wanted:
        return
    raise ConfigError(
        f"{len(files)} files must be named after the workers, {wanted[0]}.json to "
        f"{wanted[-1]}.json; {_misnamed(names, wanted)}"
    )


def _misnamed(names: Sequence[str], wanted: Sequence[str]) -> str:
    """Return what is wrong with some names."""
    kinds = {
        "twice": {name for name in names if names.count(name) > 1},
        "unexpected": {*names} - {*wanted},
        "missing": {*wanted} - {*names},
    }
    problems = [f"{kind}: {', '.join(sorted(some))}" for kind, some in kinds.items() if some]
    return "; ".join(problems) or "not in this order"


def enrol(path: Path, facts_of: Mapping[str, Facts], classes: int) -> None:
    """Write the enrolment of workers from the facts about their data."""
    workers = []
    for name, facts in facts_of.items():
        counts = (*facts.label_counts, *(0,) * (classes - len(facts.label_counts)))
        workers.append(Enrolled(name, facts.data_size, counts))
    _write_workers(path, {}, workers)


def _write_workers(path: Path, head: dict[str, Any], workers: Sequence[Enrolled]) -> None:
    """Write one worker per line, so that people can read and compare them."""
    rows = ",\n    ".join(json.dumps(asdict(worker)) for worker in workers)
    top = json.dumps({"format": FORMAT, **head}, indent=2)[:-2]
    text = f'{top},\n  "workers": [\n    {rows}\n  ]\n}}\n'
    write_atomic(path, text.encode(), mode=PRIVATE)


def read_enrolment(folder: Path, experiment: Experiment) -> Enrolment:
    """Read `enrolment.json` and check that it fits the experiment."""
    path = folder / ENROLMENT
    enrolment = _read_enrolment(path, partial(_enrolment, path))
    _check_names(path, enrolment.workers, experiment)
    return enrolment


def read_enrolled(path: Path, experiment: Experiment) -> tuple[Enrolled, ...]:
    """Read the workers that an operator enrols, from a file like `enrolment.json`."""
    workers = _read_enrolment(path, lambda raw: tuple(_enrolled(row) for row in raw["workers"]))
    _check_names(path, workers, experiment)
    classes = experiment.data.private.classes
    for worker in workers:
        if len(worker.label_counts) != classes:
            raise ConfigError(
                f"{path}: {worker.name} has {len(worker.label_counts)} label counts; "
                f"data.private.classes is {classes}"
            )
    return workers


def _read_enrolment(path: Path, parse: Callable[[Any], Parsed]) -> Parsed:
    try:
        return parse(parse_json(read_bounded(path, JSON_BYTES, follow=True)))
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path}: not an enrolment file: {error}") from None


def _check_names(path: Path, workers: tuple[Enrolled, ...], experiment: Experiment) -> None:
    names = [worker.name for worker in workers]
    wanted = node_names(experiment)[: experiment.fleet.workers]
    if names != wanted:
        raise RunFolderError(
            f"{path}: enrols {len(names)}; the experiment has {wanted[0]} to {wanted[-1]}; "
            f"{_misnamed(names, wanted)}"
        )


def _enrolment(path: Path, raw: Any) -> Enrolment:
    if (found := raw["format"]) != FORMAT:
        raise RunFolderError(other_format(path, found))
    workers = tuple(_enrolled(row) for row in raw["workers"])
    score = str(raw.get("score", ACCURACY))
    whole_bytes = int(raw.get("whole_bytes", 0))
    size, least = int(raw["model_bytes"]), float(raw.get("least_loss", -math.inf))
    return Enrolment(str(raw["schema"]), size, workers, score, whole_bytes, least)


def _enrolled(row: Any) -> Enrolled:
    counts = tuple(int(count) for count in row["label_counts"])
    if min(counts, default=0) < 0 or sum(counts) != row["data_size"]:
        raise ValueError(f"{row['name']}: data_size is not the sum of label_counts")
    if not sum(counts):
        raise ValueError(f"{row['name']}: no samples, so there is nothing to train on")
    return Enrolled(str(row["name"]), int(row["data_size"]), counts)


def check_testbed(experiment: Experiment) -> None:
    """Refuse settings that only the simulator supports."""
    by_preset = partial(set_by, experiment.reading, experiment.mechanism.name)
    if not experiment.engine.law.ends_with_exchanges:
        raise ConfigError(
            f"engine.timing = {experiment.engine.timing!r}: on the testbed a round lasts until its "
            "last exchange is over; use 'testbed', the law that real workers follow"
            + by_preset("engine.timing")
        )
    if not experiment.engine.train:
        raise ConfigError(
            "engine.train = false: the testbed trains real models; use true, or plan with "
            "'dystop run'"
        )
    if experiment.model.wire_bytes:
        raise ConfigError(
            "model.wire_bytes: the testbed sends real models of their own size; use 0"
        )
    if experiment.evaluate.statistics == "recomputed":
        raise ConfigError(
            "evaluate.statistics = 'recomputed': an observer has no training samples; use 'running'"
        )
    if experiment.evaluate.model == "aggregated":
        raise ConfigError(
            "evaluate.model = 'aggregated': an observer sees the models that workers publish, and "
            "they publish a model when its training ends; use 'trained'"
            + by_preset("evaluate.model")
        )
    if experiment.staleness.rule == "compensate":
        raise ConfigError(
            "staleness.rule = 'compensate' needs models that only a simulator has; use another "
            "rule ('dystop list keys staleness.rule')"
        )
    if experiment.testbed.links == "trace" and not experiment.testbed.trace:
        raise ConfigError("testbed.links = 'trace' needs testbed.trace, the folder of a run")
    check_private(experiment)


def check_private(experiment: Experiment) -> None:
    """Refuse an incomplete description of what the workers' own files have in common."""
    private = experiment.data.private
    if not private.classes:
        return
    channels = private.shape[0] if len(private.shape) in (1, 3) else 0
    if not channels == len(private.mean) == len(private.std):
        raise ConfigError(
            "data.private: shape must be [channels, height, width] of images or [features] of a "
            "table, and mean and std need one number for each channel or feature; 'dystop data "
            "enrol' prints them"
        )


def step_seconds(experiment: Experiment, fleet: Fleet) -> Floats:
    """Return the seconds per mini-batch of every worker: emulated, or a first estimate."""
    compute = experiment.world.compute
    if experiment.testbed.devices == "jetson" and not isinstance(compute.batch_s, str):
        return compute.batch_s * jetson_factors(fleet.workers)
    if experiment.testbed.links == "trace":
        return world_of(experiment, fleet).observe(1, 0.0).step_s
    return drawn_step_seconds(compute, fleet.workers, experiment.seed)


class EmulatedWorld:
    """The world that a coordinator plans with: the channel model, with the emulated devices."""

    def __init__(self, world: World, step_s: Floats) -> None:
        self._world, self._step_s = world, step_s

    def observe(self, t: int, now_s: float) -> WorldState:
        """Return what is known when round t opens."""
        return replace(self._world.observe(t, now_s), step_s=self._step_s)

    def transfer(
        self, t: int, now_s: float, dst: Ints, src: Ints, fraction: float | Floats
    ) -> Transfer:
        """Return what sending a share of a model over each link costs."""
        return self._world.transfer(t, now_s, dst, src, fraction)


def world_of(experiment: Experiment, fleet: Fleet) -> World:
    """Build the world that gives positions, reach, budgets and first estimates."""
    is_free = experiment.testbed.links == "free"
    params = _everybody_in_reach(experiment.world) if is_free else experiment.world
    place = params, fleet.workers, fleet.model_bytes, experiment.seed, fleet.server
    if experiment.testbed.links == "trace":
        return TraceWorld(read_trace(Path(experiment.testbed.trace)), *place)
    return World(*place)


def _everybody_in_reach(params: WorldParams) -> WorldParams:
    """Return the world of links that nothing emulates: no distance is too far or slows a link."""
    channel = replace(params.channel, path_loss_exponent=0.0)
    return replace(params, range_m=math.hypot(*params.area_m), channel=channel)


def coordinator_setup(experiment: Experiment, enrolment: Enrolment, run: str) -> CoordinatorSetup:
    """Build the setup of a coordinator; needs neither data nor models."""
    check_testbed(experiment)
    fleet = enrolment.fleet(experiment)
    world = world_of(experiment, fleet)
    return CoordinatorSetup(
        run=run,
        fleet=fleet,
        mechanism=mechanism_of(experiment),
        world=EmulatedWorld(world, step_seconds(experiment, fleet)),
        steps=steps_of(experiment, fleet),
        members=_members(experiment, enrolment),
        schema=enrolment.schema,
        params=experiment.testbed,
        stop=replace(experiment.stop, diverged=0.0),  # one hostile model must not end the run
        evaluate=experiment.evaluate,
        recorders=recorders_of(Setting(experiment, fleet, testbed=True)),
        score_name=enrolment.score,
        least_loss=enrolment.least_loss,
        longest_message=max(1.0, enrolment.whole_bytes / fleet.model_bytes),
    )


def _members(experiment: Experiment, enrolment: Enrolment) -> tuple[Member, ...]:
    """Return the enrolled workers, the server, and the observer as one more node."""
    known = {worker.name: worker for worker in enrolment.workers}
    members = []
    for node, name in enumerate(node_names(experiment)):
        worker = known.get(name, Enrolled(name, 0, ()))
        members.append(Member(name, node, worker.data_size, worker.label_counts))
    if experiment.testbed.observer:
        members.append(Member(OBSERVER, len(members)))
    return tuple(members)


def write_status(folder: Path, **facts: Any) -> None:
    """Write where the coordinator listens and how many workers have joined, for the launcher."""
    write_atomic(folder / STATUS, json.dumps(facts).encode(), durable=False)


def write_incidents(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write the incidents of members, for the dashboard; the ledger has them as well."""
    content = json.dumps({"incidents": rows}).encode()
    write_atomic(folder / INCIDENTS, content, mode=PRIVATE, durable=False)


def read_status(folder: Path) -> dict[str, Any]:
    """Return what the coordinator wrote last; empty before its first status."""
    return try_read_json(folder / STATUS)
