"""L2PL: a policy learnt by reinforcement draws a sparse topology in every round."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt

from dystop.control.aggregation import metropolis
from dystop.control.priority import emd, label_shares
from dystop.mechanisms._graphs import both_ways, two_way_pairs
from dystop.mechanisms._pairs import (
    Store,
    measured,
    no_values,
    note,
    pair_key,
    recall,
    spanning_forest,
)
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Floats, Ints, graph_of, ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, Outcome, View

FEATURES = ("one", "cost", "distance", "known", "unused", "labels")
_RECENT = 20  # rounds after which a link counts as long unused
_BASELINE = 0.9  # memory of the mean reward
_TINY = 1e-300  # keeps the chance of a hopeless pair above zero


@dataclass(frozen=True)
class _Scene:
    """The pairs of a round, what is known of each, and how many links each worker may have."""

    i: Ints
    j: Ints
    cost_s: Floats
    phi: Floats  # [pairs, features]
    room: Ints  # [N]
    target: int  # links to draw


@dataclass(frozen=True)
class L2PL(Mechanism):
    """Links are drawn by a softmax over their features, trained by REINFORCE on the round's reward.

    Known of the source is that reinforcement learning rebuilds a sparse topology every round,
    synchronously. Everything else is our choice: a linear score of six features, drawn without
    replacement under degree and budget limits (a link costs both ends two models), repaired to be
    connected by the cheapest pairs (which looks at neither limit), and rewarded by loss drop, round
    time and number of links. Where model distances are not measured, that feature is zero.

    The reward sees the slowest link only. Where almost every draw holds one that is equally slow,
    there is nothing to learn from; where times vary a lot, a run may settle on a poor policy.

    Pairs that were used take up memory, others do not; a draw is linear in the pairs in reach.
    """

    name: ClassVar[str] = "l2pl"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "a policy gradient learns which sparse topology pays off"

    degree_mean: Annotated[float, Ge(0)] = param(4.0, "links drawn per worker (our choice)")
    degree_max: Annotated[int, Ge(1)] | None = param(
        None, "most links of a worker before repair; unset: ceil(log2 N) (our choice)"
    )
    temperature: Annotated[float, Gt(0)] = param(1.0, "softmax temperature at first (our choice)")
    temperature_end: Annotated[float, Gt(0)] = param(0.2, "temperature in the end (our choice)")
    cooling: Annotated[int, Ge(1)] = param(
        200, "rounds from first to last temperature (our choice)"
    )
    rate: Annotated[float, Ge(0)] = param(0.05, "learning rate of the policy (our choice)")
    loss_weight: Annotated[float, Ge(0)] = param(1.0, "mu: reward of a loss drop (our choice)")
    link_weight: Annotated[float, Ge(0)] = param(0.2, "lambda: penalty on links (our choice)")
    pretrain: Annotated[int, Ge(0)] = param(
        20, "imagined rounds, from expected times, before the first (our choice)"
    )
    labels: bool = param(False, "whether label distance counts (our choice)")

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(
            mode="sync", needs=frozenset({"loss", "distance"}), doubly_stochastic=True
        )

    def init(self, fleet: Fleet) -> Memory:
        """An indifferent policy without experience."""
        theta = np.zeros(len(FEATURES))
        fresh = {"theta": theta, "gradient": theta.copy(), "loss": None, "practised": False}
        return {**fresh, **_no_rewards(), "used": no_values(), "gap": no_values()}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Learn from the last round, then draw the links of this one."""
        memory = self._reflect(memory, view)
        scene = self._scene(memory, view)
        if not memory["practised"]:
            memory = self._practise(memory, view, scene)
        pairs, gradient = self._draw(memory["theta"], view, scene, view.rng("draw"))
        i, j, n = scene.i[pairs], scene.j[pairs], view.fleet.workers
        graph = graph_of(n, *both_ways(i, j))
        active = np.flatnonzero(view.alive)
        used = note(memory["used"], pair_key(n, i, j), np.full(len(i), float(view.t)))
        cost = float(memory["theta"][FEATURES.index("cost")])
        plan = Plan(
            active,
            links(graph.dst, graph.src),
            (metropolis(graph, active),),
            synchronous=True,
            notes={"temperature": self._heat(view), "theta_cost": cost},
        )
        return plan, {**memory, "used": used, "gradient": gradient}

    def _heat(self, view: View) -> float:
        share = min((view.t - 1) / self.cooling, 1.0)
        return self.temperature + share * (self.temperature_end - self.temperature)

    def _scene(self, memory: Memory, view: View) -> _Scene:
        """Pairs that can talk both ways."""
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
        top = self.degree_max or max(1, math.ceil(math.log2(view.fleet.workers)))
        room = ints(np.floor(np.minimum(view.budget / 2, top)))
        target = int(view.alive.sum() * self.degree_mean / 2)
        return _Scene(i, j, cost_s, np.stack(phi, axis=1).astype(float), room, target)

    def _draw(
        self, theta: Floats, view: View, scene: _Scene, rng: np.random.Generator
    ) -> tuple[Ints, Floats]:
        """Pairs to use, repair included, and the score of the drawn ones."""
        logits = scene.phi @ theta / self._heat(view)
        order = np.argsort(-(logits + rng.gumbel(size=len(logits))), kind="stable")
        chosen, closed = accept(scene.i, scene.j, order, scene.room, scene.target)
        gradient = policy_score(scene.phi, logits, chosen, _last_step(scene, chosen, closed))
        return repaired(view.fleet.workers, scene.i, scene.j, scene.cost_s, chosen), gradient

    def _reflect(self, memory: Memory, view: View) -> Memory:
        """Take in what the last round brought: distances, loss, reward."""
        last = view.last
        if last is None:
            return memory
        loss = _mean_loss(last)
        known = loss is not None and memory["loss"] is not None
        drop = memory["loss"] - loss if known else 0.0
        seen = {"gap": _with_measured(memory["gap"], view.fleet.workers, last), "loss": loss}
        facts = np.array([drop, last.duration_s, float(len(last.dst))])
        return {**self._reward(memory, facts), **seen}

    def _practise(self, memory: Memory, view: View, scene: _Scene) -> Memory:
        """Imagined rounds: the reward knows expected times and links only. Scales start afresh."""
        train_s = (view.step_s * view.fleet.epoch_steps)[view.alive].max()
        learner = memory
        for k in range(self.pretrain if len(scene.i) else 0):
            rng = view.rng("practice", k)
            pairs, gradient = self._draw(learner["theta"], view, scene, rng)
            duration_s = train_s + scene.cost_s[pairs].max(initial=0.0)
            facts = np.array([0.0, duration_s, 2.0 * len(pairs)])
            learner = self._reward({**learner, "gradient": gradient}, facts)
        return {**memory, "theta": learner["theta"], "practised": True}

    def _reward(self, memory: Memory, facts: Floats) -> dict[str, Any]:
        """One REINFORCE step for the links drawn last; facts are loss drop, seconds and links."""
        count = memory["count"] + 1
        sums = memory["sums"] + np.abs(facts)
        scaled = facts / np.where(sums > 0, sums / count, 1.0)
        reward = float(scaled @ [self.loss_weight, -1.0, -self.link_weight])
        baseline = reward if memory["baseline"] is None else memory["baseline"]
        theta = memory["theta"] + self.rate * (reward - baseline) * memory["gradient"]
        baseline = _BASELINE * baseline + (1 - _BASELINE) * reward
        learnt = {"theta": theta, "count": count, "sums": sums, "baseline": baseline}
        return {**memory, **learnt}


