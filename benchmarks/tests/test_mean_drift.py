"""`benchmarks/mean_drift.py`: mixing over compressed links keeps the mean of all models."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "mean_drift.py"
PAGE = (ROOT / "docs" / "how-to" / "compression.md").read_text()


@pytest.fixture(scope="module")
def mean_drift():
    spec = importlib.util.spec_from_file_location("mean_drift", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CODECS = ("int8", "sign", "topk", "randomk")
FALL = {"int8": 100, "sign": 100, "topk": 10, "randomk": 10}


@pytest.mark.parametrize("mechanism", ["d-psgd", "matcha", "gossipfl"])
@pytest.mark.parametrize("codec", CODECS)
def test_the_mean_stays_and_models_meet_under_every_codec(mean_drift, codec, mechanism):
    words = f"link.compression={codec}", f"mechanism.name={mechanism}"
    drifts = list(mean_drift.drifts(*words))
    assert len(drifts) == 600
    assert max(each.mean for each in drifts) < 1e-5
    assert FALL[codec] * drifts[-1].models < drifts[0].models
    assert f"| `{codec}` | {mechanism} |" in PAGE
