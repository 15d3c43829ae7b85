"""SA-ADFL: one worker a round, chosen by staleness and cost, tells everyone in range."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from dystop.control.activation import activate_one
from dystop.control.aggregation import size_weights
from dystop.control.timing import cost_s
from dystop.mechanisms._push import mail_of, outgoing, slowest_push_s
from dystop.params import param
from dystop.plan import Plan, links
from dystop.types import Capabilities, Mechanism, Memory, View


@dataclass(frozen=True)
class SAADFL(Mechanism):
    """Staleness-aware asynchronous DFL: the worker of least V H_i - q_i (tau_i + 1) is activated.

    The source fixes that one worker per round aggregates and sends its model to all neighbours in
    range, and that Lyapunov queues bound the staleness. We take the queues and the objective of
    DySTop, restricted to one worker. Our choices: the pushed models wait in a mailbox, the newest
    of each sender is averaged by data size at the next activation and then gone (`mail`), and what
    is pushed is the model as it was trained, before that average (`sends`). H_i is the training
    still to run plus the slowest push. Everyone in range is told, whatever the bandwidth budget
    says.
    """

    name: ClassVar[str] = "sa-adfl"
    provenance: ClassVar[str] = "abstract"
    summary: ClassVar[str] = "one worker a round, by Lyapunov queues, pushes to everyone in range"

    V: Annotated[float, Ge(0)] = param(10.0, "weight of round time against staleness")
    staleness_bound: Annotated[float, Ge(0)] = param(
        2.0, "tau_bound: staleness from which the queues grow"
    )
    sends: Literal["trained", "mixed"] = param(
        "trained", "the model that is pushed: as trained, or after mixing the mail (our choice)"
    )

    mail: Literal["new", "latest"] = param(
        "new",
        "what is averaged: models that came since the last activation, or the last one of everybody"
        " ever heard (our choice)",
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", pushes=True, queue_bound=self.staleness_bound)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Wake one worker, average what lies in its mailbox, push to all that it reaches."""
        reach, mail = view.reach, view.mailbox
        cost = cost_s(view.remaining_s, slowest_push_s(reach, view.link_s, view.fleet.workers))
        alive = np.flatnonzero(view.alive)
        active = activate_one(alive, cost, view.queue, view.staleness, self.V)
        read = mail_of(mail, active)
        rows = size_weights(active, mail.dst[read], mail.src[read], view.fleet.data_size)
        edge = outgoing(reach, active)
        # A link of stage 1 carries what the sender has after the first and only mix.
        stage = int(self.sends == "mixed")
        told = links(reach.dst[edge], reach.src[edge], stage=stage, pushed=True)
        return Plan(active, told, (rows,), keep_mail=self.mail == "latest"), memory
