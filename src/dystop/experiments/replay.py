"""`trace = RUN`: an experiment that plays back what a testbed run observed.

The configuration of the recorded run is the base on which the given keys are put, so that
`dystop run trace=RUN` alone repeats it. `spec` and `build` call these functions.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystop.control.stopping import Stop
from dystop.errors import ConfigError, RunFolderError
from dystop.experiments.run_folder import open_run
from dystop.types import Fleet
from dystop.world import Trace, TraceWorld, World, read_trace
from dystop.world.trace import TRACE

if TYPE_CHECKING:
    from dystop.experiments.config import Experiment

_LONGEST_NAME = 100
_SUFFIX = "-replay"


def recorded_config(run: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a recorded run, as far as the given keys leave it to stand.

    Another mechanism does not inherit the hyper-parameters of the recorded one.
    """
    data = open_run(Path(run))
    if not (data.path / TRACE).is_file():
        raise RunFolderError(
            f"trace: {run} was simulated and holds no trace; only runs of 'dystop testbed' have one"
        )
    base = dict(data.config)
    mechanism = given.get("mechanism", {})
    name = mechanism.get("name") if isinstance(mechanism, Mapping) else None
    if name is not None and name != base.get("mechanism", {}).get("name"):
        del base["mechanism"]
    base["name"] = data.name[: _LONGEST_NAME - len(_SUFFIX)] + _SUFFIX
    return base


def as_replay(experiment: "Experiment") -> "Experiment":
    """The experiment under the laws that a testbed has, if it plays back a trace."""
    if not experiment.trace:
        return experiment
    if experiment.engine.timing != "paper":
        raise ConfigError(
            f"engine.timing = {experiment.engine.timing!r}: a recorded run is played back under"
            " 'paper' only, as the testbed runs"
        )
    return replace(experiment, engine=replace(experiment.engine, publish="on_completion"))


def make_world(experiment: "Experiment", fleet: Fleet) -> World:
    """The simulated surroundings, or the recorded ones."""
    place = experiment.world, fleet.workers, fleet.model_bytes, experiment.seed, fleet.server
    if not experiment.trace:
        return World(*place)
    return TraceWorld(read_trace(Path(experiment.trace)), *place)


def make_stop(stop: Stop, world: World) -> Stop:
    """The stop rules; a replay ends with its trace, whenever its clock or its targets say so."""
    if not isinstance(world, TraceWorld):
        return stop
    return Stop(rounds=min(stop.rounds, len(world.trace.rounds)))


def replay_note(world: World) -> dict[str, str]:
    """What is played back, for the description of the surroundings."""
    return {"replay of": _text(world.trace)} if isinstance(world, TraceWorld) else {}


def _text(trace: Trace) -> str:
    return f"{trace.path.parent}, {len(trace.rounds)} rounds"
