"""FedSA: a semi-asynchronous parameter server."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le

from dystop.mechanisms.shared.server import first_to_finish, in_reach_of_server, server_round
from dystop.params import param
from dystop.plan import Plan, no_links
from dystop.sparse import Ints
from dystop.types import Capabilities, Mechanism, Memory, View


@dataclass(frozen=True)
class FedSA(Mechanism):
    """The server waits for the first K workers, aggregates their models and returns the result.

    The others keep training and upload in a later round. The server is node N, as in FedAvg. The
    source says that a part of the workers takes part in each global update. Our choices: K is half
    of the workers, rounded down, at least one. The K models are averaged by data size. The average
    enters the server model with the share of all data that the K workers hold. Among workers that
    have finished, those that began earliest go first. The source also tunes K and the learning
    rates of rare participants; this implementation does not. With K = N and all workers present,
    it equals FedAvg.
    """

    name: ClassVar[str] = "fedsa"
    provenance: ClassVar[str] = "reference"
    summary: ClassVar[str] = "a server aggregates the first K workers that finish"

    arrivals: Annotated[int, Ge(1)] | None = param(
        None, "K: workers that the server waits for; unset: max(1, N // 2) (our choice)"
    )
    server_share: Annotated[float, Gt(0), Le(1)] | None = param(
        None,
        "weight of the average of the arrived models in the server model; unset: their share of "
        "all data (our choice)",
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", server=True)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Upload from the first K workers and download to them; train alone if none is in reach."""
        near = in_reach_of_server(view)
        if not len(near):
            alone = first_to_finish(
                np.flatnonzero(view.alive), view.remaining_s, view.staleness, self._count(view)
            )
            return Plan(alone, no_links()), memory
        chosen = first_to_finish(near, view.remaining_s, view.staleness, self._count(view))
        share = self._share(view, chosen)
        return server_round(view, chosen, share, {"share": share}), memory

    def _count(self, view: View) -> int:
        return self.arrivals if self.arrivals is not None else max(1, view.fleet.workers // 2)

    def _share(self, view: View, chosen: Ints) -> float:
        if self.server_share is not None:
            return self.server_share
        return float(view.fleet.data_size[chosen].sum() / view.fleet.data_size.sum())
