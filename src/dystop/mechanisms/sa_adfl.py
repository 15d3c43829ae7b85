"""SA-ADFL: one worker per round, chosen by staleness and cost, pushes to all in reach."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from dystop.control.activation import activate_one
from dystop.control.aggregation import size_weights
from dystop.control.laws import cost_s
from dystop.mechanisms.shared.push import outgoing, slowest_push_s
from dystop.params import param
from dystop.plan import Plan, links
from dystop.types import Capabilities, Mechanism, Memory, View


@dataclass(frozen=True)
class SAADFL(Mechanism):
    """Staleness-aware asynchronous DFL: the worker of least V H_i - q_i (tau_i + 1) is active.

    The source says that one worker per round aggregates and sends its model to all neighbours in
    range, and that Lyapunov queues bound the staleness. We use the queues and the objective of
    DySTop, restricted to one worker. Our choices: pushed models wait in a mailbox; at the next
    activation the newest model of each sender is averaged by data size and then removed (`mail`);
    the pushed model is the trained one, before that average (`sends`). H_i is the remaining
    training plus the slowest push, or the remaining training alone if the worker trains while it
    pushes (`background`). The push ignores bandwidth budgets.
    """

    name: ClassVar[str] = "sa-adfl"
    provenance: ClassVar[str] = "abstract"
    summary: ClassVar[str] = "one worker a round, by Lyapunov queues, pushes to everyone in range"

    V: Annotated[float, Ge(0)] = param(10.0, "weight of round time against staleness")
    staleness_bound: Annotated[float, Ge(0)] = param(
        2.0, "tau_bound: staleness above which the queues grow"
    )
    sends: Literal["trained", "mixed"] = param(
        "trained",
        "model that is pushed: trained: as trained; mixed: after mixing the mailbox (our choice)",
    )
    mail: Literal["new", "latest"] = param(
        "new",
        "models that are averaged: new: those that arrived since the last activation; latest: the "
        "latest one of every sender (our choice)",
    )

    background: bool = param(False, "whether the sender trains while it pushes (our choice)")

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", pushes=True, queue_bound=self.staleness_bound)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Activate one worker, average its mailbox, push to all workers in reach."""
        reach = view.reach
        cost = view.remaining_s
        if not self.background:
            cost = cost_s(cost, slowest_push_s(reach, view.link_s, view.fleet.workers))
        alive = np.flatnonzero(view.alive)
        active = activate_one(alive, cost, view.queue, view.staleness, self.V)
        mail = view.mailbox.to(active)
        rows = size_weights(active, mail.dst, mail.src, view.fleet.data_size)
        edge = outgoing(reach, active)
        # A link of stage 1 carries the model after the only mix.
        stage = int(self.sends == "mixed")
        pushes = links(
            reach.dst[edge],
            reach.src[edge],
            stage=stage,
            background=self.background,
            pushed=True,
        )
        return Plan(active, pushes, (rows,), keep_mail=self.mail == "latest"), memory
