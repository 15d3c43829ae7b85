"""`dystop.simulate`: an experiment in three lines of Python, without a run folder."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dystop.engine.rounds import begin
from dystop.engine.rounds import simulate as run_rounds
from dystop.experiments.build import Built, build
from dystop.experiments.spec import Experiment, read_experiment
from dystop.record import RoundRecord
from dystop.types import Mechanism


class Simulation:
    """A simulation that trains while it is iterated; each item is one `RoundRecord`."""

    def __init__(self, experiment: Experiment) -> None:
        self._built: Built = build(experiment)
        self.records: list[RoundRecord] = []

    @property
    def experiment(self) -> Experiment:
        """The full configuration."""
        return self._built.experiment

    @property
    def physics(self) -> dict[str, str]:
        """The simulated surroundings, in words."""
        return self._built.physics

    def __iter__(self) -> Iterator[RoundRecord]:
        self.records = []
        parts = self._built.parts
        for record, _ in run_rounds(parts, begin(parts)):
            self.records.append(record)
            yield record


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
    words = [
        f"mechanism.name={mechanism if isinstance(mechanism, str) else 'dystop'}",
        f"fleet.workers={workers}",
        f"data.name={dataset}",
        f"stop.rounds={rounds}",
        f"seed={seed}",
        *overrides,
    ]
    experiment = read_experiment(None, words)
    if not isinstance(mechanism, str):  # any object will do, whether or not it has a known name
        experiment = replace(experiment, mechanism=mechanism)
    return Simulation(experiment)
