"""Stored runs: decisions must repeat exactly, learned numbers closely (other machines)."""

import json
from pathlib import Path

import pytest

import dystop

FOLDER = Path(__file__).parent / "golden"
SMALL = ["model.name=softmax", "data.synthetic.train=400", "data.synthetic.test=100"]
RUNS = {
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
    "d-psgd": ("d-psgd", []),
    "fedavg": ("fedavg", ["mechanism.participation=0.5"]),
}
LEARNED = {"loss", "accuracy", "accuracy_std", "accuracy_global", "test_loss", "test_loss_global"}


def lines_of(name: str) -> list[dict]:
    mechanism, more = RUNS[name]
    run = dystop.simulate(
        mechanism, workers=10, dataset="synthetic", rounds=20, seed=7, overrides=[*SMALL, *more]
    )
    return [json.loads(record.to_json()) for record in run]


@pytest.mark.parametrize("name", RUNS)
def test_golden_run(name, request):
    path = FOLDER / f"{name}.jsonl"
    got = lines_of(name)
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in got))
    want = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(got) == len(want)
    for mine, stored in zip(got, want, strict=True):
        assert mine.keys() == stored.keys()
        for key, value in stored.items():
            wide = {"rel": 1e-3, "abs": 2e-2} if key in LEARNED else {"rel": 1e-9}
            close = pytest.approx(value, **wide) if isinstance(value, float) else value
            assert mine[key] == close, (mine["round"], key)
