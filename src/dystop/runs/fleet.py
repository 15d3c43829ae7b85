"""Fleet, world and stop rules of an experiment, for the simulator and the testbed.

Free of torch, so that a coordinator starts quickly. `dystop.runs.building` has what needs
models.
"""

from pathlib import Path

import numpy as np

from dystop.config import Experiment
from dystop.config.readings import set_by
from dystop.control.stopping import Stop
from dystop.errors import ConfigError
from dystop.exchange.codecs import Codec, codec_of
from dystop.mechanisms.budgeted import Budgeted
from dystop.mechanisms.staleness_weighted import StalenessWeighted
from dystop.sparse import Ints
from dystop.types import Fleet, Mechanism
from dystop.world import Trace, TraceWorld, World, read_trace

_LONGEST_S = 1e9  # some thirty years


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


def mechanism_of(experiment: Experiment) -> Mechanism:
    """Return the mechanism of an experiment in the wrappers that its keys ask for.

    Raises:
        ConfigError: A wrapper does not go with the mechanism, the links or the world.
    """
    _check_shares(experiment)
    mechanism, key = experiment.mechanism, "world.budget.binds"
    if experiment.world.budget.binds == "everybody":
        overlay = experiment.world.reach == "overlay"
        try:
            mechanism = Budgeted(mechanism, link_codec(experiment), overlay)
        except ConfigError as error:
            hint = set_by(experiment.reading, mechanism.name, key)
            raise ConfigError(f"{error}{hint}") from None
    if experiment.staleness.rule != "none":
        mechanism = StalenessWeighted(mechanism, experiment.staleness)
    return mechanism


def _check_shares(experiment: Experiment) -> None:
    """Refuse what takes shares of a carried vector whose sum over all workers must stay."""
    mechanism = experiment.mechanism
    names = [one.name for one in mechanism.capabilities().carries if one.rows == "own"]
    found = {
        "world.outages.loss": experiment.world.outages.loss > 0,
        "link.compression": experiment.link.compression != "none",
        "aggregation.rule": experiment.aggregation.rule != "mean",
        "staleness.rule": experiment.staleness.rule != "none",
        "world.budget.binds": experiment.world.budget.binds == "everybody",
    }
    for key in (key for key, is_set in found.items() if names and is_set):
        raise ConfigError(
            f"{key}: {mechanism.name} carries {names[0]!r}, whose sum over all workers must stay, "
            f"and nobody would get back what this setting takes of it; leave {key} out, or use "
            "another mechanism"
        )


def link_codec(experiment: Experiment) -> Codec | None:
    """Return the codec of the links; None where they carry whole models.

    Where the mechanism keeps the mean of all models, workers move by CHOCO's rule. Updates, which
    have no public copy, and the other aggregation rules move the mean.
    """
    able, rule = experiment.mechanism.capabilities(), experiment.aggregation.rule
    keeps_mean = able.doubly_stochastic and not able.deltas and rule == "mean"
    return codec_of(experiment.link, keeps_mean=keeps_mean)


def steps_of(experiment: Experiment, fleet: Fleet) -> Ints:
    """Return the mini-batches of one local training, [N]."""
    training = experiment.training
    per_epoch = fleet.epoch_steps * training.epochs
    return np.full_like(per_epoch, training.local_steps) if training.local_steps else per_epoch


def make_world(experiment: Experiment, fleet: Fleet) -> World:
    """Return the simulated world, or the recorded one."""
    place = experiment.world, fleet.workers, fleet.model_bytes, experiment.seed, fleet.server
    if experiment.trace:
        return TraceWorld(read_trace(Path(experiment.trace)), *place)
    world = World(*place)
    check_links(world)
    return world


def check_links(world: World) -> None:
    """Refuse a world in which no link in reach would carry a model within decades."""
    link_s = world.observe(1, 0.0).link_s
    if len(link_s) and (fastest_s := float(link_s.min())) > _LONGEST_S:
        raise ConfigError(
            f"world.channel: the fastest link in reach would need {fastest_s:.2g} s for a model; "
            "use a smaller noise_w, a larger bandwidth_hz, power_dbm or reference_gain_db, or a "
            "smaller model (model.wire_bytes)"
        )


def make_stop(stop: Stop, world: World) -> Stop:
    """Return the stop rules; a replay ends with its trace and ignores time and targets."""
    if not isinstance(world, TraceWorld):
        return stop
    return Stop(rounds=min(stop.rounds, len(world.trace.rounds)), diverged=0.0)


def planning_note(experiment: Experiment) -> dict[str, str]:
    """Return what planning only leaves out, for the description of the world."""
    return {} if experiment.engine.train else {"planning only": "no model is trained or evaluated"}


def replay_note(world: World) -> dict[str, str]:
    """Return which trace is replayed, for the description of the world."""
    return {"replay of": _text(world.trace)} if isinstance(world, TraceWorld) else {}


def _text(trace: Trace) -> str:
    return f"{trace.path.parent}, {len(trace.rounds)} rounds"
