import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dystop.errors import CapacityError
from dystop.training.memory import (
    MemoryEstimate,
    ModelSize,
    Workload,
    activation_bytes,
    available_bytes,
    ensure_fits,
    forward_bytes,
    held_bytes,
)
from dystop.training.models.build import build_model
from dystop.training.params import TrainerParams
from dystop.training.samples import Arrays
from dystop.training.trainer import Trainer

GIB = 2**30
CPU = torch.device("cpu")


def test_parts_by_hand():
    size = ModelSize(width=1000, counters=10, activation_bytes=500, forward_bytes=100)
    assert size.row_bytes == 4_080
    assert size.pass_bytes(trained=1, evaluated=500) == 50_000
    got = MemoryEstimate((("models", 816_000), ("training", 122_400)), held=160_000)
    assert (got.needed, got.total) == (938_400, 1_098_400)
    assert got.text().splitlines()[-1].split() == ["total", "1.0", "MiB"]


def test_what_is_held_is_read_from_the_kernel(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    assert held_bytes(CPU, tmp_path) == 0
    (tmp_path / "proc/self/status").write_text("VmHWM:\t 9 kB\nVmRSS:\t  7 kB\n")
    assert held_bytes(CPU, tmp_path) == 7 * 1024
    assert held_bytes(CPU) > 2**20


def test_activations_of_a_linear_chain():
    # Autograd saves the input of each linear layer and the output of ReLU, which is the second
    # layer's input: 4 x 6 and 4 x 5 bytes a sample.
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    assert activation_bytes(net, (6,)) == 4 * 6 + 4 * 5
    assert forward_bytes(net, (6,)) == 3 * 4 * 6  # the input is the largest tensor


def test_activations_of_the_cnn_are_within_reason_and_the_module_is_not_touched():
    net = build_model("cnn", 1, (28, 28), 10, seed=0)
    feature_maps = 4 * (784 + 10 * 24 * 24 + 10 * 12 * 12 + 20 * 8 * 8 + 20 * 4 * 4 + 50)
    assert feature_maps < activation_bytes(net, (1, 28, 28)) < 3 * feature_maps
    normed = build_model("resnet18", 1, (9, 9), 10, seed=0).train()
    activation_bytes(normed, (1, 9, 9))
    assert normed.stem[1].num_batches_tracked == 0


def test_trainer_estimates_its_run():
    x, y = np.zeros((50, 1, 28, 28), np.uint8), np.zeros(50, np.int64)
    net = build_model("cnn", 1, (28, 28), 10, seed=0)
    params = TrainerParams(device="cpu", evaluation_batch=8, lanes=1)
    t = Trainer(net, Arrays(x, y, x, y, 0.3, 0.3), [np.arange(50)], params, seed=0)
    estimate = t.estimate(workers=100, stacks=2)
    parts = dict(estimate.parts)
    row = 4 * 21_840
    assert parts["models (100 workers)"] == 100 * 3 * row  # two kept, one with the results
    assert parts["training (1 at once)"] == 3 * row + t.size.activation_bytes * 32
    assert parts["evaluation"] == t.size.forward_bytes * 8
    assert estimate.held > 2**20


@pytest.mark.parametrize(
    ("changes", "training", "evaluation"),
    [
        ({}, 4 * (2 * 10 * 32 + 3 * 400), 3 * 5 * 64),  # four of a stack, three tested
        ({"is_half": True}, 4 * (10 * 32 + 3 * 400), 3 * 5 * 64 // 2),
        ({"streams": 2}, 2 * (2 * 10 * 32 + 3 * 400), 3 * 5 * 64),
        ({"has_kernels": True}, 4 * 7 * 400 + 2**25, 2**25),
    ],
)
def test_a_gpu_needs_what_it_trains_together(changes, training, evaluation, monkeypatch):
    monkeypatch.setattr("dystop.training.memory.held_bytes", lambda device: 1)
    workload = Workload(
        size=ModelSize(width=100, counters=0, activation_bytes=10, forward_bytes=5),
        device=torch.device("cuda"), executors=1, rows=4, batch=32, tested_rows=3,
        tested_batch=64, streams=0, has_kernels=False, is_half=False,
        state_floats=100, keeps_state=True,
    )  # fmt: skip
    parts = dict(replace(workload, **changes).estimate(workers=7, stacks=2).parts)
    assert parts["training (4 at once)"] == training
    assert parts["evaluation"] == evaluation
    assert parts["optimiser state"] == 6 * 7 * 400


def test_refusal_says_what_there_is_and_what_to_change():
    need = MemoryEstimate((("models (1000000 workers)", 90 * GIB), ("data set", GIB)))
    ensure_fits(need, 91 * GIB)
    with pytest.raises(CapacityError) as caught:
        ensure_fits(need, 8 * GIB)
    message = str(caught.value)
    for words in ("about 91.0 GiB", "only 8.0 GiB", "models (1000000 workers)", "fewer workers",
                  "smaller model", "training.device", "training.chunk"):  # fmt: skip
        assert words in message
    with pytest.raises(CapacityError, match=r"only 4.0 GiB can be used \(limit set to 4.0 GiB\)"):
        ensure_fits(need, 91 * GIB, limit=4 * GIB)


def fake(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = "MemTotal: 16000000 kB\nMemFree: 100 kB\nMemAvailable:  8000000 kB\n"


def test_available_is_what_the_machine_leaves(tmp_path):
    assert available_bytes(CPU, fake(tmp_path, {"proc/meminfo": MEMINFO})) == 8_000_000 * 1024


def test_available_under_a_group_of_version_2(tmp_path):
    root = fake(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/jobs/mine\n",
            "sys/fs/cgroup/jobs/memory.max": "5000000\n",
            "sys/fs/cgroup/jobs/memory.current": "4000000\n",
            "sys/fs/cgroup/jobs/memory.stat": "anon 9\ninactive_file 300000\nfile 7\n",
            "sys/fs/cgroup/jobs/mine/memory.max": "max\n",
            "sys/fs/cgroup/jobs/mine/memory.current": "77\n",
        },
    )
    assert available_bytes(CPU, root) == 1_300_000


def test_available_under_a_group_of_version_1(tmp_path):
    root = fake(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/not/visible/here\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "500000\n",
        },
    )
    assert available_bytes(CPU, root) == 1_500_000


def test_available_without_proc(tmp_path):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_bytes(CPU, tmp_path) == whole
    assert 0 < available_bytes(CPU) <= whole
