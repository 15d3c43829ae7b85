"""References for training: one model at one large batch, and plain loops over workers.

They leave out what a simulator must do besides training (decisions, mixing, records), and the large
batch also leaves out the gathering of samples. They are upper bounds, not competitors. The plain
loop in processes (one per core, one torch thread each) uses nothing of dystop.
"""

import copy
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dystop_benchmarks.settings import Work, images, model_of
from dystop_benchmarks.stopwatch import Meter

Call = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[], None]
Way = tuple[str, Callable[[], Step]]  # a name, and what makes the step
_RATE = 0.01
_WARM_STEPS = 3  # on a GPU, before a step is timed or captured


@dataclass(frozen=True)
class Bench:
    """Where to measure: device, seed, precision and the shortest measurement."""

    device: torch.device
    seed: int = 0
    precision: str = "float32"  # as torch does it by itself, or bfloat16
    at_least_s: float = 0.5
    compiles: bool = True  # on a GPU; takes up to a minute for a large model

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context; its cache is off so that a step can be captured."""
        kind, half = self.device.type, self.precision == "bfloat16"
        return torch.autocast(kind, torch.bfloat16, enabled=half, cache_enabled=False)

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Let cuDNN choose its fastest kernels."""
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before


@dataclass
class Best:
    """The fastest of several variants, and the rate of each."""

    meter: Meter
    name: str
    rates: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def large_batch(bench: Bench, work: Work) -> Best:
    """Measure one model trained at one batch of `work.large_batch`."""
    x, y = _batch(bench, work, work.large_batch)
    model = _module(bench, work).train()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    def step_of(call: Call) -> Step:
        optimiser = torch.optim.SGD(model.parameters(), lr=_RATE)

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            with bench.autocast():
                lost = call(x, y)
            lost.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

        return step

    return _best(bench, _variants(bench, loss, step_of), len(y))


def large_forward(bench: Bench, work: Work, batch: int) -> Best:
    """Measure the forward pass of one model at one large batch."""
    x, y = _batch(bench, work, batch)
    model = _module(bench, work).eval()

    def scores(x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = model(x)
        return out

    def step_of(call: Call) -> Step:
        def step() -> None:
            with torch.no_grad(), bench.autocast():
                call(x, y)

        return step

    return _best(bench, _variants(bench, scores, step_of), len(y))


def _batch(bench: Bench, work: Work, count: int) -> tuple[Tensor, Tensor]:
    """Return the normalised images of one batch on the device."""
    x, y = images(work.shape, count, bench.seed)
    ready = torch.from_numpy(x).to(bench.device).float().div_(255.0)
    return ready.contiguous(memory_format=_layout(work)), torch.from_numpy(y).to(bench.device)


def _module(bench: Bench, work: Work) -> nn.Module:
    """Return the model in its preferred memory layout."""
    module = model_of(work.model, work.shape, bench.seed)
    placed: nn.Module = module.to(bench.device, memory_format=_layout(work))  # type: ignore[call-overload]
    return placed


def _layout(work: Work) -> torch.memory_format:
    """Return channels last, except for small networks of one channel, which do not gain."""
    return torch.contiguous_format if work.small else torch.channels_last


def _variants(bench: Bench, call: Call, step_of: Callable[[Call], Step]) -> Iterator[Way]:
    """Yield variants of a step, each built on demand."""
    if bench.device.type != "cuda":
        yield from _eager(step_of(call))
        return
    if bench.compiles:
        compiled = step_of(torch.compile(call))  # compiles at its first step
        yield "compiled", lambda: compiled
        yield "compiled and captured", lambda: _captured(bench, compiled)
    else:
        yield "captured", lambda: _captured(bench, step_of(call))
    yield "eager", lambda: step_of(call)


def _eager(step: Step) -> Iterator[Way]:
    """Yield the step on all threads, and on one; either may be faster."""
    for count in sorted({1, torch.get_num_threads()}, reverse=True):
        name = f"eager, {count} thread{'s' * (count > 1)}"
        yield name, partial(with_threads, step, count)


def with_threads(step: Callable[[], object], count: int) -> Step:
    """Return the step with this number of torch threads."""

    def limited() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            step()
        finally:
            torch.set_num_threads(before)

    return limited


def _captured(bench: Bench, step: Step) -> Step:
    """Return the step captured as one CUDA graph."""
    with torch.cuda.device(bench.device), bench.kernels():
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_STEPS):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return partial(_replay, graph, step)


