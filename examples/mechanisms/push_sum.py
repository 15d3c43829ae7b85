"""Push-sum (stochastic gradient push): averages over directed links, without a bias.

    dystop run mechanism.name=push_sum:PushSum mechanism.folder=examples/mechanisms

Every worker pushes equal shares to a few others that it reaches. Such a mix keeps sums, and the
mean only where everybody gets as much as it gives away. A carried weight counts what each model is
worth, and the model is the sum that arrived, divided by it.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from dystop import Capabilities, Carried, Fleet, Mechanism, Memory, Plan, View, links, mix_of, param


@dataclass(frozen=True)
class PushSum(Mechanism):
    """In every round all workers push shares of model and weight to a few receivers, and train."""

    name: ClassVar[str] = "push-sum"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "pushes shares over directed links; a carried weight removes the bias"

    receivers: Annotated[int, Ge(1)] = param(2, "workers that each worker pushes to in a round")

    def capabilities(self) -> Capabilities:
        """Return what the mechanism carries: the weight, mixed by the shares."""
        weight = Carried("weight", rows="own", width=1, first=1.0)
        return Capabilities(mode="sync", carries=(weight,))

    def init(self, fleet: Fleet) -> Memory:
        """Return the weight of each worker, as it will be when the next round opens."""
        return {"weight": np.ones(fleet.workers)}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Draw receivers, and turn the shares into rows for models that are divided already."""
        before, n = memory["weight"], view.fleet.workers
        dst, src = self._pushes(view)
        active = np.flatnonzero(view.alive)
        share = 1.0 / (1.0 + np.bincount(src, minlength=n))
        to, of = np.append(dst, active), np.append(src, active)  # everybody keeps a share
        worth = np.bincount(to, weights=share[of] * before[of], minlength=n)
        worth[~view.alive] = before[~view.alive]
        rows = mix_of(to, of, share[of] * before[of] / worth[to], carried=share[of])
        rate = 1.0 / worth[active]  # a gradient enters the undivided sum
        plan = Plan(active, links(dst, src), (rows,), rate=rate, synchronous=True)
        return plan, {"weight": worth}

    def _pushes(self, view: View) -> tuple[np.ndarray, np.ndarray]:
        """Return (receiver, sender) of every push."""
        dst, src = view.reach.dst, view.reach.src
        order = np.lexsort((view.rng("push-sum").random(len(src)), src))
        rank = np.arange(len(src)) - np.searchsorted(src[order], src[order])
        chosen = order[rank < self.receivers]
        return dst[chosen], src[chosen]
