"""The archive of closed rounds: `state.archive`, and a copy of it among the backups.

The ledger keeps the rows of a round only until it is archived. The archive keeps what the audit
reads (`ledger.steps`), as compressed pieces of `PIECE_ROUNDS` rounds. Each piece is a row of the
table `archive`: its place in the file and its SHA-256. Both files only grow, so no piece is
copied twice.

A piece is on the disk, in both files, before the commit that adds its row and deletes the rows of
its rounds. A crash in between leaves bytes behind the last piece, which the next piece overwrites.

A piece is the zlib compression of JSON lines, one for each step:

closing   round, epoch, active, ordered, done, present, pulled, state
late      late (its round), node, pulled, state

`pulled` is [dst, src, dst, src, ...]. `state` is null or [staleness, queue, changes]: `changes` is
[dst, src, count, ...] of the pull counts that differ from those of the last state in the piece.
"""

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dystop.errors import RunFolderError
from dystop.foreign_files import LOG_BYTES, NO_WAIT, O_NOFOLLOW, open_regular
from dystop.storage import PRIVATE, fsync
from dystop.testbed.ledger.rows import delete, select
from dystop.testbed.ledger.steps import (
    Closed,
    LateReport,
    Pair,
    Planned,
    RoundFacts,
    StateFacts,
    Step,
    round_facts,
)
from dystop.testbed.ledger.tables import ArchiveLine

PIECE_ROUNDS = 100
_CLOSED_BY = "SELECT max(closed_seq) FROM rounds WHERE round <= ?"
_PUBLISHED = (
    "round <= ? AND published = 1 AND NOT EXISTS (SELECT 1 FROM kept WHERE key IN "
    "('due:' || round, 'late:' || round))"
)


class Archive:
    """The pieces of a ledger that are on the disk."""

    def __init__(self, ledger: Path) -> None:
        name = f"{ledger.stem}.archive"
        self.path, self.copy = ledger.with_name(name), ledger.parent / "backups" / name

    def add(self, facts: RoundFacts, offset: int) -> ArchiveLine:
        """Write a piece to both files at this offset; it is on the disk when this returns.

        Whatever is behind the offset is dropped: no row of the ledger names it.
        """
        data = zlib.compress(encode(facts), 9)
        self.copy.parent.mkdir(exist_ok=True)
        for path in (self.copy, self.path):
            _write_end(path, offset, data)
        first, last = facts.planned[0].round, facts.planned[-1].round
        return ArchiveLine(first, last, offset, len(data), hashlib.sha256(data).hexdigest())

    def read(self, line: ArchiveLine) -> RoundFacts:
        """Return a piece, from the copy if the file is damaged.

        Raises:
            RunFolderError: Both are damaged or missing.
        """
        for path in (self.path, self.copy):
            data = _read_part(path, line.offset, line.bytes)
            if hashlib.sha256(data).hexdigest() == line.sha256:
                return decode(data)
        raise RunFolderError(
            f"{self.path}: rounds {line.first} to {line.last} are damaged or missing, and so is "
            f"their copy in {self.copy}; put the right file back to check these rounds. The run "
            "can be resumed without them"
        )


# Rows -------------------------------------------------------------------------------------------


def facts_through(base: sqlite3.Connection, round_: int) -> RoundFacts:
    """Return what the rows of the rounds up to a closed one show."""
    (seq,) = base.execute(_CLOSED_BY, (round_,)).fetchone()
    until = {"rounds": ("round", round_), "orders": ("round", round_)}
    until |= {"reports": ("seq", seq), "lates": ("seq", seq)}

    def rows(table: str) -> list[Any]:
        column, last = until[table]
        return select(base, table, f"{column} <= ?", last)

    return round_facts(rows)


