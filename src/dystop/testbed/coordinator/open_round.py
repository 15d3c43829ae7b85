"""The round that is open: who has answered, whom it waits for, and who has failed in it."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dystop.plan import Plan
from dystop.testbed.coordinator.orders import stored_order
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.ledger.tables import OrderLine, Restored, RoundLine, read_blob
from dystop.testbed.protocol.messages import Execute, Report
from dystop.types import View


@dataclass
class OpenRound:
    """A round whose orders were issued and that is not closed yet."""

    plan: Plan
    view: View  # without links
    line: RoundLine
    orders: dict[int, Execute]
    lines: dict[int, OrderLine]
    deadline_s: float  # of the run
    trial_deadline_s: float  # the same for workers on trial
    rejoin_until_s: float = -math.inf  # after a restart all members have to join again
    mixed: dict[int, Report] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)  # nodes that reported a failure
    training: set[int] = field(default_factory=set)  # the round waits for these trainings

    @property
    def t(self) -> int:
        """Number of the round."""
        return self.line.round

    @property
    def idle(self) -> list[int]:
        """Workers whose training had ended when the round opened."""
        ended: list[int] = np.flatnonzero(self.view.remaining_s == 0.0).tolist()
        return ended

    def awaits(self, node: int) -> bool:
        """Return whether a node has an order and has not answered."""
        return node in self.orders and node not in self.mixed and node not in self.failed

    @property
    def missing(self) -> set[int]:
        """Nodes that have not answered."""
        return self.orders.keys() - self.mixed.keys() - self.failed

    @property
    def unfinished(self) -> set[int]:
        """Nodes that the round waits for: for an answer, or for a training."""
        return self.missing | (self.training & self.mixed.keys())


def is_complete(state: CoordinatorState, current: OpenRound) -> bool:
    """Return whether a round has nothing left to wait for."""
    if state.at_s >= current.deadline_s:
        return True
    return not any(waits_for(state, current, node) for node in current.unfinished)


def waits_for(state: CoordinatorState, current: OpenRound, node: int) -> bool:
    """Return whether a round waits for a node that is not finished.

    It does not wait for a member that has left or is dead. It waits for a silent member, or for one
    whose session broke, for `suspect_s`; if the member is on trial, it does not. After a restart of
    the coordinator it waits until members had the time to join again.
    """
    member = state.members.of_node(node)
    if member is None or member.state not in ("JOINED", "SUSPECT"):
        return False
    if state.at_s < current.rejoin_until_s:
        return True
    on_trial = state.failures.is_on_trial(node, state.at_s)
    if member.state == "SUSPECT":
        silence_s = state.members.silence_s(member.name, state.at_s)
        return not on_trial and silence_s < state.params.timeouts.suspect_s
    return not on_trial or state.at_s < current.trial_deadline_s


def register_failures(state: CoordinatorState, current: OpenRound) -> None:
    """Register why nodes did not finish a round: they were lost, or they failed; who leaves may."""
    for node in sorted(current.unfinished):
        member = state.members.of_node(node)
        if member is None or member.state in ("LEFT", "QUARANTINED"):
            continue
        if member.state == "JOINED" and not _has_just_restarted(state, node):
            waited_s = state.at_s - current.line.opened_s
            what = "no answer" if node in current.missing else "no end of its training"
            node_failed(state, node, "hung", f"{what} in round {current.t} after {waited_s:.1f} s")
        elif node < state.setup.fleet.workers:
            state.failures.put_on_trial(node, state.at_s)


def _has_just_restarted(state: CoordinatorState, node: int) -> bool:
    """Return whether a new process of a node had no time for its order."""
    return state.at_s - state.restarted_s.get(node, -math.inf) < state.params.timeouts.round_s


def node_failed(
    state: CoordinatorState, node: int, kind: Literal["failed", "hung"], text: str
) -> None:
    """Exclude a worker that failed; the server is needed in every round."""
    if node < state.setup.fleet.workers:
        seconds = state.failures.failed(node, state.at_s)
        text = f"{text}; left out for {seconds:.0f} s"
    state.incidents.record(node, kind, text)


def has_left(state: CoordinatorState, node: int) -> bool:
    """Return whether a node has left for good, so that no round waits for it."""
    member = state.members.of_node(node)
    return member is None or member.state in ("LEFT", "QUARANTINED")


def restored_round(state: CoordinatorState, restored: Restored) -> OpenRound | None:
    """Return the round that was open when the last coordinator ended; None: there was none."""
    if restored.open is None:
        return None
    stored = read_blob(restored.open.plan)
    view: View = replace(stored["view"], fleet=state.setup.fleet)
    lines = {o.node: o for o in restored.orders if o.outcome is None}
    orders = {node: stored_order(line) for node, line in lines.items()}
    timeouts = state.params.timeouts  # members may have to join again first
    limit_s = stored.get("limit_s", 0.0)  # of the round; new processes begin its work again
    until_s = state.at_s + max(timeouts.round_s, timeouts.gather_s, limit_s)
    plan: Plan = stored["plan"]
    opened = OpenRound(
        plan, view, restored.open, orders, lines, until_s, until_s, rejoin_until_s=until_s
    )
    opened.training = set(plan.active.tolist()) if plan.join else set()
    return opened
