"""Does mixing over compressed links keep the mean of all models, and do the models meet?

    python benchmarks/mean_drift.py [KEY=VALUE ...]

Eight workers average for 600 rounds and never train: D-PSGD on a ring, MATCHA and GossipFL. Their
models start at random points, so that only mixing moves them, and public copies start at zero. A
line shows how far the mean of all models has moved at most, in parts of the norm of the first mean,
and how many times closer together the models are at the end.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dystop.config import read_experiment
from dystop.exchange.codecs import CODECS
from dystop.runs.building import build
from dystop.simulator.round import begin, simulate
from dystop.training.problem import Trained
from dystop.training.trainer import Trainer

WORDS = [
    "fleet.workers=8", "world.range_m=200", "stop.rounds=600",
    "data.name=synthetic", "model.name=softmax", "evaluate.every_rounds=1000000",
]  # fmt: skip


class RandomStarts:
    """A trainer whose first training draws a model for each worker; later ones change nothing."""

    def __init__(self, trainer: Trainer, seed: int = 0) -> None:
        """Take the trainer whose model is not trained, and the seed of the models."""
        self._trainer, self._seed = trainer, seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def initial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a model of zeros, which is also the first public copy of everybody."""
        return torch.zeros(self.layout.parameters), torch.zeros(0, dtype=torch.int64)

    def train(
        self, models: Any, counters: Any, workers: Any, versions: Any, steps: Any, rates: Any = None
    ) -> Trained:
        """Draw the models before the first round; then return them as they are."""
        if not np.any(versions):
            generator = torch.Generator().manual_seed(self._seed)
            models = torch.randn(models.shape, generator=generator)
        return Trained(models, counters, np.full(len(workers), np.nan), 0)


@dataclass(frozen=True)
class Drift:
    """Where all models are after a round, in parts of the norm of their first mean."""

    mean: float  # how far the mean has moved
    models: float  # root mean square of the distances of the models from their mean


def drifts(*words: str) -> Iterator[Drift]:
    """Yield the drift after every round of a run that never trains."""
    components = build(read_experiment(None, [*WORDS, *words])).components
    components = replace(components, trainer=RandomStarts(components.trainer))
    state = begin(components)
    first = state.models.latest.double().mean(0)
    for _, after in simulate(components, state):
        models = after.models.latest.double()
        mean = models.mean(0)
        apart = (models - mean).norm(dim=1).square().mean().sqrt()
        yield Drift(float((mean - first).norm() / first.norm()), float(apart / first.norm()))


def line(mechanism: str, *words: str) -> str:
    """Return one line of the table."""
    first, *_, last = found = list(drifts(f"mechanism.name={mechanism}", *words))
    moved = max(each.mean for each in found)
    closer = first.models / last.models if last.models else float("inf")
    return f"{mechanism} | {moved:.0e} | {closer:.0e} |"


if __name__ == "__main__":
    print("| `link.compression` | mechanism | mean moved by | closer together |\n|---|---|---|---|")
    for kind in ("none", *CODECS):
        for mechanism in ("d-psgd", "matcha", "gossipfl"):
            words = f"link.compression={kind}", *sys.argv[1:]
            print(f"| `{kind}` | {line(mechanism, *words)}", flush=True)
