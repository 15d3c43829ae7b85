"""The components of a simulation, and what `fleet.json` says about fleet, world and model.

The testbed shares `fleet_json` and `describe_graph`.
"""

from typing import Any

import numpy as np

from dystop.config import Experiment
from dystop.control.round import build_view, initial_state
from dystop.data import Dataset, Labels
from dystop.data.npz import IF_TABLE
from dystop.recorders import recorders_of
from dystop.recorders.recorder import Setting
from dystop.runs.building.exchange import exchange_of
from dystop.runs.fleet import make_stop, mechanism_of, steps_of
from dystop.simulator.round import observe
from dystop.simulator.state import Components
from dystop.training.tasks.build import task_name
from dystop.training.trainer import Trainer
from dystop.types import Fleet, Mechanism
from dystop.world import Progress, World
from dystop.world.describe import GRAPH, SAMPLES, pieces
from dystop.world.progress import nothing_in_flight


def make_components(
    experiment: Experiment,
    fleet: Fleet,
    world: World,
    trainer: Trainer,
) -> Components:
    """Return the parts of a simulation."""
    return Components(
        fleet=fleet,
        mechanism=mechanism_of(experiment),
        world=world,
        trainer=trainer,
        engine=experiment.engine,
        stop=make_stop(experiment.stop, world),
        evaluate=experiment.evaluate,
        steps=steps_of(experiment, fleet),
        recorders=recorders_of(Setting(experiment, fleet, testbed=False)),
        exchange=exchange_of(experiment, trainer.layout),
    )


def describe_samples(data: Dataset | Labels) -> dict[str, str]:
    """Return whether integers with classes were taken for token ids; they may be a table."""
    if not data.tokens or data.task != "classification":
        return {}
    return {SAMPLES: f"integers, which are taken for token ids; {IF_TABLE}"}


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
        "area_m": list(world.params.area_m),
        "range_m": world.params.range_m,
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
