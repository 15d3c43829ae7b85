"""`dystop.simulate`: an experiment in three lines of Python, without a run folder."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from dystop.errors import ConfigError
from dystop.experiments.build import Built, build
from dystop.experiments.config import Experiment, read_experiment
from dystop.experiments.config.read import read_section
from dystop.experiments.trained_models import model_of
from dystop.record import RoundRecord
from dystop.simulator import no_round, run_rounds
from dystop.simulator.loop import begin
from dystop.simulator.state import State
from dystop.training.saved import LoadedModel
from dystop.types import Mechanism


class Simulation:
    """A simulation that trains while it is iterated; each item is one `RoundRecord`."""

    def __init__(self, experiment: Experiment) -> None:
        self._built: Built = build(experiment)
        self.records: list[RoundRecord] = []
        self._end: State | None = None  # after the last round

    @property
    def experiment(self) -> Experiment:
        """The full configuration."""
        return self._built.experiment

    @property
    def physics(self) -> dict[str, str]:
        """The simulated surroundings, in words."""
        return self._built.physics

    def __iter__(self) -> Iterator[RoundRecord]:
        self.records, self._end = [], None
        parts = self._built.parts
        state = begin(parts)
        for record, after in run_rounds(parts, state, no_round):
            self.records.append(record)
            state = after
            yield record
        self._end = state

    def model(self, worker: int | None = None) -> LoadedModel:
        """The trained global model, or one worker's; ask when all rounds are over."""
        if self._end is None:
            raise ValueError("the simulation is not over: iterate over it to its end first")
        return model_of(self._built.parts, self._end, self._built.card, worker)


def simulate(
    mechanism: Mechanism | str = "dystop",
    *,
    workers: int = 30,
    dataset: str = "fmnist-mini",
    rounds: int = 60,
    seed: int = 0,
    overrides: Sequence[str] = (),
) -> Simulation:
    """Prepare a simulation; iterate over it to run it.

    Args:
        mechanism: A mechanism object such as `DySTop(V=20)`, or its name.
        workers: Number of workers.
        dataset: Name of a data set, or a path to an `.npz` file.
        rounds: Most rounds, which is also the horizon.
        seed: Seed of all randomness.
        overrides: Any further configuration as `key=value`, such as "world.range_m=60".
    """
    _check_words(mechanism, overrides)
    words = [
        f"mechanism.name={mechanism if isinstance(mechanism, str) else 'dystop'}",
        f"fleet.workers={workers}",
        f"data.name={dataset}",
        f"stop.rounds={rounds}",
        f"seed={seed}",
        *overrides,
    ]
    experiment = read_experiment(None, words, "simulate")
    if not isinstance(mechanism, str):  # any object will do, whether or not it has a known name
        experiment = replace(experiment, mechanism=_checked(mechanism))
    return Simulation(experiment)


def _check_words(mechanism: Mechanism | str, overrides: Sequence[str]) -> None:
    """Refuse overrides that are no list of words, or that an object would silently outvote."""
    if isinstance(overrides, str) or not all(isinstance(word, str) for word in overrides):
        raise ConfigError(
            f"overrides = {overrides!r}; expected a list of 'key=value' texts, as in"
            " ['world.range_m=60']"
        )
    if isinstance(mechanism, str):
        return
    for word in overrides:
        if word.startswith("mechanism."):
            raise ConfigError(
                f"overrides: {word!r} beside a mechanism object; set it on the object, as in"
                " DySTop(V=20)"
            )


def _checked(mechanism: Mechanism) -> Mechanism:
    """The object, if it is one and its hyper-parameters are within their bounds."""
    if not isinstance(mechanism, Mechanism):
        raise ConfigError(
            f"mechanism = {mechanism!r}; expected a mechanism object such as DySTop(V=20), or a"
            " name of 'dystop list mechanisms'"
        )
    plain = {
        f.name: getattr(mechanism, f.name)
        for f in fields(mechanism)
        if isinstance(getattr(mechanism, f.name), (bool, int, float, str))
    }
    read_section(type(mechanism), plain, "mechanism", "simulate")
    return mechanism
