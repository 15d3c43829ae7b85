"""A result as a Markdown table, for the documentation: `python -m dystop.bench.table FILE.json`."""

import json
import sys
from pathlib import Path
from typing import Any

from dystop.bench.machine import describe
from dystop.bench.result import number

_HEAD = ("", "measured", "median", "reference", "median", "ratio", "min to max")
_NAMED = ("dystop", "python", "torch", "numpy", "numba")


def markdown(document: dict[str, Any]) -> str:
    """The machine in a sentence, then one row per line of the result."""
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
