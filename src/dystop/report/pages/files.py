"""Writing of a report: the page, its figures and its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dystop.errors import ConfigError, RunFolderError, StorageError
from dystop.folders.run_folder import RunData
from dystop.report.figures.style import Plot
from dystop.report.figures.svg import save
from dystop.storage import NO_SPACE, write_atomic

FORMATS = ("png", "pdf", "svg")


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report."""

    html: Path
    figures: tuple[Path, ...]


def write_files(
    out: Path,
    plots: Sequence[Plot],
    page: str,
    formats: Sequence[str],
    tables: Mapping[str, str] | None = None,
) -> ReportFiles:
    """Write `out/report.html`, every figure as `out/figures/*`, and tables by their file names."""
    html, files = out / "report.html", []
    try:
        make_folders(out, out / "figures")
        for plot in plots:
            files += [_write_figure(plot, kind, out) for kind in formats if plot.figure]
        for name, table in (tables or {}).items():
            write_atomic(out / name, table.encode(), durable=False)
        write_atomic(html, page.encode(), durable=False)
    except OSError as error:
        raise _write_error(out, error) from error
    return ReportFiles(html, tuple(files))


def make_folders(*folders: Path) -> None:
    """Make folders that do not exist yet; refuse a link in the place of one.

    Such a link in the run folder of somebody else would lead the report to another place.
    """
    for folder in folders:
        if folder.is_symlink():
            raise RunFolderError(
                f"{folder}: a link to {folder.readlink()}; a report follows no link. Remove it, or "
                "choose another folder with --out DIR"
            )
        folder.mkdir(parents=True, exist_ok=True)


def _write_error(out: Path, error: OSError) -> RunFolderError | StorageError:
    reason = f"the report could not be written to {out}: {error.strerror or error}"
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return RunFolderError(f"{reason}; a file has this name: choose another folder")
    space = "free some space or " if error.errno in NO_SPACE else ""
    return StorageError(f"{reason}; {space}choose another folder")


def _write_figure(plot: Plot, kind: str, out: Path) -> Path:
    assert plot.figure is not None
    path = out / "figures" / f"{plot.key}.{kind}"
    write_atomic(path, save(plot.figure, kind), durable=False)
    return path


def check_arguments(runs: Sequence[RunData], target: float | None, formats: Sequence[str]) -> None:
    """Raise ConfigError for no run, an unknown format, or a target that is no accuracy."""
    if not runs:
        raise ConfigError("a report needs at least one run; name one or more run folders")
    if target is not None and not 0.0 < target <= 1.0:
        raise ConfigError(
            f"target accuracy is {target}; it must be above 0 and at most 1, such as 0.8 for 80 %"
        )
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise ConfigError(
            f"figure format {unknown[0]!r} is not known; choose from {', '.join(FORMATS)}"
        )
