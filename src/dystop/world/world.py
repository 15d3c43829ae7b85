"""The simulated edge network: what a round observes, and what its transfers take.

Every answer is a pure function of (params, seed, t, now_s). Values are cached between calls, but no
answer depends on earlier calls.
"""

import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dystop.control.laws import Law, timetable
from dystop.errors import ConfigError
from dystop.parallel import run_in_blocks
from dystop.plan import Plan
from dystop.sparse import Bools, Floats, Graph, Ints
from dystop.types import BudgetOf, View
from dystop.world.capacity import budget_of_round, step_seconds
from dystop.world.channel import RadioChannel, nominal_power_w
from dystop.world.dynamics import Presence, Walk
from dystop.world.geometry import checked_position, distance, scatter
from dystop.world.overlay import refuse_large_overlay, relay
from dystop.world.params import WorldParams
from dystop.world.progress import Progress
from dystop.world.reach import Reach, ReachFinder
from dystop.world.realised_plan import Overhead, RealisedPlan, Transfer, realised_plan

_LINKS = 1 << 15  # links in one block: they fit a processor's cache
_ROUNDING = 1.0 + 1e-9  # a squared and a plain distance may differ in the last digit


@dataclass(frozen=True)
class WorldState:
    """What can be known when a round opens. Rounds share the arrays: do not write to them."""

    now_s: float  # when the round opens
    alive: Bools  # [N]
    reach: Graph  # usable directed links between alive nodes
    distance_m: Floats  # [E]
    link_s: Floats  # [E], expected seconds to move one full model at nominal power
    step_s: Floats  # [N], seconds per mini-batch
    position: Floats  # [nodes, 2], metres
    budget_of: BudgetOf  # models that some nodes may send and receive now


