"""History on its way out: records are held back until their score has come, and leave in order."""

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
from dystop.testbed.coordinator.core import Core
from dystop.testbed.coordinator.rounds import ClosedRound
from dystop.testbed.coordinator.setup import OBSERVER
from dystop.testbed.events import Publish
from dystop.testbed.ledger.tables import (
    KeptLine,
    MetaLine,
    RecordLine,
    Restored,
    read_blob,
    text_of,
)
from dystop.testbed.protocol.codec import decode
from dystop.testbed.protocol.messages import Evaluate, Scored
from dystop.types import Score, View
from dystop.world.trace import seen_part

SCORE_S = 30.0  # longest wait for a score


@dataclass
class Waiting:
    """A record that has not left yet."""

    line: RecordLine
    until_s: float  # it leaves without a score then; -inf: none is wanted
    record: RoundRecord
    came: dict[str, Any]


class Records:
    """Records that wait, by round, oldest first."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.waiting: dict[int, Waiting] = {}
        self.reason = ""  # why the run is over
        self._seen: dict[int, View] = {}  # first halves of lines of the trace
        self._left: list[RecordLine] = []  # handed on, but not written down as such

    def add(self, closed: ClosedRound) -> None:
        """A round was closed; its models are tested where that is due."""
        core, record = self.core, closed.record
        came = json.dumps(closed.came, separators=(",", ":"))
        line = RecordLine(record.round, record.to_json(), came)
        core.keep(line)
        wanted = self._is_due(record) and core.params.observer
        until_s = core.at_s + SCORE_S if wanted else -math.inf
        self.waiting[record.round] = Waiting(line, until_s, record, closed.came)
        if wanted:
            self._ask(record.round)
        self.reason = self.reason or self._over(record)

    def _is_due(self, record: RoundRecord) -> bool:
        """Whether all models are tested now: at the chosen intervals, and at the end."""
        core, rules = self.core, self.core.setup.evaluate
        due = is_evaluation_due(rules, record.round, record.clock_s, core.next_evaluation_s)
        if due:
            core.next_evaluation_s = next_evaluation_s(rules, record.clock_s)
        return due or ends_run(core.setup.stop, record)

    def _over(self, record: RoundRecord) -> str:
        """Return why no round follows this one; empty: one does."""
        stop = self.core.setup.stop
        return stop_reason(stop, record, "emulated") if ends_run(stop, record) else ""

    def _ask(self, round_: int) -> None:
        """Have the observer test everybody who is there."""
        core, n = self.core, self.core.setup.fleet.workers
        here = [m.node for m in core.members if m.node < n and m.state == "JOINED"]
        observer = core.members.get(OBSERVER)
        if observer is not None and observer.session and here:
            core.tell_then(OBSERVER, Evaluate(core.epoch, round_, tuple(sorted(here))))

    def observer_joined(self) -> None:
        """Ask again for what is still wanted."""
        for round_, held in self.waiting.items():
            if held.line.score is None and held.until_s > self.core.at_s:
                self._ask(round_)

    def scored(self, message: Scored) -> None:
        """A score has come; those behind it get more time, for an observer takes one by one."""
        held = self.waiting.get(message.round)
        if held is None or held.line.score is not None or held.until_s == -math.inf:
            return
        held.line = replace(held.line, score=text_of(message))
        self.core.keep(held.line)
        for other in self.waiting.values():
            if other.until_s > -math.inf:
                other.until_s = max(other.until_s, self.core.at_s + SCORE_S)

    def leave(self) -> None:
        """Hand on, in order, what has nothing to wait for any more.

        That they have left is written down with the next commit, so that a crash in between makes
        a record leave twice rather than never.
        """
        core = self.core
        for line in self._left:
            core.keep(replace(line, published=1), KeptLine(f"seen:{line.round}", None))
        self._left = []
        while self.waiting:
            round_, held = next(iter(self.waiting.items()))
            if held.line.score is None and core.at_s < held.until_s:
                return
            del self.waiting[round_]
            record = _scored(held.record, held.line.score)
            core.out.then.append(Publish(record, {**self._first_half(round_), **held.came}))
            self._left.append(held.line)
            self.reason = self.reason or self._over(record)

    def _first_half(self, round_: int) -> dict[str, Any]:
        seen = self._seen.pop(round_, None)
        return {} if seen is None else seen_part(seen)

    def remember(self, seen: View) -> None:
        """First half of the trace line of a round that opens."""
        self._seen[seen.t] = seen

    def recall(self, restored: Restored) -> None:
        """What had not left when the last coordinator ended."""
        self.reason = restored.finished
        self._seen = {round_: read_blob(blob) for round_, blob in restored.seen.items()}
        for line in restored.waiting:
            wanted = line.score is None and self.core.params.observer
            until_s = self.core.at_s + SCORE_S if wanted else -math.inf
            record, came = from_json(line.record), json.loads(line.came)
            self.waiting[line.round] = Waiting(line, until_s, record, came)
            self.reason = self.reason or self._over(record)  # the last may only lack its score

    def finished(self) -> MetaLine:
        """What the ledger is told at the end."""
        return MetaLine("finished", self.reason)


def _scored(record: RoundRecord, score: str | None) -> RoundRecord:
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
