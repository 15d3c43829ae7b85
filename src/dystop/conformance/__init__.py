"""The conformance kit: requirements on every mechanism, checked on random views and in runs.

    from dystop.conformance import check_mechanism

    check_mechanism(MyIdea())

or, for an installed mechanism, `pytest --mechanism my-idea`.

views    random views by seed
checks   single requirements, each on one view
runs     short simulated runs with churn, mobility, outages, and a resume from a checkpoint
kit      `check_mechanism`: all of them
plugin   the pytest option `--mechanism`
suite    the tests that the option runs

echo_workers  workers of a testbed that answer a coordinator at once
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_MODULES = {
    "ConformanceError": "checks",
    "check_description": "kit",
    "check_mechanism": "kit",
    "check_plans": "kit",
    "check_runs": "runs",
    "random_fleet": "views",
    "random_view": "views",
}

__all__ = sorted(_MODULES)

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
    if name not in _MODULES:
        raise AttributeError(f"module 'dystop.conformance' has no attribute {name!r}")
    return getattr(import_module(f"dystop.conformance.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
