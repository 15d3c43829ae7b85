"""What an export reads: run folders, finished or growing, of simulations and of testbeds.

Nothing here waits or writes. A caller reads a source again and again until it is over.
"""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.errors import RunFolderError
from dystop.export.rows import LINK_COLUMNS, RoundRows, TracedLinks
from dystop.folders.folder_kinds import INFO, TESTBED_RUN, kind_of
from dystop.folders.record_log import RECORDS, LineTail, RecordTail, is_abandoned
from dystop.folders.run_folder import is_study, open_config, run_folder
from dystop.folders.trust import secret_id
from dystop.params import flatten
from dystop.record import RoundRecord
from dystop.storage import read_json
from dystop.strict_json import parse_json
from dystop.studies.study import outline
from dystop.world.trace import TRACE

ABANDONED_S = 15.0
"""A run that no process has been writing for so long is over; a coordinator may restart."""


@dataclass(frozen=True)
class RunLabel:
    """Which run a row belongs to: the first columns of every table."""

    run: str
    mechanism: str
    timing: str
    seed: int
    swept: Mapping[str, Any] = field(default_factory=dict)  # values of the keys that a sweep varies
    id: str = ""  # hexadecimal; stays the same when this very folder is exported again
    config: Mapping[str, Any] = field(default_factory=dict)  # all keys, dotted

    def columns(self) -> dict[str, Any]:
        """Return the columns by name."""
        named = {"run": self.run, "mechanism": self.mechanism, "timing": self.timing}
        return {**named, "seed": self.seed, **self.swept}


class RunSource:
    """One run folder. `read` returns what is new in it.

    Args:
        folder: The run folder; it must be complete, but its run need not have ended.
        swept: Keys whose values become columns.
        clock: Seconds, for `is_over`.
    """

    def __init__(
        self,
        folder: Path,
        swept: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = run_folder(folder)
        self.label = _label(folder, swept)
        self._over = _End(folder, clock)
        self._tail, self._trace = RecordTail(folder / RECORDS), LineTail(folder / TRACE)
        self._is_testbed = kind_of(folder) is TESTBED_RUN
        self._untraced: dict[int, RoundRecord] = {}  # of a testbed, whose links follow
        self._links: dict[int, TracedLinks] = {}  # of rounds whose record follows
        self._energy_j: dict[int, float | None] = {0: 0.0}  # total after each round

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be written: the run has ended, or nobody continues it."""
        return self._over.reached(read_json(self.folder / INFO).get("status") == "running")

    def read(self) -> list[RoundRows]:
        """Return the rows of new rounds, and again of older ones of which more is known now.

        Raises:
            RunFolderError: A line of the records or of the trace is damaged.
        """
        records = self._read(RECORDS, self._tail.read)
        self._links |= dict(self._read(TRACE, lambda: [*map(_traced, self._trace.read())]))
        changed = {r.round: r for r in records}
        late = self._untraced.keys() & self._links.keys() - changed.keys()
        changed |= {k: self._untraced.pop(k) for k in sorted(late)}
        return [self._rows(changed[k]) for k in sorted(changed)]

    def _read(self, name: str, read: Callable[[], list[Any]]) -> list[Any]:
        try:
            return read()
        except (LookupError, ValueError, TypeError, RecursionError):
            raise RunFolderError(
                f"{self.folder / name}: a line is damaged, so the run cannot be exported; cut the "
                "file before that line to keep what came before"
            ) from None
        except OSError as error:
            raise RunFolderError(
                f"{self.folder / name}: cannot be read: {error.strerror}"
            ) from None

    def _rows(self, record: RoundRecord) -> RoundRows:
        round_ = record.round
        if round_ not in self._energy_j:
            before, spent = self._energy_j.get(round_ - 1), record.get("energy_j")
            self._energy_j[round_] = None if before is None or spent is None else before + spent
        links = self._links.get(round_)
        if links is None and self._is_testbed:
            self._untraced[round_] = record
        return RoundRows(record, links, self._energy_j[round_])


class StudySource:
    """The runs of a study, which may begin while it is exported.

    Args:
        folder: The folder of the study.
        clock: Seconds, for `is_over`.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._outline, self._clock = outline(folder), clock
        self._over = _End(folder, clock)
        self._runs: dict[Path, RunSource] = {}

    @property
    def runs(self) -> list[RunSource]:
        """The runs that have begun, in the order of the study."""
        for folder in self._outline.folders:
            if folder not in self._runs and (folder / INFO).is_file():
                self._runs[folder] = RunSource(folder, self._outline.over, self._clock)
        return [self._runs[folder] for folder in self._outline.folders if folder in self._runs]

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended, or nobody continues the study."""
        runs = self.runs
        ended = [run.is_over for run in runs]
        return self._over.reached(not all(ended) or len(runs) < len(self._outline.folders))


@dataclass(frozen=True)
class SingleRun:
    """One run as the source of an export."""

    run: RunSource

    @property
    def runs(self) -> list[RunSource]:
        """The run."""
        return [self.run]

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be written."""
        return self.run.is_over


Source = StudySource | SingleRun


def open_source(folder: Path, clock: Callable[[], float] = time.monotonic) -> Source:
    """Return what is to be exported: a run, or all runs of a study.

    Raises:
        RunFolderError: The folder is neither.
    """
    if is_study(folder):
        return StudySource(folder, clock)
    return SingleRun(RunSource(folder, clock=clock))


class _End:
    """Notices the end of a folder that a process writes, even if that process dies."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder, clock
        self._abandoned_s: float | None = None  # since when nobody holds its lock

    def reached(self, goes_on: bool) -> bool:
        """Return whether it is over, although its files may say that it goes on."""
        if not goes_on:
            return True
        if not is_abandoned(self._folder):
            self._abandoned_s = None
            return False
        if self._abandoned_s is None:
            self._abandoned_s = self._clock()
        return self._clock() - self._abandoned_s >= ABANDONED_S


def _traced(line: bytes) -> tuple[int, TracedLinks]:
    """Return round and links of one line of a trace; a damaged one raises an error."""
    raw = parse_json(line)
    columns = [raw["links"][name] for name in LINK_COLUMNS]
    if len({len(column) for column in columns}) > 1 or not all(
        isinstance(c, list) for c in columns
    ):
        raise ValueError("columns differ in length")
    return int(raw["round"]), raw["links"]


def _label(folder: Path, swept: Sequence[str]) -> RunLabel:
    info, config = read_json(folder / INFO), dict(flatten(open_config(folder)))
    name = folder.resolve().name
    keys = [key for key in swept if key not in ("mechanism.name", "engine.timing")]
    return RunLabel(
        run=name,
        mechanism=str({**config, **dict(flatten(info))}.get("mechanism.name", "")),
        timing=str(info.get("timing", "")),
        seed=int(info.get("seed", 0)),
        swept={key: _plain(config.get(key)) for key in keys},
        id=_id(folder, str(info.get("config_sha256"))),
        config=config,
    )


def _id(folder: Path, config_sha256: str) -> str:
    """Return an id that no other folder can claim: an export replaces what has the same one.

    A path on a host is not enough: on a tracking server of several users, `localhost` and
    `/runs/demo` exist many times.
    """
    return secret_id(f"{platform.node()}\n{folder.resolve()}\n{config_sha256}")


def _plain(value: Any) -> Any:
    """Return a value that fits into a cell; a list becomes text."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
