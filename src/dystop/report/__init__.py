"""From run folders to tables, figures and one HTML page."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dystop.report.garbage import spare_the_old

_HOME = {
    "ReportFiles": "write",
    "Summary": "tables",
    "default_target": "tables",
    "draw": "write",
    "summarise": "tables",
    "summary_rows": "tables",
    "write_report": "write",
    "write_study": "study",
}

__all__ = list(_HOME)

if TYPE_CHECKING:
    from dystop.report.data.summary import Summary as Summary
    from dystop.report.data.summary import default_target as default_target
    from dystop.report.data.summary import summarise as summarise
    from dystop.report.data.summary import summary_rows as summary_rows
    from dystop.report.pages.study import write_study as write_study
    from dystop.report.pages.write import ReportFiles as ReportFiles
    from dystop.report.pages.write import draw as draw
    from dystop.report.pages.write import write_report as write_report


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: tables alone need no matplotlib."""
    if name not in _HOME:
        raise AttributeError(f"module 'dystop.report' has no attribute {name!r}")
    with spare_the_old():
        return getattr(import_module(f"dystop.report.{_HOME[name]}"), name)
