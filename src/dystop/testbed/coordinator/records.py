"""Records of closed rounds: each waits for its evaluation, and all are published in order."""

import json
import math
from dataclasses import dataclass, replace
from typing import Any

from dystop.control.round import with_score
from dystop.control.stopping import (
    ends_run,
    is_evaluation_due,
    next_evaluation_s,
    stop_reason,
)
from dystop.record import RoundRecord, from_json
from dystop.testbed.coordinator.rounds import ClosedRound
from dystop.testbed.coordinator.setup import OBSERVER
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.events import PublishRecord
from dystop.testbed.ledger.tables import KeptLine, RecordLine, Restored, read_blob, text_of
from dystop.testbed.protocol.codec import decode
from dystop.testbed.protocol.messages import Evaluate, Scored
from dystop.types import Score, View
from dystop.world.trace import observed_part

SCORE_S = 30.0  # longest wait for an evaluation


@dataclass
class HeldRecord:
    """A record that is not published yet."""

    line: RecordLine
    until_s: float  # published without a score then; -inf: no evaluation was requested
    record: RoundRecord
    trace_outcome: dict[str, Any]


class Records:
    """Unpublished records by round, oldest first."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self.held: dict[int, HeldRecord] = {}
        self.stop_reason = ""  # why no further round opens
        self._views: dict[int, View] = {}  # first halves of the lines of the trace
        self._published: list[RecordLine] = []  # published, but not yet marked in the ledger

    def add(self, closed: ClosedRound) -> None:
        """Hold the record of a closed round; request an evaluation if one is due."""
        state, record = self.state, closed.record
        came = json.dumps(closed.trace_outcome, separators=(",", ":"))
        line = RecordLine(record.round, record.to_json(), came)
        state.write(line)
        is_wanted = self._is_evaluation_due(record) and state.params.observer
        until_s = state.at_s + SCORE_S if is_wanted else -math.inf
        self.held[record.round] = HeldRecord(line, until_s, record, closed.trace_outcome)
        if is_wanted:
            self._request_evaluation(record.round)
        self.stop_reason = self.stop_reason or self._reason_to_stop(record)

    def _is_evaluation_due(self, record: RoundRecord) -> bool:
        """Whether all models are evaluated now: at the configured intervals, and at the end."""
        state, rules = self.state, self.state.setup.evaluate
        is_due = is_evaluation_due(rules, record.round, record.clock_s, state.next_evaluation_s)
        if is_due:
            state.next_evaluation_s = next_evaluation_s(rules, record.clock_s)
        return is_due or ends_run(state.setup.stop, record)

    def _reason_to_stop(self, record: RoundRecord) -> str:
        """Return why no round follows this one; empty: another round follows."""
        stop = self.state.setup.stop
        return stop_reason(stop, record, "emulated") if ends_run(stop, record) else ""

    def _request_evaluation(self, round_: int) -> None:
        """Ask the observer to evaluate the models of all present workers."""
        state, n = self.state, self.state.setup.fleet.workers
        present = [m.node for m in state.members if m.node < n and m.state == "JOINED"]
        observer = state.members.get(OBSERVER)
        if observer is not None and observer.session and present:
            evaluate = Evaluate(state.epoch, round_, tuple(sorted(present)))
            state.send_after_commit(OBSERVER, evaluate)

    def observer_joined(self) -> None:
        """Request the missing evaluations again."""
        for round_, held in self.held.items():
            if held.line.score is None and held.until_s > self.state.at_s:
                self._request_evaluation(round_)

    def on_score(self, message: Scored) -> None:
        """Store a score; later records may wait longer, because the observer works in order."""
        held = self.held.get(message.round)
        if held is None or held.line.score is not None or held.until_s == -math.inf:
            return
        held.line = replace(held.line, score=text_of(message))
        self.state.write(held.line)
        for other in self.held.values():
            if other.until_s > -math.inf:
                other.until_s = max(other.until_s, self.state.at_s + SCORE_S)

    def publish_ready(self) -> None:
        """Publish, in order, the records that wait for nothing.

        The next commit marks them as published. A crash in between publishes a record twice rather
        than never.
        """
        state = self.state
        for line in self._published:
            state.write(replace(line, published=1), KeptLine(f"seen:{line.round}", None))
        self._published = []
        while self.held:
            round_, held = next(iter(self.held.items()))
            if held.line.score is None and state.at_s < held.until_s:
                return
            del self.held[round_]
            record = _scored(held.record, held.line.score)
            view = self._views.pop(round_, None)
            observed = {} if view is None else observed_part(view)
            state.pending.after_commit.append(
                PublishRecord(record, {**observed, **held.trace_outcome})
            )
            self._published.append(held.line)
            self.stop_reason = self.stop_reason or self._reason_to_stop(record)

    def remember_view(self, view: View) -> None:
        """Keep the first half of the trace line of a round that opens."""
        self._views[view.t] = view

    def restore(self, restored: Restored) -> None:
        """Restore the records that the last coordinator had not published."""
        self.stop_reason = restored.finished
        self._views = {round_: read_blob(blob) for round_, blob in restored.seen.items()}
        for line in restored.waiting:
            is_wanted = line.score is None and self.state.params.observer
            until_s = self.state.at_s + SCORE_S if is_wanted else -math.inf
            record, came = from_json(line.record), json.loads(line.came)
            self.held[line.round] = HeldRecord(line, until_s, record, came)
            # The last record may lack nothing but its score.
            self.stop_reason = self.stop_reason or self._reason_to_stop(record)


def _scored(record: RoundRecord, score: str | None) -> RoundRecord:
    """Return a record with the score that the ledger holds, if there is one."""
    if score is None:
        return record
    scored = decode(score.encode(), "coordinator")
    assert isinstance(scored, Scored)
    return with_score(
        record,
        Score(
            accuracy=scored.accuracy,
            accuracy_std=scored.accuracy_std,
            accuracy_global=scored.accuracy_global,
            loss=math.nan if scored.loss is None else scored.loss,
            loss_global=math.nan if scored.loss_global is None else scored.loss_global,
            diverged=scored.diverged,
        ),
    )
