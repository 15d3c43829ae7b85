"""Adapters of a frozen base: what is shared, what is trained, and what is sent."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import dystop
from dystop.config import read_experiment
from dystop.errors import ConfigError
from dystop.folders.run_folder import open_run
from dystop.runs.building import build
from dystop.runs.run import resume_run, run_experiment
from dystop.training.adapters import Adapter, copied, held_once, with_adapters
from dystop.training.backends import sequential, stacked
from dystop.training.flat import layout_of
from support.training_fixtures import assert_same, job_of, problem_of

TEXT = [
    "data.name=generated-text",
    "data.options.train=60",
    "data.options.test=20",
    "data.options.length=6",
    "data.options.sources=3",
    "model.name=transformer",
    "training.device=cpu",
    "evaluate.every_rounds=2",
]


def net():
    torch.random.default_generator.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))


def adapted():
    return with_adapters(net(), Adapter(2, 4.0), seed=1)


def run(words, out, name, on_record=lambda _: None):
    return run_experiment(read_experiment(None, words), out, name, lambda _: None, on_record)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    out = tmp_path_factory.mktemp("base")
    run([*TEXT, "fleet.workers=1", "mechanism.name=fedavg", "stop.rounds=2"], out, "base")
    return out / "base"


def lora(base, *more):
    return [*TEXT, "fleet.workers=3", "stop.rounds=4", f"model.base={base}", *more]


ADAPTER = ["model.adapter=lora", "model.lora.rank=2"]


def test_the_first_model_is_the_base():
    x = torch.randn(5, 1, 6, 6)
    torch.testing.assert_close(adapted()(x), net()(x))


def test_only_adapters_are_in_the_vector():
    module = adapted()
    layout = layout_of(module)
    assert [slot.name for slot in layout.trained] == [
        "1.lora_a", "1.lora_b", "3.lora_a", "3.lora_b"
    ]  # fmt: skip
    assert layout.width == 2 * (36 + 8) + 2 * (8 + 3)
    assert held_once(module) == {"1.base.weight", "1.base.bias", "3.base.weight", "3.base.bias"}
    assert held_once(net()) == frozenset()


def test_a_copy_shares_the_base_and_has_adapters_of_its_own():
    module = adapted()
    other = copied(module)
    assert other[1].base.weight is module[1].base.weight
    assert other[1].lora_a is not module[1].lora_a


def test_a_product_of_matrices_is_added():
    module = adapted()
    with torch.no_grad():
        module[1].lora_b.normal_()
    layer, x = module[1], torch.randn(4, 36)
    weight = layer.base.weight + 2.0 * layer.lora_b @ layer.lora_a
    torch.testing.assert_close(layer(x), x @ weight.T + layer.base.bias)


def test_a_stack_of_adapters_trains_as_one_after_another():
    problem = problem_of(adapted(), [7, 3, 10])
    before = problem.module[1].base.weight.clone()
    ours, theirs = (job_of(problem, [2, 0, 1], [5, 3, 2]) for _ in range(2))
    assert_same(stacked.train(problem, ours), sequential.train(problem, theirs))
    assert torch.equal(problem.module[1].base.weight, before)


def test_layers_are_chosen_by_the_end_of_their_names():
    module = with_adapters(net(), Adapter(2, 4.0, ("3",)), seed=0)
    assert [slot.name for slot in layout_of(module).trained] == ["3.lora_a", "3.lora_b"]
    with pytest.raises(ConfigError, match=r"'qkv'.*linear layers are: 1, 3"):
        with_adapters(net(), Adapter(2, 4.0, ("qkv",)), seed=0)
    with pytest.raises(ConfigError, match=r"running_mean.*batch norm"):
        with_adapters(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), Adapter(1, 1.0), seed=0)


def test_the_wire_carries_adapters_alone(base):
    small, large = (build(read_experiment(None, lora(base, *more))) for more in (ADAPTER, ()))
    assert small.components.fleet.model_bytes == 4 * small.components.trainer.width
    assert small.components.fleet.model_bytes < 0.1 * large.components.fleet.model_bytes
    assert small.fleet["base_parameters"] == large.fleet["model_parameters"]
    ours, theirs = (
        b.components.trainer.evaluate(*(part[None] for part in b.components.trainer.initial()))
        for b in (small, large)
    )
    assert ours.loss[0] == pytest.approx(theirs.loss[0], rel=1e-5)  # both begin with the base


class Stop:
    def __call__(self, record):
        if record.round == 2:
            raise KeyboardInterrupt


def test_a_run_of_adapters_resumes_exactly_and_its_model_can_be_loaded(base, tmp_path):
    words = [*lora(base, *ADAPTER), "output.checkpoint_every=1"]
    run(words, tmp_path, "whole")
    with pytest.raises(KeyboardInterrupt):
        run(words, tmp_path, "part", Stop())
    resume_run(tmp_path / "part", lambda _: None, lambda _: None)
    ours, theirs = (open_run(tmp_path / name).records for name in ("part", "whole"))
    assert ours == theirs
    model = dystop.load_model(tmp_path / "part")
    assert model(np.zeros((2, 6), np.int64)).shape[:2] == (2, 6)
    assert model.card.adapter == Adapter(2, 16.0)


def test_another_base_is_noticed(base, tmp_path):
    file = tmp_path / "base.safetensors"
    file.write_bytes((base / "models" / "global.safetensors").read_bytes())
    words = [*lora(file, *ADAPTER), "output.checkpoint_every=1"]
    with pytest.raises(KeyboardInterrupt):
        run(words, tmp_path, "part", Stop())
    kept = (tmp_path / "part" / "records.jsonl").read_bytes()
    other = build(read_experiment(None, [*TEXT, "fleet.workers=1", "seed=5"])).components.trainer
    from dystop.training.saved import ModelCard, to_bytes

    card = ModelCard("transformer", (6,), 3, ("a", "b", "c"), (0.0,), (1.0,), tokens=30)
    file.write_bytes(to_bytes(other.layout, *other.initial(), card))
    with pytest.raises(ConfigError, match=r"not the file that the run began with"):
        resume_run(tmp_path / "part", lambda _: None, lambda _: None)
    assert (tmp_path / "part" / "records.jsonl").read_bytes() == kept


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model.adapter=lora"], r"set model\.base"),
        (["model.base=no/such/file"], r"model\.base.*no/such/file.*cannot be read"),
        (["model.base=README.md"], r"not a safetensors file"),
    ],
)
def test_a_base_that_cannot_be_used_is_refused(words, expected):
    with pytest.raises(ConfigError, match=expected):
        build(read_experiment(None, [*TEXT, "fleet.workers=2", *words]))


def test_a_base_of_another_model_is_refused(base):
    words = [*lora(base, *ADAPTER), "model.name=transformer-large"]
    with pytest.raises(ConfigError, match=r"model\.base.*another kind of model.*model\.name"):
        build(read_experiment(None, words))
    head = json.loads((base / "fleet.json").read_text())
    assert "base_parameters" not in head
