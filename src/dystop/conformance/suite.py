"""The tests that `pytest --mechanism NAME` runs."""

import pytest

from dystop.conformance.kit import check_description, check_plans
from dystop.conformance.runs import LAWS, WORKERS, check_mean, check_run
from dystop.simulator.params import EngineParams
from dystop.types import Mechanism

by_law = pytest.mark.parametrize("laws", LAWS, ids=lambda x: f"{x.timing}-{x.publish}")


def test_describes_itself(mechanism_under_test: Mechanism) -> None:
    """A frozen dataclass of documented knobs."""
    check_description(mechanism_under_test)


def test_plans_for_random_views(mechanism_under_test: Mechanism) -> None:
    """Hundreds of views: absent workers, no reach, no bandwidth, one worker, islands."""
    check_plans(mechanism_under_test)


@by_law
def test_runs_to_the_end(mechanism_under_test: Mechanism, laws: EngineParams) -> None:
    """Churn, mobility, outages, and a resume from a checkpoint."""
    check_run(mechanism_under_test, WORKERS, laws, seed=0)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_runs_with_few_workers(mechanism_under_test: Mechanism, workers: int) -> None:
    """The smallest fleets."""
    check_run(mechanism_under_test, workers, LAWS[0], seed=0, rounds=12)


def test_keeps_the_mean_model(mechanism_under_test: Mechanism) -> None:
    """Only where the class declares it."""
    check_mean(mechanism_under_test)
