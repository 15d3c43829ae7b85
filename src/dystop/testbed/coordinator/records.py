"""Records of closed rounds: published in order, each with its score or after `score_s` without.

A record waits for the score of its round at most `score_s` seconds and then leaves, saying that the
score is missing. A score that comes later is published on its own (`PublishLateScore`).
"""

import json
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from dystop.control.round import record_of, with_score
from dystop.control.stopping import ends_run, median_loss, stop_reason
from dystop.record import RoundRecord
from dystop.recorders import read_record
from dystop.recorders.recorder import measured
from dystop.testbed.coordinator.evaluations import ANSWER, Evaluations
from dystop.testbed.coordinator.rounds import ClosedRound
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.events import PublishLateScore, PublishRecord
from dystop.testbed.ledger.tables import (
    KeptLine,
    MetaLine,
    RecordLine,
    Restored,
    read_blob,
    text_of,
)
from dystop.testbed.protocol.codec import decode
from dystop.testbed.protocol.messages import IncidentKind, NotTestable, Scored
from dystop.types import Score, View
from dystop.world.trace import observed_part

NoScore = Literal[
    "late",  # no answer within `score_s`; `late_scores.jsonl` may hold it
    "skipped",  # the observer was busy until a newer round was due
    "not testable",  # the observer got no model
    "no observer",
]


@dataclass
class HeldRecord:
    """A record that is not published yet."""

    line: RecordLine
    record: RoundRecord
    trace_outcome: dict[str, Any]
    until_s: float = -math.inf  # published then, with or without a score; -inf: it waits for none


