"""One experiment in one run folder: run it, resume it, or verify it by running it again."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dystop.config import Experiment, read_experiment, to_toml
from dystop.config.experiment import OutputParams
from dystop.control.stopping import ends_early, stop_reason
from dystop.errors import RunFolderError, shell_command
from dystop.folders.folder_kinds import TESTBED, TESTBED_RUN
from dystop.folders.record_log import RECORDS, check_start
from dystop.folders.run_folder import (
    CHECKPOINTS,
    CONFIG,
    RecordLog,
    RunData,
    RunLock,
    check_config,
    create_run,
    first_info,
    log_was_changed,
    open_run,
    removed_if_unused,
    run_folder,
    update_info,
    writing,
)
from dystop.folders.trained_models import keep_models
from dystop.foreign_files import LOG_BYTES, read_bounded
from dystop.record import RoundRecord
from dystop.runs.building import Built, build, check_same_data
from dystop.runs.interrupts import Interrupts
from dystop.simulator import checkpoint, no_round, run_rounds
from dystop.simulator.round import begin
from dystop.simulator.state import Components, State

OnRecord = Callable[[RoundRecord], None]


@dataclass(frozen=True)
class Started:
    """What is known before the first round of this session."""

    folder: Path
    physics: dict[str, str]
    partition: list[str]
    memory: str
    rounds: int  # of the whole run
    done: int = 0  # rounds that a resumed run does not repeat
    device: str = "cpu"


OnStart = Callable[[Started], None]


@dataclass(frozen=True)
class Verdict:
    """Whether a second run of the same experiment has the same records."""

    identical: bool
    rounds: int
    sha256: str
    detail: str = ""


@dataclass
class _Session:
    """The work of one process on one run folder."""

    folder: Path
    built: Built
    interrupts: Interrupts
    on_record: OnRecord
    wall_s: float = 0.0  # of earlier sessions
    began: float = field(default_factory=time.perf_counter)

    @property
    def output(self) -> OutputParams:
        return self.built.experiment.output

    @property
    def spent_s(self) -> float:
        return self.wall_s + time.perf_counter() - self.began


def run_experiment(
    experiment: Experiment, out: Path, name: str | None, on_start: OnStart, on_record: OnRecord
) -> Path:
    """Run an experiment in a new folder; return the folder.

    A run that fails before its first round leaves no folder behind.
    """
    if name is not None:
        experiment = replace(experiment, name=name)
    built = build(experiment)
    experiment = built.experiment
    with Interrupts() as interrupts:  # from here on there is something to save
        folder = create_run(
            out,
            experiment.name,
            to_toml(experiment),
            first_info(experiment),
            built.fleet,
            explicit=name is not None,
        )
        with removed_if_unused(folder), RunLock(folder):
            session = _Session(folder, built, interrupts, on_record)
            _run_to_end(session, None, 0, lambda: on_start(_started(folder, built, 0)))
    return folder


def resume_run(folder: Path, on_start: OnStart, on_record: OnRecord) -> Path:
    """Resume a run from its newest checkpoint, or from the start if there is none.

    Raises:
        TrustError: Somebody else created the run, and it names code.
    """
    run_folder(folder)
    with RunLock(folder):
        data = open_run(folder)
        _check_simulated(data)
        _check_untouched(data)
        if data.info.get("status") == "finished":
            on_start(_already_finished(folder, len(data.records)))
            return folder
        experiment = read_experiment(folder / CONFIG)
        built = build(experiment)
        check_same_data(folder, data.fleet, built.fleet)
        found = checkpoint.load_newest(folder / CHECKPOINTS, built.components.trainer.device)
        done, state = (found.round, found.state) if found is not None else (0, None)
        if found is not None:
            check_start(folder, found.records, found.round)

        def announce() -> None:
            on_start(_started(folder, built, done))
            for record in data.records[:done]:
                on_record(record)

        wall_s = float(data.info.get("wall_s") or 0.0)
        with Interrupts() as interrupts:
            update_info(folder, status="running", stop_reason=None)
            session = _Session(folder, built, interrupts, on_record, wall_s)
            _run_to_end(session, state, done, announce)
    return folder


def _started(folder: Path, built: Built, done: int) -> Started:
    return Started(
        folder=folder,
        physics=built.physics,
        partition=built.partition,
        memory=built.memory,
        rounds=built.components.stop.rounds,
        done=done,
        device=str(built.components.trainer.device),
    )


def _already_finished(folder: Path, rounds: int) -> Started:
    return Started(folder, {}, [], "", rounds, rounds)


def _run_to_end(
    session: _Session, state: State | None, done: int, announce: Callable[[], None]
) -> None:
    """Run rounds until the run is over or interrupted, and note how it ended in `run.json`.

    `announce` is called inside the `try`: if it fails, the run must not stay marked as running.
    """
    folder = session.folder
    with RecordLog(folder, keep=done) as log:
        try:
            announce()
            last, state = _run_rounds(session, log, state)
            log.sync()
            if (card := session.built.card) is not None:
                keep_models(folder, session.built.components, state, card, session.output.models)
        except (KeyboardInterrupt, Exception) as error:
            if isinstance(error, KeyboardInterrupt) or session.interrupts.pending is not None:
                update_info(folder, status="interrupted", wall_s=round(session.spent_s, 3))
            else:
                _mark_failed(folder, f"{type(error).__name__}: {error}")
            raise
        reason = (
            stop_reason(session.built.components.stop, last) if last else "no round was possible"
        )
        update_info(
            folder,
            status="finished",
            stop_reason=reason,
            wall_s=round(session.spent_s, 3),
            tests_s=round(session.built.components.trainer.evaluated_s, 3),
            records_sha256=log.sha256,
        )


def store_run(
    folder: Path,
    built: Built,
    records: Sequence[RoundRecord],
    state: State,
    stopped: str,
    wall_s: float,
) -> None:
    """Write records, checkpoint and models of a simulation into its new run folder.

    Args:
        folder: The run folder; it has no record yet.
        built: The simulation.
        records: Its history.
        state: The state after the last record.
        stopped: Why a callback has ended it, so that it can be resumed; empty: it has finished.
        wall_s: Seconds that it took.
    """
    components, output = built.components, built.experiment.output
    with RunLock(folder), RecordLog(folder, keep=0) as log:
        for record in records:
            log.append(record)
        log.sync()
        with writing(folder):
            checkpoint.save(folder / CHECKPOINTS, state, log.mark)
        if built.card is not None:
            keep_models(folder, components, state, built.card, output.models)
        last = records[-1] if records else None
        reason = stop_reason(components.stop, last) if last else "no round was possible"
        ended = {"status": "finished", "stop_reason": reason, "records_sha256": log.sha256}
        halted = {"status": "interrupted", "stop_reason": stopped}
        update_info(folder, **(halted if stopped else ended), wall_s=round(wall_s, 3))


def _run_rounds(
    session: _Session, log: RecordLog, state: State | None
) -> tuple[RoundRecord | None, State]:
    """Run the rounds, append records and save checkpoints; return the last record and state."""
    components = session.built.components
    last = _last_record(session.folder) if state is not None else None
    state = begin(components) if state is None else state
    if last is not None and ends_early(components.stop, last):
        return last, state  # the run was stopped between its last round and its end
    schedule = _SaveSchedule(session.interrupts, session.output.checkpoint_every)
    for record, after in run_rounds(components, state, schedule.needs_models):
        log.append(record)
        session.on_record(record)
        last, state = record, after
        if record.round <= schedule.released:
            continue  # a later round may have changed the models already
        if schedule.is_due(record.round):
            log.sync()
            began_s = time.monotonic()
            with writing(session.folder):
                checkpoint.save(session.folder / CHECKPOINTS, after, log.mark)
            schedule.saved(began_s)
        session.interrupts.check()
    return last, state


CHECKPOINT_S = 10.0  # between checkpoints, where no number of rounds is chosen


@dataclass
class _SaveSchedule:
    """The rounds after which the state is saved; a round that runs at a signal is one of them.

    By default they go by time. A checkpoint needs the models of one round, so that later rounds
    have to wait for it. The pause after a checkpoint is at least ten times as long as writing it:
    that of a million workers has a gigabyte.
    """

    interrupts: Interrupts
    every: int  # rounds between checkpoints; 0: they go by time
    released: int = 0  # the last round whose models the simulator may overwrite
    chosen: int = 0  # the last round whose models were asked for
    saved_s: float = field(default_factory=time.monotonic)
    pause_s: float = CHECKPOINT_S

    def is_due(self, t: int) -> bool:
        if self.interrupts.pending is not None or t == self.chosen:
            return True
        if self.every:
            return t % self.every == 0
        return time.monotonic() - self.saved_s >= self.pause_s

    def needs_models(self, t: int) -> bool:
        """Answer before the next round starts; a signal that comes later waits for that round."""
        if self.is_due(t):
            self.chosen = t
            return True
        self.released = t
        return False

    def saved(self, began_s: float) -> None:
        """Start to wait for the next checkpoint after one that was begun at a time."""
        self.saved_s = time.monotonic()
        self.pause_s = max(CHECKPOINT_S, 10.0 * (self.saved_s - began_s))


def _last_record(folder: Path) -> RoundRecord | None:
    records = open_run(folder).records
    return records[-1] if records else None


def _mark_failed(folder: Path, why: str) -> None:
    """Note the failure in run.json if possible; the error itself is what the user must see."""
    try:
        update_info(folder, status="failed", stop_reason=why)
    except Exception:  # report the first error, not this one
        return


def verify_run(folder: Path, rounds: int | None, on_record: OnRecord) -> Verdict:
    """Run the recorded experiment again and compare every record, byte for byte.

    Raises:
        TrustError: Somebody else created the run, and it names code.
    """
    lines = _recorded_lines(folder)[: rounds or None]
    built = build(read_experiment(folder / CONFIG))
    check_same_data(folder, open_run(folder).fleet, built.fleet)
    digest = hashlib.sha256()
    checked = 0
    for record, line in zip(_records_of(built.components), lines, strict=False):
        again = record.to_json()
        if again != line:
            return Verdict(False, checked, "", _difference(checked + 1, line, again))
        digest.update(line.encode() + b"\n")
        checked += 1
        on_record(record)
    if rounds is None and log_was_changed(open_run(folder)):
        return Verdict(False, checked, "", "the record log was cut or changed after the run ended")
    if checked < len(lines):
        detail = f"the repeated run ends after {checked} of {len(lines)} recorded rounds"
        return Verdict(False, checked, "", detail)
    return Verdict(True, checked, digest.hexdigest())


def _records_of(components: Components) -> Iterator[RoundRecord]:
    for record, _ in run_rounds(components, begin(components), no_round):
        yield record


def _check_simulated(data: RunData) -> None:
    """Refuse a testbed run: only the testbed can resume it, and nothing can repeat it."""
    if data.info.get("kind") == TESTBED:
        raise RunFolderError(
            f"{data.path}: a {TESTBED_RUN.noun}; resume it with: "
            f"{TESTBED_RUN.resume_command(data.path)}, or check it with: "
            f"{shell_command(TESTBED_RUN.check, data.path)}"
        )


def _check_untouched(data: RunData) -> None:
    """Refuse a run whose settings or whose finished records were changed."""
    check_config(data, "dystop run")
    if log_was_changed(data):
        again = shell_command("run", data.path / CONFIG, "--name", "NEW")
        raise RunFolderError(
            f"{data.path / RECORDS}: was cut or changed after the run finished, so it cannot be "
            f"resumed; restore the file, or run the experiment again with: {again}"
        )


def _recorded_lines(folder: Path) -> list[str]:
    """Return the complete lines of the record log."""
    _check_simulated(open_run(folder))  # also refuses a damaged folder
    log = folder / RECORDS
    text = read_bounded(log, LOG_BYTES).decode() if log.is_file() else ""  # as `open_run` sees it
    return text.split("\n")[:-1]


def _difference(round_: int, recorded: str, again: str) -> str:
    """Say in words where two lines differ."""
    at = next((k for k, (a, b) in enumerate(zip(recorded, again, strict=False)) if a != b), 0)
    start = max(0, at - 20)
    here = slice(start, at + 20)
    return f"round {round_}: recorded ...{recorded[here]}..., again ...{again[here]}..."
