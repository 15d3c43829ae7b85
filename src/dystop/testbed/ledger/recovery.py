"""Recovery of a ledger that is damaged or lacks commits."""

import shutil
from contextlib import closing
from pathlib import Path

from dystop.errors import RunFolderError
from dystop.storage import PRIVATE, fsync, write_atomic
from dystop.testbed.ledger.sqlite import (
    DamagedLedger,
    LostCommits,
    SqliteLedger,
    lock_folder,
    newest_backup,
)
from dystop.testbed.ledger.tables import MetaLine

RESTORED = "restored"  # file beside the backups: the epoch that the last restore has written
EPOCH_GAP = 1000  # more restarts than a coordinator can have had since its last backup


def is_intact(path: Path) -> bool:
    """Return whether a coordinator can use the ledger as it is.

    Raises:
        RunFolderError: A coordinator is running, or the ledger has another format.
    """
    try:
        SqliteLedger(path).close()
    except DamagedLedger:
        return False
    return True


def recover(path: Path) -> int:
    """Make a ledger usable again; return the last round that is closed in it.

    A ledger that lacks only its last commits continues without them, unless a backup is newer.
    Otherwise the newest intact backup takes its place, and the damaged file is kept.

    Raises:
        RunFolderError: There is no backup, or a coordinator is running.
    """
    round_, backup = _last_round(path), newest_backup(path)
    if backup is not None and (round_ is None or round_of(backup) > round_):
        round_ = round_of(backup)
        _replace_by(path, backup)
    elif round_ is None:
        raise RunFolderError(f"{path.parent / 'backups'}: no good backup of {path.name}")
    _raise_epoch(path)
    return round_


def round_of(backup: Path) -> int:
    """Return the round after which a backup was made."""
    return int(backup.stem.rpartition("-")[2])


def _last_round(path: Path) -> int | None:
    """Return the last closed round of a ledger that is whole; None if it is damaged."""
    try:
        with closing(SqliteLedger(path)) as ledger:
            return ledger.head.round
    except LostCommits as lost:
        return lost.round
    except DamagedLedger:
        return None


def _replace_by(path: Path, backup: Path) -> None:
    damaged = path.with_suffix(".damaged")

    def copy(temporary: Path) -> None:
        shutil.copyfile(backup, temporary)
        fsync(temporary)  # before anything of the damaged ledger goes
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)

    lock, _ = lock_folder(path)
    try:
        write_atomic(path, copy, mode=PRIVATE, previous=damaged)
    finally:
        lock.release()


def _raise_epoch(path: Path) -> None:
    """Raise the epoch above all that came after the backup, because workers obey no lower one.

    It must also exceed the epochs after an earlier restore from the same backup. So the new epoch
    is written to a file beside the backups.
    """
    note = path.parent / "backups" / RESTORED
    with closing(SqliteLedger(path, accept_loss=True)) as ledger:
        if not ledger.epoch():  # no coordinator has ever opened it
            return
        before = int(note.read_text()) if note.is_file() else 0
        epoch = max(ledger.epoch(), before) + EPOCH_GAP
        note.parent.mkdir(exist_ok=True)
        write_atomic(note, f"{epoch}\n".encode(), mode=PRIVATE)
        ledger.write([MetaLine("epoch", str(epoch))])
