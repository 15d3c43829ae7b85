"""Bandwidth budgets for mechanisms that do not heed them: links beyond a budget are not made.

DySTop, AsyDFL and AsyNG choose links within the budgets (B_t^i <= budget, section "Problem"); the
other mechanisms know no budgets. `Budgeted` removes the links of a plan that exceed a budget,
whatever mechanism made the plan (ADR 0004). The key is `world.budget.binds = "everybody"`.
"""

from dataclasses import dataclass, replace

import numpy as np

from dystop.control.aggregation import renormalise_lost
from dystop.errors import ConfigError
from dystop.exchange.codecs import Codec
from dystop.mechanisms.wrapper import Wrapper
from dystop.plan import Links, Mix, Plan, mix_of
from dystop.rng import uniform
from dystop.sparse import Bools, Floats, Ints
from dystop.types import View

OVER_BUDGET = "over_budget"  # the note of a plan: links that were not made
_ROUNDING = 1e-9  # in models


@dataclass(frozen=True)
class Budgeted(Wrapper):
    """A mechanism whose plans keep to the bandwidth budgets of all nodes.

    Raises:
        ConfigError: A transfer costs more than its plan can tell.
    """

    codec: Codec | None = None  # of the links
    overlay: bool = False  # whether workers on the way carry models of others

    def __post_init__(self) -> None:
        """Refuse links whose cost does not follow from the plan."""
        codec = self.codec
        carries = f"link.compression = {codec.name!r}" if codec else ""
        passes_on = codec is not None and self.inner.capabilities().collective
        differences = codec is not None and codec.sends_differences
        found = {
            f"{carries}: a worker that missed messages gets several at once": differences,
            f"{carries}: the ring of {self.name} passes on a message of every member": passes_on,
            "world.reach = 'overlay': workers on the way carry models that no budget counts": (
                self.overlay
            ),
        }
        for problem in (text for text, is_set in found.items() if is_set):
            raise ConfigError(
                f"{problem}, but world.budget.binds = 'everybody' says that nobody exceeds a "
                "budget; change this setting, or use world.budget.binds = 'mechanism'"
            )

    def changed(self, plan: Plan, view: View) -> Plan:
        """Return the plan without the links that exceed a budget."""
        return within_budgets(plan, view, keep_mean=self.capabilities().doubly_stochastic)


def within_budgets(plan: Plan, view: View, *, keep_mean: bool) -> Plan:
    """Return the plan without the links that exceed a budget; their weights move as if lost.

    An active worker that loses all of its links trains on its own model. A worker whose row loses
    all of its sources keeps its model.

    Args:
        plan: The decision of a mechanism.
        view: What was known when the round opened.
        keep_mean: Whether mixing keeps the mean of all models. Then both directions between two
            workers are one exchange, which is made as a whole or not at all.
    """
    links = plan.links
    kept = links_within(links, exchanges(plan, keep_mean), view.budget, _draws(links, view))
    if kept.all():
        return plan
    gone = links.take(~kept)
    mixes = tuple(
        _without(rows, gone.of_stage(stage), keep_mean) for stage, rows in enumerate(plan.mixes)
    )
    notes = {**plan.notes, OVER_BUDGET: float(len(gone))}
    return replace(plan, links=links.take(kept), mixes=mixes, notes=notes)


def exchanges(plan: Plan, keep_mean: bool) -> Ints:
    """Return the number of the exchange that each link belongs to, [L].

    An exchange is one link; or both links between two workers in one stage, where the mean is kept;
    or all links of a collective stage, because a ring with a gap delivers nothing.
    """
    links = plan.links
    first, second, stage = links.dst, links.src, links.stage
    if keep_mean:
        first, second = np.minimum(links.dst, links.src), np.maximum(links.dst, links.src)
    rings = [k for k, rows in enumerate(plan.mixes) if rows.collective]
    alone = ~np.isin(stage, rings)
    keys = np.stack([stage, np.where(alone, first, -1), np.where(alone, second, -1)])
    return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)


def links_within(links: Links, exchange: Ints, budget: Floats, draw: Floats) -> Bools:
    """Return which links are made, [L]: those of the exchanges that fit when their turn comes.

    Everybody takes turns. The first exchanges of all receivers come before the second ones of any;
    the draws decide which of its exchanges is a receiver's first, and who begins within a turn.
    An exchange is made if both ends of all its links have enough bandwidth left. A link costs its
    share of a model at both ends.

    Args:
        links: The links of a plan.
        exchange: Which exchange each link belongs to, numbered from 0, [L].
        budget: Models that each node may send and receive, [nodes]; NaN: unlimited.
        draw: A random number for each link, [L]; an exchange has the smallest of its links.
    """
    made = np.zeros(int(exchange.max(initial=-1)) + 1, bool)
    left = np.where(np.isnan(budget), np.inf, budget).tolist()
    costs: list[dict[int, float]] = [{} for _ in made]
    each = zip(exchange.tolist(), links.dst.tolist(), links.src.tolist(), links.fraction.tolist(),
               strict=True)  # fmt: skip
    for k, dst, src, fraction in each:
        for node in (dst, src):
            costs[k][node] = costs[k].get(node, 0.0) + fraction
    for k in _turns(links.dst, exchange, draw).tolist():
        if all(cost <= left[node] + _ROUNDING for node, cost in costs[k].items()):
            made[k] = True
            for node, cost in costs[k].items():
                left[node] -= cost
    return made[exchange]


def _turns(dst: Ints, exchange: Ints, draw: Floats) -> Ints:
    """Return the exchanges in the order of their turns; one of several receivers has the latest."""
    first = np.full(int(exchange.max(initial=-1)) + 1, np.inf)
    np.minimum.at(first, exchange, draw)
    pairs = np.unique(np.stack([dst, exchange]), axis=1)  # receiver and exchange
    order = np.lexsort((first[pairs[1]], pairs[0]))
    receiver, number = pairs[:, order]
    rank = np.arange(len(receiver)) - np.searchsorted(receiver, receiver)
    turn = np.zeros(len(first), np.int64)
    np.maximum.at(turn, number, rank)
    return np.lexsort((first, turn))


def _draws(links: Links, view: View) -> Floats:
    """Return a random number for each link, with the address of its round, ends and stage."""
    return uniform(view.fleet.seed, "budget/turn", view.t, links.dst, links.src, links.stage)


def _without(rows: Mix, gone: Links, keep_mean: bool) -> Mix:
    """Return the rows of a stage without some of its links; a row without sources is left out."""
    rows = renormalise_lost(rows, gone.dst, gone.src, to_self=keep_mean)
    used = (rows.weight != 0) | (rows.dst == rows.source)
    return mix_of(
        rows.dst[used],
        rows.source[used],
        rows.weight[used],
        kind=rows.kind,
        mask=rows.mask,
        collective=rows.collective,
    )
