"""The state that all parts of the coordinator machine share, and the actions they request.

`CoordinatorState` holds the state of the paper's algorithm (`control`), the members, the
measurements and the strikes. During one event the parts add actions and ledger lines to `pending`.
`CommitBatcher` turns them into the actions of the machine, with at most one commit.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dystop.control.round import initial_state
from dystop.recorders.recorder import Memories, count_trainings, first_memories
from dystop.sparse import Bools, ints
from dystop.testbed.coordinator.conduct.failures import Failures
from dystop.testbed.coordinator.conduct.incidents import Incidents
from dystop.testbed.coordinator.conduct.misbehaviour import Strike, Strikes
from dystop.testbed.coordinator.members import Member, Members
from dystop.testbed.coordinator.observations import Observations
from dystop.testbed.coordinator.round_reports import Training
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.events import Commit, CoordinatorAction, SendToMember
from dystop.testbed.ledger.tables import (
    MEMORIES,
    STANDS,
    KeptLine,
    Line,
    MetaLine,
    WorkerLine,
    read_blob,
    write_blob,
)
from dystop.testbed.protocol.messages import Execute, Join, ToWorker
from dystop.types import ControlState

RECENT_ROUNDS = 20  # whose median limits the next one
RETRY_S = 1.0  # pause before a failed commit is retried


@dataclass
class PendingActions:
    """Actions and ledger lines of one event."""

    immediate: list[CoordinatorAction] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    after_commit: list[CoordinatorAction] = field(default_factory=list)
    save_state: bool = False  # whether the commit includes `CoordinatorState.to_blob`


class CoordinatorState:
    """State that several parts of the machine read and write."""

    def __init__(self, setup: CoordinatorSetup, epoch: int) -> None:
        self.setup, self.epoch = setup, epoch
        self.params = setup.params
        self.members = Members(setup.members, setup.params.timeouts)
        self.observations = Observations(setup.fleet, setup.steps, setup.params)
        self.incidents = Incidents(self)
        self.failures = Failures(setup.params.timeouts.exclude_s)
        self.strikes = Strikes(setup.params.guards, setup.fleet.nodes)
        self.control: ControlState = initial_state(setup.fleet, setup.mechanism)
        self.at_s = 0.0  # seconds of the run by the own clock, without the time between restarts
        self.zero_s: float | None = None  # when round 1 opened: time 0 of `control.clock_s`
        self.stands_since_s: float | None = None  # since then the clock stands; None: it runs
        self.seq = 0  # number of reports that had an effect
        self.samples = 0  # samples trained on since the last round closed
        self.trainings: list[Training] = []  # trainings that ended since the last round closed
        self.next_evaluation_s = setup.evaluate.every_s
        n = setup.fleet.workers
        self.training_round = np.full(n, -1)  # round whose order started the newest training
        self.trained_round = np.full(n, -1)  # the same for the newest training that ended
        self.memories = first_memories(setup.recorders, n)
        self.recent_s: deque[float] = deque(maxlen=RECENT_ROUNDS)  # real seconds of closed rounds
        self.exchange_from_s: dict[int, float] = {}  # earliest start of a node's exchange
        self.restarted_s: dict[int, float] = {}  # when the newest process of a node joined
        self.pending = PendingActions()

    def clock_s(self, at_s: float) -> float:
        """Return the emulated seconds since round 1 opened, without those in which it stood."""
        if self.zero_s is None:
            return 0.0
        until_s = at_s if self.stands_since_s is None else min(at_s, self.stands_since_s)
        return (until_s - self.zero_s) / self.params.time_scale

    def stop_clock(self, since_s: float) -> None:
        """Let the clock stand since the last commit of the coordinator before this one."""
        self.stands_since_s = since_s

    def start_clock(self) -> None:
        """Let the clock run on: what was measured before it stood moves by the time it stood."""
        since_s, self.stands_since_s = self.stands_since_s, None
        if since_s is None:
            return
        stood_s = self.at_s - since_s
        if self.zero_s is not None:
            self.zero_s += stood_s
        absent = [m.node for m in self.members if m.state != "JOINED"]
        self.observations.postpone(since_s, stood_s, absent)
        self.write(MetaLine(STANDS, ""))
        self.write_state()

    # Actions ------------------------------------------------------------------------------------

    def send_now(self, name: str, message: ToWorker) -> None:
        """Send a message immediately."""
        self.pending.immediate.append(SendToMember(name, message))

    def send_after_commit(self, name: str, message: ToWorker, data: bytes = b"") -> None:
        """Send a message after the next commit; `data` is the encoded message, if known."""
        self.pending.after_commit.append(SendToMember(name, message, data))

    def write(self, *lines: Line) -> None:
        """Add lines to the next commit."""
        self.pending.lines.extend(lines)

    def write_state(self) -> None:
        """Add the state, as it is at the end of this event, to the next commit."""
        self.pending.save_state = True

    def write_member(self, member: Member | None) -> None:
        """Add a changed member to the next commit; None: nothing changed."""
        if member is not None:
            self.write(
                WorkerLine(
                    member.name,
                    member.node,
                    member.state,
                    member.incarnation,
                    member.address,
                    member.note,
                    self.at_s,
                )
            )

    # Questions and changes ----------------------------------------------------------------------

    def present(self) -> Bools:
        """Return which nodes take part in a round that opens now, [nodes]."""
        here = np.zeros(self.setup.fleet.nodes, bool)
        for member in self.members:
            if member.node < len(here):
                left_out = member.disk_full or self.failures.is_excluded(member.node, self.at_s)
                here[member.node] = member.state == "JOINED" and not left_out
        return here

    def training_started(self, node: int, order: Execute) -> None:
        """Register that a worker has mixed and now trains."""
        if node < self.setup.fleet.workers and order.round > self.training_round[node]:
            self.training_round[node] = order.round
            self.observations.training_started(node, order.steps, self.at_s)

    def count_trainings(self, steps: Mapping[int, int]) -> None:
        """Let recorders count trainings that may start now, by worker.

        The commit that holds the counts comes before the message that starts the trainings.
        """
        workers, counts = ints([*steps]), ints([*steps.values()])
        self.remember(count_trainings(self.setup.recorders, self.memories, workers, counts))

    def remember(self, memories: Memories) -> None:
        """Keep what recorders remember now."""
        if any(new is not old for new, old in zip(memories, self.memories, strict=True)):
            self.memories = memories
            self.write(KeptLine(MEMORIES, write_blob(memories)))

    def worker_joined(self, node: int, join: Join, restarted: bool, warm: bool) -> None:
        """Register the running training and the mailbox of a worker that joins."""
        observations = self.observations
        if node >= self.setup.fleet.workers:
            return
        observations.mailbox_reported(node, join.mail, self.control.t)
        if restarted:
            self.restarted_s[node] = self.at_s
            self.failures.reported(node, self.at_s)
        starts = warm and join.number == -1
        if starts:
            self.training_round[node] = max(self.training_round[node], 0)
        if starts and (restarted or join.phase != "training"):
            steps = int(self.setup.steps[node])
            observations.training_started(node, steps, self.at_s)
            self.count_trainings({node: steps})
        elif join.phase == "training" and restarted:
            steps = int(observations.training_steps[node])
            observations.training_started(node, steps, self.at_s)
            self.count_trainings({node: steps})  # the result of the first attempt may be known
        elif join.phase == "idle" and math.isnan(observations.began_s[node]):
            observations.became_idle(node, self.at_s)

    # Persistence --------------------------------------------------------------------------------

    def to_blob(self) -> bytes:
        """Encode everything that a restarted coordinator needs."""
        return write_blob(
            {
                "control": self.control,
                "observations": self.observations.to_tree(),
                "strikes": [tuple(s) for s in self.strikes.all()],
                "failures": self.failures.to_list(),
                "refuted": [tuple(s) for s in self.strikes.all_refuted()],
                "seq": self.seq,
                "zero_s": self.zero_s,
                "samples": self.samples,
                "trainings": self.trainings,
                "next_evaluation_s": self.next_evaluation_s,
                "recent_s": list(self.recent_s),
                "training_round": self.training_round,
                "trained_round": self.trained_round,
            }
        )

    def restore(self, blob: bytes) -> None:
        """Continue from a state that the ledger holds."""
        stored: dict[str, Any] = read_blob(blob)
        self.control = stored["control"]
        self.observations.restore(stored["observations"])
        self.observations.drop_impossible_mail(self.control.t)
        self.failures.restore(stored["failures"])
        self.strikes = Strikes(
            self.params.guards,
            self.setup.fleet.nodes,
            [Strike(*s) for s in stored["strikes"]],
            [Strike(*s) for s in stored["refuted"]],
        )
        self.seq, self.zero_s, self.samples = stored["seq"], stored["zero_s"], stored["samples"]
        self.trainings = stored["trainings"]
        self.next_evaluation_s = stored["next_evaluation_s"]
        self.recent_s.extend(stored["recent_s"])
        self.training_round = stored["training_round"]
        self.trained_round = stored["trained_round"]


class CommitBatcher:
    """Turns the pending actions of an event into actions with at most one commit.

    A commit that the disk refused is held back and retried together with later lines. Actions that
    depend on it wait as well.
    """

    def __init__(self) -> None:
        self._held: Commit | None = None
        self._retry_s = -math.inf

    @property
    def is_blocked(self) -> bool:
        """Whether a refused commit waits for its retry."""
        return self._held is not None

    def failed(self, commit: Commit, at_s: float) -> None:
        """Hold a refused commit back."""
        self._held, self._retry_s = commit, at_s + RETRY_S

    def actions(self, state: CoordinatorState) -> list[CoordinatorAction]:
        """Return the actions of this event, in order."""
        pending = state.pending
        if pending.save_state:
            state.write(KeptLine("state", state.to_blob()))
        lines, after = tuple(pending.lines), tuple(pending.after_commit)
        if self._held is not None:
            lines = (*self._held.entries, *lines)
            after = (*self._held.after_commit, *after)
            if state.at_s < self._retry_s:
                self._held = Commit(lines, after)
                return pending.immediate
        if not lines:
            return [*pending.immediate, *after]
        self._held = None
        commit = Commit((*lines, MetaLine("at_s", repr(state.at_s))), after)
        return [*pending.immediate, commit]
