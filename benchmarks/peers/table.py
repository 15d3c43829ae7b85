"""From runs to a table: each peer beside the references measured around it."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launch import Run
from rich.table import Table

PLAIN, OURS = "plain loop", "dystop"
_NUMBERS = ("images/s", "from-to", "to plain loop", "ours to it", "memory", "start-up", "others")


@dataclass(frozen=True)
class Group:
    """What was run right after another: plain loop, peer, ours; then the next plain loop."""

    before: Run
    peer: Run
    ours: Run
    after: Run

    @property
    def plain(self) -> float:
        """The plain loop around the peer, images per second."""
        return _mean(run.rate for run in (self.before, self.after))


@dataclass(frozen=True)
class Row:
    """One line of the table; a ratio is the median over the repeats."""

    name: str
    version: str
    mode: str
    images_per_s: float
    spread: tuple[float, float]
    to_plain: float
    ours_to_it: float
    peak_bytes: float
    startup_s: float
    others: float
    error: str = ""


def rows(groups: Sequence[Group]) -> list[Row]:
    """The plain loop, ours, and then every peer in the order in which it was first run."""
    plain = [g.before for g in groups] + [groups[-1].after] if groups else []
    lines = [
        _row(PLAIN, plain, [1.0], [g.ours.rate / g.plain for g in groups]),
        _row(OURS, [g.ours for g in groups], [g.ours.rate / g.plain for g in groups], [1.0]),
    ]
    for name in dict.fromkeys(g.peer.name for g in groups):
        own = [g for g in groups if g.peer.name == name]
        to_plain = [g.peer.rate / g.plain for g in own]
        ours = [g.ours.rate / g.peer.rate for g in own]
        lines.append(_row(name, [g.peer for g in own], to_plain, ours))
    return lines


def _row(name: str, runs: Sequence[Run], to_plain: list[float], ours_to_it: list[float]) -> Row:
    good = [run for run in runs if not run.error]
    shown = good[0] if good else Run(name)
    rates = [rate for run in good for rate in run.rates]
    return Row(
        name=name,
        version=shown.version,
        mode=shown.mode,
        images_per_s=_median(run.rate for run in good),
        spread=(min(rates, default=math.nan), max(rates, default=math.nan)),
        to_plain=_median(to_plain),
        ours_to_it=_median(ours_to_it),
        peak_bytes=max((run.peak_bytes for run in good), default=0),
        startup_s=_median(run.startup_s for run in good),
        others=max(_finite(run.others for run in good), default=math.nan),
        error=next((run.error for run in runs if run.error), ""),
    )


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _median(values: Iterable[float]) -> float:
    return statistics.median(_finite(values) or [math.nan])


def _mean(values: Iterable[float]) -> float:
    return statistics.mean(_finite(values) or [math.nan])


def _shown(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def table_of(lines: Sequence[Row]) -> Table:
    """The table for the screen; a failure is named in its row."""
    table = Table("peer", "version", "mode")
    for column in (
        "images/s",
        "from-to",
        "to plain loop",
        "ours to it",
        "memory",
        "start-up",
        "others",
    ):
        table.add_column(column, justify="right")
    for row in lines:
        failed = f"FAILED: {row.error.splitlines()[-1]}" if row.error else ""
        table.add_row(
            row.name,
            row.version,
            "\n".join(filter(None, [row.mode, failed])),
            _shown(row.images_per_s, ",.0f"),
            "-".join(_shown(rate, ",.0f") for rate in row.spread),
            _shown(row.to_plain, ".2f"),
            _shown(row.ours_to_it, ".2f"),
            f"{row.peak_bytes / 1e9:.1f} GB" if row.peak_bytes else "-",
            _shown(row.startup_s, ".0f") + " s",
            _shown(row.others, ".0%"),
        )
    return table
