"""AsyNG: whoever finishes pushes its last update to a few neighbours."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le

from dystop.mechanisms.shared.push import (
    Wakes,
    after_sending,
    choose_receivers,
    label_distance,
    outgoing,
    push_cap,
    push_priority,
    senders,
    share_of_sender_max,
    update_rows,
)
from dystop.params import param
from dystop.plan import Links, Mix, Plan, join_links, links, mix_of
from dystop.sparse import Bools, Floats, Ints, PairCounts
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View


@dataclass(frozen=True)
class AsyNG(Mechanism):
    """Asynchronous gradient push with neighbour selection, without staleness control.

    The sources say only that gradient push and neighbour selection are optimised jointly. The rest
    is a reconstruction. The first worker to finish is active, together with all workers that finish
    at the same moment (`wakes`). It adds the newest update of each sender in its mailbox,

        y_i = x_i + gamma * sum_j w_j delta_j,   w_j = D_j / (D_i + sum of D over the mail),

    and pushes its own last update to the `fanout` receivers of highest priority

        lam * EMD / EMD_max + (1 - lam) * (1 - c / c_max) + nu * (1 - pushes / t)

    with maxima over the sender's candidates. Receivers without bandwidth are skipped. Models drift
    apart because only updates are sent; `resync` bounds the drift.
    """

    name: ClassVar[str] = "asyng"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "first to finish pushes its last update to a few neighbours"

    fanout: Annotated[int, Ge(0)] | None = param(
        None, "k: largest number of receivers of a push; unset: ceil(log2 N) (our choice)"
    )
    lam: Annotated[float, Ge(0), Le(1)] = param(
        0.5, "weight of different labels against link time (our choice)"
    )
    nu: Annotated[float, Ge(0)] = param(
        0.25, "weight of receivers that got few pushes (our choice)"
    )
    gamma: Annotated[float, Ge(0)] = param(
        1.0, "factor on the updates of other workers (our choice)"
    )
    weights: Literal["size", "full"] = param(
        "size", "weight of another worker's update: by data size, or 1 (our choice)"
    )
    background: bool = param(False, "whether the sender trains while it pushes (our choice)")
    resync: Annotated[int, Ge(0)] = param(
        0,
        "R: every R-th push of a worker carries its model, and receivers give half of their weight "
        "to the models in their mailbox; 0: never (our choice)",
    )
    wakes: Wakes = param(
        "all",
        "all: every worker that has finished is active; one: only the most stale of them "
        "(our choice; the sources allow both)",
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", deltas=True, pushes=True, budgeted=True)

    def init(self, fleet: Fleet) -> Memory:
        """Return empty push counts by pair, with keys dst * N + src."""
        return {"pair": np.zeros(0, np.int64), "pushes": np.zeros(0, np.int64)}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Activate the first to finish, add the updates in their mail, push their own updates."""
        pushed = PairCounts(view.reach.n, memory["pair"], memory["pushes"])
        active = senders(view, self.wakes)
        edge = outgoing(view.reach, active)
        pair = view.reach.dst[edge], view.reach.src[edge]
        priority = self._priority(view, pushed, *pair, view.link_s[edge])
        cap = push_cap(self.fanout, view.fleet.workers)
        dst, src = choose_receivers(active, pair, priority, view, cap)
        pushed = pushed.add(dst, src)
        memory = {"pair": pushed.keys, "pushes": pushed.counts}
        return Plan(active, self._pushes(view, dst, src), self._stages(view, active)), memory

    def _priority(
        self, view: View, pushed: PairCounts, dst: Ints, src: Ints, link_s: Floats
    ) -> Floats:
        labels = share_of_sender_max(label_distance(view.fleet, dst, src), src)
        rarely = 1.0 - pushed.get(dst, src) / view.t
        return push_priority(labels, link_s, src, self.lam) + self.nu * rarely

    def _is_model(self, version: Ints) -> Bools:
        """Return which messages carry a model; the version alone decides, so both ends agree."""
        model: Bools = version % self.resync == 0 if self.resync else np.zeros(len(version), bool)
        return model

    def _pushes(self, view: View, dst: Ints, src: Ints) -> Links:
        model = self._is_model(view.version[src] + 1)  # includes the training that has just ended
        kinds = (
            links(dst[is_], src[is_], delta=delta, background=self.background, pushed=True)
            for is_, delta in ((~model, True), (model, False))
        )
        return join_links(tuple(kinds))

    def _stages(self, view: View, active: Ints) -> tuple[Mix, ...]:
        """Mix with the models in the mail, if any, then add the updates."""
        mail, size = view.mailbox.to(active), view.fleet.data_size
        both = self._is_model(mail.version)
        news = ~both
        rows = update_rows(active, mail.dst[news], mail.src[news], size, self.gamma)
        if self.weights == "full":
            own = rows.dst == rows.source
            rows = replace(rows, weight=np.where(own, 1.0, self.gamma))
        stages = (half_way(mail.dst[both], mail.src[both]),) if both.any() else ()
        return after_sending(active, (*stages, rows))


def half_way(dst: Ints, src: Ints) -> Mix:
    """Return rows that put half of the weight on the own model and half on the received models."""
    who, row, times = np.unique(dst, return_inverse=True, return_counts=True)
    return mix_of(
        np.append(who, dst),
        np.append(who, src),
        np.append(np.full(len(who), 0.5), 0.5 / times[row]),
    )
