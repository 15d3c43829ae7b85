"""The exchange of an experiment: aggregation rule, attackers and their labels, and codec."""

import math
from dataclasses import replace

from dystop.config import Experiment
from dystop.data import Dataset
from dystop.errors import ConfigError
from dystop.exchange import Exchange
from dystop.exchange.attacks import Attackers, attackers_of, flipped_labels
from dystop.exchange.codecs import describe_mean
from dystop.exchange.rules import rule_of
from dystop.runs.building.models import task_of
from dystop.runs.fleet import link_codec
from dystop.sparse import Ints
from dystop.training.flat import Layout
from dystop.training.tasks.build import task_name
from dystop.training.tasks.task import Task


def exchange_of(experiment: Experiment, layout: Layout) -> Exchange:
    """Return the parts that change what workers send and how they mix it."""
    rule, codec = rule_of(experiment.aggregation), link_codec(experiment)
    if codec is not None:
        slots = (*layout.trained, *layout.kept, *layout.carried)
        codec = codec.of(tuple(slot.numel for slot in slots if slot.numel), experiment.seed)
    return Exchange(rule, _attackers(experiment), codec)


def message_bytes(experiment: Experiment, layout: Layout) -> int:
    """Return the bytes of one message on the wire: a model, or what a codec makes of it."""
    model, size = layout.model_bytes, experiment.model.wire_bytes
    if size:  # and what is carried beside the model takes as much more as beside the real one
        alone = layout.width - sum(slot.numel for slot in layout.carried)
        model = size * layout.width // alone
    codec = exchange_of(experiment, layout).codec
    if codec is None:
        return model
    return math.ceil(model * codec.message_bytes / codec.model_bytes)


def describe_exchange(experiment: Experiment, layout: Layout) -> dict[str, str]:
    """Return what a link carries, whether mixing moves the mean, and where a rule has no part.

    `fleet.json` holds it. Empty where links carry whole models.
    """
    codec, able = exchange_of(experiment, layout).codec, experiment.mechanism.capabilities()
    rule = experiment.aggregation.rule
    limits = {}
    if able.deltas and rule != "mean":
        limits = {"aggregation rule": f"{rule}, of models; updates are added as they arrive"}
    if codec is None:
        return limits
    size, whole = codec.message_bytes, codec.model_bytes
    message = f"{codec.name}: {size:,} of {whole:,} bytes in a message"
    if codec.keeps_mean:
        message += (
            f"; CHOCO's rule with a step of {codec.gamma:g} mixes all numbers and keeps the mean"
        )
    mean = describe_mean(able, codec) if experiment.engine.train else {}
    return {"compression": message, **mean, **limits}


def _attackers(experiment: Experiment) -> Attackers | None:
    return attackers_of(experiment.adversary, experiment.fleet.workers, experiment.seed)


def with_wrong_labels(experiment: Experiment, data: Dataset, shards: dict[int, Ints]) -> Dataset:
    """Return the data set with the labels that some workers train on, if labels are flipped.

    Args:
        experiment: The settings.
        data: A data set, or the samples of one worker.
        shards: Which of its samples each worker has.
    """
    attackers = _attackers(experiment)
    if attackers is None or not attackers.attack.flips_labels:
        return data
    if type(task := task_of(experiment, data)).targets is not Task.targets:
        raise ConfigError(
            f"adversary.kind = {attackers.attack.name!r} flips class labels, which the task "
            f"{task_name(task)!r} does not learn; choose another kind, or task.name = "
            "'classification'"
        )
    labels = data.y_train.copy()
    for node in shards.keys() & set(attackers.nodes.tolist()):
        labels[shards[node]] = flipped_labels(labels[shards[node]], data.classes)
    return replace(data, y_train=labels)
