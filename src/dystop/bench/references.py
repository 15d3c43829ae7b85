"""What the trainer is compared with: one model at one large batch, and a plain loop over workers.

Both leave out what a simulator must do besides (choosing, mixing, bookkeeping), and the large batch
also leaves out the gathering of samples: they are ceilings, not rivals.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dystop.bench.clock import Meter
from dystop.bench.material import CLASSES, images
from dystop.bench.settings import Work
from dystop.training.models.build import build_model

Call = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[], None]
Way = tuple[str, Callable[[], Step]]  # a name, and what makes the step
_RATE = 0.01
_WARM_STEPS = 3  # on a GPU, before a step is timed or captured


@dataclass(frozen=True)
class Bench:
    """A place to measure on: device, seed, precision and the shortest measurement."""

    device: torch.device
    seed: int = 0
    precision: str = "float32"  # as torch does it by itself, or bfloat16
    at_least_s: float = 0.5
    compiles: bool = True  # on a GPU; takes up to a minute for a large model

    def autocast(self) -> AbstractContextManager[object]:
        """The precision of the reference; casts are not kept, so that a step can be captured."""
        kind, half = self.device.type, self.precision == "bfloat16"
        return torch.autocast(kind, torch.bfloat16, enabled=half, cache_enabled=False)

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Let cuDNN try its kernels and keep the fastest, which a reference may."""
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before


@dataclass
class Best:
    """The fastest of several ways to do the same, and what each of them reached."""

    meter: Meter
    name: str
    rates: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def large_batch(bench: Bench, work: Work) -> Best:
    """One model trained at one batch of `work.large_batch`, as fast as the device can."""
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
    """One model examined at one large batch, forward only."""
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
    """Normalised images of one batch, already where they are needed."""
    x, y = images(work.shape, count, bench.seed)
    ready = torch.from_numpy(x).to(bench.device).float().div_(255.0)
    return ready.contiguous(memory_format=_layout(work)), torch.from_numpy(y).to(bench.device)


def _module(bench: Bench, work: Work) -> nn.Module:
    """The model in the memory layout that suits it."""
    module = build_model(work.model, work.shape[0], work.shape[1:], CLASSES, bench.seed)
    placed: nn.Module = module.to(bench.device, memory_format=_layout(work))  # type: ignore[call-overload]
    return placed


def _layout(work: Work) -> torch.memory_format:
    """Channels last is what matrix units like; it does not help a net of one channel."""
    return torch.contiguous_format if work.small else torch.channels_last


def _variants(bench: Bench, call: Call, step_of: Callable[[Call], Step]) -> Iterator[Way]:
    """Ways to run a step, each made when it is asked for."""
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
    """The step on all threads, and on one: they may wait for each other longer than they work."""
    for count in sorted({1, torch.get_num_threads()}, reverse=True):
        name = f"eager, {count} thread{'s' * (count > 1)}"
        yield name, partial(with_threads, step, count)


def with_threads(step: Callable[[], object], count: int) -> Step:
    """The step on so many threads of torch's."""

    def limited() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            step()
        finally:
            torch.set_num_threads(before)

    return limited


def _captured(bench: Bench, step: Step) -> Step:
    """The step as one CUDA graph."""
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
    """Play a recorded step; whoever holds this also holds the tensors that the step reads."""
    graph.replay()


def _best(
    bench: Bench,
    ways: Iterator[Way],
    count: int,
) -> Best:
    """Try every way; a way that this machine cannot go is noted and left out."""
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
    """A meter of images per second; the first, slow steps lie behind it."""

    def counted() -> float:
        with bench.kernels():
            step()
        return count

    for _ in range(_WARM_STEPS if bench.device.type == "cuda" else 1):
        counted()
    return Meter(counted, bench.device, bench.at_least_s)


def plain_loop(bench: Bench, work: Work) -> Best:
    """Workers one after another, eager: the loop that most code is. A step is one local epoch."""
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
