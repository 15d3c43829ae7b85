"""A slow executor of plans: computes what every node must have published, from the plans alone.

It follows the meaning of a plan, with lists and loops, and shares no code with the machines. Two
facts depend on timing and come from the reports of the cluster: the number of the training that an
inexact pull found, and how many trainings a passive node had finished when it mixed.
"""

from dataclasses import dataclass, field

import numpy as np

from dystop.control.aggregation import kept_coordinates
from dystop.plan import Plan
from virtual.toy import FIRST, WIDTH, train

NEAR = 1e-5


@dataclass
class Model:
    """A published model, and where its training started."""

    number: int
    vector: np.ndarray
    start: np.ndarray


@dataclass
class ReferenceNode:
    """A node: its publications, its running training and its mailbox."""

    published: list[Model] = field(default_factory=list)
    training: tuple[int, np.ndarray, int, float] | None = None  # number, mixed, steps, rate
    shift: np.ndarray = field(default_factory=lambda: np.zeros(WIDTH))
    mail: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def last(self) -> Model:
        return self.published[-1]


@dataclass(frozen=True)
class Use:
    """A pulled model according to a report."""

    number: int
    vector: np.ndarray  # as it was sent


class Reference:
    """All nodes; `play` executes one plan after another."""

    def __init__(self, nodes, workers, epoch_steps, warm_start):
        self.refs = [ReferenceNode() for _ in range(nodes)]
        self.workers, self.epoch_steps = workers, epoch_steps
        for i, ref in enumerate(self.refs):
            warm = warm_start and i < workers
            ref.published.append(Model(-1 if warm else 0, FIRST.astype(float), FIRST.astype(float)))
            if warm:
                ref.training = (0, FIRST.astype(float), int(epoch_steps[i]), 1.0)

    def finish_training(self, i):
        """End the running training; passive mixes since its start are added."""
        ref = self.refs[i]
        if ref.training is None:
            return
        number, mixed, steps, rate = ref.training
        trained = train(mixed.astype(np.float32), i, number, steps, rate).astype(float)
        ref.published.append(Model(number, trained + ref.shift, mixed + ref.shift))
        ref.training, ref.shift = None, np.zeros(WIDTH)

    def find(self, j, use, delta):
        """Return the publication that a pull found, by training and content."""
        if self.refs[j].training is not None and self.refs[j].training[0] == use.number:
            self.finish_training(j)
        for model in reversed(self.refs[j].published):
            value = model.vector - model.start if delta else model.vector
            if model.number == use.number and np.allclose(value, use.vector, atol=NEAR):
                return value
        raise AssertionError(f"node {j} never had the pulled model (training {use.number})")

    def play(self, round_, plan: Plan, uses, numbers):
        """Execute one round.

        uses: (stage, dst, src) -> Use. numbers: node -> the last training that it had finished when
        it took up the order, and when it had mixed.
        """
        ordered = self.ordered(plan)
        active = plan.active.tolist()
        for i in ordered:
            training = self.refs[i].training
            if i in active or (training is not None and numbers[i][0] >= training[0]):
                self.finish_training(i)
        own = {i: self.refs[i].last.vector for i in ordered}
        now = dict(own)
        base = {i: self.base(i) for i in ordered}
        waiting = {i: dict(self.refs[i].mail) for i in ordered}
        for stage in range(self.stages(plan)):
            now, base = self.stage(plan, stage, uses, now, base, waiting)
        for i in ordered:
            self.finish(i, plan, now[i], own[i], waiting[i], numbers[i][1])

    def base(self, i):
        ref = self.refs[i]
        return ref.last.start if ref.training is None else ref.training[1] + ref.shift

    @staticmethod
    def stages(plan):
        return max(len(plan.mixes), int(plan.links.stage.max(initial=-1)) + 1)

    @staticmethod
    def ordered(plan):
        who = set(plan.active.tolist()) | set(plan.links.dst.tolist())
        for mix in plan.mixes:
            who |= set(mix.receiver.tolist())
        return sorted(who)

    def stage(self, plan, stage, uses, now, base, waiting):
        links = plan.links
        brought = {}
        for k in np.flatnonzero(links.stage == stage).tolist():
            dst, src, delta = int(links.dst[k]), int(links.src[k]), bool(links.delta[k])
            brought[dst, src] = self.brought(plan, stage, k, uses, now, delta)
        rows = self.rows(plan, stage)
        for (dst, src), value in brought.items():
            if src not in rows.get(dst, {}):
                self.refs[dst].mail[src] = value
        after, moved = dict(now), dict(base)
        for i, row in rows.items():
            if self.is_late(plan, stage, i):
                continue
            after[i] = self.mixed(plan, stage, i, row, brought, now, base[i], waiting[i], uses)
            if i not in plan.active:
                moved[i] = base[i] + after[i] - now[i]
        return after, moved

    @staticmethod
    def is_late(plan, stage, i):
        links = plan.links
        return bool(((links.stage == stage) & links.background & (links.dst == i)).any())

    def brought(self, plan, stage, k, uses, now, delta):
        """Return the model that a link transfers."""
        links = plan.links
        dst, src = int(links.dst[k]), int(links.src[k])
        earlier = any(src in mix.receiver.tolist() for mix in plan.mixes[:stage])
        busy = src in plan.active.tolist()
        exact = earlier or (busy and (plan.synchronous or stage > 0 or bool(links.pushed[k])))
        if not exact:
            return self.find(src, uses[stage, dst, src], delta)
        value = now[src] - (self.refs[src].last.start if delta else 0.0)
        use = uses.get((stage, dst, src))
        if use is not None and plan.mixes[stage : stage + 1] and plan.mixes[stage].mask is None:
            assert np.allclose(use.vector, value, atol=NEAR), (stage, dst, src)
        return value

    @staticmethod
    def rows(plan, stage):
        if stage >= len(plan.mixes):
            return {}
        mix = plan.mixes[stage]
        return {
            int(i): {
                int(mix.source[m]): float(mix.weight[m])
                for m in range(mix.indptr[k], mix.indptr[k + 1])
            }
            for k, i in enumerate(mix.receiver.tolist())
        }

    def mixed(self, plan, stage, i, row, brought, now, base, mail, uses):
        mix = plan.mixes[stage]
        total = base.copy() if mix.kind == "delta" else np.zeros(WIDTH)
        for j, weight in row.items():
            if (i, j) in brought:
                value = brought[i, j]
            elif j == i:
                value = now[i] - (self.refs[i].last.start if mix.kind == "delta" else 0.0)
            elif mix.collective:
                value = now[j]
            else:
                value = mail[j]
            total = total + weight * value
        if mix.kind == "masked":
            kept = kept_coordinates(*mix.mask, WIDTH)
            total = np.where(kept, total, now[i])
        return total

    def finish(self, i, plan, value, own, read, number):
        """End a round for a node: it trains, or it publishes its mixed model."""
        ref, active = self.refs[i], plan.active.tolist()
        if i in active:
            k = active.index(i)
            steps = int(self.epoch_steps[i] if plan.steps is None else plan.steps[k])
            rate = 1.0 if plan.rate is None else float(plan.rate[k])
            ref.training = (ref.last.number + 1, value, steps, rate)
            if not plan.keep_mail:
                ref.mail = {j: m for j, m in ref.mail.items() if read.get(j) is not m}
            return
        shift = value - own
        if ref.training is not None and number >= ref.training[0]:  # it ended during the pull
            self.finish_training(i)
        if np.abs(shift).max() == 0:
            return
        last = ref.last
        ref.published.append(Model(last.number, last.vector + shift, last.start + shift))
        if ref.training is not None:
            ref.shift = ref.shift + shift
