"""Local runs: GPUs side by side, one run each, as far as the estimates of memory allow."""

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.errors import CapacityError
from dystop.studies.executors import local
from dystop.studies.executors.choice import Choice, make_executor
from dystop.studies.executors.driver import run_study
from dystop.studies.executors.executor import Ended, Job, Need
from dystop.studies.executors.local import VISIBLE, Gpu, LocalExecutor
from dystop.studies.study import finished
from support.tiny_study import TINY, Listener, tiny_study

GB = 2**30
TWO = [Gpu("0", 10 * GB), Gpu("3", 20 * GB)]


@pytest.fixture
def children(monkeypatch):
    """Children that were started, in order; each runs until a test ends it."""
    started = []

    class Child:
        def __init__(self, job, variables=None):
            self.run, self.variables, self.ended = job.run, dict(variables or {}), None
            started.append(self)

        def poll(self):
            return self.ended

    monkeypatch.setattr(local, "LocalProcess", Child)
    return started


def start(executor, run, memory, device="auto"):
    need = Need(run, device, memory)
    assert executor.has_room(need)
    executor.submit([Job(need, ("run",), None)])


def test_runs_go_to_different_gpus(children):
    executor = LocalExecutor(gpus=TWO)
    assert executor.capacity == 2
    start(executor, "a", 2 * GB)
    start(executor, "b", 2 * GB)
    assert [child.variables for child in children] == [{VISIBLE: "3"}, {VISIBLE: "0"}]
    children[0].ended = Ended(0)
    start(executor, "c", 2 * GB)
    assert children[-1].variables == {VISIBLE: "3"}


def test_a_gpu_takes_no_more_than_fits(children):
    executor = LocalExecutor(4, TWO)
    start(executor, "a", 15 * GB)
    start(executor, "b", 6 * GB)
    assert [child.variables[VISIBLE] for child in children] == ["3", "0"]
    assert not executor.has_room(Need("c", "auto", 6 * GB))
    assert executor.has_room(Need("c", "auto", 5 * GB))
    assert executor.has_room(Need("c", "cpu", 50 * GB))
    children[0].ended = Ended(0)
    assert executor.has_room(Need("c", "auto", 6 * GB))


def test_a_run_that_names_its_gpu_keeps_it(children):
    executor = LocalExecutor(2, TWO)
    start(executor, "a", 50 * GB, "cuda:1")
    assert children[0].variables == {}


def test_a_run_that_fits_on_no_gpu_is_refused_before_anything_starts(tmp_path):
    executor = LocalExecutor(2, TWO)
    needs = [Need("a", "auto", GB), Need("b", "cuda", 21 * GB)]
    with pytest.raises(CapacityError, match=r"b: needs about 21\.0 GiB on a GPU.*20\.0 GiB") as why:
        executor.check(tmp_path, needs)
    assert "training.device=cpu" in str(why.value)
    executor.check(tmp_path, needs[:1])
    LocalExecutor(2).check(tmp_path, needs)  # without a GPU each run checks its memory itself


def test_the_estimate_of_each_run_reaches_the_check(tmp_path, monkeypatch):
    study = tiny_study(tmp_path)
    with pytest.raises(CapacityError, match="dystop-s0: needs about"):
        run_study(study, LocalExecutor(2, [Gpu("0", 1), Gpu("1", 1)]), Listener())
    assert not any(finished(study.path / name) for name in ("dystop-s0", "dystop-s1"))
    assert not (study.path / "dystop-s0").exists()
    monkeypatch.setattr(local, "gpus_here", lambda: TWO)
    assert make_executor(Choice()).capacity == 2
    assert make_executor(Choice(jobs=1)).capacity == 1


def test_the_command_line_refuses_it_too(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "gpus_here", lambda: [Gpu("0", 1), Gpu("1", 1)])
    words = ["compare", *TINY, "--mechanisms", "dystop", "--out", str(tmp_path), "--seeds", "1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "the largest of 2 GPUs has 1 bytes" in result.stderr


def test_the_gpus_of_this_process(monkeypatch):
    import torch

    class Properties:
        total_memory = GB

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda k: Properties)
    monkeypatch.delenv(VISIBLE, raising=False)
    assert [gpu.name for gpu in local.gpus_here()] == ["0", "1"]
    monkeypatch.setenv(VISIBLE, "5, GPU-ab")
    assert local.gpus_here() == [Gpu("5", GB), Gpu("GPU-ab", GB)]
