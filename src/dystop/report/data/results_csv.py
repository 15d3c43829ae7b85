"""The numbers of a comparison or a sweep for other programs, one row per run."""

import csv
import io
from dataclasses import fields
from typing import Any

from dystop.report.data.settings import value_of
from dystop.report.data.study_results import StudyResults
from dystop.report.data.summary import RunSummary, summarise

_TEXT_FIELDS = ("label", "mechanism", "status")
_NUMBER_FIELDS = tuple(f.name for f in fields(RunSummary) if f.name not in _TEXT_FIELDS)


def results_csv(results: StudyResults) -> str:
    """Return comma-separated values with a heading; a swept key has a column of its own."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    keys = [key for key in results.swept if key not in ("mechanism.name", "engine.timing")]
    names = ["run", "mechanism", "provenance", "timing", "seed", *keys, "status", *_NUMBER_FIELDS]
    rows.writerow(names)
    for group in results.ranked_groups:
        summaries = summarise(group.runs, results.target.accuracy)
        for run, summary in zip(group.runs, summaries, strict=True):
            mechanism = group.mechanism
            settings = [_csv_value(value_of(run, key)) for key in keys]
            numbers = [_csv_value(getattr(summary, name)) for name in _NUMBER_FIELDS]
            rows.writerow([
                run.name, mechanism.name, mechanism.provenance, group.timing,
                run.info.get("seed"), *settings, summary.status, *numbers,
            ])  # fmt: skip
    return out.getvalue()


def _csv_value(value: Any) -> Any:
    return "" if value is None else value
