"""The world of a recorded testbed run.

`TraceWorld` answers like `World`, with what was observed in the recorded run: when rounds opened,
how long trainings still ran, which messages had arrived, how long transfers and orders took, and
which nodes failed. Where a plan has a link that the recorded round did not have, the channel model
answers for that link. Plans, mixing and training stay the simulator's own.
"""

from dataclasses import dataclass, replace

import numpy as np

from dystop.control.laws import Law, Timetable, round_duration_s, timetable
from dystop.errors import ConfigError
from dystop.plan import Plan
from dystop.sparse import Bools, Floats, Ints
from dystop.types import Budgets, Mailbox, View
from dystop.world.params import WorldParams
from dystop.world.progress import InFlight, Messages, Progress
from dystop.world.realised_plan import RealisedPlan, Transfer, realised_plan
from dystop.world.trace import Orders, Trace, TracedLinks, TracedRound
from dystop.world.world import World, WorldState


class TraceWorld(World):
    """The world that a recorded run had."""

    def __init__(
        self,
        trace: Trace,
        params: WorldParams,
        workers: int,
        model_bytes: int,
        seed: int,
        server: bool = False,
    ) -> None:
        """Check that the trace fits the fleet.

        Args:
            trace: What was recorded.
            params: The channel model, for positions and for links that were not recorded.
            workers: N; must be that of the trace.
            model_bytes: Bytes of one full model on the wire.
            seed: Seed of the channel model.
            server: Whether node N is a base station; must be as in the trace.
        """
        super().__init__(params, workers, model_bytes, seed, server)
        if trace.workers != workers or trace.nodes != self.nodes:
            raise ConfigError(
                f"trace: {trace.path} has {_fleet(trace.workers, trace.nodes)}, the configuration"
                f" has {_fleet(workers, self.nodes)}; leave fleet.workers as it was recorded, and"
                " choose a mechanism that needs no other nodes"
            )
        self.trace = trace

    def opening_s(self, t: int, now_s: float) -> float:
        """Return when the recorded round opened."""
        return self._line(t).opened_s

    def open_round(self, t: int, now_s: float, progress: Progress) -> tuple[WorldState, Progress]:
        """Open round t as recorded: its time, its remaining trainings and its mailboxes."""
        line = self._line(t)
        n = len(line.alive)
        started, training = progress.started_s.copy(), progress.training_s.copy()
        started[:n], training[:n] = line.opened_s, line.remaining_s
        messages = progress.in_flight.messages()
        arrivals = _arrivals(messages, line.mailbox, line.opened_s)
        in_flight = InFlight(replace(messages, arrival_s=arrivals))
        return self.observe(t, line.opened_s), Progress(started, training, in_flight)

    def observe(self, t: int, now_s: float) -> WorldState:
        """Return what was observed when round t opened; after the last one, what that one saw."""
        line = self._line(t)
        return WorldState(
            now_s=line.opened_s,
            alive=line.alive,
            reach=line.reach,
            distance_m=line.distance_m,
            link_s=line.link_s,
            step_s=line.step_s,
            position=self._position(line.opened_s),
            budget_of=Budgets(line.budget),
        )

    def transfer(
        self, t: int, now_s: float, dst: Ints, src: Ints, fraction: float | Floats
    ) -> Transfer:
        """Return what the links took in the recorded round."""
        links = self._line(t).links
        modelled = super().transfer(t, now_s, dst, src, fraction)
        at = _places(links, self.nodes, dst, src)
        found = at >= 0
        seconds, lost = modelled.seconds.copy(), np.array(modelled.lost)
        known = found & np.isfinite(_picked(links.seconds, at, np.nan))
        seconds[known] = links.seconds[at[known]]
        lost[found] = links.lost[at[found]]
        return Transfer(seconds, modelled.hops, lost)

    def realise(
        self, law: Law, view: View, plan: Plan, steps: Ints, progress: Progress
    ) -> RealisedPlan:
        """Return what became of the plan where it is the recorded one, else what the models say."""
        line = self._line(view.t)
        if not _is_plan_of(line, plan):
            return super().realise(law, view, plan, steps, progress)
        reports = _Reports(line, self.trace.train_s[line.round])
        links = plan.links
        moved = self.transfer(view.t, view.now_s, links.dst, links.src, links.fraction)
        table = reports.timetable(law, view, plan, steps, progress, moved.seconds)
        failed = np.isin(plan.active, line.orders.node[line.orders.failed])
        taken = np.where(failed, 0, steps)
        modelled = realised_plan(law, view, plan, taken, progress, moved, table)
        return replace(
            modelled,
            plan=_carried_out(plan, line.orders, failed),
            steps=steps[~failed],
            begin_s=table.begin_s[~failed],
            failed=failed,
            link_bytes=line.links.bytes,
            stale=line.links.stale,
        )

    def next_return_s(self, now_s: float) -> float:
        """Return when the next round opened; inf after the last one."""
        later = [line.opened_s for line in self.trace.rounds if line.opened_s > now_s]
        return min(later, default=np.inf)

    def _line(self, t: int) -> TracedRound:
        return self.trace.rounds[min(t, len(self.trace.rounds)) - 1]


