"""The diary of a node: `history.jsonl`, append-only, read by `audit.check`.

A shell (the real node, or the virtual one of the tests) owns one `Watch` per process of a node and
tells it four things: `watch.event(event)` before the machine handles an event, `watch.action(...)`
right before an action is carried out (those in `then` of a `Save` only once they are due),
`watch.served(...)` right before a model leaves, and `watch.started(...)` once after the start. So
a line is there before anybody else can see its effect, and what was saved but not noted when a
process died is noted by the next one, because unacknowledged reports are repeated. The same fact
may therefore stand in the file twice.

Lines are JSON objects with a `kind` (fields in brackets):

start      a process began (incarnation, version, number, round, epoch: what its checkpoint holds)
epoch      a higher epoch of the coordinator is obeyed from now on (epoch)
order      an order came in (round, epoch, train, state: as in `ExecuteAck`)
used       a fetched model went into a mix or the mailbox (round, stage, node, version, digest)
rejected   a model did not come or was refused (round, stage, node, code)
applied    the exchange of an order is over and saved (round, version, number)
failed     an order could not be carried out (round, text)
training   a training begins (number, start: digest of the model that it begins with)
trained    a training is over, published and saved (round, number, version, digest)
published  a model is served for the first time (version, number, round, stage, form, digest);
           stage > 0: as it stood within a round; form: "model", "delta", or "masked:seed:share"
sample     resources of the process (rss_bytes, descriptors, threads)
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dystop.testbed.events import Publication, Save, Say, Told, Train
from dystop.testbed.protocol.messages import Execute, ExecuteAck, PullRequest, Report

HISTORY_FILE = "history.jsonl"
Line = dict[str, Any]
Note = Callable[..., None]


class History:
    """An append-only file of JSON lines; each is handed to the system before `note` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend_tail(path)
        self._file = path.open("a", encoding="utf-8")

    def note(self, kind: str, **fields: Any) -> None:
        """Append a line. A full disk is no reason to stop a worker: the line is lost."""
        line = json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n"
        try:
            self._file.write(line)
            self._file.flush()
        except (OSError, ValueError):  # ValueError: closed while a thread was still at it
            return

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _mend_tail(path: Path) -> None:
    """End the half line that a crash may have left, so that the next line stands on its own."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def read_history(path: Path) -> list[Line]:
    """All whole lines of a diary; a line that a crash cut short is left out."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return list(_lines(text))


def _lines(text: str) -> Iterator[Line]:
    for row in text.splitlines():
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("kind"), str):
            yield line


class Watch:
    """Turns what a worker machine is told and wants done into lines of its diary.

    `note` is `History(path).note`, or in memory a function that appends to a list.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._epoch = -1
        self._orders: dict[int, Execute] = {}
        self._reported: set[tuple[int, str]] = set()
        self._served: set[tuple[int, int, int, str]] = set()

    def started(self, **fields: Any) -> None:
        """A process began, with what its checkpoint holds."""
        self._note("start", **fields)

    def event(self, event: object) -> None:
        """The machine is about to handle this."""
        if isinstance(event, Told) and isinstance(event.message, Execute):
            self._orders[event.message.round] = event.message

    def action(self, action: object) -> None:
        """The shell is about to carry this out."""
        if isinstance(action, Save):
            self._saw(action.state.epoch)
        elif isinstance(action, Train):
            start = hashlib.sha256(action.vector.tobytes()).hexdigest()
            self._note("training", number=action.number, start=start)
        elif isinstance(action, Say) and isinstance(action.message, ExecuteAck):
            self._acked(action.message)
        elif isinstance(action, Say) and isinstance(action.message, Report):
            self._report(action.message)

    def served(self, publication: Publication, request: PullRequest, digest: str) -> None:
        """A model is about to leave in the form that was asked for."""
        stage = request.stage if request.exact else 0
        form = form_of(request)
        key = (publication.version, request.round if stage else 0, stage, form)
        if key in self._served:
            return
        self._served.add(key)
        self._note(
            "published",
            version=publication.version,
            number=publication.number,
            round=publication.round,
            stage=stage,
            form=form,
            digest=digest,
        )

    def _saw(self, epoch: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            self._note("epoch", epoch=epoch)

    def _acked(self, ack: ExecuteAck) -> None:
        order = self._orders.pop(ack.round, None)
        if order is None:
            return
        self._note("order", round=ack.round, epoch=order.epoch, train=order.train, state=ack.state)
        self._saw(order.epoch)

    def _report(self, report: Report) -> None:
        if (report.round, report.kind) in self._reported:
            return
        self._reported.add((report.round, report.kind))
        for line in lines_of(report):
            self._note(**line)


def form_of(request: PullRequest) -> str:
    """What a model looks like on the wire: whole, as an update, or masked."""
    if request.mask is not None:
        return f"masked:{request.mask[0]}:{request.mask[1]!r}"
    return "delta" if request.delta else "model"


_NAMES: Mapping[str, str] = {"mixed": "applied", "trained": "trained", "failed": "failed"}


def lines_of(report: Report) -> list[Line]:
    """What a report says, as lines of the diary: models first, then the end of the order."""
    where = {"round": report.round}
    used = [
        {"kind": "used", **where, "stage": u.stage, "node": u.node, "version": u.version,
         "digest": u.digest}
        for u in report.used
    ]  # fmt: skip
    refused = [
        {"kind": "rejected", **where, "stage": r.stage, "node": r.node, "code": r.code}
        for r in report.rejected
    ]
    last: Line = {"kind": _NAMES[report.kind], **where}
    if report.kind == "failed":
        return [*used, *refused, {**last, "text": report.text}]
    last |= {"version": report.version, "number": report.number}
    if report.kind == "trained":
        last["digest"] = report.digest
    return [*used, *refused, last]
