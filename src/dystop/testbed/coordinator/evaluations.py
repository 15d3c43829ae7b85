"""The evaluations that are due: the observer gets one at a time, and always the newest."""

from dystop.control.stopping import is_evaluation_due, is_over, next_evaluation_s
from dystop.testbed.coordinator.members import Member
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.ledger.tables import KeptLine, write_blob
from dystop.testbed.names import OBSERVER
from dystop.testbed.protocol.messages import Evaluate

ANSWER = 4.0  # the longest wait for an answer of the observer, in `score_s`


class Evaluations:
    """Rounds that the observer has not answered for, oldest first.

    While the observer evaluates one round, the next one that is due waits. If another round becomes
    due meanwhile, it takes that place, and the round that waited is skipped. So an observer that is
    slower than the rounds tests fewer of them, and never one whose models are long gone. There are
    never more than two rounds here.
    """

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self.due: dict[int, float] = {}  # until when the record of a round waits, by round
        self._asked = 0  # the round that the observer evaluates now; 0: none
        self._asked_until_s = 0.0  # another round is requested then, even without an answer

    def take_due(self, t: int, clock_s: float) -> bool:
        """Return whether an evaluation is due after round t, and schedule the next one.

        One is due at the configured intervals, and at the end.
        """
        state, rules = self.state, self.state.setup.evaluate
        is_due = is_evaluation_due(rules, t, clock_s, state.next_evaluation_s)
        if is_due:
            state.next_evaluation_s = next_evaluation_s(rules, clock_s)
        return is_due or is_over(state.setup.stop, t + 1, clock_s)

    @property
    def observer(self) -> Member | None:
        """The observer, if it has joined and not left; it may be about to restart."""
        observer = self.state.members.get(OBSERVER)
        if observer is None or observer.state not in ("JOINED", "SUSPECT", "DEAD"):
            return None
        return observer

    def add(self, round_: int, until_s: float) -> list[int]:
        """Register that a round is due; return the rounds that are skipped in its favour."""
        evaluating = self._asked if self.observer is not None and self.observer.session else 0
        skipped = [other for other in self.due if other != evaluating]
        self._forget(skipped)
        self.due[round_] = until_s
        self.state.write(KeptLine(f"due:{round_}", write_blob(until_s)))
        return skipped

    def ask(self) -> bool:
        """Ask the observer for the newest round if it is free; return whether it was asked."""
        state, n = self.state, self.state.setup.fleet.workers
        is_busy = self._asked and state.at_s < self._asked_until_s
        if not self.due or is_busy or max(self.due) == self._asked:
            return False
        if self.observer is None or not self.observer.session:
            return False
        present = sorted(m.node for m in state.members if m.node < n and m.state == "JOINED")
        if present:
            self._asked = max(self.due)
            self._asked_until_s = state.at_s + ANSWER * state.params.timeouts.score_s
            state.send_after_commit(OBSERVER, Evaluate(state.epoch, self._asked, tuple(present)))
        return bool(present)

    def answered(self, round_: int) -> list[int]:
        """Register an answer; return older rounds, which will not be answered any more."""
        if round_ == self._asked:
            self._asked = 0
        older = [other for other in self.due if other < round_]
        self._forget([*older, round_])
        return older

    def observer_joined(self) -> None:
        """Register a new session of the observer: it is asked for the newest round again."""
        self._asked = 0

    def _forget(self, rounds: list[int]) -> None:
        for round_ in rounds:
            self.due.pop(round_, None)
            self.state.write(KeptLine(f"due:{round_}", None))
