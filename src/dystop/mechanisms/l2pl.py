"""L2PL: a policy trained by reinforcement learning draws a sparse topology in every round."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt

from dystop.control.aggregation import metropolis
from dystop.control.priority import emd, label_shares
from dystop.control.topology import default_degree
from dystop.mechanisms.graphs.pairs import (
    Store,
    measured,
    no_values,
    note,
    pair_key,
    recall,
    spanning_forest,
)
from dystop.mechanisms.graphs.undirected import both_ways, two_way_pairs
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Floats, Ints, graph_of, ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, Outcome, View

FEATURES = ("one", "cost", "distance", "known", "unused", "labels")
_RECENT = 20  # rounds after which a link counts as long unused
_BASELINE = 0.9  # memory of the mean reward
_TINY = 1e-300  # keeps every probability above zero


@dataclass(frozen=True)
class _Candidates:
    """The candidate pairs of a round, their features, and the link limit of each worker."""

    i: Ints
    j: Ints
    cost_s: Floats
    phi: Floats  # [pairs, features]
    limit: Ints  # [N]
    target: int  # links to draw


@dataclass(frozen=True)
class L2PL(Mechanism):
    """A softmax over link features draws the links; REINFORCE trains it on the round's reward.

    The source says only that reinforcement learning builds a sparse topology in every synchronous
    round. Everything else is our choice: a linear score of six features; draws without replacement
    under degree and budget limits (a link costs two models at both ends); the cheapest pairs that
    restore connectivity, without regard to the limits; a reward from loss decrease, round time and
    number of links. The feature of model distance is zero for pairs without a measurement.

    The reward sees the slowest link only. If almost every draw contains an equally slow link, the
    policy cannot learn. If times vary strongly, a run may converge to a poor policy.

    Memory holds only pairs that were used. A draw takes time linear in the pairs in reach.
    """

    name: ClassVar[str] = "l2pl"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "a policy gradient learns which sparse topology pays off"

    degree_mean: Annotated[float, Ge(0)] = param(
        4.0, "mean number of links per worker (our choice)"
    )
    degree_max: Annotated[int, Ge(1)] | None = param(
        None, "largest number of links of a worker before repair; unset: ceil(log2 N) (our choice)"
    )
    temperature: Annotated[float, Gt(0)] = param(1.0, "first softmax temperature (our choice)")
    temperature_end: Annotated[float, Gt(0)] = param(0.2, "last softmax temperature (our choice)")
    cooling: Annotated[int, Ge(1)] = param(
        200, "rounds from the first to the last temperature (our choice)"
    )
    rate: Annotated[float, Ge(0)] = param(0.05, "learning rate of the policy (our choice)")
    loss_weight: Annotated[float, Ge(0)] = param(1.0, "mu: reward of a loss drop (our choice)")
    link_weight: Annotated[float, Ge(0)] = param(0.2, "lambda: penalty on links (our choice)")
    pretrain: Annotated[int, Ge(0)] = param(
        20, "training rounds of the policy on expected times before round 1 (our choice)"
    )
    labels: bool = param(False, "whether the policy uses label distances (our choice)")

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(
            mode="sync", needs=frozenset({"loss", "distance"}), doubly_stochastic=True
        )

    def init(self, fleet: Fleet) -> Memory:
        """Return a uniform policy without experience."""
        theta = np.zeros(len(FEATURES))
        fresh = {"theta": theta, "gradient": theta.copy(), "loss": None, "practised": False}
        return {**fresh, **_no_rewards(), "used": no_values(), "gap": no_values()}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Update the policy from the last round, then draw the links of this round."""
        memory = self._learn(memory, view)
        candidates = self._candidates(memory, view)
        if not memory["practised"]:
            memory = self._pretrain(memory, view, candidates)
        pairs, gradient = self._draw(memory["theta"], view, candidates, view.rng("draw"))
        i, j, n = candidates.i[pairs], candidates.j[pairs], view.fleet.workers
        graph = graph_of(n, *both_ways(i, j))
        active = np.flatnonzero(view.alive)
        used = note(memory["used"], pair_key(n, i, j), np.full(len(i), float(view.t)))
        cost = float(memory["theta"][FEATURES.index("cost")])
        plan = Plan(
            active,
            links(graph.dst, graph.src),
            (metropolis(graph, active),),
            synchronous=True,
            notes={"temperature": self._temperature(view), "theta_cost": cost},
        )
        return plan, {**memory, "used": used, "gradient": gradient}

    def _temperature(self, view: View) -> float:
        share = min((view.t - 1) / self.cooling, 1.0)
        return self.temperature + share * (self.temperature_end - self.temperature)

    def _candidates(self, memory: Memory, view: View) -> _Candidates:
        """Return the pairs with links in both directions, and their features."""
        i, j, cost_s = two_way_pairs(view.reach, view.link_s)
        keys = pair_key(view.fleet.workers, i, j)
        gap = recall(memory["gap"], keys)
        idle = (view.t - recall(memory["used"], keys)) / _RECENT
        shares = label_shares(view.fleet.label_counts)
        phi = (
            np.ones(len(i)),
            _share_of_max(cost_s),
            _share_of_max(np.nan_to_num(gap)),
            ~np.isnan(gap),
            np.minimum(np.nan_to_num(idle, nan=1.0), 1.0),
            emd(shares, i, j) if self.labels else np.zeros(len(i)),
        )
        top = self.degree_max or default_degree(view.fleet.workers)
        limit = ints(np.floor(np.minimum(view.budget / 2, top)))
        target = int(view.alive.sum() * self.degree_mean / 2)
        return _Candidates(i, j, cost_s, np.stack(phi, axis=1).astype(float), limit, target)

    def _draw(
        self, theta: Floats, view: View, candidates: _Candidates, rng: np.random.Generator
    ) -> tuple[Ints, Floats]:
        """Return the pairs to use, and the policy score of the drawn ones."""
        logits = candidates.phi @ theta / self._temperature(view)
        order = np.argsort(-(logits + rng.gumbel(size=len(logits))), kind="stable")
        chosen, closed = accept(
            candidates.i, candidates.j, order, candidates.limit, candidates.target
        )
        gradient = policy_score(
            candidates.phi, logits, chosen, _last_step(candidates, chosen, closed)
        )
        return with_connecting_pairs(
            view.fleet.workers, candidates.i, candidates.j, candidates.cost_s, chosen
        ), gradient

    def _learn(self, memory: Memory, view: View) -> Memory:
        """Store the distances and the loss of the last round, and learn from its reward."""
        last = view.last
        if last is None:
            return memory
        loss = _mean_loss(last)
        known = loss is not None and memory["loss"] is not None
        drop = memory["loss"] - loss if known else 0.0
        seen = {"gap": _with_measured(memory["gap"], view.fleet.workers, last), "loss": loss}
        facts = np.array([drop, last.duration_s, float(len(last.dst))])
        return {**self._reward(memory, facts), **seen}

    def _pretrain(self, memory: Memory, view: View, candidates: _Candidates) -> Memory:
        """Train the policy on simulated rounds; only expected times and links give rewards.

        Only the policy is kept; the scales of the rewards start from zero.
        """
        train_s = (view.step_s * view.fleet.epoch_steps)[view.alive].max()
        learner = memory
        for k in range(self.pretrain if len(candidates.i) else 0):
            rng = view.rng("practice", k)
            pairs, gradient = self._draw(learner["theta"], view, candidates, rng)
            duration_s = train_s + candidates.cost_s[pairs].max(initial=0.0)
            facts = np.array([0.0, duration_s, 2.0 * len(pairs)])
            learner = self._reward({**learner, "gradient": gradient}, facts)
        return {**memory, "theta": learner["theta"], "practised": True}

    def _reward(self, memory: Memory, facts: Floats) -> dict[str, Any]:
        """Make one REINFORCE step for the last draw; facts are loss decrease, seconds and links."""
        count = memory["count"] + 1
        sums = memory["sums"] + np.abs(facts)
        scaled = facts / np.where(sums > 0, sums / count, 1.0)
        reward = float(scaled @ [self.loss_weight, -1.0, -self.link_weight])
        baseline = reward if memory["baseline"] is None else memory["baseline"]
        theta = memory["theta"] + self.rate * (reward - baseline) * memory["gradient"]
        baseline = _BASELINE * baseline + (1 - _BASELINE) * reward
        learnt = {"theta": theta, "count": count, "sums": sums, "baseline": baseline}
        return {**memory, **learnt}


