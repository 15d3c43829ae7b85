"""The ledger in a SQLite file: write-ahead log, full synchronisation, backups, recovery, one owner.

SQLite detects a damaged tree but not a damaged value, so every row has its own checksum. A damaged
file is never repaired silently: opening it fails and names the newest intact backup, and `recover`
restores that backup.
"""

import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from dystop.errors import RunFolderError, StorageError, shell_command
from dystop.storage import (
    FileLock,
    LockHeldError,
    file_sha256,
    fsync,
    remove_temporary_files,
    write_atomic,
)
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.ledger.tables import (
    KEYS,
    LARGE_BYTES,
    LINES,
    KeptLine,
    Line,
    MetaLine,
    RoundLine,
    epoch_in,
    values_of,
)

BACKUP_ROUNDS = 100
BACKUPS_KEPT = 3
MADE = "made"  # in the lock file: a ledger was created here
_FORMAT = 1  # of the tables
_LOG_PAGES = 4000  # 16 MB: larger, so that pages that every round overwrites are copied less often
RESTORED = "restored"  # file beside the backups: the epoch that the last restore has written
EPOCH_GAP = 1000  # more restarts than a coordinator can have had since its last backup


class DamagedLedger(RunFolderError):
    """The file is missing, or not as it was written."""


def _columns(table: str) -> list[str]:
    return [f.name for f in fields(LINES[table])]


def _create(table: str) -> str:
    columns = _columns(table)
    keys = ", ".join(columns[: KEYS[table]])
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)}, sum, PRIMARY KEY ({keys}))"


def _put(table: str) -> str:
    columns = _columns(table)
    marks = ", ".join("?" * (len(columns) + 1))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}, sum) VALUES ({marks})"


_PUT = {table: _put(table) for table in KEYS}


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


class SqliteLedger:
    """The ledger of a coordinator process. Holds a lock on its folder while it is open."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            DamagedLedger: The file is not what was written.
            RunFolderError: Another coordinator has it, or a newer version created it.
            StorageError: The disk refused.
        """
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock, was_made = lock_folder(self.path)
        try:
            if was_made and not _is_filled(self.path):
                raise self._damaged("it is gone or empty")
            self._base = self._open()
            _write_owner(self._lock, MADE)
        except BaseException:
            self._lock.release()
            raise
        self._backed_up = 0

    def _open(self) -> sqlite3.Connection:
        try:
            base = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            try:
                _prepare(base, self.path)
                _verify(base)
            except BaseException:
                base.close()
                raise
        except sqlite3.OperationalError as error:
            if "full" in str(error) or "I/O" in str(error):
                raise StorageError(f"{self.path}: {error}; free some space") from error
            raise self._damaged(str(error)) from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._damaged(str(error)) from error
        return base

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
        try:
            base.execute("BEGIN IMMEDIATE")
            for table, some in groupby(lines, lambda line: line.table):
                _WRITERS.get(table, _write)(base, some)
            base.execute("COMMIT")
        except sqlite3.Error as error:
            if base.in_transaction:
                base.execute("ROLLBACK")
            raise StorageError(
                f"{self.path}: {error}; what was committed before is safe, free some space"
            ) from error
        closed = [n.round for n in lines if isinstance(n, RoundLine) and n.closed_s is not None]
        if closed and closed[-1] // BACKUP_ROUNDS > self._backed_up // BACKUP_ROUNDS:
            self._try_backup(closed[-1])

    def rows(self, table: str) -> Iterator[Any]:
        """Return all rows of a table, by key."""
        columns = _columns(table)
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
        self._lock.release()

    def _try_backup(self, round_: int) -> None:
        """Make a backup; a full disk is no reason to stop."""
        self._backed_up = round_
        try:
            self.backup(round_)
        except (sqlite3.Error, OSError, RunFolderError):
            return

    def backup(self, round_: int) -> Path:
        """Write a complete copy with its SHA-256; keep the newest few."""
        folder = self.path.parent / "backups"
        folder.mkdir(exist_ok=True)
        remove_temporary_files(folder)
        final = folder / f"{self.path.stem}-{round_:08d}.db"

        def copy(temporary: Path) -> None:
            self._base.execute("VACUUM INTO ?", (str(temporary),))
            reach("coordinator.during_backup")
            digest = file_sha256(temporary)
            Path(f"{final}.sha256").write_text(f"{digest}  {final.name}\n")

        write_atomic(final, copy)
        for old in sorted(folder.glob("*.db"))[:-BACKUPS_KEPT]:
            old.unlink()
            Path(f"{old}.sha256").unlink(missing_ok=True)
        return final


