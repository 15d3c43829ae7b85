"""The event log of a worker: `history.jsonl`, append-only, read by `audit.check`.

A driver (the real process, or the virtual one of the tests) owns one `EventLogger` per process of a
worker and calls it at four points: `event` before the machine handles an event, `action` just
before an action is executed (one that waits for a save only after that save), `served` just
before a model is sent, and `started` once at the start. A line is therefore in the log before
anybody else can see its effect. If a process dies after a save but before the line, the next
process writes the line, because it repeats unacknowledged reports. The same fact may therefore be
in the log twice.

Lines are JSON objects with a `kind` (fields in brackets):

start      a process started (incarnation, version, number, round, epoch: from its checkpoint)
epoch      a higher epoch of the coordinator is obeyed from now on (epoch)
order      an order arrived (round, epoch, train, state: as in `ExecuteAck`)
used       a pulled model was mixed or put into the mailbox (round, stage, node, version, digest)
rejected   a model did not arrive or was refused (round, stage, node, code)
applied    the exchange of an order is finished and saved (round, version, number)
failed     an order could not be executed (round, text)
training   a training starts (number, start: digest of its first model)
trained    a training is finished, published and saved (round, number, version, digest); with text:
           it failed, and the model of before stays published
published  a model is served for the first time (version, number, round, stage, form, digest);
           stage > 0: a snapshot within a round; form: "model", "delta", or "masked:seed:share";
           under a codec of differences "coded model:..." or "coded delta:..."
sample     resources of the process (rss_bytes, descriptors, threads)
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dystop.errors import RunFolderError
from dystop.foreign_files import LOG_BYTES, read_bounded
from dystop.storage import open_private
from dystop.strict_json import parse_json
from dystop.testbed.events import (
    MessageFromCoordinator,
    SaveCheckpoint,
    SendToCoordinator,
    StartTraining,
)
from dystop.testbed.protocol.messages import Execute, ExecuteAck, Report
from dystop.testbed.protocol.pulls import ModelHeader, PullRequest

HISTORY_FILE = "history.jsonl"
_STATM = Path("/proc/self/statm")
LogLine = dict[str, Any]
WriteLine = Callable[..., None]  # (kind, **fields)


class EventLog:
    """An append-only file of JSON lines; each line is flushed before `write` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        self._file = open(path, "a", encoding="utf-8", opener=open_private)  # noqa: SIM115

    def write(self, kind: str, **fields: Any) -> None:
        """Append a line. If the disk is full, the line is lost and the worker continues."""
        line = json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n"
        try:
            self._file.write(line)
            self._file.flush()
        except (OSError, ValueError):  # ValueError: the file was closed by another thread
            return

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _end_last_line(path: Path) -> None:
    """End the partial line that a crash may have left, so that the next line is whole."""
    if not path.exists() or not path.stat().st_size:
        return
    with open(path, "rb+", opener=open_private) as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def read_event_log(path: Path) -> list[LogLine]:
    """Return all whole lines of an event log; a partial line is skipped.

    Raises:
        RunFolderError: The file cannot be read, or a line lacks what its kind has.
    """
    try:
        content = read_bounded(path, LOG_BYTES) if path.exists() else b""
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
    return list(_lines(path, content.decode(errors="replace")))


_FIELDS: Mapping[str, Mapping[str, type]] = {  # what the checker reads of each kind
    "start": {"epoch": int},
    "epoch": {"epoch": int},
    "order": {"round": int, "epoch": int, "state": str},
    "used": {"round": int, "stage": int, "node": int, "version": int, "digest": str},
    "rejected": {"round": int, "stage": int, "node": int},
    "applied": {"round": int},
    "training": {"number": int, "start": str},
    "trained": {"round": int, "number": int, "version": int},
    "published": {"version": int, "number": int, "stage": int, "form": str, "digest": str},
}
_OPTIONAL: Mapping[str, type] = {"rss_bytes": int, "descriptors": int, "threads": int}


def _lines(path: Path, text: str) -> Iterator[LogLine]:
    for number, row in enumerate(text.split("\n"), 1):
        try:
            line = parse_json(row)
        except ValueError:  # a process died while it wrote this line
            continue
        if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
            continue
        if wrong := _wrong_field(line):
            raise RunFolderError(
                f"{path}: line {number} is damaged: {wrong} is missing or no value of its kind; "
                "restore the file, or remove it: what it would prove then counts as missing"
            )
        yield line


