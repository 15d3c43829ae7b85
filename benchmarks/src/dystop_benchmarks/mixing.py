"""Benchmark of mixing: one sparse-dense product on the stack of models, in bytes per second."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dystop.control.aggregation import size_weights
from dystop.plan import Mix
from dystop.rng import stream
from dystop.simulator.mixing.stage import Sources, mixed_rows
from dystop.simulator.model_stack import Models
from dystop.training.flat import layout_of
from dystop_benchmarks.references import with_threads
from dystop_benchmarks.result import Line
from dystop_benchmarks.settings import Settings, Work, model_of
from dystop_benchmarks.stopwatch import Meter, in_turns

_FLOAT_BYTES = 4
_MOST_BYTES = 2**30  # of one stack; a larger one would say nothing new


def mixing_lines(settings: Settings, say: Callable[[str], None]) -> Iterator[Line]:
    """Measure bytes per second of the product, beside a NumPy loop and beside a copy."""
    for model in settings.models:
        work = settings.work(model)
        stack = _stack(settings, work)
        say(f"{model}: {len(stack)} models of {stack.shape[1]:,} numbers")
        stage = pulls(len(stack), settings.seed)
        amount = moved_bytes(stage, stack.shape[1]) / 1e9
        works = (product(stack, stage), numpy_loop(stack, stage), _copy(stack, amount))
        meters = [_meter(settings, step, amount) for step in works]
        ours, *beside = in_turns(meters, settings.repeat)
        names = ("plain loop over rows, numpy", "memory copy of as many bytes")
        for name, value in zip(names, beside, strict=True):
            yield Line(
                what="mixing",
                name=f"{model}, {len(stack)} workers pull {len(stage.source)} models",
                unit="GB/s",
                value=ours,
                reference=name,
                reference_value=value,
                better="higher",
                detail={"workers": len(stack), "width": stack.shape[1], "gigabytes": amount},
            )


def _meter(settings: Settings, step: Callable[[], object], amount: float) -> Meter:
    def counted() -> float:
        step()
        return amount

    counted()
    return Meter(counted, settings.device, settings.scale.at_least_s / 2)


def _stack(settings: Settings, work: Work) -> torch.Tensor:
    """Return models of as many workers as fit, [N, W]."""
    module = model_of(work.model, work.shape, settings.seed)
    width = layout_of(module).width
    workers = min(work.workers, max(2, _MOST_BYTES // (_FLOAT_BYTES * width)))
    rows = stream(settings.seed, "bench", "stack").standard_normal((workers, width), np.float32)
    return torch.from_numpy(rows).to(settings.device)


def pulls(workers: int, seed: int) -> Mix:
    """Return the rows of a round in which every worker pulls from log2 N others."""
    each = min(max(1, math.ceil(math.log2(workers))), workers - 1)
    everyone = np.arange(workers)
    ahead = 1 + stream(seed, "bench", "pulls").permutation(workers - 1)[:each]
    dst = np.repeat(everyone, each)
    src = (dst + np.tile(ahead, workers)) % workers
    return size_weights(everyone, dst, src, np.full(workers, 600))


def moved_bytes(stage: Mix, width: int) -> int:
    """Return the bytes that a product must read and write: every pulled model, every new row."""
    return _FLOAT_BYTES * width * (len(stage.source) + len(stage.receiver))


def product(stack: torch.Tensor, stage: Mix) -> Callable[[], torch.Tensor]:
    """Return the simulator's mixing (eq:aggregation) as a step."""
    models = Models(stack, stack.new_zeros(len(stack), 0))
    none = np.zeros(len(stage.source), bool)
    busy = np.zeros(len(stage.receiver), bool)
    sources = Sources(~none, none, none, none.astype(np.int64), busy)
    return lambda: mixed_rows(models, stage, sources)


def numpy_loop(stack: torch.Tensor, stage: Mix) -> Callable[[], NDArray[np.float32]]:
    """Return the same product as a plain NumPy loop over rows and models."""
    plain = stack.cpu().numpy()
    weight = stage.weight.astype(np.float32)

    def mixed() -> NDArray[np.float32]:
        out = np.zeros((len(stage.receiver), plain.shape[1]), np.float32)
        for row in range(len(out)):
            for k in range(stage.indptr[row], stage.indptr[row + 1]):
                out[row] += weight[k] * plain[stage.source[k]]
        return out

    return mixed


def _copy(stack: torch.Tensor, gigabytes: float) -> Callable[[], object]:
    """Return a copy that reads and writes as many bytes as the product."""
    numbers = max(1, int(gigabytes * 1e9 / (2 * _FLOAT_BYTES)))
    source = torch.zeros(numbers, device=stack.device)
    target = torch.empty_like(source)

    def copy() -> torch.Tensor:
        return target.copy_(source)

    return copy if stack.device.type == "cuda" else with_threads(copy, 1)
