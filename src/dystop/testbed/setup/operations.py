"""What operators do to a run: revoke certificates, issue new ones, pardon, and restore the ledger.

None of it goes over the network. Revocations are files of the authority. A pardon is a file in the
run folder; the coordinator processes and deletes it, also if it starts only later. In the same way
the launcher tells the coordinator which parties cannot go on.
"""

import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from dystop.errors import ConfigError, DystopError, RunFolderError, shell_command
from dystop.foreign_files import JSON_BYTES, folder_within, read_bounded, refuse_links
from dystop.storage import write_atomic
from dystop.testbed.coordinator.conduct.quarantine import REVOKED
from dystop.testbed.coordinator.members import Member
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.ledger.recovery import is_intact, recover
from dystop.testbed.ledger.sqlite import newest_backup

PARDONS = "pardons"  # folder with a file for each member to be pardoned
LEFT_BEHIND = "left_behind"  # folder with a file for each party that cannot go on: why
LEDGER = "state.db"
REVOKED_S = 0.5  # between two checks of the revocations


class PardonRequests:
    """Passes the pardon requests of a run folder to the coordinator, then deletes them."""

    def __init__(self, folder: Path, process: CoordinatorProcess) -> None:
        """Set `process.on_pardoned`."""
        self._folder, self._seat = folder / PARDONS, process
        self._handed: set[str] = set()
        process.on_pardoned = self._done

    def poll(self) -> None:
        """Pass on new requests."""
        if not self._folder.is_dir():
            return
        names = {p.name for p in self._folder.iterdir() if not p.name.startswith(".")}
        for name in sorted(names - self._handed):
            self._handed.add(name)
            self._seat.sanction("pardon", name)

    def _done(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        self._handed.discard(name)


def report_left_behind(folder: Path, name: str, reason: str) -> None:
    """Tell the coordinator that a party cannot go on."""
    with (
        suppress(OSError),  # the launcher shows it as well
        folder_within(folder, LEFT_BEHIND, create=True) as inside,
    ):
        write_atomic(inside / name, reason.encode())


def pass_on_left_behind(folder: Path, process: CoordinatorProcess) -> None:
    """Pass the parties that cannot go on to the coordinator, and delete their files."""
    reports = folder / LEFT_BEHIND
    if not reports.is_dir():
        return
    with suppress(OSError):
        for file in sorted(p for p in reports.iterdir() if not p.name.startswith(".")):
            process.incident(file.name, "left_behind", _text(file))
            file.unlink()


def _text(file: Path) -> str:
    return read_bounded(file, JSON_BYTES).decode(errors="replace")


def request_pardon(folder: Path, name: str, within_s: float = 3.0) -> bool:
    """Request a pardon; return whether a running coordinator has processed it.

    Raises:
        ConfigError: There is no member of that name, or nothing to pardon.
    """
    _check_quarantined(folder, name)
    file = folder / PARDONS / name
    with folder_within(folder, PARDONS, create=True) as inside:
        write_atomic(inside / name, b"")
    until = time.monotonic() + within_s
    while file.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return not file.exists()


def _check_quarantined(folder: Path, name: str) -> None:
    states = member_states(folder)
    if name not in states:
        known = ", ".join(sorted(states)) or "none yet"
        raise ConfigError(f"{name!r} has never joined {folder}; members: {known}")
    state, note = states[name]
    if state != "QUARANTINED":
        raise ConfigError(f"{name} is not in quarantine ({state.lower()}); nothing to pardon")
    if note == REVOKED:
        raise ConfigError(
            f"{name}: {note}; give it a new one with 'dystop pki issue {name}' or 'dystop pki "
            f"token {name}', a pardon is not needed"
        )


def member_states(folder: Path) -> dict[str, tuple[str, str]]:
    """Return state and note of every member in the ledger, also while a coordinator runs."""
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
    """Make a damaged ledger usable again; return the last round that is closed in it.

    Raises:
        ConfigError: The ledger is not damaged.
        RunFolderError: There is no backup, or a coordinator is running.
    """
    refuse_links(folder)
    path = folder / LEDGER
    if not path.exists() and newest_backup(path) is None:
        raise RunFolderError(f"{path}: no ledger, and no backup of one; nothing can be restored")
    if is_intact(path):
        resume = shell_command("testbed", "--resume", folder)
        raise ConfigError(f"{path}: not damaged; resume the run: {resume}")
    return recover(path)


def watch_revocations(pki: Path, process: CoordinatorProcess) -> None:
    """Start a thread that expels revoked members and readmits those with a new certificate."""

    def watch() -> None:
        while process.finish is None:
            check_certificates(pki, process)
            time.sleep(REVOKED_S)

    threading.Thread(target=watch, name="revoked", daemon=True).start()


def check_certificates(pki: Path, process: CoordinatorProcess) -> None:
    """Compare the members with the registers of the authority."""
    from dystop.testbed.security.files import read_register

    try:
        issued, revoked = read_register(pki / "issued.json"), read_register(pki / "revoked.json")
    except DystopError:  # being replaced; the next check is soon
        return
    without = {name for name, prints in issued.items() if prints and prints[-1] in revoked}
    for member in process.members():
        if member.name in without or (member.session and member.fingerprint in revoked):
            if member.state != "QUARANTINED":
                process.sanction("expel", member.name)
        elif member.state == "QUARANTINED" and member.note == REVOKED:
            process.sanction("readmit", member.name)


def quarantined_names(members: list[Member]) -> list[str]:
    """Return the names of the members in quarantine."""
    return [member.name for member in members if member.state == "QUARANTINED"]
