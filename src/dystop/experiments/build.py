"""Build the components of a simulation from a configuration.

`fleet_of`, `steps_of` and `keeps_topology` are shared with the testbed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dystop.control.compression import Compression
from dystop.control.round import build_view, initial_state
from dystop.control.stopping import Stop
from dystop.data import (
    Dataset,
    Labels,
    describe_partition,
    fingerprint,
    label_chart,
    label_counts,
    labels_of,
    load,
    load_labels,
    owners_of,
    shards_of,
    split_counts,
    take,
    take_labels,
)
from dystop.errors import ConfigError, DataError, shell_command
from dystop.experiments.config import Experiment, to_tree
from dystop.experiments.folder_kinds import RUN, kind_of
from dystop.simulator.attack import Attackers
from dystop.simulator.compressed_links import check_compression
from dystop.simulator.loop import observe
from dystop.simulator.pipeline import waiting_bytes
from dystop.simulator.state import Components
from dystop.sparse import Ints
from dystop.training.adapters import Adapter, with_adapters
from dystop.training.flat import Layout, layout_of
from dystop.training.flower import AppProcess, FlowerTrainer, is_flower
from dystop.training.memory import ADVICE, MemoryEstimate, available_bytes, ensure_fits, held_bytes
from dystop.training.models.build import CustomModel, build_for
from dystop.training.no_training import NoTraining
from dystop.training.optimisers import StateLayout, optimiser_of
from dystop.training.privacy import accountant_of
from dystop.training.samples import Arrays
from dystop.training.saved import ModelCard, base_file, base_sha256, load_base
from dystop.training.tasks.build import make_task, task_name
from dystop.training.tasks.catalogue import OWN_MODEL
from dystop.training.tasks.task import SampleKind, Task
from dystop.training.trainer import Trainer
from dystop.types import Fleet, Mechanism
from dystop.world import Progress, Trace, TraceWorld, World, read_trace
from dystop.world.adversary import attackers, flipped_labels
from dystop.world.describe import GRAPH, describe, pieces
from dystop.world.energy import power_of
from dystop.world.geometry import expected_links
from dystop.world.progress import nothing_in_flight

_GIGABYTE = 10**9
_DATA_FACTS = ("data_sha256", "partition_sha256")  # keys of fleet.json
# Bytes of planning, measured with all workers active in a round.
_WORKER_BYTES, _LABEL_BYTES, _LINK_BYTES = 300, 16, 280
_PLANNING_ADVICE = "use fewer workers, a smaller world.range_m or a larger world.area_m"
_FULL_TOPOLOGY_LIMIT = 1000  # workers; beyond it records hold counts only


@dataclass(frozen=True)
class Built:
    """A simulation that is ready to run, and its description."""

    experiment: Experiment  # with measured values in place of "measure"
    components: Components
    physics: dict[str, str]
    partition: list[str]
    memory: str
    memory_bytes: int  # estimated peak on the device
    fleet: dict[str, Any]  # what `fleet.json` holds
    card: ModelCard | None = None  # saved with its trained models; None: planning only


def build(
    experiment: Experiment,
    data: Dataset | None = None,
    model: CustomModel | None = None,
    task: Task | None = None,
    *,
    elsewhere: bool = False,
) -> Built:
    """Build a simulation: load and split the data, place the workers, and check the memory.

    Args:
        experiment: The configuration.
        data: A data set to use instead of the one that the configuration names.
        model: A module or factory to use instead of the model that the configuration names.
        task: A task to use instead of the one that the configuration names.
        elsewhere: Build on a CPU to check the settings; the memory of this machine does not matter.
    """
    if elsewhere:
        experiment = replace(experiment, training=replace(experiment.training, device="cpu"))
    if experiment.data.private.classes:
        raise ConfigError(
            "data.private: only the workers of a testbed have private data; leave these keys out"
        )
    check_staleness_weighting(experiment)
    experiment = with_noted_base(experiment)
    if is_flower(experiment.model.name):
        check_flower(experiment)
    if not experiment.engine.train:
        return _build_plan(experiment, data, model, task, elsewhere=elsewhere)
    data = load_data(experiment, data)
    owner = sample_owners(experiment, labels_of(data))
    shards = shards_of(owner, experiment.fleet.workers)
    wrong = _with_wrong_labels(experiment, data, shards)
    trainer = make_trainer(experiment, wrong, shards, model, task)
    experiment = measured(experiment, trainer)
    memory = _estimate(experiment, trainer)
    if not elsewhere:
        _ensure_fits(experiment, memory, trainer.device)
    counts = label_counts(data.y_train, shards, data.classes)
    built = _built(experiment, labels_of(data), counts, trainer, memory)
    noted = {**built.fleet, **fingerprint(data, owner)}
    return replace(built, card=card_of(experiment, data, trainer.task), fleet=noted)


def _build_plan(
    experiment: Experiment,
    data: Dataset | None,
    model: CustomModel | None,
    task: Task | None,
    *,
    elsewhere: bool,
) -> Built:
    """Build a simulation that trains nothing: of the data only label counts are kept."""
    check_planning_only(experiment)
    labels = _load_labels(experiment, data)
    owner = sample_owners(experiment, labels)
    counts = split_counts(labels.y_train, labels.classes, owner, experiment.fleet.workers)
    task = task or task_of(experiment, labels)
    module_layout = layout_of(make_module(experiment, labels, task, model))
    layout = StateLayout(module_layout, optimiser_of(experiment.training)).whole
    trainer = NoTraining(layout, counts.sum(axis=1), experiment.training.batch)
    memory = _planning_estimate(experiment, labels.classes)
    if not elsewhere:
        _ensure_fits(experiment, memory, trainer.device, _PLANNING_ADVICE)
    built = _built(experiment, labels, counts, trainer, memory)
    return replace(built, fleet={**built.fleet, **fingerprint(labels, owner)})


def _built(
    experiment: Experiment, labels: Labels, counts: Ints, trainer: Trainer, memory: MemoryEstimate
) -> Built:
    """Return the simulation of these label counts [N, K]."""
    compression = compression_of(experiment, trainer.layout)
    fleet = fleet_of(experiment, counts, message_bytes(experiment, trainer.layout, compression))
    world = _make_world(experiment, fleet)
    physics = {
        **_planning_note(experiment),
        **describe(world),
        **describe_compression(compression),
        **describe_graph(experiment.mechanism, fleet, world),
        **_replay_note(world),
    }
    return Built(
        experiment=experiment,
        components=_components(experiment, fleet, world, trainer, compression),
        physics=physics,
        partition=[*describe_partition(counts).rows(), *label_chart(counts, labels.class_names)],
        memory=memory.text(),
        memory_bytes=memory.total,
        fleet=fleet_json(experiment, labels, fleet, trainer, world, physics),
    )


def check_planning_only(experiment: Experiment) -> None:
    """Refuse settings that need trained models where nothing is trained."""
    mechanism, stop = experiment.mechanism, experiment.stop
    needs = " and ".join(sorted(mechanism.capabilities().needs))
    found = {
        f"mechanism.name = {mechanism.name!r} decides by the {needs} of models": bool(needs),
        f"stop.accuracy = {stop.accuracy:g} needs evaluations": stop.accuracy > 0,
        f"stop.loss = {stop.loss:g} needs trainings": stop.loss > 0,
        "world.compute.batch_s = 'measure' times trainings": (
            experiment.world.compute.batch_s == "measure"
        ),
    }
    for problem in (text for text, is_set in found.items() if is_set):
        raise ConfigError(
            f"{problem}, but engine.train = false is planning only and trains no model; change "
            "this setting, or set engine.train=true (stop.rounds and stop.seconds may end the run)"
        )


def build_each_setting(
    experiments: Sequence[Experiment], *, elsewhere: bool = False
) -> dict[str, int]:
    """Build every setting once, without training, so that mistakes are refused before any run.

    Settings that differ only in the seed, the mechanism or the timing law share one build.

    Args:
        experiments: Several experiments, with different names.
        elsewhere: As for `build`.

    Returns:
        The estimated memory in bytes, by the name of the experiment.
    """
    built: dict[str, Built] = {}
    initialised: set[str] = set()
    memory = {}
    for experiment in experiments:
        able = experiment.mechanism.capabilities()
        needs = (
            able.mode,
            able.needs,
            able.server,
            able.deltas,
            able.pushes,
            experiment.engine.train,
        )
        alike = f"{needs} {_without(experiment, 'mechanism', 'engine')}"
        if alike not in built:
            built[alike] = build(experiment, elsewhere=elsewhere)
        if (setting := _without(experiment)) not in initialised:
            experiment.mechanism.init(built[alike].components.fleet)
            initialised.add(setting)
        memory[experiment.name] = built[alike].memory_bytes
    return memory


def _without(experiment: Experiment, *sections: str) -> str:
    """Return the configuration without name, seed and some sections, as text to compare."""
    left_out = {"name", "seed", *sections}
    return str({key: part for key, part in to_tree(experiment).items() if key not in left_out})


def card_of(experiment: Experiment, data: Dataset, task: Task) -> ModelCard:
    """Return the card that is saved with a trained model of this experiment."""
    name = model_of_task(experiment, task)
    card = ModelCard(name, data.shape, data.classes, data.class_names, data.mean, data.std)
    if (adapter := adapter_of(experiment)) is not None:
        spec = experiment.model
        card = replace(card, base=spec.base, base_sha256=spec.base_sha256, adapter=adapter)
    if task.outputs(sample_kind(data)) == (data.classes,) and not data.tokens:
        return card
    return replace(card, tokens=data.tokens, outputs=task.outputs(sample_kind(data)))


def check_staleness_weighting(experiment: Experiment) -> None:
    """Refuse a staleness weighting with a synchronous mechanism, which has no stale models."""
    mechanism, rule = experiment.mechanism, experiment.staleness.rule
    if rule != "none" and mechanism.capabilities().mode == "sync":
        raise ConfigError(
            f"staleness.rule = {rule!r}: {mechanism.name} is synchronous, so its models are never"
            " stale; use 'none', or an asynchronous mechanism ('dystop list mechanisms')"
        )


def load_data(experiment: Experiment, given: Dataset | None = None) -> Dataset:
    """Return the given data set, or load the configured one, and limit its size."""
    spec, data = experiment.data, given or whole_data(experiment)
    return take(data, spec.train_limit or None, spec.test_limit or None, seed=experiment.seed)


def whole_data(experiment: Experiment) -> Dataset:
    """Load the configured data set, before its size is limited."""
    spec = experiment.data
    return load(
        spec.name,
        root=spec.root or None,
        download=spec.download,
        seed=experiment.seed,
        synthetic=spec.synthetic,
        text=spec.text,
        table=spec.table,
    )


def _load_labels(experiment: Experiment, given: Dataset | None) -> Labels:
    """Return the training labels of the given data set, or of the configured one."""
    spec = experiment.data
    labels = (
        labels_of(given)
        if given
        else load_labels(
            spec.name,
            root=spec.root or None,
            download=spec.download,
            seed=experiment.seed,
            synthetic=spec.synthetic,
            text=spec.text,
            table=spec.table,
        )
    )
    return take_labels(labels, spec.train_limit or None, seed=experiment.seed)


def split_data(experiment: Experiment, data: Dataset) -> list[Ints]:
    """Return which training samples each worker owns."""
    return shards_of(sample_owners(experiment, labels_of(data)), experiment.fleet.workers)


def sample_owners(experiment: Experiment, labels: Labels) -> Ints:
    """Return the worker that owns each training sample, [n]; -1 for one that nobody owns."""
    return owners_of(labels, experiment.fleet.workers, experiment.data, experiment.seed)


def check_same_data(folder: Path, noted: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with other data or another partition than a run began with.

    Args:
        folder: Folder of the run.
        noted: Its `fleet.json`; that of an earlier version notes nothing about the data.
        now: The same for the data as they are now.
    """
    changed = [key for key in _DATA_FACTS if noted.get(key, now[key]) != now[key]]
    if not changed:
        return
    before, after = (f"{facts['train_samples']:,}" for facts in (noted, now))
    what = (
        "the partition of the samples (data.partition)"
        if "data_sha256" not in changed
        else f"the data ({after} training samples, {before} when the run began)"
        if before != after
        else "the data (as many samples, but other values)"
    )
    start = (kind_of(folder) or RUN).start
    again = shell_command(start, folder / "config.toml", "--name", "NEW")
    raise DataError(
        f"{folder}: {what} changed since the run began, so its records would no longer fit "
        f"together; nothing was written. Restore the file, or start a new run with: {again}"
    )