def delete_through(base: sqlite3.Connection, round_: int, facts: RoundFacts) -> int:
    """Delete the rows that a piece replaces; return by how much the sum of checksums shrinks."""
    (seq,) = base.execute(_CLOSED_BY, (round_,)).fetchone()
    late = [(s.round, s.node) for s in facts.steps if isinstance(s, LateReport)]
    shrunk = sum(delete(base, "orders", "round = ? AND node = ?", *key) for key in late)
    return shrunk + sum(
        delete(base, table, where, last)
        for table, where, last in (
            ("rounds", "round <= ?", round_),
            ("orders", "round <= ? AND outcome = 'DONE'", round_),
            ("reports", "seq <= ?", seq),
            ("lates", "seq <= ?", seq),
            ("records", _PUBLISHED, round_),
        )
    )


# Files ------------------------------------------------------------------------------------------


def _write_end(path: Path, offset: int, data: bytes) -> None:
    is_new = not path.exists()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | O_NOFOLLOW | NO_WAIT, PRIVATE)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(handle, data[done:], offset + done)
        os.ftruncate(handle, offset + len(data))
        os.fsync(handle)
    finally:
        os.close(handle)
    if is_new:
        fsync(path.parent)


def _read_part(path: Path, offset: int, length: int) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(offset)
            return file.read(length)
    except OSError:
        return b""


# Pieces -----------------------------------------------------------------------------------------


def encode(facts: RoundFacts) -> bytes:
    """Return plans and steps of closed rounds as JSON lines."""
    planned = {each.round: each for each in facts.planned}
    before: Mapping[Pair, int] = {}
    lines = []
    for step in facts.steps:
        line: dict[str, Any]
        if isinstance(step, Closed):
            plan = planned[step.round]
            sets = {"active": plan.active, "ordered": plan.ordered, "done": step.done}
            sets["present"] = step.present
            line = {"round": step.round, "epoch": plan.epoch}
            line |= {name: sorted(nodes) for name, nodes in sets.items()}
        else:
            line = {"late": step.round, "node": step.node}
        line["pulled"] = list(chain.from_iterable(step.pulled))
        line["state"] = _changes(step.state, before)
        before = before if step.state is None else step.state.pulls
        lines.append(json.dumps(line, separators=(",", ":")))
    return "\n".join(lines).encode()


def _changes(state: StateFacts | None, before: Mapping[Pair, int]) -> list[Any] | None:
    if state is None:
        return None
    pairs = before.keys() | state.pulls.keys()
    new = {p: state.pulls.get(p, 0) for p in pairs if state.pulls.get(p, 0) != before.get(p, 0)}
    changes = list(chain.from_iterable((*pair, count) for pair, count in sorted(new.items())))
    return [state.staleness, state.queue, changes]


def decode(data: bytes) -> RoundFacts:
    """Return the content of a piece."""
    unpacker = zlib.decompressobj()
    lines = unpacker.decompress(data, LOG_BYTES).split(b"\n")
    planned: list[Planned] = []
    steps: list[Step] = []
    pulls: dict[Pair, int] = {}
    for raw in map(json.loads, lines):
        state = None
        if raw["state"] is not None:
            staleness, queue, changes = raw["state"]
            pulls = pulls | {(dst, src): count for dst, src, count in _groups(changes, 3)}
            pulls = {pair: count for pair, count in pulls.items() if count}
            state = StateFacts(tuple(staleness), tuple(queue), pulls)
        pulled = tuple((dst, src) for dst, src in _groups(raw["pulled"], 2))
        if "late" in raw:
            steps.append(LateReport(raw["late"], raw["node"], pulled, state))
            continue
        active, ordered, done, present = (
            frozenset(raw[name]) for name in ("active", "ordered", "done", "present")
        )
        planned.append(Planned(raw["round"], raw["epoch"], active, ordered))
        steps.append(Closed(raw["round"], done, pulled, present, state))
    return RoundFacts(planned, steps)


def _groups(values: Sequence[Any], size: int) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(values)] * size, strict=True)
