"""A recorded testbed run in the place of the simulated surroundings.

`TraceWorld` answers like `World`, but with what was observed in the recorded run. Where a plan has
a link that the recorded round did not have, the channel model answers for that link.
"""

import numpy as np

from dystop.errors import ConfigError
from dystop.sparse import Floats, Ints
from dystop.world.params import WorldParams
from dystop.world.trace import Reported, Trace, TracedLinks, TracedRound
from dystop.world.world import Transfer, World, WorldState


class TraceWorld(World):
    """The surroundings that a recorded run had."""

    def __init__(
        self,
        trace: Trace,
        params: WorldParams,
        workers: int,
        model_bytes: int,
        seed: int,
        server: bool = False,
    ) -> None:
        """Set the recorded scene.

        Args:
            trace: What was recorded.
            params: The channel model, for positions and for links that were not recorded.
            workers: N; must be that of the trace.
            model_bytes: Bytes of one full model on the wire.
            seed: Of the channel model.
            server: Whether node N is a base station; must be so in the trace.
        """
        super().__init__(params, workers, model_bytes, seed, server)
        if trace.workers != workers or trace.nodes != self.nodes:
            raise ConfigError(
                f"trace: {trace.path} is of {_crowd(trace.workers, trace.nodes)}, the configuration"
                f" of {_crowd(workers, self.nodes)}; leave fleet.workers as it was recorded, and"
                " choose a mechanism that needs no other nodes"
            )
        self.trace = trace

    def observe(self, t: int, now_s: float) -> WorldState:
        """What was observed when round t opened; after the last one, what it saw."""
        line = self._line(t)
        return WorldState(
            alive=line.alive,
            reach=line.reach,
            distance_m=line.distance_m,
            link_s=line.link_s,
            step_s=line.step_s,
            budget=line.budget,
            position=self._position(line.opened_s),
            recorded=line,
        )

    def transfer(
        self, t: int, now_s: float, dst: Ints, src: Ints, fraction: float | Floats
    ) -> Transfer:
        """What the links took in the recorded round."""
        line = self._line(t)
        modelled = super().transfer(t, now_s, dst, src, fraction)
        same = np.array_equal(line.links.dst, dst) and np.array_equal(line.links.src, src)
        at = np.arange(len(dst)) if same else _places(line.links, self.nodes, dst, src)
        found = at >= 0
        seconds, lost = modelled.seconds.copy(), np.array(modelled.lost)
        known = found & np.isfinite(_picked(line.links.seconds, at, np.nan))
        seconds[known] = line.links.seconds[at[known]]
        lost[found] = line.links.lost[at[found]]
        return Transfer(seconds, modelled.hops, lost, self._reported(line) if same else None)

    def next_return_s(self, now_s: float) -> float:
        """When the next round opened; inf after the last one."""
        later = [line.opened_s for line in self.trace.rounds if line.opened_s > now_s]
        return min(later, default=np.inf)

    def _line(self, t: int) -> TracedRound:
        return self.trace.rounds[min(t, len(self.trace.rounds)) - 1]

    def _reported(self, line: TracedRound) -> Reported:
        train_s = self.trace.train_s[line.round]
        links = line.links
        return Reported(line.duration_s, links.bytes, links.stale, line.orders, train_s)


def _crowd(workers: int, nodes: int) -> str:
    return f"{workers} workers {'and a server' if nodes > workers else 'without a server'}"


def _places(links: TracedLinks, nodes: int, dst: Ints, src: Ints) -> Ints:
    """Which recorded link is between the ends of each link; -1: none."""
    keys, wanted = links.dst * nodes + links.src, dst * nodes + src
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    return np.where(keys[at] == wanted, at, -1)


def _picked(values: Floats, at: Ints, missing: float) -> Floats:
    if not len(values):
        return np.full(len(at), missing)
    return np.where(at >= 0, values[at], missing)
