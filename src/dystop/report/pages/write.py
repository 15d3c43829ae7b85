"""Writing a report: the page and its figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dystop.errors import ConfigError, RunFolderError, StorageError
from dystop.experiments.run_folder import RunData
from dystop.report.data.summary import default_target
from dystop.report.figures import labels, learning, maps, rounds
from dystop.report.figures.style import Plot, entries
from dystop.report.figures.svg import save
from dystop.report.garbage import spare_the_old
from dystop.report.pages.html import render
from dystop.storage import NO_SPACE, write_atomic

FORMATS = ("png", "pdf", "svg")


@dataclass(frozen=True)
class ReportFiles:
    """What was written."""

    html: Path
    figures: tuple[Path, ...]


def draw(runs: Sequence[RunData], target: float | None = None) -> list[Plot]:
    """All figures of a report, in reading order."""
    drawn = entries(runs)
    aim = default_target(runs) if target is None else target
    plots = [
        learning.accuracy_time(drawn, aim),
        learning.loss_time(drawn),
        learning.data_time(drawn),
        learning.accuracy_data(drawn, aim),
        rounds.staleness_rounds(drawn),
        rounds.staleness_histogram(drawn),
        rounds.active_workers(drawn),
        rounds.round_duration(drawn),
        rounds.alive_workers(drawn),
        labels.label_distribution(drawn),
        maps.link_map(drawn),
    ]
    return [plot for plot in plots if plot is not None]


@spare_the_old()
def write_report(
    runs: Sequence[RunData],
    out: Path,
    *,
    target: float | None = None,
    formats: Sequence[str] = ("png", "pdf"),
) -> ReportFiles:
    """Write `out/report.html`, complete in itself, and every figure as `out/figures/*`.

    Args:
        runs: one run for its own report, several for a comparison.
        out: folder to write to; made where it is missing.
        target: accuracy whose time and data are reported, in (0, 1]; by default the largest of
            the usual targets that a run reached.
        formats: of the figure files: png, pdf, svg.

    Raises:
        ConfigError: no run, an unknown format, or a target that is no accuracy.
        RunFolderError: a file is where a folder should be.
        StorageError: the folder could not be written.
    """
    check_request(runs, target, formats)
    plots = draw(runs, target)
    return write_files(out, plots, render(runs, plots, target), formats)


def write_files(
    out: Path,
    plots: Sequence[Plot],
    page: str,
    formats: Sequence[str],
    tables: Mapping[str, str] | None = None,
) -> ReportFiles:
    """Write a page, its figures, and tables by their file names."""
    html, files = out / "report.html", []
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for plot in plots:
            files += [_write_figure(plot, kind, out) for kind in formats if plot.figure]
        for name, table in (tables or {}).items():
            write_atomic(out / name, table.encode(), durable=False)
        write_atomic(html, page.encode(), durable=False)
    except OSError as error:
        raise _refused(out, error) from error
    return ReportFiles(html, tuple(files))


def _refused(out: Path, error: OSError) -> RunFolderError | StorageError:
    reason = f"the report could not be written to {out}: {error.strerror or error}"
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return RunFolderError(f"{reason}; a file is in the way: choose another folder")
    space = "free some space or " if error.errno in NO_SPACE else ""
    return StorageError(f"{reason}; {space}choose another folder")


def _write_figure(plot: Plot, kind: str, out: Path) -> Path:
    assert plot.figure is not None
    path = out / "figures" / f"{plot.key}.{kind}"
    write_atomic(path, save(plot.figure, kind), durable=False)
    return path


def check_request(runs: Sequence[RunData], target: float | None, formats: Sequence[str]) -> None:
    """Refuse a report that cannot be written as asked."""
    if not runs:
        raise ConfigError("a report needs at least one run; name one or more run folders")
    if target is not None and not 0.0 < target <= 1.0:
        raise ConfigError(
            f"target accuracy is {target}; it must be above 0 and at most 1, such as 0.8 for 80 %"
        )
    strange = [kind for kind in formats if kind not in FORMATS]
    if strange:
        raise ConfigError(
            f"figure format {strange[0]!r} is not known; choose from {', '.join(FORMATS)}"
        )