def _with_wrong_labels(experiment: Experiment, data: Dataset, shards: list[Ints]) -> Dataset:
    """Return the data set with the labels that attackers train on, if they flip labels."""
    if experiment.adversary.kind != "label-flip":
        return data
    check_label_flip(task_of(experiment, data))
    labels = data.y_train.copy()
    for node in attackers_of(experiment).tolist():
        labels[shards[node]] = flipped_labels(labels[shards[node]], data.classes)
    return replace(data, y_train=labels)


def check_label_flip(task: Task) -> None:
    """Refuse attackers that flip labels where labels are not what is learned."""
    if type(task).targets is not Task.targets:
        raise ConfigError(
            f"adversary.kind = 'label-flip' flips class labels, which the task {task_name(task)!r} "
            "does not learn; choose another kind, or task.name = 'classification'"
        )


def attackers_of(experiment: Experiment) -> Ints:
    """Return the workers that attack, ascending."""
    return attackers(experiment.adversary, experiment.fleet.workers, experiment.seed)


def task_of(experiment: Experiment, data: Dataset | Labels) -> Task:
    """Return the task that the configuration names, or the one that the data set is made for."""
    return make_task(experiment.task.name, data.task, experiment.task.folder)


def sample_kind(data: Dataset | Labels) -> SampleKind:
    """Return what a model must know of the samples of a data set."""
    return SampleKind(data.shape, data.classes, data.tokens, data.values)


