"""Results of benchmarks: lines with a ratio to a reference, as JSON and as a Markdown table.

`python -m dystop_benchmarks.result FILE.json` prints the table for the documentation.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dystop_benchmarks.machine import describe

Better = Literal["higher", "lower", "near 1"]
FORMAT = 1  # of the JSON file; changes when a field changes its meaning


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one quantity."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median measurement."""
        return float(np.median(self.samples))

    @property
    def low(self) -> float:
        """The smallest measurement."""
        return min(self.samples)

    @property
    def high(self) -> float:
        """The largest measurement."""
        return max(self.samples)

    def tree(self) -> dict[str, Any]:
        """Return plain numbers, for JSON."""
        named = {"min": self.low, "median": self.median, "max": self.high}
        return {**named, "samples": list(self.samples)}


def spread(samples: Sequence[float]) -> Spread:
    """Return the spread of some measurements.

    >>> spread([3.0, 1.0, 2.0]).median
    2.0
    """
    return Spread(tuple(float(sample) for sample in samples))


@dataclass(frozen=True)
class Line:
    """One measurement beside its reference; `ratio` is value over reference, repeat by repeat."""

    what: str  # which benchmark
    name: str  # what was measured, in words
    unit: str  # images/s, s, GB/s, MB or 1
    value: Spread
    reference: str  # what it is compared with, in words
    reference_value: Spread
    better: Better  # which way the ratio should go
    warmup_s: float = 0.0  # building, compiling and capturing before the clock started
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> Spread:
        """Value over reference; each value is divided by the reference measured beside it."""
        pairs = zip(self.value.samples, self.reference_value.samples, strict=True)
        return spread([a / b for a, b in pairs])

    def tree(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        spreads = {"value": self.value, "reference_value": self.reference_value}
        plain = {k: v for k, v in asdict(self).items() if k not in spreads}
        return {**plain, **{k: v.tree() for k, v in spreads.items()}, "ratio": self.ratio.tree()}


@dataclass(frozen=True)
class Sweep:
    """One curve of a figure: cost against something that grows."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    notes: tuple[str, ...] = ()  # a word for each point


def number(value: float) -> str:
    """Format a measured number with three significant digits.

    >>> number(1234567.0), number(43.21), number(0.01234), number(2.0)
    ('1.23 M', '43.2', '0.0123', '2.00')
    """
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M"
    if abs(value) >= 1e3:
        return f"{float(f'{value:.3g}'):,.0f}"
    if abs(value) < 1:
        return f"{value:.3g}"
    return f"{value:.{3 - len(str(int(abs(value))))}f}"


def row(line: Line) -> tuple[str, str, str, str, str, str]:
    """Return one row of the table: what, measured, value, reference, its value, ratio."""
    unit = "" if line.unit == "1" else f" {line.unit}"
    low, high = line.ratio.low, line.ratio.high
    between = f" ({number(low)} to {number(high)})" if len(line.ratio.samples) > 1 else ""
    return (
        line.what,
        line.name,
        f"{number(line.value.median)}{unit}",
        line.reference,
        f"{number(line.reference_value.median)}{unit}",
        f"{number(line.ratio.median)}{between}",
    )


_HEAD = ("", "measured", "median", "reference", "median", "ratio", "min to max")
_NAMED = ("dystop", "python", "torch", "numpy", "numba")


def markdown(document: dict[str, Any]) -> str:
    """Return one sentence about the machine, then one table row per line of the result."""
    versions = ", ".join(f"{name} {document['versions'][name]}" for name in _NAMED)
    rows = [_HEAD, ("---",) * len(_HEAD), *(_cells(line) for line in document["lines"])]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"{describe(document['machine'])}; {versions}; {document['date'][:10]}.\n\n{table}"


def _cells(line: dict[str, Any]) -> tuple[str, ...]:
    unit = "" if line["unit"] == "1" else f" {line['unit']}"
    value, beside, ratio = line["value"], line["reference_value"], line["ratio"]
    several = len(ratio["samples"]) > 1
    return (
        line["what"],
        line["name"],
        f"{number(value['median'])}{unit}",
        line["reference"],
        f"{number(beside['median'])}{unit}",
        f"**{number(ratio['median'])}**",
        f"{number(ratio['min'])} to {number(ratio['max'])}" if several else "",
    )


if __name__ == "__main__":
    sys.stdout.write(markdown(json.loads(Path(sys.argv[1]).read_text())) + "\n")