def _write(base: sqlite3.Connection, lines: Iterable[Any]) -> None:
    """Write rows of one table in one call."""
    first, *rest = lines
    rows = map(values_of, (first, *rest))
    base.executemany(_PUT[first.table], ((*row, checksum(row)) for row in rows))


def _write_kept(base: sqlite3.Connection, lines: Iterable[KeptLine]) -> None:
    for line in lines:
        if line.value is None:
            base.execute("DELETE FROM kept WHERE key = ?", (line.key,))
        else:
            _write(base, [line])


def _write_rounds(base: sqlite3.Connection, lines: Iterable[RoundLine]) -> None:
    for line in lines:
        _write(base, [line])
        if line.books is not None:
            _drop_large_state(base, line.round - 1)


_WRITERS: dict[str, Callable[[sqlite3.Connection, Iterable[Any]], None]] = {
    "kept": _write_kept,
    "rounds": _write_rounds,
}


def _drop_large_state(base: sqlite3.Connection, round_: int) -> None:
    """Drop the large control state of a round that is no longer the newest."""
    if round_ % BACKUP_ROUNDS == 0:
        return
    columns = ", ".join(_columns("rounds"))
    found = base.execute(
        f"SELECT {columns} FROM rounds WHERE round = ? AND length(books) > ?",
        (round_, LARGE_BYTES),
    ).fetchone()
    if found:
        row = (*found[:-1], None)
        base.execute(_PUT["rounds"], (*row, checksum(row)))


def _prepare(base: sqlite3.Connection, path: Path) -> None:
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA synchronous = FULL")
    base.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    version = base.execute("PRAGMA user_version").fetchone()[0]
    if version > _FORMAT:
        raise RunFolderError(
            f"{path}: its format is {version}, this version of dystop reads {_FORMAT}; "
            "use the version that created it"
        )
    if version < _FORMAT:
        base.execute("BEGIN IMMEDIATE")
        for table in KEYS:
            base.execute(_create(table))
        base.execute(f"PRAGMA user_version = {_FORMAT}")
        base.execute("COMMIT")


def _verify(base: sqlite3.Connection) -> None:
    """Raise ValueError if the database or a row is damaged."""
    found = base.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise ValueError(found)
    for table in KEYS:
        columns = ", ".join([*_columns(table), "sum"])
        for row in base.execute(f"SELECT {columns} FROM {table}"):
            if checksum(row[:-1]) != row[-1]:
                raise ValueError(f"a row of {table} has changed since it was written: {row[0]!r}")


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
        if noted.exists() and noted.read_text().split()[:1] == [file_sha256(backup)]:
            return backup
    return None


def is_intact(path: Path) -> bool:
    """Return whether a coordinator can use the ledger as it is.

    Raises:
        RunFolderError: A coordinator is running, or a newer version created the ledger.
    """
    try:
        SqliteLedger(path).close()
    except DamagedLedger:
        return False
    return True


def recover(path: Path) -> Path:
    """Replace a damaged ledger by its newest intact backup; the damaged file is kept.

    Raises:
        RunFolderError: There is no backup, or a coordinator is running.
    """
    lock, _ = lock_folder(path)
    try:
        backup = newest_backup(path)
        if backup is None:
            raise RunFolderError(f"{path.parent / 'backups'}: no good backup of {path.name}")

        def copy(temporary: Path) -> None:
            shutil.copyfile(backup, temporary)
            fsync(temporary)  # before anything of the damaged ledger goes
            for suffix in ("-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)

        write_atomic(path, copy, previous=path.with_suffix(".damaged"))
    finally:
        lock.release()
    _raise_epoch(path)
    return backup


def _raise_epoch(path: Path) -> None:
    """Raise the epoch above all that came after the backup, because workers obey no lower one.

    It must also exceed the epochs after an earlier restore from the same backup. So the new epoch
    is written to a file beside the backups.
    """
    note = path.parent / "backups" / RESTORED
    with closing(SqliteLedger(path)) as ledger:
        if not ledger.epoch():  # no coordinator has ever opened it
            return
        before = int(note.read_text()) if note.is_file() else 0
        epoch = max(ledger.epoch(), before) + EPOCH_GAP
        write_atomic(note, f"{epoch}\n".encode())
        ledger.write([MetaLine("epoch", str(epoch))])
