"""FedAvg: synchronous averaging at a parameter server."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Le

from dystop.params import param
from dystop.plan import Plan, join_links, links, mix_of, no_links
from dystop.sparse import Ints
from dystop.types import Capabilities, Mechanism, Memory, View

_ROUNDING = 1e-9  # a whole product may come out slightly above: 0.55 * 100


@dataclass(frozen=True)
class FedAvg(Mechanism):
    """Sampled workers upload their models; the server averages by data size and returns the result.

    The server is node N. It has no data and does not train. Workers reach it over the same channel.
    """

    name: ClassVar[str] = "fedavg"
    provenance: ClassVar[str] = "reference"
    summary: ClassVar[str] = "synchronous averaging at a parameter server"

    participation: Annotated[float, Gt(0), Le(1)] = param(
        1.0, "share of the workers that each round samples"
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="sync", server=True)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Upload from the sampled workers in stage 0, download to them in stage 1."""
        chosen, hub = self._sample(view), view.fleet.workers
        if not len(chosen):  # no worker is in reach of the server: all train alone
            return Plan(np.flatnonzero(view.alive), no_links(), synchronous=True), memory
        centre = np.full(len(chosen), hub)
        up = links(centre, chosen, stage=0, pushed=True)
        down = links(chosen, centre, stage=1)
        size = view.fleet.data_size[chosen].astype(float)
        gather = mix_of(centre, chosen, size / size.sum())
        spread = mix_of(chosen, centre, np.ones(len(chosen)))
        return Plan(chosen, join_links([up, down]), (gather, spread), synchronous=True), memory

    def _sample(self, view: View) -> Ints:
        """Sample workers in reach of the server; at least one if there is any."""
        here = view.reach.row(view.fleet.workers)
        take = max(math.ceil(self.participation * len(here) - _ROUNDING), min(len(here), 1))
        return np.sort(view.rng("sample").choice(here, size=take, replace=False))
