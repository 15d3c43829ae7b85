"""Choosing how to train: fused, in stacks or one by one, and how many models at once."""

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from dystop.errors import ConfigError
from dystop.training.backends.cpu.chain import why_not_fused
from dystop.training.backends.cuda.chain import chain_of
from dystop.training.flat import Layout
from dystop.training.memory import ModelSize
from dystop.training.params import TrainerParams
from dystop.training.randomness import address_names
from dystop.training.samples import Shards

STACKED_BELOW = 1_000_000  # parameters; stacks are for models too small to fill the machine
CONVOLVED_BELOW = 500_000  # SqueezeNet (729,000) on an H200: 38,000 images/s, in lanes 82,000
FUSED_BELOW = 4_000_000  # parameters; with more (a VGG) torch's own kernels are as fast
CPU_CHUNK = 10  # with the CNN on two cores 5 to 20 differ less than the noise
CUDA_CHUNK = 512


def choose_path(
    module: nn.Module, layout: Layout, shape: tuple[int, ...], params: TrainerParams
) -> str:
    """Choose how models are trained: "fused", "stacked" or "sequential".

    What was asked for and cannot be had is refused.
    """
    device = next(module.parameters()).device
    check_precision(device, params)
    if _can_fuse(module, layout, shape, params):
        return "fused"
    return "stacked" if _can_stack(module, layout, shape, params) else "sequential"


def check_precision(device: torch.device, params: TrainerParams) -> None:
    """Refuse bfloat16 where nothing would be gained by it."""
    if params.precision == "bfloat16" and device.type != "cuda":
        raise ConfigError(
            "training.precision = 'bfloat16' is for GPUs; this run is on the CPU: use 'float32'"
        )


def _can_fuse(
    module: nn.Module, layout: Layout, shape: tuple[int, ...], params: TrainerParams
) -> bool:
    if params.path not in ("auto", "fused"):
        return False
    on_cpu = next(module.parameters()).device.type == "cpu"
    if params.path == "auto" and (not on_cpu or layout.parameters >= FUSED_BELOW):
        return False
    reason = why_not_fused(module, layout, shape) if on_cpu else "its kernels are for CPUs"
    reason = reason or ("they know no penalty (training.l2)" if params.l2 else None)
    if reason and params.path == "fused":
        raise ConfigError(
            f"training.path = 'fused' is not possible for this model: {reason}; "
            f"use 'sequential' or 'auto'"
        )
    return reason is None


def _can_stack(
    module: nn.Module, layout: Layout, shape: tuple[int, ...], params: TrainerParams
) -> bool:
    if params.path == "sequential":
        return False
    if params.path == "auto" and not _worth_stacking(module, layout):
        return False
    on_cuda = next(module.parameters()).device.type == "cuda"
    known = on_cuda and chain_of(module, layout, shape) is not None  # no need to try
    reason = None if known else why_not_stacked(module, layout, shape)
    if reason and params.path == "stacked":
        raise ConfigError(
            f"training.path = 'stacked' is not possible for this model: {reason}; "
            f"use 'sequential' or 'auto'"
        )
    return reason is None


def _worth_stacking(module: nn.Module, layout: Layout) -> bool:
    """Whether a stack beats one model after another.

    On a CPU a stack turns convolutions into grouped ones: 13,000 images/s of the CNN on two cores
    against 15,000 in two lanes. Dense layers gain (softmax regression: 2.6 times).
    """
    on_cpu = next(module.parameters()).device.type == "cpu"
    convolves = any(isinstance(m, _ConvNd) for m in module.modules())
    if convolves:
        return layout.parameters < CONVOLVED_BELOW and not on_cpu
    return layout.parameters < STACKED_BELOW


def stack_height(size: ModelSize, params: TrainerParams, device: torch.device) -> int:
    """Models in one stack.

    Taken from the device's whole memory and not from what is free at the moment, because rounding
    may depend on the stack's height and a run must repeat itself bit by bit.
    """
    if params.chunk is not None:
        return params.chunk
    if device.type != "cuda":
        return CPU_CHUNK
    each = 3 * size.row_bytes + size.pass_bytes(params.batch, params.evaluation_batch)
    memory = torch.cuda.get_device_properties(device).total_memory
    return int(np.clip(memory // 4 // each, 1, CUDA_CHUNK))


def check_last_batches(
    module: nn.Module, shape: tuple[int, ...], shards: Shards, batch: int
) -> None:
    """Refuse a last mini-batch of one sample where the model's batch norm cannot take it."""
    alone = np.flatnonzero(shards.sizes % batch == 1 if batch > 1 else shards.sizes > 0)
    if len(alone) and not takes_single_samples(module, shape):
        raise ConfigError(
            f"training.batch = {batch} leaves worker {alone[0]} ({shards.sizes[alone[0]]} samples) "
            f"a mini-batch of one sample, which this model's batch norm cannot train on; choose "
            f"another batch or a model without batch norm"
        )


# MERGED: What a module allows: whether it draws random numbers, couples samples, or can be stacked.


def draws_numbers(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the module draws random numbers while it trains, as dropout does.

    Found out by trying, so that a user's own module is judged by what it does.
    """
    trial = copy.deepcopy(module).to("cpu").train()
    with torch.random.fork_rng(devices=[]):
        before = torch.random.get_rng_state()
        trial(torch.zeros(2, *shape))
        return not torch.equal(before, torch.random.get_rng_state())


def mixes_samples(module: nn.Module) -> bool:
    """Whether a sample's result depends on the rest of its mini-batch.

    True for batch norm, and assumed of any module that keeps a buffer.
    """
    has_norm = any(isinstance(m, _BatchNorm) for m in module.modules())
    addresses = address_names(module)
    return has_norm or any(name not in addresses for name, _ in module.named_buffers())


def takes_single_samples(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the module can train on a mini-batch of one sample; some batch norms cannot."""
    try:
        copy.deepcopy(module).to("cpu")(torch.zeros(1, *shape))
    except ValueError:
        return False
    return True


def why_not_stacked(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> str | None:
    """Reason why two models of this kind cannot be trained in one stack, or None if they can."""
    if draws_numbers(module, shape):
        return "it draws random numbers (dropout), which a stack cannot draw by address"
    vector, counters = layout.flatten(module)
    state = layout.unflatten(vector.repeat(2, 1), counters.repeat(2, 1))
    state |= {slot.name: state[slot.name].contiguous() for slot in layout.kept}

    def call(one: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(module, one, (x,))
        return out

    try:
        vmap(call)(state, _zeros(module, (2, 2, *shape)))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return f"torch.func.vmap refuses it ({str(error).splitlines()[0]})"
    return None


def _zeros(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Empty samples on the module's device."""
    return torch.zeros(shape, device=next(module.parameters()).device)