def make_trainer(
    experiment: Experiment,
    data: Dataset,
    shards: list[Ints],
    model: CustomModel | None = None,
    task: Task | None = None,
) -> Trainer:
    """Return the trainer of these shards, with the initial model."""
    if is_flower(experiment.model.name):
        return _flower_trainer(experiment, shards)
    task = task or task_of(experiment, data)
    module = make_module(experiment, data, task, model)
    values = data.targets or (None, None)
    arrays = Arrays(
        data.x_train,
        task.targets(data.y_train, values[0]),
        data.x_test,
        task.targets(data.y_test, values[1]),
        data.mean,
        data.std,
    )
    params, privacy = experiment.training, experiment.privacy
    return Trainer(module, arrays, shards, params, experiment.seed, task, privacy)


def _flower_trainer(experiment: Experiment, shards: list[Ints]) -> Trainer:
    """Return the trainer that hands everything to a Flower app, after checks."""
    check_flower(experiment)
    spec, workers = experiment.model, experiment.fleet.workers
    app = AppProcess(spec.name, spec.folder, spec.python, workers)
    sizes = np.array([len(shard) for shard in shards])
    return FlowerTrainer(app, workers, sizes, experiment.training)


def check_flower(experiment: Experiment) -> None:
    """Refuse what a Flower app cannot do."""
    found = {
        "privacy.noise_multiplier": experiment.privacy.is_on,
        "adversary.kind": experiment.adversary.kind != "none",
        "engine.train": not experiment.engine.train,
        "aggregation.rule": experiment.aggregation.rule == "agree",
        "evaluate.statistics": experiment.evaluate.statistics == "recomputed",
    }
    for key in (key for key, is_set in found.items() if is_set):
        raise ConfigError(
            f"{key}: a flower app trains and tests by itself, and dystop sees its arrays only; "
            f"leave {key} out, or use another model.name ('dystop list models')"
        )


