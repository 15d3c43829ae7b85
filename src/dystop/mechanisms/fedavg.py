"""FedAvg: the centralized reference, with a parameter server."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Le

from dystop.params import param
from dystop.plan import Plan, join_links, links, mix_of, no_links
from dystop.sparse import Ints
from dystop.types import Capabilities, Mechanism, Memory, View

_ROUNDING = 1e-9  # a product that should be whole may come out just above: 0.55 * 100


@dataclass(frozen=True)
class FedAvg(Mechanism):
    """A sampled set of workers uploads, the server averages by data size and sends the result back.

    The server is node N: no data, no training, reachable by every worker over the same channel.
    """

    name: ClassVar[str] = "fedavg"
    provenance: ClassVar[str] = "reference"
    summary: ClassVar[str] = "synchronous averaging at a parameter server"

    participation: Annotated[float, Gt(0), Le(1)] = param(
        1.0, "share of workers sampled each round"
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="sync", server=True)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Two stages: everybody chosen to the server, the server to everybody chosen."""
        chosen, hub = self._sample(view), view.fleet.workers
        if not len(chosen):  # nobody reaches the server in this round: everyone trains alone
            return Plan(np.flatnonzero(view.alive), no_links(), synchronous=True), memory
        centre = np.full(len(chosen), hub)
        up = links(centre, chosen, stage=0, pushed=True)
        down = links(chosen, centre, stage=1)
        size = view.fleet.data_size[chosen].astype(float)
        gather = mix_of(centre, chosen, size / size.sum())
        spread = mix_of(chosen, centre, np.ones(len(chosen)))
        return Plan(chosen, join_links([up, down]), (gather, spread), synchronous=True), memory

    def _sample(self, view: View) -> Ints:
        """Workers that are present and reach the server; at least one if there is any."""
        here = view.reach.row(view.fleet.workers)
        take = max(math.ceil(self.participation * len(here) - _ROUNDING), min(len(here), 1))
        return np.sort(view.rng("sample").choice(here, size=take, replace=False))
