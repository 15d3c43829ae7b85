"""The tables of a search over readings, as CSV files."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dystop.config.readings import OPEN_READINGS
from dystop.errors import RunFolderError
from dystop.folders.run_folder import RunData
from dystop.foreign_files import JSON_BYTES, read_bounded
from dystop.report.data.names import run_status
from dystop.report.data.scores import evaluated_rounds, first_reaching
from dystop_paper.data.nearness import GROUPS, TARGETS, ReadingResult
from dystop_paper.data.verdicts import Verdict
from dystop_paper.reproduce.distance import distance

READINGS_CSV = "readings.csv"
VERDICTS: tuple[Verdict, ...] = ("holds", "holds partly", "does not hold", "undecided")


@dataclass(frozen=True)
class ClaimRow:
    """In how many readings a claim holds."""

    claim: str
    counts: tuple[int, ...]  # by verdict
    share: str  # of the readings that decide it


def nearest_samples(folder: Path, count: int) -> list[str]:
    """Return the names of the nearest samples, from the table of an earlier search.

    A search of one data set alone may have no distance; then the one on that data set decides.

    Raises:
        RunFolderError: There is no such table.
    """
    try:
        text = read_bounded(folder / READINGS_CSV, JSON_BYTES).decode()
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (OSError, ValueError, csv.Error):
        raise RunFolderError(
            f"{folder / READINGS_CSV}: no search to choose from; run first: "
            "dystop reproduce readings --samples 20"
        ) from None
    names = ("distance", *(f"distance_{group}" for group in GROUPS))
    near = [row for row in rows if any(row.get(name) for name in names)]
    return [row["reading"] for row in near if row["preset"] == "no"][:count]


def as_csv(lines: Iterator[Sequence[object]]) -> str:
    """Return lines as the text of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def readings_table(ranked: Sequence[ReadingResult]) -> Iterator[Sequence[object]]:
    """Yield one line per reading: its distances, verdicts and values."""
    measures = sorted({n.measure for n in ranked[0].numbers if n.in_distance})
    keys = [reading.key for reading in OPEN_READINGS]
    yield ["reading", "preset", "distance", *(f"distance_{m}" for m in measures),
           *(f"distance_{group}" for group in GROUPS), "target", "seeds",
           *(verdict.replace(" ", "_") for verdict in VERDICTS), *keys]  # fmt: skip
    for result in ranked:
        by = [
            distance(n for n in result.numbers if n.measure == m and n.in_distance)
            for m in measures
        ]
        by += [result.distance_on(group) for group in GROUPS]
        yield [
            result.reading.name, "yes" if result.reading.is_preset else "no",
            "" if result.distance is None else f"{result.distance:.4f}",
            *("" if value is None else f"{value:.4f}" for value in by),
            result.target, result.seeds, *(result.counts()[v] for v in VERDICTS),
            *(result.reading.values[key] for key in keys),
        ]  # fmt: skip


def numbers_table(ranked: Sequence[ReadingResult]) -> Iterator[Sequence[object]]:
    """Yield one line per reading and number of the paper."""
    yield ["reading", "data", "number", "measure", "paper", "ours", "beyond", "distance"]
    for result in ranked:
        for n in result.numbers:
            ours = "" if n.ours is None else f"{n.ours:.6g}"
            yield [result.reading.name, n.group, n.name, n.measure, f"{n.paper:.6g}", ours,
                   n.beyond, f"{n.distance:.4f}"]  # fmt: skip


def verdicts_table(ranked: Sequence[ReadingResult]) -> Iterator[Sequence[object]]:
    """Yield one line per reading and claim."""
    yield ["reading", "part", "claim", "paper", "ours", "verdict"]
    for result in ranked:
        for part, row in result.verdicts:
            yield [result.reading.name, part, row.claim, row.paper, row.ours, row.verdict]


def claims_table(claims: Sequence[ClaimRow]) -> Iterator[Sequence[object]]:
    """Yield one line per claim: in how many readings it holds."""
    yield ["claim", *VERDICTS, "share"]
    for row in claims:
        yield [row.claim, *row.counts, row.share]


def runs_table(rows: Iterable[Sequence[object]]) -> Iterator[Sequence[object]]:
    """Yield one line per finished run: its end, and time and bytes to every target."""
    yield ["run", "status", "rounds", "clock_s", "accuracy", "accuracy_global", "endpoint_bytes",
           "epochs", "staleness_mean", *(f"{what}_{target:g}" for target in TARGETS
                                         for what in ("time", "bytes"))]  # fmt: skip
    yield from rows


def run_row(name: str, run: RunData) -> Sequence[object]:
    """Return the line of a finished run."""
    tests, rows = evaluated_rounds(run.records), run.records
    last, end = rows[-1], (tests or rows)[-1]
    reached = [first_reaching(rows, target) for target in TARGETS]
    return [
        name, run_status(run), len(rows), round(last.clock_s, 2), end.accuracy,
        end.get("accuracy_global"), last.endpoint_bytes_total, round(last.epochs_total, 2),
        round(sum(r.staleness_mean for r in rows) / len(rows), 4),
        *(value for r in reached for value in
          (("", "") if r is None else (round(r.clock_s, 2), r.endpoint_bytes_total))),
    ]  # fmt: skip
