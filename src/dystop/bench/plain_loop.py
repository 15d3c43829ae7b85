"""The best plain torch loop on a CPU: one process per core, one torch thread each, nothing else.

Nothing of dystop is used: a module for each worker, its images, cross-entropy, and SGD by hand.
This is the reference that the trainer has to beat.
"""

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGES, BATCH, RATE = 600, 32, 0.05


def plain_loop_images_per_s(processes: int, workers: int, rounds: int) -> float:
    """Images per second of a plain loop over workers, shared by some processes.

    Every worker trains the 21,840-parameter CNN for one epoch of 600 images a round, in
    mini-batches of 32. Start-up and a warm-up round are not counted; all processes begin together.

    Args:
        processes: Processes, with one torch thread each.
        workers: Workers in all, dealt out evenly.
        rounds: Rounds that are timed.
    """
    context = multiprocessing.get_context("spawn")
    shares = [len(range(k, workers, processes)) for k in range(processes)]
    pipes = [context.Pipe() for _ in shares]
    helpers = [
        context.Process(target=_serve, args=(far, share, rounds), daemon=True)
        for (_, far), share in zip(pipes, shares, strict=True)
    ]
    for helper, (_, far) in zip(helpers, pipes, strict=True):
        helper.start()
        far.close()  # so that a helper's death is noticed
    seconds = _timed([near for near, _ in pipes])
    for helper in helpers:
        helper.join()
    return workers * IMAGES * rounds / seconds


def _timed(helpers: list[Any]) -> float:
    """Wait until all are warm, let them go at once, and wait for the last."""
    for helper in helpers:
        helper.recv()
    begin = time.perf_counter()
    for helper in helpers:
        helper.send("go")
    for helper in helpers:
        helper.recv()
    return time.perf_counter() - begin


def _serve(pipe: Connection, workers: int, rounds: int) -> None:
    """Train some workers in this process."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(workers)
    nets = [_cnn() for _ in range(workers)]
    x = torch.rand(workers, IMAGES, 1, 28, 28, generator=generator)
    y = torch.randint(10, (workers, IMAGES), generator=generator)
    for net, images, labels in zip(nets[:1], x, y, strict=False):
        _epoch(net, images, labels, generator)
    pipe.send("warm")
    pipe.recv()
    for _ in range(rounds):
        for net, images, labels in zip(nets, x, y, strict=True):
            _epoch(net, images, labels, generator)
    pipe.send("done")


def _cnn() -> nn.Module:
    """The paper's CNN."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


def _epoch(net: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    """One epoch of plain SGD."""
    parameters = list(net.parameters())
    order = torch.randperm(len(y), generator=generator)
    for index in torch.split(order, BATCH):
        loss = F.cross_entropy(net(x[index]), y[index])
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=RATE)
