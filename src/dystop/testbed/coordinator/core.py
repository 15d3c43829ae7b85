"""What the parts of the coordinator machine share: books, members, measurements, and the outbox."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dystop.control.round import initial_state
from dystop.sparse import Bools
from dystop.testbed.coordinator.members import Member, Members
from dystop.testbed.coordinator.observations import Observations
from dystop.testbed.coordinator.round_reports import Training
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.coordinator.strikes import Strike, Strikes
from dystop.testbed.events import Commit, CoordinatorAction, Tell
from dystop.testbed.ledger.tables import KeptLine, Line, MetaLine, WorkerLine, read_blob, write_blob
from dystop.testbed.protocol.messages import Execute, ToWorker
from dystop.types import ControlState

RETRY_S = 1.0  # between two tries to write


@dataclass
class PendingActions:
    """What is to be done: at once, and after the lines are on the disk."""

    now: list[CoordinatorAction] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    then: list[CoordinatorAction] = field(default_factory=list)
    state: bool = False  # whether what else there is to go on from has changed


class Core:
    """State that several parts of the machine read and write."""

    def __init__(self, setup: CoordinatorSetup, epoch: int) -> None:
        self.setup, self.epoch = setup, epoch
        self.params = setup.params
        self.members = Members(setup.members, setup.params.timeouts)
        self.probe = Observations(setup.fleet, setup.steps, setup.params)
        self.trust = Strikes(setup.params.guards)
        self.books: ControlState = initial_state(setup.fleet, setup.mechanism)
        self.at_s = 0.0  # seconds of the run, by our own clock, without the time between restarts
        self.zero_s: float | None = None  # when round 1 opened: time 0 of the books
        self.seq = 0  # reports that took effect
        self.samples = 0  # trained on since the last round closed
        self.trained: list[Training] = []  # trainings that ended since then
        self.next_evaluation_s = setup.evaluate.every_s
        n = setup.fleet.workers
        self.training_round = np.full(n, -1)  # whose order began the newest training
        self.trained_round = np.full(n, -1)  # whose training has ended
        self.since_s: dict[int, float] = {}  # since when a node could have been exchanging
        self.out = PendingActions()

    # Time ---------------------------------------------------------------------------------------

    def clock_s(self, at_s: float) -> float:
        """Emulated seconds since round 1 opened."""
        zero = at_s if self.zero_s is None else self.zero_s
        return (at_s - zero) / self.params.time_scale

    # What is said and written -------------------------------------------------------------------

    def tell(self, name: str, message: ToWorker) -> None:
        """Say something at once."""
        self.out.now.append(Tell(name, message))

    def tell_then(self, name: str, message: ToWorker, data: bytes = b"") -> None:
        """Say something after what is known now is on the disk; `data` if it is encoded already."""
        self.out.then.append(Tell(name, message, data))

    def keep(self, *lines: Line) -> None:
        """Write something down with the next commit."""
        self.out.lines.extend(lines)

    def keep_state(self) -> None:
        """Write down with the next commit what the machine goes on from, as it is by then."""
        self.out.state = True

    def close_lines(self) -> None:
        """No event follows before the next commit."""
        if self.out.state:
            self.keep(KeptLine("state", self.state()))

    def note(self, member: Member | None) -> None:
        """Write down a member that has changed."""
        if member is not None:
            self.keep(
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

    def present(self) -> Bools:
        """Which nodes take part in a round that opens now, [nodes]."""
        here = np.zeros(self.setup.fleet.nodes, bool)
        for member in self.members:
            if member.node < len(here):
                here[member.node] = member.state == "JOINED" and not member.disk_full
        return here

    def began(self, node: int, order: Execute) -> None:
        """A worker has mixed and begins to train."""
        if node < self.setup.fleet.workers and order.round > self.training_round[node]:
            self.training_round[node] = order.round
            self.probe.began(node, order.steps, self.at_s)

    # What the ledger keeps ----------------------------------------------------------------------

    def state(self) -> bytes:
        """All of it, to go on from."""
        return write_blob(
            {
                "books": self.books,
                "probe": self.probe.state(),
                "strikes": [tuple(s) for s in self.trust.strikes()],
                "seq": self.seq,
                "zero_s": self.zero_s,
                "samples": self.samples,
                "trained": self.trained,
                "next_evaluation_s": self.next_evaluation_s,
                "training_round": self.training_round,
                "trained_round": self.trained_round,
            }
        )

    def recall(self, blob: bytes) -> None:
        """Go on from what the ledger holds."""
        kept: dict[str, Any] = read_blob(blob)
        self.books = kept["books"]
        self.probe.recall(kept["probe"])
        self.trust = Strikes(self.params.guards, [Strike(*s) for s in kept["strikes"]])
        self.seq, self.zero_s, self.samples = kept["seq"], kept["zero_s"], kept["samples"]
        self.trained = kept["trained"]
        self.next_evaluation_s = kept["next_evaluation_s"]
        self.training_round = kept["training_round"]
        self.trained_round = kept["trained_round"]


class CommitBatcher:
    """Turns outboxes into actions, with one commit each; holds back what the disk refuses.

    A shell reports a refused commit before anything else happens. So whatever else comes first
    says that the last one was written.
    """

    def __init__(self) -> None:
        self._last: Commit | None = None
        self._held: Commit | None = None
        self._retry_s = -math.inf

    @property
    def is_blocked(self) -> bool:
        """Whether something waits for room on the disk."""
        return self._held is not None

    def written(self) -> None:
        """The last commit, if any, is on the disk."""
        self._last = None

    def refused(self, at_s: float) -> None:
        """The disk refused the last commit; it is tried again, together with what follows."""
        if self._last is not None:
            self._held, self._last = self._last, None
            self._retry_s = at_s + RETRY_S

    def actions(self, out: PendingActions, at_s: float) -> list[CoordinatorAction]:
        """What the shell has to do."""
        lines, then = tuple(out.lines), tuple(out.then)
        if self._held is not None:
            lines, then = (*self._held.entries, *lines), (*self._held.then, *then)
            if at_s < self._retry_s:
                self._held = Commit(lines, then)
                return out.now
        if not lines:
            return [*out.now, *then]
        self._held = None
        self._last = Commit((*lines, MetaLine("at_s", repr(at_s))), then)
        return [*out.now, self._last]
