"""Lanes: independent pieces of work run side by side, one torch thread (or one GPU) each.

For models of this size, threads inside an operation cost more than they bring, and on a busy
machine they wait for each other. Lanes never wait: a piece is trained from its first mini-batch to
its last on one core. How the work is cut into pieces does not depend on the number of lanes, so
neither do the results, to the last bit.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

Tool = TypeVar("Tool")
Item = TypeVar("Item")
Result = TypeVar("Result")


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
    """A pool of threads, each with a tool of its own (a module is not safe to share)."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.count = len(tools)
        self._spare: SimpleQueue[Tool] = SimpleQueue()
        for tool in tools:
            self._spare.put(tool)

    def map(self, work: Callable[[Tool, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do the work on every item; results come in the order of the items."""

        def one(item: Item) -> Result:
            tool = self._spare.get()
            try:
                return work(tool, item)
            finally:
                self._spare.put(tool)

        with one_thread_each():  # a single lane too: two threads bring little and may cost much
            if self.count == 1:
                return [one(item) for item in items]
            with ThreadPoolExecutor(self.count) as pool:
                return list(pool.map(one, items))
