"""The conformance kit: what every mechanism must do, whatever it may see.

    from dystop.conformance import check_mechanism

    check_mechanism(MyIdea())

or, for a mechanism that is installed, `pytest --mechanism my-idea`.

views    seeded random views, ready to be typed in again when one of them fails
checks   single promises on a single view
runs     short simulated runs with churn, mobility, outages, and a resume from a checkpoint
kit      `check_mechanism`: all of it
plugin   the pytest option; suite: the tests that it runs
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "ConformanceError": "checks",
    "check_description": "kit",
    "check_mechanism": "kit",
    "check_plans": "kit",
    "check_runs": "runs",
    "random_fleet": "views",
    "random_view": "views",
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from dystop.conformance.checks import ConformanceError as ConformanceError
    from dystop.conformance.kit import check_description as check_description
    from dystop.conformance.kit import check_mechanism as check_mechanism
    from dystop.conformance.kit import check_plans as check_plans
    from dystop.conformance.runs import check_runs as check_runs
    from dystop.conformance.views import random_fleet as random_fleet
    from dystop.conformance.views import random_view as random_view


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: loading the pytest plug-in must not load torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'dystop.conformance' has no attribute {name!r}")
    return getattr(import_module(f"dystop.conformance.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
