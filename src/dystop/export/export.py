"""`dystop export`: read a run or a study, write it in one format, and follow it if asked to."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dystop.errors import StorageError, shell_command
from dystop.export import Format
from dystop.export.files import TableFiles, write_arrow, write_csv, write_parquet
from dystop.export.sources import Source, open_source
from dystop.export.writer import Writer, needed
from dystop.folders.run_folder import not_created
from dystop.foreign_files import folder_within
from dystop.storage import write_failure

POLL_S = 1.0
_REST = 4.0  # times the work: follows large runs with a fifth of a core
_FOLDER = "export"


@dataclass(frozen=True)
class Exported:
    """What an export has written."""

    runs: int
    rounds: int
    paths: tuple[Path, ...]


def default_out(folder: Path, to: Format) -> Path:
    """Return where an export goes without --out: into the run or the study."""
    return folder.joinpath(*_names(to))


def _names(to: Format) -> tuple[str, ...]:
    return (_FOLDER,) if to in (Format.parquet, Format.csv, Format.arrow) else (_FOLDER, to.value)


def export(
    folder: Path,
    to: Format,
    out: Path | None = None,
    *,
    follow: bool = False,
    wait: Callable[[float], object] = time.sleep,
) -> Exported:
    """Write a run or a study in one format. A repeated export replaces the earlier one.

    Args:
        folder: Folder of a run or of a study; it is only read.
        to: The format.
        out: Folder to write to; by default one in the run or the study.
        follow: Go on until the run or the study ends.
        wait: Waits for some seconds.

    Raises:
        RunFolderError: The folder is neither a run nor a study, or is damaged.
        ConfigError: The package of this format is not installed.
        StorageError: A file could not be written.
    """
    source, place = open_source(folder), out or default_out(folder, to)
    _check_installed(to)
    try:
        with _made(folder, to, out) as inside:
            writer = make_writer(to, inside)
            try:
                counted = _copy(source, writer, follow=follow, wait=wait)
            except KeyboardInterrupt:  # the usual end of following: keep what is there
                writer.close()
                raise
            paths = [_within(inside, place, path) for path in writer.close()]
    except OSError as error:
        failure = write_failure(error, place)
        again = shell_command("export", folder, "--to", to.value, "--out", place)
        raise StorageError(f"{failure}, then: {again}") from error
    return Exported(len(counted), sum(map(len, counted.values())), tuple(paths))


@contextmanager
def _made(folder: Path, to: Format, out: Path | None) -> Iterator[Path]:
    """Make the folder of an export and enter it; in a run or a study, through no link."""
    with ExitStack() as stack:
        try:
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
            inside = out or stack.enter_context(folder_within(folder, *_names(to), create=True))
        except OSError as error:
            raise not_created(out or default_out(folder, to), error) from error
        yield inside


def _within(inside: Path, place: Path, path: Path) -> Path:
    """Return the name under which the user finds what was written."""
    return place / path.relative_to(inside) if path.is_relative_to(inside) else path


def _copy(
    source: Source, writer: Writer, *, follow: bool, wait: Callable[[float], object]
) -> dict[str, set[int]]:
    """Write what is there, then what is added; return the rounds of each run."""
    rounds: dict[str, set[int]] = {}
    while True:
        began_s, over = time.monotonic(), not follow or source.is_over  # asked before reading
        added = not rounds
        for run in source.runs:
            rows = run.read()
            added |= bool(rows)
            rounds.setdefault(run.label.run, set()).update(row.round for row in rows)
            writer.add(run.label, rows)
        if added:
            writer.flush()
        if over:
            return rounds
        wait(max(POLL_S, _REST * (time.monotonic() - began_s)))


def make_writer(to: Format, out: Path) -> Writer:
    """Return the writer of a format, which writes into a folder."""
    match to:
        case Format.csv:
            return TableFiles(out, ".csv", write_csv)
        case Format.parquet:
            return TableFiles(out, ".parquet", write_parquet)
        case Format.arrow:
            return TableFiles(out, ".arrow", write_arrow)
        case Format.tensorboard:
            from dystop.export.tensorboard import EventFiles

            return EventFiles(out)
        case Format.wandb:
            from dystop.export.wandb import WandbRuns

            return WandbRuns(out)
        case Format.mlflow:
            from dystop.export.mlflow import MlflowRuns

            return MlflowRuns(out)


def _check_installed(to: Format) -> None:
    """Refuse a format whose package is missing, before a folder is created."""
    packages = {Format.parquet: "pyarrow", Format.arrow: "pyarrow"}
    if to is not Format.csv:
        extra = "parquet" if to in packages else to.value
        needed(packages.get(to, to.value), extra)
