"""The choice of a back end: compiled CPU kernels, stacks of models, or one model after another.

The choice depends on what the module does (whether it draws random numbers, couples the samples of
a mini-batch, or runs under `vmap`), on its size, and on what can be imported here.
"""

import copy
import os
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from dystop.errors import ConfigError
from dystop.training.backends.layers import Refusal, read_layers
from dystop.training.flat import Layout
from dystop.training.local_steps.optimisers import optimiser_of
from dystop.training.memory import ModelSize
from dystop.training.params import TrainerParams
from dystop.training.randomness import address_names
from dystop.training.samples import Shards
from dystop.training.tasks.task import CLASSIFICATION, Task

if TYPE_CHECKING:
    from dystop.training.backends.cuda.stages import Stage

STACKED_BELOW = 1_000_000  # parameters; stacks are for models too small to fill the machine
STACKED_CONVOLUTIONS_BELOW = 500_000  # SqueezeNet (729,000) on an H200: 38,000 images/s stacked,
# 82,000 images/s on streams
FUSED_BELOW = 4_000_000  # parameters; for larger models (a VGG) torch's own kernels are as fast
CPU_CHUNK = 10  # with the CNN on two cores 5 to 20 differ less than the noise
CUDA_CHUNK = 512
CUDA_BACKENDS = "dystop.training.backends.cuda.streams"  # needs Triton


def choose_path(
    module: nn.Module,
    layout: Layout,
    shape: tuple[int, ...],
    params: TrainerParams,
    task: Task = CLASSIFICATION,
    dtype: torch.dtype = torch.float32,
) -> str:
    """Choose how models are trained: "fused", "stacked" or "sequential".

    Args:
        module: The model, on its device.
        layout: Of the model.
        shape: Of one sample.
        params: Parameters of training.
        task: What is learned; the kernels know one loss only.
        dtype: Of one sample.

    Raises:
        ConfigError: `training.path` or `training.precision` asks for what is not possible here.
    """
    device = next(module.parameters()).device
    check_precision(device, params)
    if _can_fuse(module, layout, shape, params, task):
        return "fused"
    return "stacked" if _can_stack(module, layout, shape, params, task, dtype) else "sequential"


def check_precision(device: torch.device, params: TrainerParams) -> None:
    """Refuse bfloat16 on a CPU, where it would gain nothing."""
    if params.precision == "bfloat16" and device.type != "cuda":
        raise ConfigError(
            "training.precision = 'bfloat16' is for GPUs; this run is on the CPU: use 'float32'"
        )


def _can_fuse(
    module: nn.Module, layout: Layout, shape: tuple[int, ...], params: TrainerParams, task: Task
) -> bool:
    if params.path not in ("auto", "fused"):
        return False
    on_cpu = next(module.parameters()).device.type == "cpu"
    if params.path == "auto" and (not on_cpu or layout.parameters >= FUSED_BELOW):
        return False
    reason = why_not_fused(module, layout, shape) if on_cpu else "the kernels are for CPUs"
    reason = reason or ("the kernels do not support training.l2" if params.l2 else None)
    reason = reason or (None if task.has_kernels else "the kernels know one loss, cross-entropy")
    reason = reason or optimiser_of(params).why_not_fused
    if reason and params.path == "fused":
        raise _impossible("fused", reason)
    return reason is None


def _can_stack(
    module: nn.Module,
    layout: Layout,
    shape: tuple[int, ...],
    params: TrainerParams,
    task: Task,
    dtype: torch.dtype,
) -> bool:
    if params.path == "sequential":
        return False
    if params.path == "auto" and not _worth_stacking(module, layout):
        return False
    can_use = task.has_kernels and next(module.parameters()).device.type == "cuda"
    has_kernels = can_use and cuda_stages(module, layout, shape) is not None
    reason = None if has_kernels else why_not_stacked(module, layout, shape, dtype)
    if reason and params.path == "stacked":
        raise _impossible("stacked", reason)
    return reason is None


def _impossible(path: str, reason: str) -> ConfigError:
    return ConfigError(
        f"training.path = {path!r} is not possible for this model: {reason}; "
        f"use 'sequential' or 'auto'"
    )


def _worth_stacking(module: nn.Module, layout: Layout) -> bool:
    """Return whether a stack is faster than one model after another.

    On a CPU, a stack turns convolutions into grouped ones: 13,000 images/s of the CNN on two cores
    against 15,000 in two threads. Linear layers gain (softmax regression: 2.6 times).
    """
    on_cpu = next(module.parameters()).device.type == "cpu"
    convolves = any(isinstance(m, _ConvNd) for m in module.modules())
    if convolves:
        return layout.parameters < STACKED_CONVOLUTIONS_BELOW and not on_cpu
    return layout.parameters < STACKED_BELOW


