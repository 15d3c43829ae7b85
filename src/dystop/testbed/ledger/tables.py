"""The tables of the coordinator's ledger: one transaction per commit, in memory or in SQLite.

The tables of `state.db` (all rows have `sum`, a CRC-32 of their values, checked at every start):

meta      key, value                    epoch, at_s (seconds of the run at the last commit),
                                        stopping (why no further round opens), finished (why the
                                        run ended), stands_s (since when the clock stands, after
                                        a restart), run, queue_bound (of the mechanism, or None),
                                        away (freeze or age)
workers   name, node, state, incarnation, address, note, at_s
rounds    round, epoch, opened_s, plan, closed_s, closed_seq, books
                                        plan: `read_blob` gives {"plan": Plan, "view": View}; the
                                        view has no links. closed_* and books are NULL while the
                                        round is open; books: `read_blob` gives the
                                        ControlState after the round
orders    round, node, train, outcome, pulls, execute
                                        outcome: NULL while open, then DONE, FAILED, LATE or
                                        CANCELLED; pulls: JSON [[stage, src], ...] without pushes;
                                        execute: the message, while a report may still arrive
reports   seq, round, node, kind, at_s, late, json
                                        in the order in which they took effect; late: 1 if its
                                        round was closed already (kind mixed: outcome LATE)
lates     seq, round, node, books       ControlState after a late report; seq as in reports
records   round, record, came, score, published
                                        RoundRecord, second half of the trace line, Scored, and
                                        whether it was published
kept      key, value                    state: what else the state machine resumes from;
                                        seen:ROUND: first half of the trace line until published;
                                        incident:MEMBER:KIND:REPORTER: JSON (coordinator.incidents);
                                        due:ROUND: until when the record of a round without a score
                                        waits, in seconds of the run, until the observer has
                                        answered; late:ROUND: its score came after its record and
                                        is not in the run folder yet; memories: what
                                        recorders remember
archive   first, last, offset, bytes, sha256
                                        rounds whose other rows are gone, and their piece of
                                        `state.archive` (`ledger.archive`)
commits   number, total, hash           the chain of commits, without `sum` (`ledger.commits`)

Rounds, orders, reports, lates and records of archived rounds are deleted, unless a restart needs
them: orders that may still be confirmed, and records without the score that is due. The
ControlState of a large fleet is kept for the newest round and every hundredth only.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pydantic import TypeAdapter

from dystop.plan import Links, Mix, Plan
from dystop.serialization import Kinds, from_bytes, to_bytes
from dystop.sparse import Graph, PairCounts
from dystop.testbed.protocol.messages import Execute, Report, Scored
from dystop.types import Budgets, ControlState, Fleet, Mailbox, Outcome, View

KINDS = Kinds(
    ControlState, Plan, Links, Mix, Outcome, PairCounts, Graph, Mailbox, View, Fleet, Budgets
)
MEMORIES = "memories"  # key in the table `kept`
STANDS = "stands_s"  # key in the table `meta`
INCIDENT = "incident:"  # keys of incidents in the table `kept` begin with it
LARGE_BYTES = 1 << 16  # a larger ControlState is not kept for every round
OPEN = (None, "FAILED", "CANCELLED")  # outcomes of orders that may still be confirmed
Row = tuple[Any, ...]


def write_blob(value: Any) -> bytes:
    """Return a value as bytes, without pickle."""
    return to_bytes(value, KINDS)


def read_blob(blob: bytes) -> Any:
    """Return the value that `write_blob` has stored."""
    return from_bytes(blob, KINDS)


_TEXTS: dict[type, tuple[str, TypeAdapter[Any]]] = {
    kind: (f'{{"type":"{name}",', TypeAdapter(kind))
    for kind, name in ((Execute, "execute"), (Report, "report"), (Scored, "scored"))
}


def text_of(message: Execute | Report | Scored) -> str:
    """Return a message as `codec.encode` writes it, without validating it again.

    >>> text_of(Report(3, "mixed"))[:34]
    '{"type":"report","round":3,"kind":'
    """
    head, adapter = _TEXTS[type(message)]
    return head + adapter.dump_json(message).decode()[1:]


@dataclass(frozen=True)
class MetaLine:
    """A fact about the run."""

    table: ClassVar[str] = "meta"
    key: str
    value: str


@dataclass(frozen=True)
class WorkerLine:
    """The current state of a member."""

    table: ClassVar[str] = "workers"
    name: str
    node: int
    state: str
    incarnation: int
    address: str
    note: str
    at_s: float


@dataclass(frozen=True)
class RoundLine:
    """A round, open or closed."""

    table: ClassVar[str] = "rounds"
    round: int
    epoch: int
    opened_s: float
    plan: bytes
    closed_s: float | None = None
    closed_seq: int | None = None
    books: bytes | None = None


@dataclass(frozen=True)
class OrderLine:
    """The order of one node in one round."""

    table: ClassVar[str] = "orders"
    round: int
    node: int
    train: int
    outcome: str | None
    pulls: str
    execute: str | None


@dataclass(frozen=True)
class ReportLine:
    """A report that took effect."""

    table: ClassVar[str] = "reports"
    seq: int
    round: int
    node: int
    kind: str
    at_s: float
    late: int
    json: str


@dataclass(frozen=True)
class LateLine:
    """The control state after a late report."""

    table: ClassVar[str] = "lates"
    seq: int
    round: int
    node: int
    books: bytes


@dataclass(frozen=True)
class RecordLine:
    """Record and trace of a closed round."""

    table: ClassVar[str] = "records"
    round: int
    record: str
    came: str
    score: str | None = None
    published: int = 0


@dataclass(frozen=True)
class KeptLine:
    """A blob under a name; no value: delete it."""

    table: ClassVar[str] = "kept"
    key: str
    value: bytes | None


@dataclass(frozen=True)
class ArchiveLine:
    """A piece of the archive."""

    table: ClassVar[str] = "archive"
    first: int  # round
    last: int
    offset: int
    bytes: int
    sha256: str


Line = (
    MetaLine
    | WorkerLine
    | RoundLine
    | OrderLine
    | ReportLine
    | LateLine
    | RecordLine
    | KeptLine
    | ArchiveLine
)
KEYS = {
    "meta": 1, "workers": 1, "rounds": 1, "orders": 2, "reports": 1, "lates": 1, "records": 1,
    "kept": 1, "archive": 1,
}  # fmt: skip
LINES: dict[str, type[Any]] = {
    kind.table: kind
    for kind in (
        MetaLine, WorkerLine, RoundLine, OrderLine, ReportLine, LateLine, RecordLine, KeptLine,
        ArchiveLine,
    )
}  # fmt: skip


class Ledger(Protocol):
    """Durable storage of the coordinator."""

    def write(self, lines: Sequence[Line]) -> None:
        """Write these rows, all or none; a row replaces an older one of the same key.

        Raises:
            StorageError: The disk refused; none of them is written.
        """
        ...

    def rows(self, table: str) -> Iterator[Any]:
        """Return all rows of a table, by key."""
        ...

    def epoch(self) -> int:
        """Return the highest epoch of any coordinator, as it is on the disk now.

        Raises:
            StorageError: The ledger cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the ledger."""
        ...


def epoch_in(meta: Iterable[MetaLine]) -> int:
    """Return the epoch in the `meta` table; 0 before the first coordinator."""
    return next((int(line.value) for line in meta if line.key == "epoch"), 0)


def checksum(values: tuple[Any, ...]) -> int:
    """Return the CRC-32 of a row; it detects every damage of a few bytes.

    >>> checksum((1, "a", b"b", None)) == checksum((1, "a", b"c", None))
    False
    """
    if not any(isinstance(value, (bytes, float)) for value in values):
        return zlib.crc32(repr(values).encode())
    crc, head = 0, b""  # small values are collected, so that most rows take one call
    for value in values:
        if isinstance(value, bytes):
            crc, head = zlib.crc32(value, zlib.crc32(b"%s%d," % (head, len(value)), crc)), b""
        else:
            part = repr(float(value) if isinstance(value, float) else value).encode()
            head += b"%d,%s" % (len(part), part)
    return zlib.crc32(head, crc)


def values_of(line: Line) -> Row:
    """Return the values of a row in the order of its columns."""
    return tuple(vars(line).values())


@dataclass(frozen=True)
class Restored:
    """Everything that a coordinator resumes from. In a new run only `epoch` has a meaning."""

    epoch: int
    at_s: float = 0.0
    stands_s: float = 0.0  # from when on the clock stands
    state: bytes | None = None
    open: RoundLine | None = None
    orders: tuple[OrderLine, ...] = ()  # that were not confirmed, of all rounds
    reports: tuple[ReportLine, ...] = ()  # after the state was written, or of the open round
    workers: tuple[WorkerLine, ...] = ()
    waiting: tuple[RecordLine, ...] = ()  # records that were not published yet
    seen: dict[int, bytes] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)  # rounds that the observer has to evaluate
    left: tuple[RecordLine, ...] = ()  # published without a score that is due or has come since
    incidents: tuple[bytes, ...] = ()  # JSON, as `coordinator.incidents` describes it
    finished: str = ""
    run: str = ""
    memories: bytes | None = None  # of recorders, where they remember something


def restore(ledger: Ledger) -> Restored:
    """Return the content of the ledger, with a new epoch that is written first."""
    meta = {line.key: line.value for line in ledger.rows("meta")}
    epoch = int(meta.get("epoch", "0")) + 1
    ledger.write([MetaLine("epoch", str(epoch))])
    kept = {line.key: line.value for line in ledger.rows("kept")}
    state = kept.get("state")
    known = -1 if state is None else read_blob(state)["seq"]
    rounds = [line for line in ledger.rows("rounds") if line.closed_s is None]
    seen, due, late = (_kept_by_round(kept, kind) for kind in ("seen", "due", "late"))
    unscored = due.keys() | late.keys()
    records = [r for r in ledger.rows("records") if not r.published or r.round in unscored]
    still_open = {line.round for line in rounds}
    at_s = meta.get("at_s", "0")
    return Restored(
        epoch=epoch,
        at_s=float(at_s),
        stands_s=float(meta.get(STANDS) or at_s),
        state=state,
        open=rounds[-1] if rounds else None,
        orders=tuple(o for o in ledger.rows("orders") if o.outcome in OPEN),
        reports=tuple(r for r in ledger.rows("reports") if r.seq > known or r.round in still_open),
        workers=tuple(ledger.rows("workers")),
        waiting=tuple(r for r in records if not r.published),
        seen=seen,
        due={round_: read_blob(value) for round_, value in sorted(due.items())},
        left=tuple(r for r in records if r.published),
        incidents=tuple(v for k, v in kept.items() if k.startswith(INCIDENT)),
        finished=meta.get("finished", "") or meta.get("stopping", ""),
        run=meta.get("run", ""),
        memories=kept.get(MEMORIES),
    )


def _kept_by_round(kept: Mapping[str, Any], kind: str) -> dict[int, Any]:
    """Return the values under `kind:ROUND`, by round."""
    return {int(k.partition(":")[2]): v for k, v in kept.items() if k.startswith(f"{kind}:")}