class Records:
    """Unpublished records by round, oldest first."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self.evaluations = Evaluations(state)
        self.held: dict[int, HeldRecord] = {}
        self.stop_reason = ""  # why no further round opens
        self._left: dict[int, RecordLine] = {}  # published without the score that is still due
        self._views: dict[int, View] = {}  # first halves of the lines of the trace
        self._published: dict[int, RecordLine] = {}  # but not yet marked in the ledger
        self._late: dict[int, RoundRecord] = {}  # scored after publication, not yet published again
        self._late_published: list[int] = []  # but not yet marked in the ledger

    def add(self, closed: ClosedRound) -> None:
        """Hold the record of a closed round; request an evaluation if one is due."""
        state, evaluations, recorders = self.state, self.evaluations, self.state.setup.recorders
        before, after, done = closed.before, closed.after, closed.done
        is_due, observer = evaluations.take_due(before.t, after.clock_s), evaluations.observer
        done, until_s = replace(done, tested=is_due), -math.inf
        added, memories = measured(recorders, state.memories, done)
        state.remember(memories)
        record = record_of(before, after, done.view, done.plan, done.outcome, added)
        is_due &= state.params.observer
        if is_due and observer is None:
            record = _without_score(record, "no observer")
        elif is_due and observer is not None:
            until_s = state.at_s + state.params.timeouts.score_s
            for round_ in evaluations.add(record.round, until_s):
                self._give_up(round_, "skipped" if observer.session else "no observer")
        came = json.dumps(closed.trace_outcome, separators=(",", ":"))
        line = RecordLine(record.round, record.to_json(), came)
        state.write(line)
        self.held[record.round] = HeldRecord(line, record, closed.trace_outcome, until_s)
        self._stop_if_reached(record)

    def _stop_if_reached(self, record: RoundRecord) -> None:
        """Open no further round if a stop rule holds after this record."""
        state, reported = self.state, None
        if not state.params.observer:
            present = state.present()[: state.setup.fleet.workers]
            reported = median_loss(state.observations.loss[present])
        if not self.stop_reason and ends_run(state.setup.stop, record, reported):
            self.stop_reason = stop_reason(state.setup.stop, record, "emulated", reported)
            self.state.write(MetaLine("stopping", self.stop_reason))

    # Scores -------------------------------------------------------------------------------------

    def on_answer(self, message: Scored | NotTestable) -> None:
        """Apply the observer's answer; an answer that nobody waits for has no effect."""
        round_ = message.round
        if round_ not in self.evaluations.due:
            return
        for older in self.evaluations.answered(round_):
            self._give_up(older, "skipped")
        if isinstance(message, NotTestable):
            self._give_up(round_, "not testable")
            self._observer_incident("not_testable", f"round {round_}: {message.text}")
            return
        for node in message.missing:
            self.state.incidents.record(node, "not_testable", f"no model for round {round_}")
        if round_ in self.held:
            held = self.held[round_]
            held.line = replace(held.line, score=text_of(message))
            self.state.write(held.line)
        elif round_ in self._left:
            line = replace(self._left.pop(round_), score=text_of(message), published=1)
            self._published[round_] = line
            self.state.write(KeptLine(f"late:{round_}", b""))
            self._late[round_] = self._scored(read_record(line.record), line.score)

    def _give_up(self, round_: int, reason: NoScore) -> None:
        """Let a record leave without a score."""
        self._left.pop(round_, None)
        held = self.held.get(round_)
        if held is not None:
            held.record, held.until_s = _without_score(held.record, reason), -math.inf
            held.line = replace(held.line, record=held.record.to_json())
            self.state.write(held.line)

    def _observer_incident(self, kind: IncidentKind, text: str) -> None:
        observer = self.evaluations.observer
        if observer is not None:
            self.state.incidents.record(observer.node, kind, text)

    @property
    def waits_for_last_score(self) -> bool:
        """Whether the observer still evaluates a round whose record has left; bounded."""
        observer = self.evaluations.observer
        if not self._left or observer is None or observer.state == "DEAD":
            return False
        longer_s = (ANSWER - 1.0) * self.state.params.timeouts.score_s
        return self.state.at_s < max(self.evaluations.due[k] for k in self._left) + longer_s

    # Publication --------------------------------------------------------------------------------

    def _mark_published(self) -> None:
        for line in self._published.values():
            self.state.write(replace(line, published=1), KeptLine(f"seen:{line.round}", None))
        self.state.write(*(KeptLine(f"late:{round_}", None) for round_ in self._late_published))
        self._published, self._late_published = {}, []

    def publish_ready(self, *, mark: bool = True) -> None:
        """Publish, in order, the records that wait for nothing, and late scores.

        The next commit marks them as published, if the disk has not refused them (`mark`). A crash
        in between publishes a record twice rather than never.
        """
        state = self.state
        if mark:
            self._mark_published()
        while self.held:
            round_, held = next(iter(self.held.items()))
            if held.line.score is None and state.at_s < held.until_s:
                break
            self._publish(round_, held)
        for round_, record in self._late.items():
            state.pending.after_commit.append(PublishLateScore(record))
            self._late_published.append(round_)
            self._stop_if_reached(record)
        self._late = {}

    def _publish(self, round_: int, held: HeldRecord) -> None:
        if held.line.score is None and round_ in self.evaluations.due:
            held.record = _without_score(held.record, "late")
            held.line = replace(held.line, record=held.record.to_json())
            self.state.write(held.line)
            self._left[round_] = held.line
            self._observer_incident("slow", f"round {round_}: no score in time")
        del self.held[round_]
        record = self._scored(held.record, held.line.score)
        view = self._views.pop(round_, None)
        observed = {} if view is None else observed_part(view)
        trace = {**observed, **held.trace_outcome}
        self.state.pending.after_commit.append(PublishRecord(record, trace))
        self._published[round_] = held.line
        self._stop_if_reached(record)

    def remember_view(self, view: View) -> None:
        """Keep the first half of the trace line of a round that opens."""
        self._views[view.t] = view

    def restore(self, restored: Restored) -> None:
        """Restore the records and scores that the last coordinator had not published."""
        self.stop_reason = restored.finished
        self._views = {round_: read_blob(blob) for round_, blob in restored.seen.items()}
        self.evaluations.due = dict(restored.due)
        for line in restored.left:
            if line.score is None:
                self._left[line.round] = line
            else:
                self._late[line.round] = self._scored(read_record(line.record), line.score)
        for line in restored.waiting:
            record, came = read_record(line.record), json.loads(line.came)
            has_left = record.no_score is not None  # but may be missing in the run folder
            until_s = -math.inf if has_left else restored.due.get(line.round, -math.inf)
            self.held[line.round] = HeldRecord(line, record, came, until_s)
            # The last record may lack nothing but its score.
            self._stop_if_reached(record)

    def _scored(self, record: RoundRecord, score: str | None) -> RoundRecord:
        """Return a record with the score that the ledger holds, if there is one."""
        if score is None:
            return record
        scored = decode(score.encode(), "coordinator")
        assert isinstance(scored, Scored)
        return with_score(
            replace(record, no_score=None),
            Score(
                accuracy=scored.accuracy,
                accuracy_std=scored.accuracy_std,
                accuracy_global=scored.accuracy_global,
                loss=math.nan if scored.loss is None else scored.loss,
                loss_global=math.nan if scored.loss_global is None else scored.loss_global,
                diverged=scored.diverged,
                tested=scored.tested or None,
                name=self.state.setup.score_name,
                worker_accuracy=scored.worker_accuracy,
                worker_loss=scored.worker_loss,
            ),
        )


def _without_score(record: RoundRecord, reason: NoScore) -> RoundRecord:
    return replace(record, no_score=reason)
