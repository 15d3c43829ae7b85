"""The task, the initial model and the trainer of an experiment."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dystop.config import Experiment
from dystop.data import Dataset, Labels
from dystop.errors import ConfigError
from dystop.recorders import check_score_name
from dystop.sparse import Ints
from dystop.training.adapters import Adapter, with_adapters
from dystop.training.local_steps.privacy import Privacy
from dystop.training.models.build import CustomModel, build_for, model_name
from dystop.training.models.catalogue import usual_model
from dystop.training.samples import Arrays, samples_of
from dystop.training.saved import ModelCard, base_file, base_sha256, load_base
from dystop.training.tasks.build import make_task
from dystop.training.tasks.catalogue import OWN_MODEL
from dystop.training.tasks.task import SampleKind, Task
from dystop.training.tasks.trial import TRIAL_SAMPLES, try_task
from dystop.training.trainer import Trainer
from dystop.training.trainers.flower import AppProcess, FlowerTrainer, is_flower


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
    noise_seed: int | None = None,
) -> Trainer:
    """Return the trainer of these shards, with the initial model.

    Args:
        experiment: The settings.
        data: The data set.
        shards: For each worker, the indices of its training samples.
        model: A model in place of the one that the settings name.
        task: A task in place of the one that the settings name.
        noise_seed: Seed of the noise of private training; None: that of the run.
    """
    if is_flower(experiment.model.name):
        return _flower_trainer(experiment, shards)
    task = task or task_of(experiment, data)
    check_score_name(task.score_name)
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
    few = slice(TRIAL_SAMPLES)
    tests = arrays.x_test[few], arrays.y_test[few], data.mean, data.std
    try_task(task, module, samples_of(*tests, torch.device("cpu"), "test set"))
    seed, privacy = experiment.seed, None
    if experiment.privacy.is_on:
        privacy = Privacy(experiment.privacy, seed if noise_seed is None else noise_seed)
    mechanism = experiment.mechanism
    return Trainer(module, arrays, shards, experiment.training, seed, task, privacy, mechanism)


def _flower_trainer(experiment: Experiment, shards: list[Ints]) -> Trainer:
    """Return the trainer that hands everything to a Flower app, after checks."""
    check_flower(experiment)
    if experiment.mechanism.capabilities().carries:
        raise ConfigError(
            f"mechanism {experiment.mechanism.name!r} carries vectors beside the model, which a "
            "Flower app does not train; use another mechanism, or a model of dystop"
        )
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
    name = _name_of_model(experiment, data, task) if model is None else model
    module = build_for(name, kind, task.outputs(kind), experiment.seed, spec.folder)
    if spec.base:
        load_base(module, Path(spec.base), spec.base_sha256)
    _check_finite(spec.base or model_name(name), module)
    adapter = adapter_of(experiment)
    return module if adapter is None else with_adapters(module, adapter, experiment.seed)


def _check_finite(source: str, module: nn.Module) -> None:
    """Refuse a model that has diverged before it is trained; a mask may hold infinite values."""
    wrong = [
        *(name for name, w in module.named_parameters() if not torch.isfinite(w).all()),
        *(name for name, b in module.named_buffers() if torch.isnan(b).any()),
    ]
    for name in wrong[:1]:
        raise ConfigError(
            f"model = {source!r}: {name} holds NaN or infinite values before the first round; "
            "initialise it with finite numbers"
        )


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


def with_named_model(experiment: Experiment, data: Dataset | Labels, task: Task) -> Experiment:
    """Replace `model.name = "task"` by the model that it stands for, so that a run notes it."""
    name = _name_of_model(experiment, data, task)
    return replace(experiment, model=replace(experiment.model, name=name))


def _name_of_model(experiment: Experiment, data: Dataset | Labels, task: Task) -> str:
    name = experiment.model.name
    if name != OWN_MODEL:
        return name
    return task.default_model or usual_model(data.shape, data.tokens)


def measured(experiment: Experiment, trainer: Trainer) -> Experiment:
    """Replace `batch_s = "measure"` by the measured number, so that the run can be repeated."""
    compute = experiment.world.compute
    if compute.batch_s != "measure":
        return experiment
    measured = replace(compute, batch_s=float(f"{trainer.measure_batch_s():.4g}"))
    return replace(experiment, world=replace(experiment.world, compute=measured))


def card_of(experiment: Experiment, data: Dataset, task: Task) -> ModelCard:
    """Return the card that is saved with a trained model of this experiment."""
    name = _name_of_model(experiment, data, task)
    card = ModelCard(name, data.shape, data.classes, data.class_names, data.mean, data.std)
    if (adapter := adapter_of(experiment)) is not None:
        spec = experiment.model
        card = replace(card, base=spec.base, base_sha256=spec.base_sha256, adapter=adapter)
    if task.outputs(sample_kind(data)) == (data.classes,) and not data.tokens:
        return card
    return replace(card, tokens=data.tokens, outputs=task.outputs(sample_kind(data)))
