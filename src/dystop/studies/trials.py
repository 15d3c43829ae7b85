"""Short trials on a user's own world: how long they last, and who takes part in which.

A *turn* is the time that a worker needs for one local training and one transfer of a model, on
average. Budgets count turns, because a second is long in one network and short in another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dystop.config import Experiment
from dystop.runs.building import build
from dystop.studies.compare import Comparison, experiments

ROUNDS = 100_000  # seconds end a trial, not rounds
SAMPLES = 500  # test images per model in a trial
EVALUATIONS = 24  # in one trial
TURNS = 40  # of the last trials
SEEDS = 3  # of the last trials
FINALISTS = 3
_CONTENDERS = 6  # of the trials before the last


@dataclass(frozen=True)
class Pace:
    """How long a worker of a fleet trains and transfers, on average."""

    training_s: float  # one local training
    link_s: float  # one model over the median link in reach; 0 where there is no link

    @property
    def turn_s(self) -> float:
        """Seconds of one training and one transfer."""
        return self.training_s + self.link_s

    @property
    def ratio(self) -> float:
        """Seconds of communication for one second of computation."""
        return self.link_s / self.training_s


@dataclass(frozen=True)
class Stage:
    """Trials of the same length; the best go on to the next stage."""

    size: int  # mechanisms that the ranking of the stage before lets in
    seconds: float  # simulated, of every run
    seeds: int


def pace_of(experiment: Experiment) -> Pace:
    """Return the pace of a fleet when its first round opens."""
    components = build(experiment, elsewhere=True).components
    seen, workers = components.world.observe(1, 0.0), components.fleet.workers
    between = (seen.reach.dst < workers) & (seen.reach.src < workers)
    link_s = float(np.median(seen.link_s[between])) if between.any() else 0.0
    return Pace(float(np.mean(components.steps * seen.step_s)), link_s)


def horizon_s(experiment: Experiment, turns: float) -> float:
    """Return the simulated seconds of so many turns, at most `stop.seconds`, rounded."""
    limit = experiment.stop.seconds or math.inf
    return float(f"{min(turns * pace_of(experiment).turn_s, limit):.3g}")


def stages(mechanisms: int, seconds: float, seeds: int = SEEDS) -> list[Stage]:
    """Return the stages of successive halving: short trials for all, longer ones for the best.

    >>> [(s.size, s.seconds, s.seeds) for s in stages(17, 20.0)]
    [(17, 5.0, 1), (6, 10.0, 2), (3, 20.0, 3)]
    >>> [(s.size, s.seconds, s.seeds) for s in stages(3, 20.0)]
    [(3, 20.0, 3)]
    """
    found = [Stage(min(mechanisms, FINALISTS), seconds, seeds)]
    if mechanisms > FINALISTS:
        found.insert(0, Stage(min(mechanisms, _CONTENDERS), seconds / 2, max(1, seeds - 1)))
    if mechanisms > _CONTENDERS:
        found.insert(0, Stage(mechanisms, seconds / 4, 1))
    return found


def shortened(experiment: Experiment, seconds: float) -> Experiment:
    """Return an experiment that ends after so many simulated seconds and keeps only its records."""
    asked = experiment.evaluate
    evaluate = replace(
        asked, every_s=asked.every_s or seconds / EVALUATIONS, samples=asked.samples or SAMPLES
    )
    return replace(
        experiment,
        stop=replace(experiment.stop, seconds=seconds, rounds=ROUNDS),
        evaluate=evaluate,
        output=replace(experiment.output, models="none", topology="counts"),
    )


@dataclass(frozen=True)
class Trials:
    """The trials that the command line asks for."""

    file: Path | None
    words: Sequence[str]  # key=value, for all mechanisms
    settings: Sequence[str] = ()  # MECHANISM.KEY=VALUE

    def base(self, mechanisms: Sequence[str]) -> Experiment:
        """Return the experiment of the user under the first of these mechanisms.

        Raises:
            ConfigError: If a setting cannot be used with these mechanisms.
        """
        return self._compared(mechanisms, 1, self.settings)[0]

    def experiments(self, stage: Stage, mechanisms: Sequence[str]) -> list[Experiment]:
        """Return the runs of one stage."""
        own = [word for word in self.settings if word.partition(".")[0] in mechanisms]
        every = self._compared(mechanisms, stage.seeds, own)
        return [shortened(experiment, stage.seconds) for experiment in every]

    def _compared(
        self, mechanisms: Sequence[str], seeds: int, settings: Sequence[str]
    ) -> list[Experiment]:
        return experiments(Comparison(self.file, self.words, mechanisms, seeds, None, settings))
