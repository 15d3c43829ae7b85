"""Reports of runs: `data` computes, `figures` draws, `pages` renders and writes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_MODULES = {
    "ReportFiles": "pages.files",
    "RunSummary": "data.summary",
    "StudyReport": "pages.study",
    "default_target": "data.summary",
    "draw_runs": "pages.runs",
    "summarise": "data.summary",
    "summary_rows": "data.summary_table",
    "write_report": "pages.runs",
    "write_study": "pages.study",
}

__all__ = list(_MODULES)

if TYPE_CHECKING:
    from dystop.report.data.summary import RunSummary as RunSummary
    from dystop.report.data.summary import default_target as default_target
    from dystop.report.data.summary import summarise as summarise
    from dystop.report.data.summary_table import summary_rows as summary_rows
    from dystop.report.pages.files import ReportFiles as ReportFiles
    from dystop.report.pages.runs import draw_runs as draw_runs
    from dystop.report.pages.runs import write_report as write_report
    from dystop.report.pages.study import StudyReport as StudyReport
    from dystop.report.pages.study import write_study as write_study


def __getattr__(name: str) -> Any:
    """Import a name at its first use, so that tables alone need no matplotlib."""
    if name not in _MODULES:
        raise AttributeError(f"module 'dystop.report' has no attribute {name!r}")
    return getattr(import_module(f"dystop.report.{_MODULES[name]}"), name)