class World:
    """The edge network of `workers` workers that exchange models of `model_bytes`.

    With `server`, node N is a base station at the centre of the area. It is linked in both
    directions with every present worker, at any distance.
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
        """Draw positions, powers and speeds.

        Args:
            params: section `world` of the configuration.
            workers: N.
            model_bytes: bytes of one full model on the wire.
            seed: seed of all randomness of this world.
            server: whether node N is a base station.
            position: initial positions in metres, [N, 2]; uniform in the area if not given.
        """
        if workers < 1 or model_bytes < 1:
            raise ConfigError(f"{workers} workers, {model_bytes} model bytes: both must be >= 1")
        if params.reach == "overlay":
            refuse_large_overlay(workers)
        self.params, self.workers, self.model_bytes = params, workers, model_bytes
        self.seed, self.server, self.nodes = seed, server, workers + int(server)
        start = scatter(workers, params.area_m, seed) if position is None else position
        self._home = checked_position(start, workers)
        power_w = nominal_power_w(params.channel, workers, server, seed)
        self._step_s = step_seconds(params.compute, workers, seed)
        self._step_s.flags.writeable = False  # every round shares it
        moving = params.mobility.enabled
        self._walk = Walk(self._home, params.area_m, params.mobility, seed) if moving else None
        self._presence = Presence(workers, params.churn, seed)
        self._channel = RadioChannel(params, power_w, seed)
        self._finder = ReachFinder(params, power_w, workers, model_bytes)
        self._positions: tuple[float, Floats] | None = None  # the last answer, after its key
        self._in_range: tuple[object, Reach] | None = None
        self._usable: tuple[object, Reach] | None = None
        self._overhead: Overhead | None = None

    def with_overhead(self, overhead: Overhead) -> "World":
        """Return this world on machines that add something to its transfers and rounds."""
        slower = copy.copy(self)
        slower._overhead = overhead
        return slower

    def opening_s(self, t: int, now_s: float) -> float:
        """Return when round t opens: now, or as soon as a worker is present."""
        while self._presence.changes and not self._presence.alive(now_s).any():
            now_s = self.next_return_s(now_s)
        return now_s

    def open_round(self, t: int, now_s: float, progress: Progress) -> tuple[WorldState, Progress]:
        """Open round t; return what can be known of the world, and what is under way.

        Args:
            t: The round.
            now_s: When the round before it closed.
            progress: Trainings and messages as the simulator expects them; a world that has
                measured them corrects them.
        """
        return self.observe(t, self.opening_s(t, now_s)), progress

    def realise(
        self, law: Law, view: View, plan: Plan, steps: Ints, progress: Progress
    ) -> RealisedPlan:
        """Return what becomes of a plan: arrivals, durations, failures. Changes nothing.

        Args:
            law: How long a round lasts.
            view: What was known when the round opened.
            plan: What was decided.
            steps: Mini-batches of each new local training, [A].
            progress: Trainings that are under way.
        """
        links, training_s = plan.links, view.step_s[plan.active] * steps
        moved = self.transfer(view.t, view.now_s, links.dst, links.src, links.fraction)
        remaining_s, added = progress.remaining_s(view.now_s), self._overhead
        if added is not None:
            moved = replace(moved, seconds=moved.seconds + added.transfer_s)
        table = timetable(law, plan, moved.seconds, remaining_s, training_s)
        if added is not None:
            table = replace(table, duration_s=table.duration_s + added.round_s)
        return realised_plan(law, view, plan, steps, progress, moved, table)

    def observe(self, t: int, now_s: float) -> WorldState:
        """Return what may be known when round t opens at `now_s`."""
        reach = self._reach(t, now_s)
        return WorldState(
            now_s=now_s,
            alive=self._presence.alive(now_s),
            reach=reach.graph,
            distance_m=reach.distance_m,
            link_s=reach.link_s,
            step_s=self._step_s,
            position=self._position(now_s),
            budget_of=partial(self.budget_of, t),
        )

    def budget_of(self, t: int, nodes: Ints) -> Floats:
        """Return the models that some nodes may send and receive in round t."""
        return budget_of_round(self.params.budget, self.workers, self.seed, t, nodes)

    def transfer(
        self, t: int, now_s: float, dst: Ints, src: Ints, fraction: float | Floats
    ) -> Transfer:
        """Return what moving a share of a model over each link (dst, src) takes in round t.

        A transfer is lost at random (`outages.loss`), or because its link is not usable: one end
        is absent, out of range, or the link is down in this round. A lost transfer takes its time.
        """
        dst, src = np.asarray(dst, np.int64), np.asarray(src, np.int64)
        share = fraction if isinstance(fraction, np.ndarray) else np.full(len(dst), fraction)
        if self.params.reach == "strict":
            return self._direct(t, now_s, (dst, src), share)
        return self._hop_by_hop(t, now_s, (dst, src), share)

    def next_return_s(self, now_s: float) -> float:
        """Return when the first absent worker comes back after `now_s`; inf if none is absent."""
        return self._presence.next_return_s(now_s)

    def _position(self, now_s: float) -> Floats:
        """Return the position of every node in metres, [nodes, 2]; computed once per moment."""
        moment = 0.0 if self._walk is None else now_s
        if self._positions is None or self._positions[0] != moment:
            position = self._home if self._walk is None else self._walk.position(now_s)
            if self.server:
                position = np.vstack([position, np.asarray(self.params.area_m) / 2.0])
            position.flags.writeable = False  # rounds share it
            self._positions = (moment, position)
        return self._positions[1]

    def _reach(self, t: int, now_s: float) -> Reach:
        """Return the usable links; computed again only when something that decides them changes."""
        here = self._presence.alive(now_s).tobytes() if self._presence.changes else None
        moment = None if self._walk is None else now_s
        key = (moment, t if self.params.outages.drop else None, here)
        if self._usable is None or self._usable[0] != key:
            reach = self._links_in_range(moment)
            self._usable = (key, self._relayed(self._usable_of(reach, t, now_s), now_s))
        return self._usable[1]

    def _usable_of(self, reach: Reach, t: int, now_s: float) -> Reach:
        """Return the links that are up in round t."""
        here = self._here(now_s)
        if here is None and not self.params.outages.drop:
            return reach
        up, graph = np.empty(reach.graph.edges, bool), reach.graph

        def mark(lo: int, hi: int) -> None:
            up[lo:hi] = self._up(t, here, (graph.dst[lo:hi], graph.src[lo:hi]))

        run_in_blocks(mark, len(up), _LINKS)
        return reach.keep(up)

    def _links_in_range(self, moment: float | None) -> Reach:
        """Return the links in range and of the server, absent workers included."""
        if self._in_range is None or self._in_range[0] != moment:
            self._in_range = (moment, self._finder.at(self._position(moment or 0.0)))
        return self._in_range[1]

    def _relayed(self, reach: Reach, now_s: float) -> Reach:
        """Return the reach with routes over other workers, where `reach = "overlay"`."""
        if self.params.reach == "strict":
            return reach
        routes, graph, link_s = relay(reach.graph, reach.link_s, self.workers)
        distance_m = distance(self._position(now_s), graph.dst, graph.src)
        return Reach(graph, distance_m, link_s, routes)

    def _here(self, now_s: float) -> Bools | None:
        """Return which nodes are present, a server included, [N + 1]; None where all are."""
        if not self._presence.changes:
            return None
        alive = self._presence.alive(now_s)
        return None if alive.all() else np.append(alive, True)

    def _up(self, t: int, here: Bools | None, link: tuple[Ints, Ints]) -> Bools:
        """Return whether both ends of each link are present and the link is up in round t."""
        up: Bools = ~self._channel.down(t, link)
        return up if here is None else up & here[link[0]] & here[link[1]]

    def _fails(self, t: int, here: Bools | None, link: tuple[Ints, Ints], metres: Floats) -> Bools:
        """Return which transfers do not arrive."""
        near = metres <= self.params.range_m * _ROUNDING
        if self.server:
            near |= np.maximum(*link) == self.workers
        outages = self.params.outages
        if here is None and not outages.loss and not outages.drop:
            return ~near
        return self._channel.lost(t, link) | ~(near & self._up(t, here, link))

    def _direct(self, t: int, now_s: float, link: tuple[Ints, Ints], fraction: Floats) -> Transfer:
        """Return the outcome of transfers over direct links."""
        position, here, size = self._position(now_s), self._here(now_s), len(fraction)
        seconds, lost = np.empty(size), np.empty(size, bool)
        seconds_of = self._channel.seconds_of(t, size)

        def move(lo: int, hi: int) -> None:
            part = link[0][lo:hi], link[1][lo:hi]
            metres, bytes_ = distance(position, *part), self.model_bytes * fraction[lo:hi]
            lost[lo:hi] = self._fails(t, here, part, metres)
            seconds[lo:hi] = seconds_of(part, metres, bytes_)

        run_in_blocks(move, size, _LINKS)
        return Transfer(seconds, np.ones(size, np.int64), lost)

    def _hop_by_hop(
        self, t: int, now_s: float, link: tuple[Ints, Ints], fraction: Floats
    ) -> Transfer:
        """Return the outcome of transfers along the routes of an overlay."""
        routes, position = self._reach(t, now_s).routes, self._position(now_s)
        assert routes is not None  # an overlay always has routes
        seconds, hops = np.zeros(len(fraction)), np.zeros(len(fraction), np.int64)
        seconds_of = self._channel.seconds_of(t, len(fraction))
        for pair, to, by in routes.hops(*link):
            metres, bytes_ = distance(position, to, by), self.model_bytes * fraction[pair]
            seconds[pair] += seconds_of((to, by), metres, bytes_)
            hops[pair] += 1
        return Transfer(seconds, hops, self._channel.lost(t, link) | ~routes.known(*link))
