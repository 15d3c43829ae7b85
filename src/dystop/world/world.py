"""The simulated edge network: what a round may know of it, and what its transfers really take.

Everything is a pure function of (params, seed, t, now_s). What is remembered between calls only
saves work: no answer depends on which calls came before.
"""

from dataclasses import dataclass

import numpy as np

from dystop.errors import ConfigError
from dystop.rng import uniform
from dystop.sparse import Bools, Floats, Graph, Ints
from dystop.world.budget import budget_of_round
from dystop.world.channel import (
    expected_rate_bps,
    mean_snr,
    nominal_power_w,
    power_factor,
    realised_rate_bps,
    transfer_s,
)
from dystop.world.churn import Presence
from dystop.world.compute import step_seconds
from dystop.world.geometry import checked_position, distance, neighbours_within, scatter, with_hub
from dystop.world.mobility import Walk
from dystop.world.overlay import Routes, refuse_large_overlay, relay
from dystop.world.params import WorldParams

_ROUNDING = 1.0 + 1e-9  # two ways of computing a distance may differ in the last digit


@dataclass(frozen=True)
class Surroundings:
    """What can be known when a round opens. Arrays are shared between rounds: read-only."""

    alive: Bools  # [N]
    reach: Graph  # usable directed links between alive nodes
    distance_m: Floats  # [E]
    link_s: Floats  # [E], expected seconds to move one full model at nominal power
    step_s: Floats  # [N], seconds per mini-batch
    budget: Floats  # [nodes], models a node may send and receive in this round
    position: Floats  # [nodes, 2], metres


@dataclass(frozen=True)
class Transfer:
    """What really happened on some links."""

    seconds: Floats  # [L]
    hops: Ints  # [L], links travelled; bytes are paid on each
    lost: Bools  # [L]


@dataclass(frozen=True)
class _Reach:
    """Usable links and what is known of each."""

    graph: Graph
    distance_m: Floats
    link_s: Floats
    routes: Routes | None = None  # where models are relayed

    def __post_init__(self) -> None:
        graph = self.graph
        for values in (graph.indptr, graph.dst, graph.src, self.distance_m, self.link_s):
            values.flags.writeable = False  # handed out more than once

    def keep(self, edge: Bools) -> "_Reach":
        if edge.all():
            return self
        return _Reach(self.graph.keep(edge), self.distance_m[edge], self.link_s[edge])


