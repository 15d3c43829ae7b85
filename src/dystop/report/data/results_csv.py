"""The numbers of a comparison or a sweep for other programs: a row per run."""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from dystop.report.data.groups import Group
from dystop.report.data.names import value_of
from dystop.report.data.summary import Summary, summarise

_WORDS = ("label", "mechanism", "status")
_NUMBERS = tuple(field.name for field in fields(Summary) if field.name not in _WORDS)


def results_csv(every: Sequence[Group], over: Sequence[str], target: float | None) -> str:
    """Comma-separated values with a heading; empty where there is nothing to say.

    Args:
        every: The groups, in the order of the rows.
        over: Keys to give a column to.
        target: Accuracy whose time and bytes are told.
    """
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    keys = [key for key in over if key not in ("mechanism.name", "engine.timing")]
    rows.writerow(["run", "mechanism", "provenance", "timing", "seed", *keys, "status", *_NUMBERS])
    for group in every:
        for run, numbers in zip(group.runs, summarise(group.runs, target), strict=True):
            who = [run.name, group.mechanism.name, group.mechanism.provenance, group.timing]
            settings = [_cell(value_of(run, key)) for key in keys]
            told = [_cell(getattr(numbers, name)) for name in _NUMBERS]
            rows.writerow([*who, run.info.get("seed"), *settings, numbers.status, *told])
    return out.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else value
