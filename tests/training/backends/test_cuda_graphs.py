"""Capturing steps, with a stand-in for torch.cuda: what happens before a graph is captured."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dystop.training.backends.cuda import graphs
from dystop.training.backends.cuda.graphs import GraphRunner


class Cuda:
    """Captures nothing; notes how many captures run at once, and the value of `seen` then."""

    def __init__(self) -> None:
        self.seen = torch.zeros(1)
        self.capturing, self.events = 0, []

    def Stream(self, device: torch.device) -> Any:
        return SimpleNamespace(device=device, wait_stream=lambda stream: None)

    def current_stream(self, device: torch.device) -> None: ...

    def synchronize(self, device: torch.device) -> None: ...

    def graph_pool_handle(self) -> None: ...

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.events.append("replay"))

    @contextmanager
    def graph(self, graph: Any, pool: None, stream: Any, mode: str) -> Iterator[None]:
        self.capturing += 1
        self.events.append((self.capturing, mode, self.seen.item()))
        time.sleep(0.01)
        yield
        self.capturing -= 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()
    monkeypatch.setattr(graphs, "torch", SimpleNamespace(cuda=found))
    return found


def test_a_step_is_captured_once_after_a_warm_up_that_leaves_no_trace(cuda: Cuda) -> None:
    cuda.seen.fill_(7)
    before = torch.get_rng_state()

    def step() -> None:
        if not cuda.capturing:
            cuda.seen.add_(torch.rand(1))
            cuda.events.append("warm up")

    runner = GraphRunner([cuda.seen])
    runner.run(3, step)
    runner.run(3, step)
    capture = (1, "thread_local", 7.0)
    assert cuda.events == ["warm up", "warm up", capture, "replay", "replay"]
    assert torch.equal(before, torch.get_rng_state())


def test_one_capture_at_a_time_whatever_the_thread(cuda: Cuda) -> None:
    """Torch empties the memory caches of all devices before a capture, which breaks another one."""
    runners = [GraphRunner([cuda.seen]) for _ in range(4)]
    threads = [threading.Thread(target=runner.run, args=(1, lambda: None)) for runner in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event[0] for event in cuda.events if event != "replay"] == [1, 1, 1, 1]
