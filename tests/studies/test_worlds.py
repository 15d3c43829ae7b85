"""Properties of networks: the keys that give a network a value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.config import read_experiment
from dystop.rng import stream
from dystop.studies.worlds import AXES, range_for

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=5", "world.range_m=90",
]  # fmt: skip


@given(st.integers(3, 60), st.floats(0.05, 0.9), st.sampled_from([(100.0, 100.0), (300.0, 40.0)]))
@settings(derandomize=True, deadline=None, max_examples=15)
def test_density_is_the_mean_degree_of_random_workers(workers, share, area):
    degree = share * (workers - 1)
    reach = range_for(degree, workers, area)
    found = []
    for k in range(60):
        at = stream(k, "test", workers).random((workers, 2)) * np.asarray(area)
        gap = np.linalg.norm(at[:, None] - at[None], axis=2)
        found.append(((gap <= reach).sum() - workers) / workers)
    assert np.mean(found) == pytest.approx(degree, rel=0.12, abs=0.15)


def test_churn_is_the_share_of_absence():
    base = read_experiment(None, SMALL)
    assert AXES["churn"].words(base, 0.0) == ["world.churn.enabled=false"]
    words = AXES["churn"].words(base, 0.25)
    churn = read_experiment(None, [*SMALL, *words]).world.churn
    assert churn.enabled
    assert churn.mean_down_s / (churn.mean_down_s + churn.mean_up_s) == pytest.approx(0.25)