def make_module(
    experiment: Experiment, data: Dataset | Labels, task: Task, model: CustomModel | None = None
) -> nn.Module:
    """Return the initial model for this data set and this task."""
    kind, spec = sample_kind(data), experiment.model
    name = model_of_task(experiment, task) if model is None else model
    module = build_for(name, kind, task.outputs(kind), experiment.seed, spec.folder)
    if spec.base:
        load_base(module, Path(spec.base), spec.base_sha256)
    adapter = adapter_of(experiment)
    return module if adapter is None else with_adapters(module, adapter, experiment.seed)


def adapter_of(experiment: Experiment) -> Adapter | None:
    """Return the adapters that are trained in place of whole models; None: whole models are."""
    spec = experiment.model
    if spec.adapter == "none":
        return None
    if not spec.base:
        raise ConfigError(
            "model.adapter = 'lora' trains adapters of a frozen base: set model.base to a trained "
            "model (a .safetensors file, or the folder of a run)"
        )
    return Adapter(spec.lora.rank, spec.lora.alpha, spec.lora.layers)


def with_noted_base(experiment: Experiment) -> Experiment:
    """Note which file the base is, so that a resumed run and all parties begin with the same."""
    spec = experiment.model
    if not spec.base:
        return experiment
    path = base_file(Path(spec.base).expanduser().absolute())
    digest = spec.base_sha256 or base_sha256(path)
    return replace(experiment, model=replace(spec, base=str(path), base_sha256=digest))


def model_of_task(experiment: Experiment, task: Task) -> str:
    """Return the name of the model, or that of the task's own model."""
    name = experiment.model.name
    return task.default_model if name == OWN_MODEL else name


def measured(experiment: Experiment, trainer: Trainer) -> Experiment:
    """Replace `batch_s = "measure"` by the measured number, so that the run can be repeated."""
    compute = experiment.world.compute
    if compute.batch_s != "measure":
        return experiment
    measured = replace(compute, batch_s=float(f"{trainer.measure_batch_s():.4g}"))
    return replace(experiment, world=replace(experiment.world, compute=measured))