def accept(i: Ints, j: Ints, order: Ints, limit: Ints, target: int) -> tuple[Ints, Ints]:
    """Choose pairs in this order while both ends are below their limits, up to `target` pairs.

    Returns:
        (chosen, closed): the chosen pairs in order, and the step at which each worker reached its
        limit: -1 if the limit is 0, `target` if never, [N].
    """
    left, closed = limit.tolist(), np.where(limit > 0, target, -1).tolist()
    a, b = i.tolist(), j.tolist()
    chosen: list[int] = []
    for k in order.tolist():
        if len(chosen) >= target:
            break
        if left[a[k]] < 1 or left[b[k]] < 1:
            continue
        for end in (a[k], b[k]):
            left[end] -= 1
            if left[end] < 1:
                closed[end] = len(chosen)
        chosen.append(k)
    return ints(chosen), ints(closed)


def _last_step(candidates: _Candidates, chosen: Ints, closed: Ints) -> Ints:
    """Return the last step at which each pair could be drawn; -1 if never."""
    last = np.minimum(closed[candidates.i], closed[candidates.j])
    last[chosen] = np.arange(len(chosen))
    return np.minimum(last, len(chosen) - 1)


def policy_score(phi: Floats, logits: Floats, chosen: Ints, last: Ints) -> Floats:
    """Return the sum over draws of phi(chosen) - E[phi] under the softmax of the open pairs.

    This is the temperature times the gradient, in theta, of the log-probability of drawing these
    pairs in this order. A pair leaves the softmax when it is drawn or one end reaches its limit;
    by Luce's axiom, skipping such pairs while sampling is equivalent. All sums run backwards over
    the steps, so the cost is linear in the number of pairs.
    """
    if not len(chosen):
        return np.zeros(phi.shape[1])
    open_ = last >= 0
    weight = np.maximum(np.exp(logits - logits.max()), _TINY)[open_]
    steps = len(chosen)

    def remaining(values: Floats) -> Floats:
        leaving = np.bincount(last[open_], weights=values, minlength=steps).astype(float)
        return np.cumsum(leaving[::-1])[::-1]

    total = remaining(weight)
    mean = [remaining(weight * column) / total for column in phi[open_].T]
    score: Floats = (phi[chosen] - np.stack(mean, axis=1)).sum(axis=0)
    return score


def with_connecting_pairs(n: int, i: Ints, j: Ints, cost_s: Floats, chosen: Ints) -> Ints:
    """Return the chosen pairs and the cheapest others that connect what can be connected."""
    taken = np.zeros(len(i), bool)
    taken[chosen] = True
    order = np.lexsort((cost_s, ~taken))
    return np.flatnonzero(taken | spanning_forest(n, i, j, order))


def _no_rewards() -> dict[str, Any]:
    return {"count": 0, "sums": np.zeros(3), "baseline": None}


def _share_of_max(values: Floats) -> Floats:
    top = values.max(initial=0.0)
    return values / top if top > 0 else np.zeros_like(values)


def _mean_loss(last: Outcome) -> float | None:
    known = last.loss[np.isfinite(last.loss)]
    return float(known.mean()) if len(known) else None


def _with_measured(gap: Store, n: int, last: Outcome) -> Store:
    keys, values = measured(n, last)
    return note(gap, keys, values) if len(keys) else gap
