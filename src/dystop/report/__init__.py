"""From run folders to tables, figures and one HTML page."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dystop.report.garbage import spare_the_old

_HOME = {
    "ReportFiles": "pages.write",
    "Summary": "data.summary",
    "default_target": "data.summary",
    "draw": "pages.write",
    "summarise": "data.summary",
    "summary_rows": "data.summary",
    "write_report": "pages.write",
    "write_study": "pages.study",
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