class World:
    """The surroundings of `workers` workers that exchange models of `model_bytes`.

    With `server`, node N is a base station at the centre of the area. It is linked both ways with
    every worker that is there, at any distance.
    """

    def __init__(
        self,
        params: WorldParams,
        workers: int,
        model_bytes: int,
        seed: int,
        server: bool = False,
        position: Floats | None = None,
    ) -> None:
        """Set the scene.

        Args:
            params: the knobs.
            workers: N.
            model_bytes: bytes of one full model on the wire.
            seed: of everything random here.
            server: whether node N is a base station.
            position: initial positions in metres, [N, 2]; uniform in the area if not given.
        """
        if workers < 1 or model_bytes < 1:
            raise ConfigError(f"{workers} workers, {model_bytes} model bytes: both must be >= 1")
        if params.reach == "overlay":
            refuse_large_overlay(workers)
        self.params, self.workers, self.model_bytes = params, workers, model_bytes
        self.seed, self.server, self.nodes = seed, server, workers + int(server)
        spots = scatter(workers, params.area_m, seed) if position is None else position
        self._home = checked_position(spots, workers)
        self._power_w = nominal_power_w(params.channel, workers, server, seed)
        self._step_s = step_seconds(params.compute, workers, seed)
        self._step_s.flags.writeable = False  # handed out every round
        moving = params.mobility.enabled
        self._walk = Walk(self._home, params.area_m, params.mobility, seed) if moving else None
        self._presence = Presence(workers, params.churn, seed)
        self._in_range: tuple[object, _Reach] | None = None  # one remembered answer each
        self._usable: tuple[object, _Reach] | None = None

    def observe(self, t: int, now_s: float) -> Surroundings:
        """What may be known when round t opens at `now_s`."""
        reach = self._reach(t, now_s)
        return Surroundings(
            alive=self._presence.alive(now_s),
            reach=reach.graph,
            distance_m=reach.distance_m,
            link_s=reach.link_s,
            step_s=self._step_s,
            budget=budget_of_round(self.params.budget, self.workers, self.server, self.seed, t),
            position=self._position(now_s),
        )

    def transfer(
        self, t: int, now_s: float, dst: Ints, src: Ints, fraction: float | Floats
    ) -> Transfer:
        """What moving a share of a model over each link (dst, src) in round t really takes.

        A transfer is lost by bad luck (`outages.loss`), or because the link is not usable: one end
        is away, out of range, or the link is down in this round. Its seconds are spent anyway.
        """
        dst, src = np.asarray(dst, np.int64), np.asarray(src, np.int64)
        size_bytes = self.model_bytes * np.broadcast_to(np.asarray(fraction, float), dst.shape)
        position = self._position(now_s)
        lost = uniform(self.seed, "loss", t, dst, src) < self.params.outages.loss
        routes = None if self.params.reach == "strict" else self._reach(t, now_s).routes
        if routes is None:
            lost |= ~self._linked(t, now_s, dst, src)
            seconds = self._link_seconds(t, position, (dst, src), size_bytes)
            return Transfer(seconds, np.ones(len(dst), np.int64), lost)
        seconds, hops = np.zeros(len(dst)), np.zeros(len(dst), np.int64)
        for pair, to, by in routes.hops(dst, src):
            seconds[pair] += self._link_seconds(t, position, (to, by), size_bytes[pair])
            hops[pair] += 1
        return Transfer(seconds, hops, lost | ~routes.known(dst, src))

    def next_return_s(self, now_s: float) -> float:
        """Earliest time after `now_s` at which an absent worker is back; inf if none is absent."""
        return self._presence.next_return_s(now_s)

    def _position(self, now_s: float) -> Floats:
        """Metres of every node, [nodes, 2]."""
        spots = self._home if self._walk is None else self._walk.position(now_s)
        if not self.server:
            return spots
        return np.vstack([spots, np.asarray(self.params.area_m) / 2.0])

    def _reach(self, t: int, now_s: float) -> _Reach:
        """Usable links; worked out anew only when something that decides them has changed."""
        here = self._presence.alive(now_s)
        moment = None if self._walk is None else now_s
        key = (moment, t if self.params.outages.drop else None, here.tobytes())
        if self._usable is None or self._usable[0] != key:
            reach = self._links_in_range(moment)
            up = self._up(t, here, reach.graph.dst, reach.graph.src)
            self._usable = (key, self._relayed(reach.keep(up), now_s))
        return self._usable[1]

    def _links_in_range(self, moment: float | None) -> _Reach:
        """Links in range and of the server, whoever is there; once only where nobody moves."""
        if self._in_range is None or self._in_range[0] != moment:
            position = self._position(moment or 0.0)
            graph = neighbours_within(position[: self.workers], self.params.range_m, self.nodes)
            if self.server:
                graph = with_hub(graph, self.workers)
            self._in_range = (moment, self._measured(graph, position))
        return self._in_range[1]

    def _measured(self, graph: Graph, position: Floats) -> _Reach:
        """Distance and expected time of each link, at nominal power."""
        distance_m = distance(position, graph.dst, graph.src)
        snr = mean_snr(self._power_w[graph.src], distance_m, self.params.channel)
        link_s = transfer_s(self.model_bytes, expected_rate_bps(snr, self.params.channel))
        return _Reach(graph, distance_m, link_s)

    def _relayed(self, reach: _Reach, now_s: float) -> _Reach:
        """The same with relays, where `reach = "overlay"`."""
        if self.params.reach == "strict":
            return reach
        routes, graph, link_s = relay(reach.graph, reach.link_s, self.workers)
        distance_m = distance(self._position(now_s), graph.dst, graph.src)
        return _Reach(graph, distance_m, link_s, routes)

    def _up(self, t: int, here: Bools, dst: Ints, src: Ints) -> Bools:
        """Whether both ends of each link are there and the link is not down in round t."""
        here = np.append(here, True)  # a server never leaves
        out: Bools = here[dst] & here[src]
        if self.params.outages.drop:
            ends = np.minimum(dst, src), np.maximum(dst, src)  # a link is down both ways
            out &= uniform(self.seed, "drop", t, *ends) >= self.params.outages.drop
        return out

    def _linked(self, t: int, now_s: float, dst: Ints, src: Ints) -> Bools:
        """Whether each pair has a usable link of its own, without looking at all others."""
        near = distance(self._position(now_s), dst, src) <= self.params.range_m * _ROUNDING
        served = np.maximum(dst, src) == self.workers
        out: Bools = (near | served) & self._up(t, self._presence.alive(now_s), dst, src)
        return out

    def _link_seconds(
        self, t: int, position: Floats, link: tuple[Ints, Ints], size_bytes: Floats
    ) -> Floats:
        """Realised seconds of single links: the sender's power fluctuates and the gain fades."""
        channel, (dst, src) = self.params.channel, link
        power_w = self._power_w[src] * power_factor(channel, self.seed, t, src)
        snr = mean_snr(power_w, distance(position, dst, src), channel)
        return transfer_s(size_bytes, realised_rate_bps(snr, channel, self.seed, t, link))