def _wrong_field(line: LogLine) -> str:
    """Return the name of a field that is not what its kind of line has; empty: none."""
    needed = _FIELDS.get(line["kind"], {})
    wrong = [name for name, kind in needed.items() if type(line.get(name)) is not kind]
    wrong += [n for n, kind in _OPTIONAL.items() if n in line and type(line[n]) is not kind]
    return min(wrong, default="")


class EventLogger:
    """Turns the events and actions of a worker machine into lines. Safe for several threads.

    `write` is `EventLog(path).write`, or a function that appends to a list.
    """

    def __init__(self, write: WriteLine) -> None:
        self._write_line = write
        self._lock = threading.Lock()
        self._epoch = -1
        self._orders: dict[int, Execute] = {}
        self._reported: set[tuple[int, str]] = set()
        self._served: set[tuple[int, int, int, str]] = set()

    def _write(self, kind: str, **fields: Any) -> None:
        with self._lock:
            self._write_line(kind, **fields)

    def started(self, **fields: Any) -> None:
        """Log the start of a process, with the content of its checkpoint."""
        self._write("start", **fields)

    def sampled(self) -> None:
        """Log the resources that this process uses now."""
        self._write("sample", **process_resources())

    def event(self, event: object) -> None:
        """Remember an order that the machine is about to handle."""
        if isinstance(event, MessageFromCoordinator) and isinstance(event.message, Execute):
            self._orders[event.message.round] = event.message

    def action(self, action: object) -> None:
        """Log an action that is about to be executed."""
        if isinstance(action, SaveCheckpoint):
            self._log_epoch(action.state.epoch)
        elif isinstance(action, StartTraining):
            start = hashlib.sha256(action.vector.tobytes()).hexdigest()
            self._write("training", number=action.number, start=start)
        elif isinstance(action, SendToCoordinator) and isinstance(action.message, ExecuteAck):
            self._log_order(action.message)
        elif isinstance(action, SendToCoordinator) and isinstance(action.message, Report):
            self._log_report(action.message)

    def served(self, header: ModelHeader, request: PullRequest) -> None:
        """Log a model that is about to be sent, once for each form.

        A public copy advances while its model stays the same, so its form names its content.
        """
        stage = request.stage if request.exact else 0
        form = form_of(request)
        if request.holds is not None:
            form = f"coded {form}:{header.content[:16]}"
        key = (header.version, request.round if stage else 0, stage, form)
        if key in self._served:
            return
        self._served.add(key)
        self._write(
            "published",
            version=header.version,
            number=header.number,
            round=header.round,
            stage=stage,
            form=form,
            digest=header.content,
        )

    def _log_epoch(self, epoch: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            self._write("epoch", epoch=epoch)

    def _log_order(self, ack: ExecuteAck) -> None:
        order = self._orders.pop(ack.round, None)
        if order is None:
            return
        self._write("order", round=ack.round, epoch=order.epoch, train=order.train, state=ack.state)
        self._log_epoch(order.epoch)

    def _log_report(self, report: Report) -> None:
        if (report.round, report.kind) in self._reported:
            return
        self._reported.add((report.round, report.kind))
        for line in lines_of(report):
            self._write(**line)


def process_resources() -> dict[str, int]:
    """Return the memory, files and threads of this process, as far as the system shows them."""
    used = {"threads": threading.active_count()}
    with suppress(OSError, ValueError, IndexError):
        pages = int(_STATM.read_text().split()[1])
        used["rss_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
        used["descriptors"] = len(os.listdir("/proc/self/fd"))
    return used


def form_of(request: PullRequest) -> str:
    """Return the form of a model on the wire: whole, as an update, or masked."""
    if request.mask is not None:
        return f"masked:{request.mask[0]}:{request.mask[1]!r}"
    return "delta" if request.delta else "model"


_KIND_OF_REPORT: Mapping[str, str] = {"mixed": "applied", "trained": "trained", "failed": "failed"}


def lines_of(report: Report) -> list[LogLine]:
    """Return the lines of a report: its models first, then the end of the order."""
    where = {"round": report.round}
    used = [
        {"kind": "used", **where, "stage": u.stage, "node": u.node, "version": u.version,
         "digest": u.digest}
        for u in report.used
    ]  # fmt: skip
    rejected = [
        {"kind": "rejected", **where, "stage": r.stage, "node": r.node, "code": r.code}
        for r in report.rejected
    ]
    last: LogLine = {"kind": _KIND_OF_REPORT[report.kind], **where}
    if report.kind == "failed":
        return [*used, *rejected, {**last, "text": report.text}]
    last |= {"version": report.version, "number": report.number}
    if report.kind == "trained":
        last["digest"] = report.digest
        if report.text:
            last["text"] = report.text
    return [*used, *rejected, last]
