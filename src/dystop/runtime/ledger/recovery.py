"""Going on from a backup where the ledger is damaged or gone."""

import os
import shutil
from contextlib import closing
from pathlib import Path

from dystop.errors import RunFolderError
from dystop.runtime.ledger.sqlite import DamagedLedger, SqliteLedger, flush, lock, newest_backup
from dystop.runtime.ledger.tables import MetaLine

RESTORED = "restored"  # among the backups: the epoch that the last restore has written
STARTS = 1000  # more than a coordinator can have had since its last backup


def is_whole(path: Path) -> bool:
    """Whether a coordinator can go on with the ledger as it is.

    Raises:
        RunFolderError: A coordinator is at work, or a newer version has made it.
    """
    try:
        SqliteLedger(path).close()
    except DamagedLedger:
        return False
    return True


def recover(path: Path) -> Path:
    """Put the newest good backup in the place of a damaged file, which is kept beside.

    Raises:
        RunFolderError: There is none, or a coordinator is at work.
    """
    with closing(lock(path)[0]):
        backup = newest_backup(path)
        if backup is None:
            raise RunFolderError(f"{path.parent / 'backups'}: no good backup of {path.name}")
        copy = path.with_suffix(".tmp")
        shutil.copyfile(backup, copy)
        flush(copy)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        if path.exists():
            os.replace(path, path.with_suffix(".damaged"))
        os.replace(copy, path)
    _outrank(path)
    return backup


def _outrank(path: Path) -> None:
    """Raise the epoch above all that came after the backup: workers obey no lower one.

    Also above what an earlier restore from the same backup has led to; so it is noted beside.
    """
    note = path.parent / "backups" / RESTORED
    with closing(SqliteLedger(path)) as ledger:
        if not ledger.epoch():  # no coordinator has ever had it
            return
        before = int(note.read_text()) if note.is_file() else 0
        epoch = max(ledger.epoch(), before) + STARTS
        note.write_text(f"{epoch}\n")
        flush(note)
        ledger.write([MetaLine("epoch", str(epoch))])
