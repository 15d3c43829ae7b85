"""Build a simulation from a configuration, and refuse settings that do not fit together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dystop.config import Experiment, to_tree
from dystop.data import (
    Dataset,
    Labels,
    describe_partition,
    fingerprint,
    label_chart,
    label_counts,
    labels_of,
    shards_of,
    split_counts,
)
from dystop.errors import ConfigError
from dystop.runs.building.components import (
    describe_graph,
    describe_samples,
    fleet_json,
    make_components,
)
from dystop.runs.building.exchange import (
    describe_exchange,
    message_bytes,
    with_wrong_labels,
)
from dystop.runs.building.models import (
    card_of,
    check_flower,
    make_module,
    make_trainer,
    measured,
    task_of,
    with_named_model,
    with_noted_base,
)
from dystop.runs.building.samples import (
    check_replayed_data,
    load_data,
    load_labels_of,
    sample_owners,
)
from dystop.runs.fleet import (
    fleet_of,
    link_codec,
    make_world,
    mechanism_of,
    planning_note,
    replay_note,
)
from dystop.simulator.mailbox import spare_bytes
from dystop.simulator.pipeline import waiting_bytes
from dystop.simulator.state import Components
from dystop.sparse import Ints
from dystop.training.carried_vectors import CarriedVectors
from dystop.training.flat import layout_of
from dystop.training.local_steps.optimisers import optimiser_of
from dystop.training.memory import ADVICE, MemoryEstimate, available_bytes, ensure_fits, held_bytes
from dystop.training.models.build import CustomModel
from dystop.training.saved import ModelCard
from dystop.training.tasks.task import Task
from dystop.training.trainer import Trainer
from dystop.training.trainers.flower import is_flower
from dystop.training.trainers.no_training import NoTraining
from dystop.world.describe import describe
from dystop.world.geometry import expected_links

_GIGABYTE = 10**9
# Bytes of planning, measured with all workers active in a round.
_WORKER_BYTES, _LABEL_BYTES, _LINK_BYTES = 300, 16, 280
_PLANNING_ADVICE = "use fewer workers, a smaller world.range_m or a larger world.area_m"


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
    mechanism_of(experiment)  # refuses what does not fit together
    experiment = with_noted_base(experiment)
    if is_flower(experiment.model.name):
        check_flower(experiment)
    if not experiment.engine.train:
        return _build_plan(experiment, data, model, task, elsewhere=elsewhere)
    is_given, data = data is not None, load_data(experiment, data)
    owner = sample_owners(experiment, labels_of(data))
    shards = shards_of(owner, experiment.fleet.workers)
    wrong = with_wrong_labels(experiment, data, dict(enumerate(shards)))
    trainer = make_trainer(experiment, wrong, shards, model, task)
    experiment = with_named_model(experiment, data, trainer.task)
    experiment = measured(experiment, trainer)
    memory = _estimate(experiment, trainer)
    if not elsewhere:
        _ensure_fits(experiment, memory, trainer.device)
    counts = label_counts(data.y_train, shards, data.classes)
    built = _built(experiment, labels_of(data), counts, trainer, memory)
    card = card_of(experiment, data, trainer.task)
    return _with_data_facts(replace(built, card=card), fingerprint(data, owner), is_given)


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
    labels = load_labels_of(experiment, data)
    owner = sample_owners(experiment, labels)
    counts = split_counts(labels.y_train, labels.classes, owner, experiment.fleet.workers)
    task = task or task_of(experiment, labels)
    experiment = with_named_model(experiment, labels, task)
    module_layout = layout_of(make_module(experiment, labels, task, model))
    optimiser = optimiser_of(experiment.training)
    vectors = CarriedVectors(module_layout, experiment.mechanism, optimiser)
    trainer = NoTraining(vectors.layout, counts.sum(axis=1), experiment.training.batch)
    memory = _planning_estimate(experiment, labels.classes)
    if not elsewhere:
        _ensure_fits(experiment, memory, trainer.device, _PLANNING_ADVICE)
    built = _built(experiment, labels, counts, trainer, memory)
    return _with_data_facts(built, fingerprint(labels, owner), data is not None)


def _with_data_facts(built: Built, facts: dict[str, Any], is_given: bool) -> Built:
    """Note the data in `fleet.json`; a replay of a trace needs those of the recorded run."""
    if built.experiment.trace and not is_given:
        check_replayed_data(built.experiment, facts)
    return replace(built, fleet={**built.fleet, **facts})


def _built(
    experiment: Experiment, labels: Labels, counts: Ints, trainer: Trainer, memory: MemoryEstimate
) -> Built:
    """Return the simulation of these label counts [N, K]."""
    fleet = fleet_of(experiment, counts, message_bytes(experiment, trainer.layout))
    world = make_world(experiment, fleet)
    physics = {
        **planning_note(experiment),
        **describe(world),
        **describe_samples(labels),
        **describe_exchange(experiment, trainer.layout),
        **describe_graph(experiment.mechanism, fleet, world),
        **replay_note(world),
    }
    return Built(
        experiment=experiment,
        components=make_components(experiment, fleet, world, trainer),
        physics=physics,
        partition=[*describe_partition(counts).rows(), *label_chart(counts, labels.class_names)],
        memory=memory.text(),
        memory_bytes=memory.total,
        fleet=fleet_json(experiment, labels, fleet, trainer, world, physics),
    )


def build_each_setting(
    experiments: Sequence[Experiment], *, elsewhere: bool = False
) -> dict[str, int]:
    """Build every setting once, without training, so that mistakes are refused before any run.

    Settings that differ only in the seed, the mechanism or the law share one build.

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
            able.collective,
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
        f"aggregation.rule = {experiment.aggregation.rule!r} compares models": (
            experiment.aggregation.rule != "mean"
        ),
        f"adversary.kind = {experiment.adversary.kind!r} changes models": (
            experiment.adversary.kind != "none"
        ),
    }
    for problem in (text for text, is_set in found.items() if is_set):
        raise ConfigError(
            f"{problem}, but engine.train = false is planning only and trains no model; change "
            "this setting, or set engine.train=true (stop.rounds and stop.seconds may end the run)"
        )


def _estimate(experiment: Experiment, trainer: Trainer) -> MemoryEstimate:
    """Return the memory that a run needs."""
    workers = experiment.fleet.workers
    estimate = trainer.estimate(workers, _stacks(experiment))
    if experiment.engine.ahead and trainer.rows_independent:
        stack = workers * trainer.size.row_bytes
        estimate = estimate.plus("rounds decided ahead", waiting_bytes(stack, workers))
    able = mechanism_of(experiment).capabilities()
    if able.pushes:
        spare = spare_bytes(trainer.size.row_bytes, starts=able.deltas or able.compensates)
        estimate = estimate.plus("pushed models that arrived", spare)
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
    for their receivers, the results of aggregations, and public copies with what is encoded.
    """
    able = mechanism_of(experiment).capabilities()
    late = 3.0 * (experiment.engine.publish == "on_completion")
    compensated = 6.0 * able.compensates
    kept = 0.0 if experiment.evaluate.model == "trained" else 2.0 if late else 1.0
    packed = 0.0 if link_codec(experiment) is None else 3.0 + able.deltas
    return 2.0 + late + compensated + 3.0 * able.deltas + 3.0 * able.pushes + kept + packed
