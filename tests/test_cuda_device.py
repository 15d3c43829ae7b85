"""On a real GPU (`make test-gpu`): the same numbers as on a CPU. Skipped where there is none."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dystop import simulate
from dystop.engine.weights import SparseRows
from dystop.sparse import Ints
from dystop.trainer.models import build_model
from dystop.trainer.params import TrainerParams
from dystop.trainer.samples import Arrays
from dystop.trainer.trainer import Trainer

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ["TRITON_INTERPRET"] != "0",
    reason="needs a GPU, and TRITON_INTERPRET=0",
)
SHAPE = (3, 16, 16)


@pytest.fixture(autouse=True)
def _whole_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions keep all bits of a float32; by default a GPU drops thirteen of them."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def both(module: nn.Module, **options: object) -> tuple[Trainer, Trainer]:
    """The same problem on the CPU, one model after another, and on the GPU."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (40, *SHAPE), dtype=np.uint8), random.integers(0, 10, 40)
    data, shards = Arrays(x, y, x[:9], y[:9], 0.5, 0.25), np.split(np.arange(40), [16, 29])
    plain = TrainerParams(batch=8, device="cpu", path="sequential", learning_rate=0.02)
    given = replace(TrainerParams(batch=8, device="cuda", learning_rate=0.02), **options)
    return Trainer(module, data, shards, plain, 7), Trainer(module, data, shards, given, 7)


def trained(trainer: Trainer, who: Ints) -> tuple[torch.Tensor, np.ndarray]:
    vector, counters = trainer.initial()
    rows = len(who)
    done = trainer.train(
        vector.expand(rows, -1).clone(), counters.expand(rows, -1).clone(), who, 0 * who,
        np.array([2, 3, 1])[:rows],
    )  # fmt: skip
    return done.models.cpu(), done.loss


@pytest.mark.parametrize("width", [7, 21_840, 12_000_003])
def test_mixing_wide_models(width: int) -> None:
    stack = torch.randn(5, width)
    rows = SparseRows(np.array([0, 2, 2, 5]), np.array([0, 4, 1, 2, 3]), np.linspace(0.1, 1, 5))
    torch.testing.assert_close((rows @ stack.cuda()).cpu(), rows @ stack)


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18", "resnet18-gn", "squeezenet"])
@pytest.mark.parametrize("options", [{}, {"compile": False}, {"path": "sequential"}])
def test_training(name: str, options: dict[str, object]) -> None:
    cpu, gpu = both(build_model(name, *SHAPE[:1], SHAPE[1:], 10, seed=0), **options)
    (ours, losses), (theirs, expected) = (trained(t, np.arange(3)) for t in (gpu, cpu))
    np.testing.assert_allclose(losses, expected, rtol=0.01)
    change = (theirs - cpu.initial()[0]).norm()
    assert (ours - theirs).norm() < 0.05 * change


def test_a_large_model_learns() -> None:
    words = ["data.synthetic.shape=[3, 16, 16]", "model.name=resnet18", "data.synthetic.train=400"]
    runs = [
        list(
            simulate(
                "matcha", workers=4, dataset="synthetic", rounds=4,
                overrides=[*words, f"training.device={device}"],
            )
        )
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    first, last = runs[1][0].loss, runs[1][-1].loss
    assert last < 0.8 * first
    assert last == pytest.approx(runs[0][-1].loss, rel=0.1)
