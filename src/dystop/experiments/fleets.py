"""Who takes part and how much each trains: what simulator and testbed agree on. Free of torch."""

import numpy as np

from dystop.experiments.spec import Experiment
from dystop.sparse import Ints
from dystop.types import Fleet

_FULL_TOPOLOGY_LIMIT = 1000  # workers; beyond it records hold counts only


def fleet_of(experiment: Experiment, label_counts: Ints, model_bytes: int) -> Fleet:
    """The fleet, from the label counts [N, K] of the split and the size of one model."""
    return Fleet(
        data_size=label_counts.sum(axis=1),
        label_counts=label_counts,
        batch=experiment.training.batch,
        model_bytes=model_bytes,
        horizon=experiment.stop.rounds,
        seed=experiment.seed,
        server=experiment.mechanism.server,
        horizon_s=experiment.stop.seconds,
    )


def steps_of(experiment: Experiment, fleet: Fleet) -> Ints:
    """Mini-batches of one local training, [N]."""
    training = experiment.training
    per_epoch = fleet.epoch_steps * training.epochs
    return np.full_like(per_epoch, training.local_steps) if training.local_steps else per_epoch


def keeps_topology(experiment: Experiment) -> bool:
    """Whether records hold every link, and not only numbers."""
    topology, small = experiment.output.topology, experiment.fleet.workers <= _FULL_TOPOLOGY_LIMIT
    return topology == "full" or (topology == "auto" and small)
