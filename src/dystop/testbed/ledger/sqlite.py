"""The ledger in a SQLite file: write-ahead log, full synchronisation, backups, one owner.

Every `BACKUP_ROUNDS` rounds the rows of closed rounds move to the archive (`ledger.archive`), and
the rest, which does not grow, is copied as a backup.

SQLite detects a damaged tree but not a damaged value, so every row has its own checksum. It does
not detect that commits are missing, so commits form a chain whose head is also noted outside the
database (`ledger.commits`). A damaged file is never repaired silently: opening it fails and names
the newest intact backup, and `ledger.recovery` restores that backup.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from dystop.errors import RunFolderError, StorageError, shell_command
from dystop.foreign_files import JSON_BYTES, NO_FILE, read_bounded
from dystop.format import FORMAT, other_format
from dystop.storage import (
    PRIVATE,
    FileLock,
    LockHeldError,
    file_sha256,
    fsync,
    open_private,
    remove_temporary_files,
    write_atomic,
)
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.ledger.archive import PIECE_ROUNDS, Archive, delete_through, facts_through
from dystop.testbed.ledger.commits import (
    CREATE,
    Head,
    HeadFile,
    add_commit,
    difference,
    drop_old,
    read_chain,
)
from dystop.testbed.ledger.rows import (
    columns_of,
    create_table,
    newest_keys,
    verify_rows,
    write_lines,
)
from dystop.testbed.ledger.steps import RoundFacts
from dystop.testbed.ledger.tables import (
    KEYS,
    LINES,
    Line,
    MetaLine,
    RoundLine,
    epoch_in,
)
from dystop.testbed.log_throttle import throttled_logger

BACKUP_ROUNDS = 100
BACKUPS_KEPT = 3
MADE = "made"  # in the lock file: a ledger was created here
_LOG_PAGES = 4000  # 16 MB: larger, so that pages that every round overwrites are copied less often
_LOG = throttled_logger(__name__)


class DamagedLedger(RunFolderError):
    """The file is missing, or not as it was written."""


class LostCommits(DamagedLedger):
    """The file is whole, but it lacks commits, or its head is that of another ledger."""

    def __init__(self, text: str, round_: int) -> None:
        super().__init__(text)
        self.round = round_  # the last round that is closed in the file


class SqliteLedger:
    """The ledger of a coordinator process. Holds a lock on its folder while it is open."""

    def __init__(self, path: Path, *, accept_loss: bool = False) -> None:
        """Open or create the file.

        Args:
            path: The file; `state.head` is beside it.
            accept_loss: Open the file also if commits are missing, and forget them.

        Raises:
            DamagedLedger: The file is not what was written.
            RunFolderError: Another coordinator has it, or it has another format.
            StorageError: The disk refused.
        """
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock, was_made = lock_folder(self.path)
        self._head_file = HeadFile(self.path.with_suffix(".head"))
        try:
            if was_made and not _is_filled(self.path):
                raise self._damaged("it is gone or empty")
            self._base, self.head = self._open(accept_loss, was_made)
            self._newest = newest_keys(self._base)
            _write_owner(self._lock, MADE)
        except BaseException:
            self._head_file.close()
            self._lock.release()
            raise
        self._backed_up = 0
        self._archive = Archive(self.path)
        self.before_archiving: Callable[[], None] = _nothing
        self.on_backup_failed: Callable[[str], None] = _LOG.error

    def _open(self, accept_loss: bool, was_made: bool) -> tuple[sqlite3.Connection, Head]:
        try:
            _make_private(self.path)
            base = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            try:
                _prepare(base, self.path)
                head = read_chain(base, verify_rows(base))
                noted = self._head_file.read()
                if noted is not None and not accept_loss:
                    self._compare(base, head, noted)
                if noted is None and was_made:
                    _LOG.warning(
                        "%s: missing or damaged; it is written again, but whether the ledger lacks "
                        "commits cannot be known",
                        self._head_file.path,
                    )
                self._head_file.start(head)
            except BaseException:
                base.close()
                raise
        except sqlite3.OperationalError as error:
            if "full" in str(error) or "I/O" in str(error):
                raise StorageError(f"{self.path}: {error}; free some space") from error
            raise self._damaged(str(error)) from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._damaged(str(error)) from error
        except OSError as error:
            if error.errno in NO_FILE:
                raise RunFolderError(
                    f"{error.filename or self.path}: a link or a pipe, which is not read; put the "
                    "file itself there"
                ) from None
            raise StorageError(f"{self.path}: {error.strerror}; free some space") from error
        return base, head

    def _compare(self, base: sqlite3.Connection, head: Head, noted: Head) -> None:
        """Refuse a database that lacks commits of the head that was noted outside."""
        what = difference(base, head, noted)
        if what and not head.total:  # no row is left
            raise self._damaged(what)
        if what:
            raise LostCommits(
                f"{self.path}: {what}. To continue without what is missing: "
                f"{shell_command('restore', self.path.parent)}",
                head.round,
            )

    def _damaged(self, what: str) -> DamagedLedger:
        good, run = newest_backup(self.path), self.path.parent
        advice = (
            f"restore the newest good backup, {good.name}: {shell_command('restore', run)}"
            if good
            else f"there is no good backup; to start over, delete {run}"
        )
        return DamagedLedger(f"{self.path}: damaged ({what}); {advice}")

    def write(self, lines: Sequence[Line]) -> None:
        """Write these rows in one transaction; they are on the disk when this returns."""
        base = self._base
        closed = [n.round for n in lines if isinstance(n, RoundLine) and n.closed_s is not None]
        try:
            base.execute("BEGIN IMMEDIATE")
            total = self.head.total + write_lines(base, lines, self._newest)
            head = self.head.then(total, max(closed, default=self.head.round))
            add_commit(base, head)
            base.execute("COMMIT")
        except sqlite3.Error as error:
            if base.in_transaction:
                base.execute("ROLLBACK")
            raise StorageError(
                f"{self.path}: {error}; what was committed before is safe, free some space"
            ) from error
        self.head = head
        reach("coordinator.before_head")
        self._head_file.write(head)
        if closed and closed[-1] // BACKUP_ROUNDS > self._backed_up // BACKUP_ROUNDS:
            self._try_backup(closed[-1])

    def archived(self) -> list[RoundFacts]:
        """Return the pieces of the archive, oldest first.

        Raises:
            RunFolderError: A piece and its copy are damaged or missing.
        """
        return [self._archive.read(line) for line in self.rows("archive")]

    def rows(self, table: str) -> Iterator[Any]:
        """Return all rows of a table, by key."""
        columns = columns_of(table)
        order = ", ".join(columns[: KEYS[table]])
        rows = self._base.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")
        return (LINES[table](*row) for row in rows)

    def epoch(self) -> int:
        """Return the highest epoch of any coordinator, from the file as it is now.

        Opens the file again, because it may have been replaced since this ledger was opened.
        """
        try:
            with closing(
                sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
            ) as b:
                return epoch_in(MetaLine(*row) for row in b.execute("SELECT key, value FROM meta"))
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file and release the lock."""
        self._base.close()
        self._head_file.close()
        self._lock.release()

    def _try_backup(self, round_: int) -> None:
        """Archive closed rounds and make a backup; a failure is no reason to stop."""
        self._backed_up = round_
        for what, attempt in (
            ("rounds could not be archived", lambda: self._archive_before(round_)),
            ("no backup could be made", lambda: self.backup(round_)),
        ):
            try:
                attempt()
            except Exception as error:
                self.on_backup_failed(
                    f"{self.path}: {what} after round {round_}: {error}; the run "
                    f"continues, the next attempt is after {BACKUP_ROUNDS} rounds"
                )

    def _archive_before(self, round_: int) -> None:
        self.before_archiving()
        self.archive(round_ - 1)

    def archive(self, through: int) -> None:
        """Move the rows of closed rounds, up to a round, to the archive.

        A round that is closed must be left: it tells which rounds the ledger has seen.
        """
        first = self._base.execute("SELECT min(round) FROM rounds").fetchone()[0]
        while first is not None and first <= through:
            last = min(first + PIECE_ROUNDS - 1, through)
            self._archive_piece(last)
            first = last + 1

    def _archive_piece(self, last: int) -> None:
        base = self._base
        offset = base.execute("SELECT ifnull(max(offset + bytes), 0) FROM archive").fetchone()[0]
        facts = facts_through(base, last)
        line = self._archive.add(facts, offset)
        self._head_file.flush()
        reach("coordinator.during_archive")
        try:
            base.execute("BEGIN IMMEDIATE")
            total = self.head.total - delete_through(base, last, facts)
            head = self.head.then(total + write_lines(base, [line], self._newest), self.head.round)
            add_commit(base, head)
            drop_old(base, self.head)
            base.execute("COMMIT")
        except BaseException:
            if base.in_transaction:
                base.execute("ROLLBACK")
            raise
        self.head = head
        reach("coordinator.after_archive")
        self._head_file.write(head)

    def backup(self, round_: int) -> Path:
        """Write a complete copy with its SHA-256; keep the newest few."""
        folder = self.path.parent / "backups"
        if not folder.is_dir():
            folder.mkdir()
            fsync(self.path.parent)
        remove_temporary_files(folder)
        final = folder / f"{self.path.stem}-{round_:08d}.db"

        def copy(temporary: Path) -> None:
            self._base.execute("VACUUM INTO ?", (str(temporary),))
            reach("coordinator.during_backup")
            noted = f"{file_sha256(temporary)}  {final.name}\n".encode()
            write_atomic(Path(f"{final}.sha256"), noted, mode=PRIVATE)

        write_atomic(final, copy, mode=PRIVATE)
        for old in sorted(folder.glob("*.db"))[:-BACKUPS_KEPT]:
            old.unlink()
            Path(f"{old}.sha256").unlink(missing_ok=True)
        return final