def _replay(graph: torch.cuda.CUDAGraph, step: Step) -> None:
    """Replay a captured step. The argument `step` keeps its tensors alive."""
    graph.replay()


def _best(
    bench: Bench,
    ways: Iterator[Way],
    count: int,
) -> Best:
    """Measure every variant and return the best; a variant that fails is recorded."""
    best: Best | None = None
    rates: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, make in ways:
        try:
            meter = _metered(bench, make(), count)
        except Exception as error:  # no compiler, no Triton, an operator that cannot be captured
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            continue
        rates[name] = meter()
        if best is None or rates[name] > rates[best.name]:
            best = Best(meter, name)
    if best is None:
        raise RuntimeError(f"the reference could not be measured: {failed}")
    return Best(best.meter, best.name, rates, failed)


def _metered(bench: Bench, step: Step, count: int) -> Meter:
    """Return a meter of images per second, after the warm-up steps."""

    def counted() -> float:
        with bench.kernels():
            step()
        return count

    for _ in range(_WARM_STEPS if bench.device.type == "cuda" else 1):
        counted()
    return Meter(counted, bench.device, bench.at_least_s)


def plain_loop(bench: Bench, work: Work) -> Best:
    """Measure workers trained one after another, eagerly. A step is one local epoch."""
    model, data = _module(bench, work).train(), images(work.shape, work.images, bench.seed)
    x, y = (torch.from_numpy(part).to(bench.device) for part in data)
    optimiser = torch.optim.SGD(model.parameters(), lr=_RATE)
    start = copy.deepcopy(model.state_dict())
    draw = torch.Generator().manual_seed(bench.seed)

    def epoch() -> None:
        model.load_state_dict(start)
        order = torch.randperm(len(y), generator=draw).to(bench.device)
        for some in torch.split(order, work.batch):
            optimiser.zero_grad()
            with bench.autocast():
                out = model(x[some].float().div_(255.0))
                lost = F.cross_entropy(out, y[some])
            lost.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    ways = _eager(epoch) if bench.device.type == "cpu" else iter([("eager", lambda: epoch)])
    return _best(bench, ways, len(y))


IMAGES, BATCH, RATE = 600, 32, 0.05


def plain_loop_images_per_s(processes: int, workers: int, rounds: int) -> float:
    """Return images per second of a plain loop over workers in several processes.

    Every worker trains the 21,840-parameter CNN for one epoch of 600 images a round, in
    mini-batches of 32. Start-up and a warm-up round are not counted; all processes begin together.

    Args:
        processes: Processes, with one torch thread each.
        workers: Workers in all, divided evenly.
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
    """Start all processes together when they are warm, and time the slowest."""
    for helper in helpers:
        helper.recv()
    begin = time.perf_counter()
    for helper in helpers:
        helper.send("go")
    for helper in helpers:
        helper.recv()
    return time.perf_counter() - begin


def _serve(pipe: Connection, workers: int, rounds: int) -> None:
    """Train some workers in this process, when told to."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(workers)
    nets = [_cnn() for _ in range(workers)]
    x = torch.rand(workers, IMAGES, 1, 28, 28, generator=generator)
    y = torch.randint(10, (workers, IMAGES), generator=generator)
    for net, inputs, labels in zip(nets[:1], x, y, strict=False):
        _epoch(net, inputs, labels, generator)
    pipe.send("warm")
    pipe.recv()
    for _ in range(rounds):
        for net, inputs, labels in zip(nets, x, y, strict=True):
            _epoch(net, inputs, labels, generator)
    pipe.send("done")


def _cnn() -> nn.Module:
    """Return the paper's CNN."""
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
    """Train one epoch of plain SGD."""
    parameters = list(net.parameters())
    order = torch.randperm(len(y), generator=generator)
    for index in torch.split(order, BATCH):
        loss = F.cross_entropy(net(x[index]), y[index])
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=RATE)