def _estimate(experiment: Experiment, trainer: Trainer) -> MemoryEstimate:
    """Return the memory that a run needs."""
    workers = experiment.fleet.workers
    estimate = trainer.estimate(workers, _stacks(experiment))
    if experiment.engine.ahead and trainer.rows_independent:
        stack = workers * trainer.size.row_bytes
        estimate = estimate.plus("rounds decided ahead", waiting_bytes(stack, workers))
    return estimate


def _planning_estimate(experiment: Experiment, classes: int) -> MemoryEstimate:
    """Return the estimated memory of planning."""
    workers = experiment.fleet.workers
    links = expected_links(experiment.world, workers)
    parts = (
        (f"workers ({workers:,})", workers * (_WORKER_BYTES + _LABEL_BYTES * classes)),
        (f"links in reach (about {links:,})", links * _LINK_BYTES),
    )
    return MemoryEstimate(parts, held_bytes(torch.device("cpu")))


def _ensure_fits(
    experiment: Experiment, estimate: MemoryEstimate, device: torch.device, advice: str = ADVICE
) -> None:
    """Refuse a run that needs more memory than is available or allowed."""
    limit = int(experiment.training.memory_limit_gb * _GIGABYTE) or None
    ensure_fits(estimate, available_bytes(device), limit, advice)


def _stacks(experiment: Experiment) -> float:
    """Return the peak memory of a round, in stacks of all models, measured with all workers active.

    Two stacks are the models and the rows that a round mixes. Others hold models until they are
    published, the start and the correction of compensated updates, deltas, pushed models that wait
    for their receivers, the results of aggregations, and public copies with what is compressed.
    """
    able = experiment.mechanism.capabilities()
    late = 3.0 * (experiment.engine.publish == "on_completion")
    compensated = 6.0 * (experiment.staleness.rule == "compensate")
    kept = 0.0 if experiment.evaluate.model == "trained" else 2.0 if late else 1.0
    packed = 0.0 if experiment.link.compression == "none" else 3.0 + able.deltas
    return 2.0 + late + compensated + 3.0 * able.deltas + 3.0 * able.pushes + kept + packed


def compression_of(experiment: Experiment, layout: Layout) -> Compression | None:
    """Return the compressor of the links; None where they carry whole models."""
    link, able = experiment.link, experiment.mechanism.capabilities()
    if link.compression == "none":
        return None
    sizes = tuple(
        slot.numel for slot in (*layout.trained, *layout.kept, *layout.carried) if slot.numel
    )
    compression = Compression(link.compression, link.fraction, sizes, experiment.seed)
    check_compression(compression, able, experiment.mechanism.name)
    return compression


def message_bytes(experiment: Experiment, layout: Layout, compression: Compression | None) -> int:
    """Return the bytes of one message on the wire: a model, or one compressed difference."""
    model = experiment.model.wire_bytes or layout.model_bytes
    if compression is None:
        return model
    return math.ceil(model * compression.message_bytes / compression.model_bytes)


def describe_compression(compression: Compression | None) -> dict[str, str]:
    """Return what a link carries, for `fleet.json`; empty where it carries whole models."""
    if compression is None:
        return {}
    size, whole = compression.message_bytes, compression.model_bytes
    return {"compression": f"{compression.kind}: {size:,} of {whole:,} bytes in a message"}


def _components(
    experiment: Experiment,
    fleet: Fleet,
    world: World,
    trainer: Trainer,
    compression: Compression | None,
) -> Components:
    topology = keeps_topology(experiment)
    return Components(
        fleet=fleet,
        mechanism=experiment.mechanism,
        world=world,
        trainer=trainer,
        engine=experiment.engine,
        stop=_make_stop(experiment.stop, world),
        evaluate=experiment.evaluate,
        steps=steps_of(experiment, fleet),
        topology=topology,
        moving=topology and experiment.world.mobility.enabled,
        staleness_weighting=experiment.staleness,
        aggregation=experiment.aggregation,
        attackers=_attackers(experiment, trainer),
        budgets_bind=experiment.world.budget.binds == "everybody",
        power=power_of(
            experiment.energy, fleet.workers, experiment.world.compute.devices == "jetson"
        ),
        compression=compression,
        accountant=accountant_of(experiment.privacy, fleet.data_size, experiment.training.batch)
        if experiment.engine.train
        else None,
    )