def _nothing() -> None:
    """Do nothing: the default of a callback."""


def _make_private(path: Path) -> None:
    """Let only the owner read the file; SQLite gives the same mode to its write-ahead log."""
    os.close(open_private(str(path), os.O_RDWR | os.O_CREAT))
    for log in (f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError, PermissionError):  # not there, or somebody else's
            os.close(open_private(log, os.O_RDWR))


def _prepare(base: sqlite3.Connection, path: Path) -> None:
    """Set up the connection; create the tables of a new ledger."""
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA synchronous = FULL")
    base.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    version: int = base.execute("PRAGMA user_version").fetchone()[0]
    if version == FORMAT:
        return
    if version or base.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise RunFolderError(other_format(path, version))
    base.execute("BEGIN IMMEDIATE")
    for statement in (*map(create_table, KEYS), CREATE):
        base.execute(statement)
    add_commit(base, Head().then(0, 0))
    base.execute(f"PRAGMA user_version = {FORMAT}")
    base.execute("COMMIT")


def _is_filled(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def lock_folder(path: Path) -> tuple[FileLock, bool]:
    """Lock the folder; also return whether a ledger was created here before."""
    lock = FileLock(path.parent / f"{path.stem}.lock")
    try:
        _, _, mark = lock.acquire().partition(" ")
    except LockHeldError as held:
        owner = held.holder.partition(" ")[0] or "unknown"
        raise RunFolderError(
            f"{path.parent}: another coordinator (process {owner}) coordinates this run; "
            "stop it first, or choose another run folder"
        ) from None
    _write_owner(lock, mark)
    return lock, mark == MADE


def _write_owner(lock: FileLock, mark: str) -> None:
    lock.write(f"{os.getpid()} {mark}")


def newest_backup(path: Path) -> Path | None:
    """Return the newest intact backup."""
    for backup in sorted((path.parent / "backups").glob(f"{path.stem}-*.db"), reverse=True):
        noted = Path(f"{backup}.sha256")
        with suppress(OSError, RunFolderError):  # a link, a pipe, or nothing
            if read_bounded(noted, JSON_BYTES).split()[:1] == [file_sha256(backup).encode()]:
                return backup
    return None
