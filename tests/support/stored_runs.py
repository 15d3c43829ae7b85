"""Golden runs: stored runs that later code must repeat.

Decisions must repeat exactly. Learned numbers must repeat closely, because other machines made the
stored ones.
"""

import json
from pathlib import Path

import pytest

import dystop

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = ["model.name=softmax", "data.options.train=400", "data.options.test=100"]
GOLDEN_RUNS = {
    "dystop": ("dystop", []),
    "dystop-restless": (
        "dystop",
        [
            "engine.timing=overlap",
            "engine.publish=on_completion",
            "world.churn.enabled=true",
            "world.mobility.enabled=true",
            "world.outages.drop=0.1",
            "world.outages.loss=0.05",
        ],
    ),
    "d-psgd": ("d-psgd", ["mechanism.pairs=all"]),
    "fedavg": ("fedavg", ["mechanism.participation=0.5"]),
}
LEARNED = {"loss", "accuracy", "accuracy_std", "accuracy_global", "test_loss", "test_loss_global"}


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def golden_lines(name: str) -> list[dict]:
    """The records of a golden run, run again."""
    mechanism, more = GOLDEN_RUNS[name]
    run = dystop.simulate(
        mechanism, workers=10, dataset="synthetic", rounds=20, seed=7, overrides=[*SMALL, *more]
    )
    return [json.loads(record.to_json()) for record in run]


def assert_same(got: list[dict], stored: list[dict]) -> None:
    assert len(got) == len(stored)
    for mine, theirs in zip(got, stored, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            wide = {"rel": 1e-3, "abs": 2e-2} if key in LEARNED else {"rel": 1e-9}
            close = pytest.approx(value, **wide) if isinstance(value, float) else value
            assert mine[key] == close, (mine["round"], key)
