"""What operators do to a run: they revoke certificates, issue new ones, pardon, and restore.

Nothing of it goes over the network. Revocations are files of the authority; a pardon is a file in
the run folder that the coordinator takes in, also if it starts only later, and then deletes.
"""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from dystop.errors import ConfigError, DystopError, RunFolderError, shell_command
from dystop.storage import write_atomic
from dystop.testbed.coordinator.members import Member
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.coordinator.quarantine import REVOKED
from dystop.testbed.ledger.sqlite import is_whole, newest_backup, recover

PARDONS = "pardons"  # folder with a file for each member to be pardoned
LEDGER = "state.db"
REVOKED_S = 0.5  # between two looks at who was revoked


class Pardons:
    """Hands the requests of a run folder to the coordinator, and deletes what it has taken in."""

    def __init__(self, folder: Path, seat: CoordinatorProcess) -> None:
        """Takes over `seat.on_pardoned`."""
        self._folder, self._seat = folder / PARDONS, seat
        self._handed: set[str] = set()
        seat.on_pardoned = self._done

    def look(self) -> None:
        """Hand over what is new."""
        if not self._folder.is_dir():
            return
        names = {p.name for p in self._folder.iterdir() if not p.name.startswith(".")}
        for name in sorted(names - self._handed):
            self._handed.add(name)
            self._seat.sanction("pardon", name)

    def _done(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        self._handed.discard(name)


def ask_pardon(folder: Path, name: str, within_s: float = 3.0) -> bool:
    """Ask for a pardon; whether a running coordinator has taken it in.

    Raises:
        ConfigError: There is nobody of that name, or nothing to pardon.
    """
    _check_quarantined(folder, name)
    file = folder / PARDONS / name
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, b"")
    until = time.monotonic() + within_s
    while file.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return not file.exists()


def _check_quarantined(folder: Path, name: str) -> None:
    states = member_states(folder)
    if name not in states:
        known = ", ".join(sorted(states)) or "nobody yet"
        raise ConfigError(f"{name!r} has never joined {folder}; those who have: {known}")
    state, note = states[name]
    if state != "QUARANTINED":
        raise ConfigError(f"{name} is not in quarantine ({state.lower()}); nothing to pardon")
    if note == REVOKED:
        raise ConfigError(
            f"{name}: {note}; give it a new one with 'dystop pki issue {name}' or 'dystop pki "
            f"token {name}', a pardon is not needed"
        )


def member_states(folder: Path) -> dict[str, tuple[str, str]]:
    """State and note of every member that the ledger knows; a coordinator may be at work."""
    path = folder / LEDGER
    if not path.is_file():
        raise RunFolderError(f"{path}: no ledger; no coordinator was ever started here")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
            rows = base.execute("SELECT name, state, note FROM workers").fetchall()
    except sqlite3.Error as error:
        raise RunFolderError(f"{path}: cannot be read: {error}") from None
    return {name: (state, note) for name, state, note in rows}


def restore_ledger(folder: Path) -> int:
    """Put the newest good backup in the place of a damaged ledger; after which round it was made.

    Raises:
        ConfigError: The ledger is not damaged.
        RunFolderError: There is no backup, or a coordinator is at work.
    """
    path = folder / LEDGER
    if not path.exists() and newest_backup(path) is None:
        raise RunFolderError(f"{path}: no ledger, and no backup of one; nothing can be restored")
    if is_whole(path):
        way = shell_command("testbed", "--resume", folder)
        raise ConfigError(f"{path}: not damaged; go on with: {way}")
    return int(recover(path).stem.rpartition("-")[2])


def watch_revoked(pki: Path, seat: CoordinatorProcess) -> None:
    """Send away at once whoever's certificate is revoked; let back in who has a new one."""

    def watch() -> None:
        while seat.finish is None:
            look_at_certificates(pki, seat)
            time.sleep(REVOKED_S)

    threading.Thread(target=watch, name="revoked", daemon=True).start()


def look_at_certificates(pki: Path, seat: CoordinatorProcess) -> None:
    """Compare the members with what the authority says now."""
    from dystop.testbed.security.files import read_register

    try:
        issued, revoked = read_register(pki / "issued.json"), read_register(pki / "revoked.json")
    except DystopError:  # being replaced; the next look is soon
        return
    without = {name for name, prints in issued.items() if prints and prints[-1] in revoked}
    for member in seat.members():
        if member.name in without or (member.session and member.fingerprint in revoked):
            if member.state != "QUARANTINED":
                seat.sanction("expel", member.name)
        elif member.state == "QUARANTINED" and member.note == REVOKED:
            seat.sanction("readmit", member.name)


def away(members: list[Member]) -> list[str]:
    """Who was sent away."""
    return [member.name for member in members if member.state == "QUARANTINED"]
