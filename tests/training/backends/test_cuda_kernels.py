"""The Triton kernels, run by Triton's interpreter on the CPU: same numbers as autograd."""

import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dystop.rng import bits
from dystop.simulator.mixing.cuda import mixed
from dystop.simulator.mixing.product import SparseRows
from dystop.training.backends import sequential
from dystop.training.backends.cuda import graphs as launching
from dystop.training.backends.cuda import kernels, stacks
from dystop.training.backends.cuda.buffers import BatchSampler
from dystop.training.backends.cuda.evaluate import StageEvaluator
from dystop.training.backends.cuda.stage_passes import StageStep
from dystop.training.backends.cuda.stages import ConvStage, LinearStage, stages_of
from dystop.training.backends.layers import Refusal
from dystop.training.evaluate import EvalTask, evaluate
from dystop.training.flat import layout_of
from dystop.training.local_steps.batches import Trainings, sample_table, shards_on
from dystop.training.randomness import seed_generators, signed
from dystop.training.samples import shards_of
from support.rng_vectors import NAME, VECTOR
from support.training_fixtures import CPU, assert_same, job_of, problem_of

# Rows that are passed over hold whatever was in memory; NumPy may complain about it.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero)")

NETS: dict[str, Any] = {
    "softmax": lambda: (nn.Flatten(), nn.Linear(36, 3)),
    "mlp": lambda: (nn.Flatten(), nn.Linear(36, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)),
    "conv": lambda: (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)),
    "odd": lambda: (
        *(nn.Conv2d(1, 3, 2), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(3, 2, 2, bias=False)),
        *(nn.Flatten(), nn.Linear(2, 3)),
    ),
    "nested": lambda: (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Identity()),
        *(nn.Conv2d(2, 17, 3), nn.ReLU(), nn.Flatten(), nn.Linear(68, 3)),
    ),
}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(problem: Any, buffers: Any) -> StageStep:
        found = stages_of(problem.module, problem.layout, problem.samples.shape)
        return StageStep(found, buffers, problem.samples, "ieee")

    monkeypatch.setattr(stacks, "step_for", step)


def trained(name: str, steps: list[int], spoil: bool = False) -> tuple[Any, Any]:
    with seed_generators(CPU, 0, "test"):
        module = nn.Sequential(*NETS[name]())
    problem = problem_of(module, [9, 4, 11, 0], batch=4)
    job = job_of(problem, [0, 1, 2, 3], steps)
    if spoil:
        job.models[0, 0] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of 0/0, which is masked
        ours = stacks.StackBackend(problem, 4)(problem, job)
    return ours, sequential.train(problem, job)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", NETS)
