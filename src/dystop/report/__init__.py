"""From run folders to tables, figures and one HTML page."""

from dystop.report.study import write_study
from dystop.report.tables import Summary, default_target, summarise, summary_rows
from dystop.report.write import ReportFiles, draw, write_report

__all__ = [
    "ReportFiles",
    "Summary",
    "default_target",
    "draw",
    "summarise",
    "summary_rows",
    "write_report",
    "write_study",
]
