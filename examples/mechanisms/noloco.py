"""NoLoCo: an outer momentum over local trainings, and gossip in random pairs instead of a mean.

    dystop run mechanism.name=noloco:NoLoCo mechanism.folder=examples/mechanisms

Where a pair starts from different models, its members are also pulled together. The published form
sends the start of the training and its progress; their sum, the trained model, is all that counts,
so one model is sent.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt

from dystop import (
    Capabilities,
    Carried,
    Mechanism,
    Memory,
    Plan,
    Values,
    View,
    links,
    mix_of,
    param,
)


@dataclass(frozen=True)
class NoLoCo(Mechanism):
    """In every round all workers train, average in random pairs, and take an outer step."""

    name: ClassVar[str] = "noloco"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "outer momentum over local trainings, averaged in random pairs"

    rate: Annotated[float, Gt(0)] = param(0.7, "outer learning rate (beta)")
    momentum: Annotated[float, Ge(0)] = param(0.5, "outer momentum (alpha)")

    def capabilities(self) -> Capabilities:
        """Return what each worker keeps: where its training began, and the outer momentum."""
        start = Carried("start", "home", first="model")
        return Capabilities(mode="sync", carries=(start, Carried("velocity", "home")))

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Match workers in reach at random; who finds no partner steps alone."""
        partner = self._partners(view)
        active = np.flatnonzero(view.alive)
        paired = active[partner[active] != active]
        dst, source = np.append(active, paired), np.append(active, partner[paired])
        weight = np.where(np.isin(dst, paired), 0.5, 1.0)
        rows = mix_of(dst, source, weight)
        return Plan(active, links(paired, partner[paired]), (rows,), synchronous=True), memory

    def _partners(self, view: View) -> np.ndarray:
        """Return the partner of each worker, or the worker itself."""
        partner, rng = np.arange(view.fleet.workers), view.rng("noloco")
        for i in rng.permutation(np.flatnonzero(view.alive)).tolist():
            near = view.neighbours(i)
            free = near[(partner[near] == near) & view.alive[near] & _hears(view, i, near)]
            if partner[i] == i and len(free):
                j = int(rng.choice(free))
                partner[i], partner[j] = j, i
        return partner

    def after_mixing(self, own: Values, mixed: Values, dt: Any) -> Values:
        """Take the outer step from where the training began."""
        progress = mixed["model"] - own["start"]
        velocity = self.momentum * own["velocity"] + self.rate * progress
        start = own["start"] + velocity
        return {"model": start, "start": start, "velocity": velocity}


def _hears(view: View, i: int, near: np.ndarray) -> np.ndarray:
    """Return which of these workers have worker i in their own reach."""
    return np.array([i in view.neighbours(j) for j in near.tolist()], bool)
