"""K-GT: gradient tracking over whole local trainings, for data that differ from worker to worker.

    dystop run mechanism.name=kgt:KGT mechanism.folder=examples/mechanisms

Each worker adds a correction to its local gradients, so that it descends on the loss of all. The
correction follows from the mean step of the last training, which travels with the model.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dystop import Capabilities, Carried, Mechanism, Memory, Plan, Values, View, links
from dystop.control.aggregation import metropolis


@dataclass(frozen=True)
class KGT(Mechanism):
    """In every round all workers train, average with all in reach, and correct their gradients."""

    name: ClassVar[str] = "kgt"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "local trainings that track the gradient of all workers"

    def capabilities(self) -> Capabilities:
        """Return what the mechanism carries: the mean step, and at home the correction."""
        carries = Carried("step"), Carried("correction", "home")
        return Capabilities(mode="sync", doubly_stochastic=True, carries=carries, corrects=True)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Let everybody average with all workers in reach."""
        active, graph = np.flatnonzero(view.alive), view.reach
        rows = metropolis(graph, active)
        return Plan(active, links(graph.dst, graph.src), (rows,), synchronous=True), memory

    def after_mixing(self, own: Values, mixed: Values, dt: Any) -> Values:
        """Move the correction by how the own mean step differs from that of the neighbours."""
        return {"correction": own["correction"] - own["step"] + mixed["step"]}

    def correction(self, carried: Values) -> Any:
        """Return what is added to every local gradient."""
        return carried["correction"]

    def after_training(
        self, start: Any, trained: Any, carried: Values, steps: Any, rate: Any
    ) -> Values:
        """Keep the mean step of the training; none was taken without data."""
        return {"step": (start - trained) / (steps * rate).clip(min=1e-12)}