def test_chains_train_as_autograd_does(name: str) -> None:
    assert_same(*trained(name, [3, 1, 4, 1]))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_nan_stays_in_its_row(name: str) -> None:
    ours, theirs = trained(name, [2, 1, 2, 1], spoil=True)
    assert ours.models[0].isnan().any()
    torch.testing.assert_close(ours.models[1:], theirs.models[1:], rtol=1e-4, atol=1e-5)
    assert torch.isnan(torch.tensor(ours.loss[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_evaluation_agrees_with_torch(name: str) -> None:
    with seed_generators(CPU, 0, "test"):
        problem = problem_of(nn.Sequential(*NETS[name]()), [150])
    task = EvalTask(problem.module.eval(), problem.layout, problem.samples, 4, 64)
    models = job_of(problem, [0, 0, 0], [1, 1, 1]).models
    models[1, -1] = torch.nan
    none = torch.zeros(3, 0, dtype=torch.int64)
    index = torch.arange(140)
    stages = stages_of(problem.module, problem.layout, problem.samples.shape)
    evaluator = StageEvaluator(task, stages, "ieee")
    twice = torch.cat([index, index])  # more than there are samples
    for rows, some in ((1, index), (3, index), (1, index[20:50]), (3, index[:128]), (2, twice)):
        ours = evaluator(task, models[:rows], none[:rows], some)
        theirs = evaluate(task, models[:rows], none[:rows], some)
        np.testing.assert_allclose(ours.accuracy, theirs.accuracy)
        np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-5)


def test_results_of_an_evaluation_outlive_the_next_one() -> None:
    evaluator, task, models = evaluator_of("mlp", 2)
    none, index = torch.zeros(2, 0, dtype=torch.int64), torch.arange(40)
    first = evaluator(task, models, none, index)
    again = evaluator(task, models.flip(0), none, index)
    models.zero_()
    assert first.loss.tolist() == again.loss[::-1].tolist()
    assert first.loss[0] != first.loss[1]


def test_a_single_model_sees_many_samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, wide = {}, {}
    for height, most, seen in ((4, 150, 256), (1, 150, 128), (3, 10_000, 384)):
        evaluator, *_ = evaluator_of("conv", height, most)
        stack[height], wide[height] = evaluator._stack.batch, evaluator._single.batch
        assert evaluator._single.batch == seen
    assert set(stack.values()) == {128}
    monkeypatch.setattr(
        "dystop.training.backends.cuda.evaluate._MAX_ELEMENTS", 300 * 36
    )  # indices of 32 bits
    assert evaluator_of("conv", 4, 10_000)[0]._single.batch == 256


def evaluator_of(
    name: str, height: int, most: int = 150
) -> tuple[StageEvaluator, EvalTask, torch.Tensor]:
    with seed_generators(CPU, 0, "test"):
        problem = problem_of(nn.Sequential(*NETS[name]()), [most])
    task = EvalTask(problem.module.eval(), problem.layout, problem.samples, height, 64)
    stages = stages_of(problem.module, problem.layout, problem.samples.shape)
    models = job_of(problem, [0] * height, [1] * height).models
    return StageEvaluator(task, stages, "ieee"), task, models


class Compiler:
    """Stands in for Triton: remembers what is compiled and what is launched."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.runtime = self.driver = self.active = self
        self.src, self.metadata = "source", "metadata"

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.events.append(f"launch {grid} {args}")

    def warmup(self, *args: int, grid: tuple[int, ...]) -> "Compiler":
        self.events.append(f"compile {grid} {args}")
        return self

    def launcher_cls(self, src: str, metadata: str) -> None:
        self.events.append(f"launcher of {src}")

    def AsyncCompileMode(self, pool: Any) -> Any:
        return nullcontext()


def test_kernels_are_compiled_together_and_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Compiler()
    monkeypatch.setattr(launching, "triton", kernel)
    launching.compile_together(lambda: launching.launch(kernel, (2,), 7))
    launching.launch(kernel, (3,), 8)
    assert kernel.events == ["compile (2,) (7,)", "launcher of source", "launch (3,) (8,)"]


def test_what_cannot_be_compiled_together_is_compiled_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Compiler()
    monkeypatch.setattr(launching, "triton", None)  # too old, for instance
    launching.compile_together(lambda: launching.launch(kernel, (2,), 7))
    launching.launch(kernel, (3,), 8)
    assert kernel.events == ["launch (3,) (8,)"]


@settings(max_examples=10)
@given(
    st.lists(st.integers(0, 13), min_size=1, max_size=4),
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
    st.integers(0, 2**63),
)
def test_tables_of_the_kernels_equal_sample_tables(
    sizes: list[int], steps: list[int], seed: int
) -> None:
    if not sum(sizes):
        return
    ends = np.cumsum([0, *sizes])
    shards = shards_of([np.arange(lo, hi)[::-1] for lo, hi in pairwise(ends)], sum(sizes))
    workers = np.arange(len(sizes))
    asked = np.where(shards.sizes > 0, np.array(steps[: len(sizes)]), 0)
    trainings = Trainings(workers, workers + 3, shards.sizes, asked)
    there = shards_on(shards, CPU)
    wanted = sample_table(there, seed, trainings, 4)
    table = torch.zeros(wanted.shape[0] + 1, len(sizes) + 2, 4, dtype=torch.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # products that wrap around
        BatchSampler(there, seed, 4).fill(trainings, table)
    real = torch.from_numpy(trainings.counts(4).T > 0)[..., None]
    ours = table[: wanted.shape[0], : len(sizes)]
    assert torch.equal(torch.where(real, ours, 0), torch.where(real, wanted, 0))


@pytest.mark.parametrize(("seed", "identity", "word"), VECTOR)
def test_kernel_bits_of_the_shared_vector(
    seed: int, identity: tuple[int, int, int, int], word: int
) -> None:
    worker, version, epoch, position = identity
    width = position + 1
    sizes, keys = torch.full((worker + 1,), width), torch.zeros(1, width, dtype=torch.int64)
    who, start = (torch.tensor([worker]), torch.tensor([version])), signed(int(bits(seed, NAME)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # products that wrap around
        launching.launch(
            kernels.sort_keys, (1, -(-width // 1024)), *who, sizes, torch.tensor([start]), epoch,
            keys, width, BLOCK=1024,
        )  # fmt: skip
    assert int(keys[0, position]) ^ signed(2**63) == signed(word)


def test_layers_are_read_off_the_module() -> None:
    net = nn.Sequential(*NETS["conv"]())
    conv, dense = stages_of(net, layout_of(net), (1, 6, 6))
    assert isinstance(conv, ConvStage)
    assert isinstance(dense, LinearStage)
    assert conv.outputs == (2, 2, 2)
    assert (conv.relu, conv.pool, dense.weight) == (True, 2, 20)


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ((nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(72, 3)), "padding \\(1, 1\\)"),
        ((nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(8, 3)), "stride \\(2, 2\\)"),
        ((nn.Flatten(), nn.Linear(36, 3), nn.Tanh()), "Tanh"),
        ((nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3)), "buffers"),
        ((nn.Conv2d(1, 2, 6), nn.Flatten()), "last layer"),
        (
            (nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(2, 3)),
            "pooling .*stride \\(2, 2\\)",
        ),
    ],
)
def test_other_networks_are_named(layers: tuple[nn.Module, ...], why: str) -> None:
    net = nn.Sequential(*layers)
    with pytest.raises(Refusal, match=why):
        stages_of(net, layout_of(net), (1, 6, 6))


@given(
    rows=st.integers(0, 5), models=st.integers(1, 6), width=st.integers(1, 2500),
    seed=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=25)
def test_mixing_is_a_product(rows: int, models: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    dense = random.random((rows, models)) * (random.random((rows, models)) < 0.6)
    indptr = np.concatenate([[0], np.cumsum((dense != 0).sum(1))])
    column, stack = np.nonzero(dense)[1], torch.from_numpy(random.normal(size=(models, width)))
    sparse = SparseRows(indptr, column, dense[dense != 0])
    parts = [torch.from_numpy(part) for part in (indptr, column, sparse.weight)]
    for dtype in (torch.float32, torch.float64):
        kind = stack.to(dtype)
        ours = mixed(parts[0], parts[1], parts[2].to(dtype), kind)
        torch.testing.assert_close(ours, torch.from_numpy(dense).to(dtype) @ kind)
        torch.testing.assert_close(ours, sparse @ kind)


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dystop.simulator.mixing.cuda import mix_rows

kinds = ("*i64", "*i64", "*fp32", "*fp32", "*fp32", "i32", "i32", "constexpr")
signature = dict(zip(mix_rows.arg_names, kinds, strict=True))
source = ASTSource(mix_rows, signature, {"BLOCK": 1024})
print(len(compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]))
"""


def test_mixing_compiles_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-W", "ignore", "-c", COMPILE]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert int(done.stdout) > 1000, done.stderr