def _attackers(experiment: Experiment, trainer: Trainer) -> Attackers | None:
    """Return the attackers of a simulation; None if there are none."""
    nodes, adversary = attackers_of(experiment), experiment.adversary
    if not len(nodes) or not experiment.engine.train:
        return None
    first, _ = trainer.initial()
    return Attackers(adversary, nodes, experiment.fleet.workers, experiment.seed, first)


def fleet_json(
    experiment: Experiment,
    data: Dataset | Labels,
    fleet: Fleet,
    trainer: Trainer,
    world: World,
    physics: dict[str, str],
) -> dict[str, Any]:
    """Return the content of `fleet.json`, for simulated and testbed runs."""
    position = world.observe(1, 0.0).position
    name = task_name(trainer.task)
    learned = {"task": name, "score": trainer.task.score_name}
    return {
        "data_size": fleet.data_size.tolist(),
        "label_counts": fleet.label_counts.tolist(),
        "class_names": list(data.class_names),
        "positions": np.round(position, 2).tolist(),
        "area_m": list(experiment.world.area_m),
        "range_m": experiment.world.range_m,
        "model_bytes": fleet.model_bytes,
        "model_parameters": trainer.layout.parameters,
        "data_source": data.source,
        "device": str(trainer.device),
        "training_path": trainer.path,
        "physics": physics,
        **({} if name == "classification" else learned),
        **({"base_parameters": base} if (base := trainer.base_parameters) else {}),
    }


def describe_graph(mechanism: Mechanism, fleet: Fleet, world: World) -> dict[str, str]:
    """Return whether the mechanism's own graph is connected when the first round opens.

    Empty if the mechanism has none. `fleet.json` holds it, for simulated and testbed runs.
    """
    if type(mechanism).base_graph is Mechanism.base_graph:
        return {}
    seen, control = world.observe(1, 0.0), initial_state(fleet, mechanism)
    idle = Progress(np.zeros(fleet.nodes), np.zeros(fleet.nodes), nothing_in_flight())
    view = build_view(fleet, control, observe(seen, idle))
    graph = mechanism.base_graph(control.memory, view)
    return {} if graph is None else {GRAPH: pieces(graph, fleet.workers)}


def _make_world(experiment: Experiment, fleet: Fleet) -> World:
    """Return the simulated world, or the recorded one."""
    place = experiment.world, fleet.workers, fleet.model_bytes, experiment.seed, fleet.server
    if not experiment.trace:
        return World(*place)
    return TraceWorld(read_trace(Path(experiment.trace)), *place)


def _make_stop(stop: Stop, world: World) -> Stop:
    """Return the stop rules; a replay ends with its trace and ignores time and targets."""
    if not isinstance(world, TraceWorld):
        return stop
    return Stop(rounds=min(stop.rounds, len(world.trace.rounds)), diverged=0.0)


def _planning_note(experiment: Experiment) -> dict[str, str]:
    """Return what planning only leaves out, for the description of the world."""
    return {} if experiment.engine.train else {"planning only": "no model is trained or evaluated"}


def _replay_note(world: World) -> dict[str, str]:
    """Return which trace is replayed, for the description of the world."""
    return {"replay of": _text(world.trace)} if isinstance(world, TraceWorld) else {}


def _text(trace: Trace) -> str:
    return f"{trace.path.parent}, {len(trace.rounds)} rounds"


def fleet_of(experiment: Experiment, label_counts: Ints, model_bytes: int) -> Fleet:
    """Return the fleet, from the label counts [N, K] of the split and the size of one model."""
    return Fleet(
        data_size=label_counts.sum(axis=1),
        label_counts=label_counts,
        batch=experiment.training.batch,
        model_bytes=model_bytes,
        horizon=experiment.stop.rounds,
        seed=experiment.seed,
        server=experiment.mechanism.capabilities().server,
        horizon_s=experiment.stop.seconds,
    )


def steps_of(experiment: Experiment, fleet: Fleet) -> Ints:
    """Return the mini-batches of one local training, [N]."""
    training = experiment.training
    per_epoch = fleet.epoch_steps * training.epochs
    return np.full_like(per_epoch, training.local_steps) if training.local_steps else per_epoch


def keeps_topology(experiment: Experiment) -> bool:
    """Return whether records hold every link instead of counts only."""
    topology, small = experiment.output.topology, experiment.fleet.workers <= _FULL_TOPOLOGY_LIMIT
    return topology == "full" or (topology == "auto" and small)
