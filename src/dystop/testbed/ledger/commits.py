"""The chain of commits, by which a ledger notices that confirmed commits are missing.

SQLite forgets the end of a damaged write-ahead log without an error, and all of a deleted one.
Therefore every transaction adds a row to the table `commits`:

number   1, 2, ...
total    sum of the checksums of all rows of the ledger after this transaction
hash     of number, total and the hash of the commit before

After the transaction the newest of these rows, the head, is copied to `state.head`, outside the
database. A database that ends before the head has lost commits, and one that does not contain the
head is not the database that the head was copied from.

The copy is not flushed to the disk: a commit costs one flush, as before. So after a kill the head
is at most one commit behind the database, and after a power cut perhaps some more. It is never
ahead, because the database was flushed first.

Old commits are dropped, up to a head that was flushed (`drop_old`). The chain then begins with the
first commit that is left.
"""

import hashlib
import os
import sqlite3
import zlib
from dataclasses import dataclass
from pathlib import Path

from dystop.foreign_files import O_NOFOLLOW, open_regular
from dystop.storage import PRIVATE, fsync
from dystop.testbed.log_throttle import throttled_logger
from dystop.units import plural

LOG = "state.db-wal"
CREATE = "CREATE TABLE IF NOT EXISTS commits (number INTEGER PRIMARY KEY, total, hash)"
COMMITS_KEPT = 1000
_ADD = "INSERT INTO commits (number, total, hash) VALUES (?, ?, ?)"
_LOG = throttled_logger(__name__)
_SECTOR_BYTES = 512  # a disk writes one wholly or not at all
_TEXT_BYTES = 96


@dataclass(frozen=True)
class Head:
    """The newest commit."""

    number: int = 0
    total: int = 0
    hash: str = ""
    round: int = 0  # the last round that was closed

    def then(self, total: int, round_: int) -> "Head":
        """Return the commit after this one."""
        number = self.number + 1
        text = f"{self.hash} {number} {total}".encode()
        return Head(number, total, hashlib.blake2b(text, digest_size=16).hexdigest(), round_)


def add_commit(base: sqlite3.Connection, head: Head) -> None:
    """Add a commit to the table, as a part of its transaction."""
    base.execute(_ADD, (head.number, head.total, head.hash))


def drop_old(base: sqlite3.Connection, head: Head) -> None:
    """Drop commits far behind a head that was flushed, as a part of a transaction."""
    base.execute("DELETE FROM commits WHERE number < ?", (head.number - COMMITS_KEPT,))


def read_chain(base: sqlite3.Connection, total: int) -> Head:
    """Return the newest commit. Raises ValueError if the chain is broken.

    Args:
        base: The database.
        total: Sum of the checksums of all rows that it holds.
    """
    (round_,) = base.execute("SELECT max(round) FROM rounds WHERE closed_s IS NOT NULL").fetchone()
    last, head = round_ or 0, Head()
    for row in base.execute("SELECT number, total, hash FROM commits ORDER BY number"):
        if not head.number and row[0] > 1:  # the beginning of the chain was dropped
            head = Head(row[0], row[1], row[2], last)
            continue
        head = head.then(row[1], last)
        if row != (head.number, head.total, head.hash):
            raise ValueError(f"commit {row[0]} does not follow the one before it")
    if total != head.total:
        raise ValueError(f"its rows are not those of commit {head.number}, its last")
    return head


def difference(base: sqlite3.Connection, head: Head, noted: Head) -> str:
    """Say how a database differs from the head that was noted outside; "" if it does not.

    Args:
        base: The database.
        head: Its newest commit.
        noted: What `state.head` holds.
    """
    if noted.number > head.number:
        return _loss(head, noted)
    row = base.execute("SELECT hash FROM commits WHERE number = ?", (noted.number,)).fetchone()
    if row is None or row[0] != noted.hash:
        return f"it is not the ledger that state.head belongs to: commit {noted.number} differs"
    return ""


def _loss(head: Head, noted: Head) -> str:
    """Name the commits and rounds between two heads.

    >>> _loss(Head(7, round=3), Head(9, round=4)).partition(":")[0]
    '2 commits, round 4, are missing'
    >>> _loss(Head(7, round=3), Head(8, round=3)).partition(":")[0]
    '1 commit, no closed round, is missing'
    """
    first, last = head.round + 1, noted.round
    rounds = f"rounds {first} to {last}" if first < last else f"round {last}"
    if last < first:
        rounds = "no closed round"
    lost = plural(noted.number - head.number, "commit")
    return (
        f"{lost}, {rounds}, {'is' if lost == '1 commit' else 'are'} missing: {LOG} was deleted or "
        "damaged, or the ledger is an old copy; if you have the right file, put it back"
    )


class HeadFile:
    """`state.head`: the newest two heads, each in a sector of its own with a checksum."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def read(self) -> Head | None:
        """Return the newest whole head; None if the file is missing or holds none."""
        try:
            with open_regular(self.path) as file:
                content = file.read(2 * _SECTOR_BYTES)
        except FileNotFoundError:
            return None
        found = [_parse(content[at : at + _TEXT_BYTES]) for at in (0, _SECTOR_BYTES)]
        return max((head for head in found if head), key=lambda head: head.number, default=None)

    def start(self, head: Head) -> None:
        """Open the file for writing, with this head in it and no other."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | O_NOFOLLOW, PRIVATE)
        os.pwrite(self._fd, _text(head), _place(head))
        os.pwrite(self._fd, bytes(_SECTOR_BYTES), _SECTOR_BYTES - _place(head))
        os.fsync(self._fd)
        fsync(self.path.parent)

    def write(self, head: Head) -> None:
        """Note the newest head; it may stay behind, so a disk that refuses is no reason to stop."""
        try:
            os.pwrite(self._fd, _text(head), _place(head))
        except OSError as error:
            _LOG.warning("%s: cannot be written: %s", self.path, error.strerror)

    def flush(self) -> None:
        """Wait until the newest head is on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _place(head: Head) -> int:
    return head.number % 2 * _SECTOR_BYTES


def _text(head: Head) -> bytes:
    text = f"{head.number} {head.round} {head.hash}"
    return f"{text} {zlib.crc32(text.encode()):08x}".ljust(_TEXT_BYTES - 1).encode() + b"\n"


def _parse(text: bytes) -> Head | None:
    """Return the head in a sector; None if it is damaged.

    >>> _parse(_text(Head(3, 0, "ab", 2)))
    Head(number=3, total=0, hash='ab', round=2)
    >>> _parse(_text(Head(3, 0, "ab", 2)).replace(b"3", b"4"))
    """
    words = text.decode(errors="replace").split(" ")
    try:
        head = Head(int(words[0]), 0, words[2], int(words[1]))
    except (ValueError, IndexError):
        return None
    return head if _text(head) == text else None
