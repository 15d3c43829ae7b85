"""The coordinator's part of a testbed run, in this process. Free of torch.

The other parties are in `dystop.testbed.setup.parties`.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, Self

from dystop.config import Experiment, read_again, read_experiment, to_tree
from dystop.errors import ConfigError, DystopError, RunFolderError, StorageError
from dystop.folders.folder_kinds import writing
from dystop.folders.late_scores import LateScoreLog
from dystop.folders.record_log import RecordLog, RunLock, read_lines
from dystop.folders.run_folder import (
    CONFIG,
    INFO,
    open_run,
    record_fingerprints,
    update_info,
)
from dystop.folders.trust import names_code
from dystop.foreign_files import LOG_BYTES, check_bounds, open_regular
from dystop.record import RoundRecord
from dystop.runs.processes import child_environment, dystop_command
from dystop.storage import PRIVATE, AppendLog, remove_temporary_files
from dystop.testbed.coordinator.conduct.incidents import IncidentEntry, as_rows
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.coordinator.state import RETRY_S
from dystop.testbed.coordinator.warm_up import warm_up
from dystop.testbed.events import FinishRun
from dystop.testbed.launch.health import HealthFile
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import restore
from dystop.testbed.log_throttle import throttled_logger
from dystop.testbed.names import COORDINATOR
from dystop.testbed.setup.enrolment import (
    INCIDENTS,
    STATUS,
    Enrolled,
    Enrolment,
    check_settings,
    coordinator_setup,
    fixed_settings,
    new_run_id,
    read_enrolled,
    read_enrolment,
    write_incidents,
    write_status,
)
from dystop.testbed.setup.operations import (
    LEDGER,
    PardonRequests,
    pass_on_left_behind,
    quarantined_names,
    watch_revocations,
)
from dystop.testbed.setup.transports import launcher_of
from dystop.testbed.transport.interface import Transport
from dystop.world.trace import TRACE, without_repeats

_LOG = throttled_logger(__name__)
_PIECE_BYTES = 1 << 20  # of the trace, which a damaged file may have in one line
STATUS_S = 0.25  # between two updates of the status file


class TraceLog:
    """`trace.jsonl`, open for appending; cut to its first lines at the start."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._before: dict[str, Any] | None = None
        path = folder / TRACE
        _, length = _complete_lines(path, keep)
        with writing(folder):
            self._log = AppendLog(path, length, PRIVATE)

    def append(self, line: dict[str, Any]) -> None:
        """Write one line, without what has not changed since the line before.

        If it does not fit, none of it is kept, and the caller may try again.
        """
        short = without_repeats(line, self._before)
        with writing(self._folder):
            self._log.append(json.dumps(short, separators=(",", ":")).encode() + b"\n")
        self._before = line

    def sync(self) -> None:
        """Wait until every line is on the disk."""
        with writing(self._folder):
            self._log.sync()

    def close(self) -> None:
        """Close the file. Nothing is buffered, so nothing can be lost here."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _published(folder: Path) -> int:
    """Return how many rounds have a complete line in both files; the ledger resends the others."""
    records, _ = read_lines(folder)
    return _complete_lines(folder / TRACE, len(records))[0]


def _complete_lines(path: Path, most: int) -> tuple[int, int]:
    """Return how many complete lines a file has, at most `most`, and where the last one ends."""
    try:
        with open_regular(path) as file:
            check_bounds(file, path, LOG_BYTES)
            return _lines_to(file, most)
    except FileNotFoundError:
        return 0, 0
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read: {error.strerror}; move it away, or start a new run"
        ) from None


def _lines_to(file: IO[bytes], most: int) -> tuple[int, int]:
    lines, start, end = 0, 0, 0
    while lines < most and (piece := file.read(_PIECE_BYTES)):
        at = -1
        while lines < most and (at := piece.find(b"\n", at + 1)) >= 0:
            lines, end = lines + 1, start + at + 1
        start += len(piece)
    return lines, end


@dataclass
class CoordinatorRun:
    """The coordinator of a run folder: ledger, records and trace."""

    folder: Path
    experiment: Experiment
    enrolment: Enrolment
    health: HealthFile = field(default_factory=HealthFile)
    watcher: "CoordinatorWatching | None" = None  # who shows the run while it goes on

    def run(
        self,
        transport: Transport,
        listen: str,
        on_process: Callable[[CoordinatorProcess], None] = lambda process: None,
    ) -> FinishRun:
        """Coordinate until the run ends; raises if it cannot continue."""
        began = time.monotonic()
        with RunLock(self.folder), _open_ledger(self.folder) as ledger:
            update_info(self.folder, status="running", stop_reason=None)
            finish = self._coordinate(ledger, transport, listen, on_process)
            if finish.code:
                error = DystopError(f"the coordinator ends: {finish.reason}")
                error.exit_code = finish.code
                raise error
            spent_s = time.monotonic() - began
            _when_disk_accepts(lambda: self._record_end(finish.reason, spent_s))
        self.health.over(COORDINATOR)
        return finish

    def _coordinate(
        self,
        ledger: SqliteLedger,
        transport: Transport,
        listen: str,
        on_process: Callable[[CoordinatorProcess], None],
    ) -> FinishRun:
        done = _published(self.folder)
        if self.watcher is not None:
            workers = self.experiment.fleet.workers
            self.watcher.on_opening(workers, self.experiment.stop.rounds, done)
        past = restore(ledger)
        setup = coordinator_setup(self.experiment, self.enrolment, past.run or new_run_id())
        warm_up(setup)
        machine = CoordinatorMachine(setup, past)
        with (
            RecordLog(self.folder, keep=done) as log,
            TraceLog(self.folder, done) as trace,
            LateScoreLog(self.folder) as late_scores,
        ):
            process = CoordinatorProcess(
                transport,
                machine,
                ledger,
                listen,
                self._shown(log.append),
                trace.append,
                _LOG.error,
            )
            process.on_late_score = late_scores.append
            process.published = process.traced = done
            ledger.on_backup_failed = partial(process.incident, COORDINATOR, "backup_failed")
            logs = (log, trace, late_scores)
            ledger.before_archiving = partial(_sync, logs)  # their rows go
            on_process(process)
            with _publishing_status(self.folder, process, machine, self.health, self.watcher):
                process.run()
            _when_disk_accepts(partial(_sync, logs))
        assert process.finish is not None  # `run` returns only then
        return process.finish

    def _shown(self, append: Callable[[RoundRecord], None]) -> Callable[[RoundRecord], None]:
        """Return an `append` that shows the record, too, if somebody watches."""
        watcher = self.watcher
        if watcher is None:
            return append

        def append_and_show(record: RoundRecord) -> None:
            append(record)
            watcher.on_record(record)

        return append_and_show

    def _record_end(self, reason: str, spent_s: float) -> None:
        before_s = float(open_run(self.folder).info.get("wall_s") or 0.0)
        update_info(
            self.folder,
            status="finished",
            stop_reason=reason,
            wall_s=round(before_s + spent_s, 3),
            **record_fingerprints(self.folder),
        )


def _sync(logs: Iterable[RecordLog | TraceLog | LateScoreLog]) -> None:
    """Wait until all lines are on the disk."""
    for log in logs:
        log.sync()


def _when_disk_accepts(write: Callable[[], None]) -> None:
    """Repeat a write until the disk takes it; a signal ends the wait."""
    while True:
        try:
            return write()
        except StorageError as error:
            _LOG.error("%s", error)
            time.sleep(RETRY_S)


@contextmanager
def _open_ledger(folder: Path) -> Iterator[SqliteLedger]:
    ledger = SqliteLedger(folder / LEDGER)
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def _publishing_status(
    folder: Path,
    process: CoordinatorProcess,
    machine: CoordinatorMachine,
    health: HealthFile,
    watcher: "CoordinatorWatching | None" = None,
) -> Iterator[None]:
    """Keep the status files current: address, members that have joined, incidents, health."""
    over, setup, pardons = threading.Event(), machine.state.setup, PardonRequests(folder, process)
    pardons.poll()  # before any member can join
    for name in (STATUS, INCIDENTS):
        remove_temporary_files(folder, name)  # of a coordinator that was killed

    listed: tuple[IncidentEntry, ...] = ()

    def publish_incidents() -> None:
        nonlocal listed
        if (found := process.incidents()) != listed:
            with suppress(OSError):  # the ledger has them; the next turn tries again
                write_incidents(folder, as_rows(found))
                listed = found

    def publish() -> None:
        last: dict[str, Any] = {}
        while True:
            members = process.members()
            here = [m.name for m in members if m.state == "JOINED" and m.node < setup.fleet.workers]
            joined = len(here)
            if watcher is not None and process.address:
                watcher.on_members(process.address, frozenset(here))
            facts = {"address": process.address, "joined": joined, "run": setup.run}
            facts["away"] = quarantined_names(members)
            if facts != last:
                with suppress(OSError):  # the run goes on; the next turn tries again
                    write_status(folder, pid=os.getpid(), **facts)
                    last = facts
            publish_incidents()
            health.write(process.health())
            pardons.poll()
            pass_on_left_behind(folder, process)
            if over.wait(STATUS_S):
                return

    thread = threading.Thread(target=publish, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        publish_incidents()


def open_coordinator_run(file: Path, folder: Path, given: Path | None = None) -> CoordinatorRun:
    """Return the coordinator of a run folder; create the folder if it does not exist.

    Args:
        file: The experiment.
        folder: The run folder.
        given: File of the workers that the operator enrols, if workers bring their own data.
    """
    experiment = read_experiment(file)
    enrolled = read_enrolled(given, experiment) if given else None
    if not (folder / INFO).is_file():
        _create_folder(experiment, folder, enrolled)
    run = open_run(folder)
    theirs, own = (names_code(t).get("mechanism.name") for t in (run.config, to_tree(experiment)))
    if theirs not in (None, own):  # code that only the folder names is not imported
        raise _other_settings(file, folder)
    check_settings(run)
    kept = read_again(folder)  # a coordinator imports no model
    _check_same(experiment, kept, file, folder)
    enrolment = read_enrolment(folder, kept)
    if enrolled not in (None, enrolment.workers):
        raise ConfigError(
            f"{given}: these are not the workers that {folder} started with; "
            "leave --enrolment out, or give another --out"
        )
    return CoordinatorRun(folder, kept, enrolment)


def _create_folder(
    experiment: Experiment, folder: Path, enrolled: tuple[Enrolled, ...] | None
) -> None:
    """Create the folder of a run that has no launcher."""
    from dystop.testbed.setup.launch import make_folder

    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(f"{folder}: not empty and not a run folder; choose another --out")
    if folder.exists():
        folder.rmdir()
    make_folder(experiment, folder.parent, folder.name, enrolled)


def _check_same(experiment: Experiment, recorded: Experiment, file: Path, folder: Path) -> None:
    """Refuse to resume a run with other settings than it started with."""
    if experiment.world.compute.batch_s == "measure":  # it was measured when the run started
        compute = recorded.world.compute
        experiment = replace(experiment, world=replace(experiment.world, compute=compute))
    if fixed_settings(experiment) != fixed_settings(recorded):
        raise _other_settings(file, folder)


def _other_settings(file: Path, folder: Path) -> ConfigError:
    return ConfigError(
        f"{file}: these are not the settings that {folder} started with; give its own "
        f"{folder / CONFIG}, or another --out"
    )


class CoordinatorWatching(Protocol):
    """Who shows a coordinator's run; called from the coordinator's threads."""

    def on_opening(self, workers: int, rounds: int, done: int) -> None:
        """Called before anybody can join; `done` rounds are not repeated."""

    def on_members(self, address: str, joined: frozenset[str]) -> None:
        """Called now and then with the address of the coordinator and the workers that are in."""

    def on_record(self, record: RoundRecord) -> None:
        """Called with every round whose record is complete."""


@dataclass(frozen=True)
class CoordinatorOptions:
    """What a coordinator in its own process is given on the command line."""

    file: Path  # the experiment
    pki: Path
    listen: str  # address
    folder: Path  # of the run
    enrol: str = ""  # address where new parties redeem tokens
    enrolment: Path | None = None  # the workers, if they bring their own data
    health: HealthFile = field(default_factory=HealthFile)


def serve_coordinator(
    options: CoordinatorOptions, watcher: CoordinatorWatching | None = None
) -> str:
    """Coordinate over the network until the run ends; return why it ended."""
    from dystop.testbed.security.authority import Issued

    pki, experiment = options.pki, read_experiment(options.file)
    transport = launcher_of(experiment).connect(
        pki, COORDINATOR, Issued(pki), experiment.testbed.limits
    )
    try:
        run = open_coordinator_run(options.file, options.folder, options.enrolment)
        run.health, run.watcher = options.health, watcher
        with _accepting_new_workers(pki, options.enrol):
            return run.run(
                transport, options.listen, lambda process: watch_revocations(pki, process)
            ).reason
    finally:
        transport.close()


@contextmanager
def _accepting_new_workers(pki: Path, address: str) -> Iterator[None]:
    """Let new workers redeem their tokens while the block runs, if an address is given.

    Another process does it: this one, which reads what strangers send for the whole run, never
    reads the key of the authority.
    """
    if not address:
        yield
        return
    words = dystop_command("pki", "serve", "--folder", pki.absolute(), "--listen", address)
    pipe, variables = subprocess.PIPE, child_environment()
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=variables, process_group=0) as child:
        try:
            listens = child.stdout.readline().decode().strip() if child.stdout else ""
            if not listens:
                error = ConfigError(f"--enrol {address}: the port for new workers does not open")
                error.exit_code = child.wait() or error.exit_code
                raise error
            _LOG.info("new workers can enrol on %s", listens)
            yield
        finally:
            child.terminate()
