"""Lanes: on a CPU, independent pieces of work run side by side, one torch thread each.

For models of this size, threads inside an operation cost more than they bring, and on a busy
machine they wait for each other. Lanes never wait: a piece is trained from its first mini-batch to
its last on one core. How the work is cut into pieces does not depend on the number of lanes, so
neither do the results, to the last bit.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import torch
from torch import nn


class Equipment(Protocol):
    """What a piece of work needs for itself: a module, which is not safe to share."""

    @property
    def module(self) -> nn.Module:
        """The module, whose tensors are swapped while it is called."""


Tool = TypeVar("Tool", bound=Equipment)
Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Operations started inside, in whatever thread, use no threads of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Lanes(Generic[Tool]):
    """A pool of threads with a copy of the equipment for each."""

    def __init__(
        self, tool: Tool, count: int, duplicate: Callable[[Tool, nn.Module], Tool]
    ) -> None:
        self.count = count
        self._spare: SimpleQueue[Tool] = SimpleQueue()
        self._spare.put(tool)
        for _ in range(count - 1):
            self._spare.put(duplicate(tool, copy.deepcopy(tool.module)))

    def map(self, work: Callable[[Tool, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do the work on every item; results come in the order of the items."""

        def one(item: Item) -> Result:
            tool = self._spare.get()
            try:
                return work(tool, item)
            finally:
                self._spare.put(tool)

        if self.count == 1:
            return [one(item) for item in items]
        with one_thread_each(), ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(one, items))
