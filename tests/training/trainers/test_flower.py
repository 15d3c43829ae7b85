"""A Flower app trains and tests as the workers of a simulation and of a testbed.

It needs a Python with flwr, in an environment of its own: DYSTOP_FLOWER_PYTHON names it. Without
it, the tests that start an app are skipped.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from dystop.errors import ConfigError, UserCodeError
from dystop.experiments.building import build
from dystop.experiments.config import read_experiment
from dystop.simulator import run_rounds
from dystop.simulator.loop import begin
from dystop.training.trainers.flower_child import read_frame, write_frame
from support.testbed.whole_runs import run_in_memory, run_over_grpc

PYTHON = os.environ.get("DYSTOP_FLOWER_PYTHON", "")
EXAMPLES = Path(__file__).parents[3] / "examples"
needs_flower = pytest.mark.skipif(not PYTHON, reason="DYSTOP_FLOWER_PYTHON names no Python")


APP = (
    "model.name=flower:flower_app:app", f"model.folder={EXAMPLES}", f"model.python={PYTHON}",
    "fleet.workers=3", "data.name=synthetic", "data.train_limit=60", "data.test_limit=20",
    "training.learning_rate=0.5", "stop.rounds=10", "evaluate.every_rounds=5",
    "world.range_m=200",
)  # fmt: skip


def config(*words, folder=EXAMPLES, python=PYTHON):
    place = f"model.folder={folder}", f"model.python={python}"
    return read_experiment(None, [*APP, *place, *words])


def test_a_frame_arrives_as_it_was_sent(tmp_path):
    file, arrays = tmp_path / "frames", [np.ones((2, 3), np.float32), np.array([7])]
    with file.open("wb") as stream:
        write_frame(stream, {"kind": "train"}, arrays)
    with file.open("rb") as stream:
        header, found = read_frame(stream)
        assert read_frame(stream) is None
    assert header == {"kind": "train"}
    for sent, got in zip(arrays, found, strict=True):
        assert sent.dtype == got.dtype
        np.testing.assert_array_equal(sent, got)


@needs_flower
@pytest.mark.parametrize("name", ["dystop", "d-psgd"])
def test_an_app_learns_without_a_server(name):
    components = build(config(f"mechanism.name={name}")).components
    records = [record for record, _ in run_rounds(components, begin(components))]
    assert records[-1].test_loss < records[4].test_loss < 1.0
    assert records[-1].loss is not None
    assert components.fleet.model_bytes == 8  # slope and offset


@needs_flower
@pytest.mark.parametrize("run", [run_in_memory, run_over_grpc])
def test_an_app_learns_on_a_testbed(tmp_path, run):
    last = run(tmp_path, *APP, "mechanism.name=d-psgd").records[-1]
    assert last.test_loss is not None
    assert last.test_loss < 1.0


@needs_flower
def test_the_example_runs(tmp_path):
    words = f"model.python={PYTHON}", "stop.rounds=2", "evaluate.every_rounds=2"
    components = build(read_experiment(EXAMPLES / "flower.toml", [*words])).components
    *_, (last, _) = run_rounds(components, begin(components))
    assert last.test_loss is not None


@needs_flower
def test_an_app_that_fails_is_named_with_its_worker(tmp_path):
    text = (EXAMPLES / "flower_app.py").read_text()
    (tmp_path / "flower_app.py").write_text(
        text.replace(
            "    for _ in range(20):", "    raise RuntimeError('no disk')\n    while True:"
        )
    )
    with pytest.raises(UserCodeError, match=r"'train' of worker 0 failed.*no disk"):
        begin(build(config(folder=tmp_path)).components)


@needs_flower
def test_an_app_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"flower_app.*model\.folder"):
        build(config(folder=tmp_path))


def test_a_python_without_flwr_is_named():
    with pytest.raises(ConfigError, match=r"flwr.*model\.python.*pip install flwr"):
        build(config(python=sys.executable))
    with pytest.raises(ConfigError, match=r"model\.python = '/nowhere/python'"):
        build(config(python="/nowhere/python"))


@pytest.mark.parametrize(
    "word", ["privacy.noise_multiplier=1", "adversary.kind=flip", "engine.train=false"]
)
def test_what_an_app_cannot_do_is_refused(word):
    with pytest.raises(ConfigError, match="flower"):
        build(config(word, python=sys.executable))
