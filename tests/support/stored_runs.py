"""Stored runs that later code must repeat: golden runs, and run folders of release 0.1.0.

Decisions must repeat exactly. Learned numbers must repeat closely, because other machines made the
stored ones.
"""

import json
import tarfile
from pathlib import Path

import pytest

import dystop
from dystop.experiments.api import Simulation
from dystop.experiments.config import read_experiment
from dystop.record import ADDED

GOLDEN = Path(__file__).parents[1] / "golden"
COMPATIBILITY = Path(__file__).parents[1] / "compatibility"
LAWS = ("paper-eager", "overlap-on_completion")
SMALL = ["model.name=softmax", "data.synthetic.train=400", "data.synthetic.test=100"]
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


def unpacked(name: str, target: Path) -> Path:
    """The run folders of an archive of release 0.1.0."""
    with tarfile.open(COMPATIBILITY / f"{name}-0.1.0.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target


def lines_again(folder: Path) -> list[dict]:
    """The records of a run folder, run again."""
    again = Simulation(read_experiment(folder / "config.toml"))
    return [json.loads(record.to_json()) for record in again]


def assert_same(got: list[dict], stored: list[dict]) -> None:
    assert len(got) == len(stored)
    for mine, theirs in zip(got, stored, strict=True):
        assert theirs.keys() <= mine.keys()
        assert mine.keys() - theirs.keys() <= set(ADDED)
        for key, value in theirs.items():
            wide = {"rel": 1e-3, "abs": 2e-2} if key in LEARNED else {"rel": 1e-9}
            close = pytest.approx(value, **wide) if isinstance(value, float) else value
            assert mine[key] == close, (mine["round"], key)
