"""A round under way, and what of a plan is kept for it."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from dystop.plan import Plan
from dystop.runtime.ledger.tables import OrderLine, RoundLine
from dystop.runtime.wire.codec import decode
from dystop.runtime.wire.messages import Execute, Report
from dystop.sparse import Floats, graph_of_sorted, no_pairs
from dystop.types import View, no_mail


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
