"""AsyDFL: the first to finish pushes its model to a few neighbours, first by quality, then cost."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le

from dystop.control.aggregation import size_weights
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
from dystop.plan import Mix, Plan, links
from dystop.sparse import Floats, Ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View


@dataclass(frozen=True)
class AsyDFL(Mechanism):
    """Asynchronous DFL with neighbour selection and push, without staleness control.

    The sources say that a worker pushes to a subset of its neighbours. A priority trades
    communication against model quality. The DySTop paper describes a push of models, the original
    abstract a push of gradients (`payload`).

    The rest is a reconstruction. The first worker to finish is active, together with all workers
    that finish at the same moment (`wakes`). It averages the newest message of each sender since
    its last activation by data size. The priority of a receiver is

        lam * quality / max + (1 - lam) * (1 - c / c_max)

    with maxima over the sender's candidates; lam goes linearly from `lam_start` to `lam_end` over
    the planned run. Receivers without bandwidth are skipped.
    """

    name: ClassVar[str] = "asydfl"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "first to finish pushes its model to neighbours of high priority"

    fanout: Annotated[int, Ge(0)] | None = param(
        None, "k: largest number of receivers of a push; unset: ceil(log2 N) (our choice)"
    )
    lam_start: Annotated[float, Ge(0), Le(1)] = param(
        0.7, "weight of quality against cost at the start of the run (our choice)"
    )
    lam_end: Annotated[float, Ge(0), Le(1)] = param(
        0.3, "weight of quality against cost at the end of the run (our choice)"
    )
    quality: Literal["emd", "distance"] = param(
        "emd",
        "quality of a receiver: emd: difference of the labels; distance: measured distance of the "
        "models (our choice)",
    )
    payload: Literal["model", "delta"] = param(
        "model", "what a push carries: the trained model, or the last update (our choice)"
    )
    background: bool = param(False, "whether the sender trains while it pushes (our choice)")
    wakes: Wakes = param(
        "all",
        "all: every worker that has finished is active; one: only the most stale of them "
        "(our choice; the sources allow both)",
    )

    def capabilities(self) -> Capabilities:
        """Return the capabilities; distances are measured only if `quality` uses them."""
        return Capabilities(
            mode="async",
            needs=frozenset({"distance"}) if self.quality == "distance" else frozenset(),
            deltas=self.payload == "delta",
            pushes=True,
            budgeted=True,
        )

    def init(self, fleet: Fleet) -> Memory:
        """Return an empty table of measured model distances by pair."""
        if self.quality != "distance":
            return {}
        return {"pair": np.zeros(0, np.int64), "distance": np.zeros(0)}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Activate the first to finish, mix their mail, push to the best receivers."""
        memory = self._learn(memory, view)
        active = senders(view, self.wakes)
        edge, lam = outgoing(view.reach, active), self.lam(view.progress)
        pair = view.reach.dst[edge], view.reach.src[edge]
        priority = push_priority(
            self._quality(memory, view, *pair), view.link_s[edge], pair[1], lam
        )
        cap = push_cap(self.fanout, view.fleet.workers)
        dst, src = choose_receivers(active, pair, priority, view, cap)
        pushes = links(
            dst, src, delta=self.payload == "delta", background=self.background, pushed=True
        )
        stages = after_sending(active, (self._rows(view, active),))
        return Plan(active, pushes, stages, notes={"lam": lam}), memory

    def lam(self, progress: float) -> float:
        """Return the weight of quality at this progress of the run."""
        return self.lam_start + (self.lam_end - self.lam_start) * progress

    def _rows(self, view: View, active: Ints) -> Mix:
        mail, size = view.mailbox.to(active), view.fleet.data_size
        if self.payload == "delta":
            return update_rows(active, mail.dst, mail.src, size, 1.0)
        return size_weights(active, mail.dst, mail.src, size)

    def _quality(self, memory: Memory, view: View, dst: Ints, src: Ints) -> Floats:
        """Return the quality of each receiver as a share of the sender's largest one."""
        labels = share_of_sender_max(label_distance(view.fleet, dst, src), src)
        if self.quality == "emd" or not len(memory["pair"]):
            return labels
        known, wanted = memory["pair"], dst * view.reach.n + src
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        hit = known[at] == wanted
        gap = share_of_sender_max(np.where(hit, memory["distance"][at], 0.0), src)
        return np.where(hit, gap, labels)

    def _learn(self, memory: Memory, view: View) -> Memory:
        """Store the model distances that the last pushes measured."""
        last = view.last
        if self.quality != "distance" or last is None or last.distance is None:
            return memory
        seen = ~last.lost & np.isfinite(last.distance)
        fresh = (last.dst * view.reach.n + last.src)[seen]
        keep = ~np.isin(memory["pair"], fresh)
        pair = np.append(memory["pair"][keep], fresh)
        distance = np.append(memory["distance"][keep], last.distance[seen])
        order = np.argsort(pair)
        return {"pair": pair[order], "distance": distance[order]}