def accept(i: Ints, j: Ints, order: Ints, room: Ints, target: int) -> tuple[Ints, Ints]:
    """Take pairs in this order while both ends have room, up to `target`.

    Returns:
        (chosen, closed): the pairs taken, in order, and the step at which each worker had no room
        left any more, -1 from the beginning and `target` if never, [N].
    """
    left, closed = room.tolist(), np.where(room > 0, target, -1).tolist()
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


def _last_step(scene: _Scene, chosen: Ints, closed: Ints) -> Ints:
    """Last step at which each pair could still have been drawn; -1: never."""
    last = np.minimum(closed[scene.i], closed[scene.j])
    last[chosen] = np.arange(len(chosen))
    return np.minimum(last, len(chosen) - 1)


def policy_score(phi: Floats, logits: Floats, chosen: Ints, last: Ints) -> Floats:
    """Sum over the draws of phi(chosen) - E[phi] under the softmax over what could be drawn.

    This is temperature times the gradient, by theta, of the log-probability of drawing these pairs
    in this order. A pair leaves the softmax when it is taken or one end has no room: skipping such
    pairs while sampling comes to the same by Luce's axiom. All sums run backwards over the steps,
    so that the cost is linear in the pairs.
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


def repaired(n: int, i: Ints, j: Ints, cost_s: Floats, chosen: Ints) -> Ints:
    """The chosen pairs and the cheapest others that make one piece of what can be one."""
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
