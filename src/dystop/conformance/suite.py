"""The tests that `pytest --mechanism NAME` runs."""

import pytest

from dystop.conformance.kit import check_description, check_plans
from dystop.conformance.runs import ENGINES, WORKERS, check_mean, check_run
from dystop.simulator.params import EngineParams
from dystop.types import Mechanism

each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda x: f"{x.law.name}-{x.publish}")


def test_describes_itself(mechanism_under_test: Mechanism) -> None:
    """The class is a documented frozen dataclass."""
    check_description(mechanism_under_test)


def test_plans_for_random_views(mechanism_under_test: Mechanism) -> None:
    """Plans are valid on hundreds of random views."""
    check_plans(mechanism_under_test)


@each_engine
def test_runs_to_the_end(mechanism_under_test: Mechanism, engine: EngineParams) -> None:
    """A run with churn, mobility and outages ends, and resumes from a checkpoint."""
    check_run(mechanism_under_test, WORKERS, engine, seed=0)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_runs_with_few_workers(mechanism_under_test: Mechanism, workers: int) -> None:
    """Fleets of one, two and three workers run to the end."""
    check_run(mechanism_under_test, workers, ENGINES[0], seed=0, rounds=12)


def test_keeps_the_mean_model(mechanism_under_test: Mechanism) -> None:
    """Mixing keeps the mean model, where `doubly_stochastic` is declared."""
    check_mean(mechanism_under_test)