def _fleet(workers: int, nodes: int) -> str:
    return f"{workers} workers {'and a server' if nodes > workers else 'without a server'}"


def _arrivals(in_flight: Messages, seen: Mailbox, now_s: float) -> Floats:
    """Return when messages arrive: by now, if the recorded mailbox had them."""
    if not len(in_flight.dst) or not len(seen.dst):
        return in_flight.arrival_s
    known = set(zip(seen.dst.tolist(), seen.src.tolist(), seen.sent.tolist(), strict=True))
    sent = (in_flight.dst.tolist(), in_flight.src.tolist(), in_flight.sent.tolist())
    here = np.array([message in known for message in zip(*sent, strict=True)])
    here &= np.isnan(in_flight.weight)
    return np.where(here, np.minimum(in_flight.arrival_s, now_s), in_flight.arrival_s)


def _is_plan_of(line: TracedRound, plan: Plan) -> bool:
    """Return whether the recorded round had these links and these active workers."""
    links, orders = line.links, line.orders
    return (
        np.array_equal(links.dst, plan.links.dst)
        and np.array_equal(links.src, plan.links.src)
        and np.array_equal(np.sort(plan.active), orders.node[orders.train])
    )


@dataclass(frozen=True)
class _Reports:
    """What the workers reported of a recorded round."""

    line: TracedRound
    train_s: Floats  # [N], seconds of the trainings that the round began; NaN: not known

    def timetable(
        self,
        law: Law,
        view: View,
        plan: Plan,
        steps: Ints,
        progress: Progress,
        link_s: Floats,
    ) -> Timetable:
        """Lay out the round with the reported waits, exchanges and trainings."""
        remaining_s = self._waited_s(progress.remaining_s(view.now_s))
        measured_s = self.train_s[plan.active]
        planned_s = view.step_s[plan.active] * steps
        training_s = np.where(np.isfinite(measured_s), measured_s, planned_s)
        table = timetable(law, plan, link_s, remaining_s, training_s)
        return self._retimed(law, table, plan, training_s)

    def _waited_s(self, remaining_s: Floats) -> Floats:
        """Return how long each node had to finish its training first, as reported if it was."""
        out, orders = remaining_s.copy(), self.line.orders
        known = orders.train & np.isfinite(orders.waited_s)
        out[orders.node[known]] = orders.waited_s[known]
        return out

    def _retimed(self, law: Law, table: Timetable, plan: Plan, training_s: Floats) -> Timetable:
        """Close the round when every node with an order has reported.

        Where a node failed, or did not report its times, the round lasts as long as it did. Under
        a law where trainings start alone, one begins when its worker reported.
        """
        orders, active = self.line.orders, plan.active
        ends = orders.waited_s + orders.exchange_s
        whole = len(ends) > 0 and not orders.failed.any() and bool(np.isfinite(ends).all())
        close = round_duration_s(ends) if whole else self.line.duration_s
        exchanged = _of(orders.node, orders.exchange_s, active)
        comm = np.where(np.isfinite(exchanged), exchanged, table.comm_s)
        begin, own = np.full(len(active), close), _of(orders.node, ends, active)
        if law.starts_alone:
            begin = np.where(np.isfinite(own), own, close)
        if plan.join and whole:
            measured = np.isfinite(self.train_s[active]).all()
            close = round_duration_s((own if measured else begin) + training_s)
        return replace(table, duration_s=close, comm_s=comm, begin_s=begin)


def _of(nodes: Ints, values: Floats, wanted: Ints) -> Floats:
    """Return the values of the wanted nodes, all of which are among the ascending `nodes`."""
    found: Floats = values[np.searchsorted(nodes, wanted)]
    return found


def _carried_out(plan: Plan, orders: Orders, failed: Bools) -> Plan:
    """Return the plan without the orders of the failed nodes: they neither mix nor train."""
    if not orders.failed.any():
        return plan
    absent = orders.node[orders.failed]
    return replace(
        plan,
        active=plan.active[~failed],
        mixes=tuple(mix.take(~np.isin(mix.receiver, absent)) for mix in plan.mixes),
        steps=None if plan.steps is None else plan.steps[~failed],
        rate=None if plan.rate is None else plan.rate[~failed],
    )


def _places(links: TracedLinks, nodes: int, dst: Ints, src: Ints) -> Ints:
    """Return which recorded link has the ends of each link; -1: none."""
    if np.array_equal(links.dst, dst) and np.array_equal(links.src, src):
        return np.arange(len(dst))  # a pair may have a link in each of several stages
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