def stack_height(size: ModelSize, params: TrainerParams, device: torch.device) -> int:
    """Return the number of models in one stack.

    On a GPU it follows from the total memory, not from the memory that is free now: rounding may
    depend on the height of the stack, and a run must repeat bit by bit.
    """
    if params.chunk is not None:
        return params.chunk
    if device.type != "cuda":
        return CPU_CHUNK
    model_bytes = 3 * size.row_bytes + size.pass_bytes(params.batch, params.evaluation_batch)
    memory = torch.cuda.get_device_properties(device).total_memory
    return int(np.clip(memory // 4 // model_bytes, 1, CUDA_CHUNK))


def check_last_batches(
    module: nn.Module,
    shape: tuple[int, ...],
    shards: Shards,
    batch: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Refuse a last mini-batch of one sample if the model's batch norm cannot train on it."""
    single = np.flatnonzero(shards.sizes % batch == 1 if batch > 1 else shards.sizes > 0)
    if len(single) and not trains_on_single_samples(module, shape, dtype):
        raise ConfigError(
            f"training.batch = {batch} leaves worker {single[0]} ({shards.sizes[single[0]]} "
            f"samples) a mini-batch of one sample, which this model's batch norm cannot train on; "
            f"choose another batch or a model without batch norm"
        )


def draws_numbers(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> bool:
    """Return whether the module draws random numbers from torch while it trains, like dropout.

    A trial pass answers this, so that a user's own module is judged by what it does.
    """
    trial = copy.deepcopy(module).to("cpu").train()
    with torch.random.fork_rng(devices=[]):
        before = torch.random.get_rng_state()
        trial(torch.zeros(2, *shape, dtype=dtype))
        return not torch.equal(before, torch.random.get_rng_state())


def couples_samples(module: nn.Module) -> bool:
    """Return whether the result of a sample depends on the rest of its mini-batch.

    True for batch norm, and assumed for any module with a buffer.
    """
    has_norm = any(isinstance(m, _BatchNorm) for m in module.modules())
    addresses = address_names(module)
    return has_norm or any(name not in addresses for name, _ in module.named_buffers())


def trains_on_single_samples(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> bool:
    """Return whether the module can train on a mini-batch of one sample."""
    try:
        copy.deepcopy(module).to("cpu")(torch.zeros(1, *shape, dtype=dtype))
    except ValueError:
        return False
    return True


def why_not_fused(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> str | None:
    """Return why the compiled CPU kernels cannot train this module, or None if they can.

    >>> from dystop.training.flat import layout_of
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    >>> why_not_fused(net, layout_of(net), (3,))
    "layer '1' (Tanh) has no kernel"
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "numba's compiler is switched off (NUMBA_DISABLE_JIT)"
    try:
        read_layers(module, layout, shape)
    except Refusal as reason:
        return str(reason)
    return why_not_importable("dystop.training.backends.cpu.backend")


def why_not_stacked(
    module: nn.Module, layout: Layout, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> str | None:
    """Return why two models of this kind cannot train in one stack, or None if they can."""
    if draws_numbers(module, shape, dtype):
        return "it draws random numbers (dropout), which a stack cannot draw by address"
    vector, counters = layout.flatten(module)
    state = layout.unflatten(vector.repeat(2, 1), counters.repeat(2, 1))
    state |= {slot.name: state[slot.name].contiguous() for slot in layout.kept}

    def call(one: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(module, one, (x,))
        return out

    try:
        zeros = torch.zeros((2, 2, *shape), dtype=dtype, device=vector.device)
        vmap(call)(state, zeros)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return f"torch.func.vmap refuses it ({str(error).splitlines()[0]})"
    return why_not_importable("dystop.training.backends.stacked")


def cuda_stages(
    module: nn.Module, layout: Layout, shape: tuple[int, ...]
) -> "tuple[Stage, ...] | None":
    """Return the stages in which the CUDA kernels train this module, or None if they cannot."""
    if why_not_importable(CUDA_BACKENDS):
        return None
    from dystop.training.backends.cuda.stages import stages_if_supported

    return stages_if_supported(module, layout, shape)


def why_not_importable(backend: str) -> str | None:
    """Return why a back end cannot be imported here, or None if it can."""
    try:
        import_module(backend)
    except ImportError as error:
        return f"{backend} cannot be imported ({error})"
    return None
