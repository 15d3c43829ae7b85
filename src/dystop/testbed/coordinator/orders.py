"""A round under way, and what of a plan is kept for it."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from dystop.control.plan_check import source_kind
from dystop.plan import Mix, Plan
from dystop.sparse import Floats, Ints, graph_of_sorted, no_pairs
from dystop.testbed.ledger.tables import OrderLine, RoundLine
from dystop.testbed.protocol.codec import decode
from dystop.testbed.protocol.messages import Execute, Pull, Report, Row, Stage
from dystop.types import Mechanism, View, no_mail


@dataclass
class OpenRound:
    """A round under way."""

    plan: Plan
    view: View  # without links
    line: RoundLine
    orders: dict[int, Execute]
    lines: dict[int, OrderLine]
    deadline_s: float  # of the run
    mixed: dict[int, Report] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)  # said so themselves
    training: set[int] = field(default_factory=set)  # the round waits for these to have trained

    @property
    def t(self) -> int:
        """Its number."""
        return self.line.round

    def awaits(self, node: int) -> bool:
        """Whether a node has an order and has not answered."""
        return node in self.orders and node not in self.mixed and node not in self.failed

    @property
    def missing(self) -> set[int]:
        """Nodes that have not answered."""
        return self.orders.keys() - self.mixed.keys() - self.failed


def execute_of(line: OrderLine) -> Execute:
    """The order as it was given."""
    order = decode((line.execute or "").encode(), "worker")
    assert isinstance(order, Execute)
    return order


def pulls_by_node(plan: Plan) -> dict[int, list[list[int]]]:
    """[stage, src] of all links that are not pushed, by receiver."""
    links, found = plan.links, defaultdict[int, list[list[int]]](list)
    own = ~links.pushed
    columns = links.dst[own].tolist(), links.stage[own].tolist(), links.src[own].tolist()
    for dst, stage, src in zip(*columns, strict=True):
        found[dst].append([stage, src])
    return found


def payload(plan: Plan) -> Floats:
    """Share of a model that each link really carries: a ring is realised by whole models."""
    share = np.array(plan.links.fraction, float)
    for stage, mix in enumerate(plan.mixes):
        if mix.collective:
            share[plan.links.stage == stage] = 1.0
    return share


def slim(view: View) -> View:
    """The view without what only the decision needed."""
    none = np.zeros(0, np.int64)
    return replace(
        view,
        reach=graph_of_sorted(view.fleet.nodes, none, none),
        distance_m=np.zeros(0),
        link_s=np.zeros(0),
        pulls=no_pairs(view.fleet.nodes),
        mailbox=no_mail(),
        last=None,
    )


def nameless(view: View) -> View:
    """The view without the fleet, which does not change."""
    none = np.zeros(0, np.int64)
    return replace(view, fleet=replace(view.fleet, data_size=none, label_counts=none))


# MERGED: A plan as orders: what each node has to fetch and to mix, stage by stage. Every link of
#   a plan is realised as a pull by its receiver, also a pushed one (whose sender pays for the
#   time in the books only). A link that no row of its stage names lands in the receiver's
#   mailbox. A collective row (a ring) is realised by pulling every source directly.


def orders_of(
    plan: Plan,
    view: View,
    mechanism: Mechanism,
    steps: Ints,
    rates: Floats,
    budget_s: float,
    epoch: int = 0,
) -> dict[int, Execute]:
    """The order of every node that is active, mixes or receives something in this round.

    Args:
        plan: What was decided.
        view: On which grounds.
        mechanism: By whom.
        steps: Mini-batches of each active worker, [A].
        rates: Emulated bytes per second of each link, 0 for none, [L].
        budget_s: For fetching, from the moment that an order is taken up.
        epoch: Of the coordinator.
    """
    count = stages_of(plan)
    parts = [_Stage(plan, view, mechanism, rates, k) for k in range(count)]
    cells = [part.cells() for part in parts]
    place = {int(i): k for k, i in enumerate(plan.active)}
    return {
        node: Execute(
            epoch=epoch,
            round=view.t,
            train=node in place,
            stages=tuple(cell.get(node, Stage()) for cell in cells),
            steps=int(steps[place[node]]) if node in place else 0,
            rate=_rate(plan, place.get(node)),
            budget_s=budget_s,
            keep_mail=plan.keep_mail,
        )
        for node in sorted(set(place).union(*cells))
    }


def stages_of(plan: Plan) -> int:
    """Stages of mixing and of transfers."""
    return max(len(plan.mixes), int(plan.links.stage.max(initial=-1)) + 1)


def _rate(plan: Plan, place: int | None) -> float:
    return 1.0 if plan.rate is None or place is None else float(plan.rate[place])


@dataclass(frozen=True)
class _Stage:
    """One stage of a plan."""

    plan: Plan
    view: View
    mechanism: Mechanism
    rates: Floats  # [L]
    stage: int

    def cells(self) -> dict[int, Stage]:
        """What each node does in this stage."""
        rows, pulls = self._rows(), self._pulls()
        return {
            node: Stage(tuple(pulls.get(node, ())), rows.get(node))
            for node in rows.keys() | pulls.keys()
        }

    @property
    def mix(self) -> Mix | None:
        """Rows of this stage; there may be none."""
        return self.plan.mixes[self.stage] if self.stage < len(self.plan.mixes) else None

    def _rows(self) -> dict[int, Row]:
        if (mix := self.mix) is None:
            return {}
        _, mailed = source_kind(self.plan, self.view, self.stage)
        keep_mean = self.mechanism.capabilities().doubly_stochastic
        rows = {}
        for k, node in enumerate(mix.receiver.tolist()):
            part = slice(int(mix.indptr[k]), int(mix.indptr[k + 1]))
            rows[node] = Row(
                sources=tuple(mix.source[part].tolist()),
                weights=tuple(mix.weight[part].tolist()),
                kind=mix.kind,
                mask=_mask(mix),
                mailed=tuple(mix.source[part][mailed[part]].tolist()),
                to_self=keep_mean,
            )
        return rows

    def _pulls(self) -> dict[int, list[Pull]]:
        """Pulls of the links of this stage, and those that stand in for a ring."""
        links, wanted, waits = self.plan.links, self._wanted(), self._exact()
        active, mask = self._active, _mask(self.mix)
        pulls: dict[int, list[Pull]] = defaultdict(list)
        own = links.stage == self.stage
        columns = links.pushed, links.delta, self.rates, links.background
        table = (values[own].tolist() for values in (links.dst, links.src, *columns))
        for dst, src, pushed, delta, rate, background in zip(*table, strict=True):
            named = (dst, src) in wanted
            pulls[dst].append(
                Pull(
                    node=src,
                    exact=src in waits or (pushed and src in active),
                    delta=delta,
                    mask=mask if named else None,
                    into="row" if named else "mail",
                    bytes_per_s=float(rate),
                    background=background,
                )
            )
        self._add_ring(pulls, wanted, waits)
        return pulls

    def _add_ring(
        self, pulls: dict[int, list[Pull]], wanted: set[tuple[int, int]], waits: set[int]
    ) -> None:
        """Whom a member of a ring hears through others, it asks directly, at its slowest rate."""
        if self.mix is None or not self.mix.collective:
            return
        slowest = {i: min(p.bytes_per_s for p in have) for i, have in pulls.items()}
        known = {(i, p.node) for i, have in pulls.items() for p in have}
        for dst, src in sorted(wanted - known):
            rate = slowest.get(dst, 0.0)
            pulls[dst].append(Pull(src, exact=src in waits, bytes_per_s=rate))

    def _wanted(self) -> set[tuple[int, int]]:
        """Pairs (dst, src) that rows of this stage name and that do not come from the mailbox."""
        if (mix := self.mix) is None:
            return set()
        linked, mailed = source_kind(self.plan, self.view, self.stage)
        fed = (~mailed & (mix.dst != mix.source)) if mix.collective else linked
        return set(zip(mix.dst[fed].tolist(), mix.source[fed].tolist(), strict=True))

    @property
    def _active(self) -> set[int]:
        return set(self.plan.active.tolist())

    def _exact(self) -> set[int]:
        """Senders whose model of this very moment is meant.

        An active one under a synchronous exchange or in a later stage, and in a later stage anybody
        who has mixed before in this round.
        """
        waits = self._active if self.plan.synchronous or self.stage > 0 else set()
        for earlier in self.plan.mixes[: self.stage]:
            waits |= set(earlier.receiver.tolist())
        return waits


def _mask(mix: Mix | None) -> tuple[int, float] | None:
    return None if mix is None or mix.mask is None else (int(mix.mask[0]), float(mix.mask[1]))
