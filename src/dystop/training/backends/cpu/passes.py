"""Whole local trainings, or evaluations, in one compiled call.

The call releases the interpreter lock, so threads run side by side.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from dystop.compiled import compiled
from dystop.training.backends.cpu.blocks import (
    average,
    correlate,
    maximum,
    maximum_backward,
    multiply,
    relu_backward,
    transpose,
    update,
    update_bias,
    update_bias_with_momentum,
    update_with_momentum,
)
from dystop.training.backends.cpu.program import (
    AVERAGE,
    CORRELATE,
    LOSS,
    MAXIMUM,
    MAXIMUM_BACKWARD,
    MULTIPLY,
    RELU_BACKWARD,
    TRANSPOSE,
    UPDATE,
    UPDATE_BIAS,
    UPDATE_BIAS_WITH_MOMENTUM,
    UPDATE_WITH_MOMENTUM,
)

_ZERO = np.float32(0)


class Network(NamedTuple):
    """A chain of layers for the kernels, with programs for several sizes of mini-batch."""

    arena: Any  # float32
    table: Any  # int64 [terms, 2]
    programs: Any  # records of CALL [sizes, calls]
    sizes: Any  # int64 [sizes, 4]: batch, forward calls, offsets of scores and of their gradients
    classes: int
    width: int  # floats of the model, at the beginning of the arena
    rate: int  # offset of the learning rate
    samples: int  # offset of the samples
    sample_stride: int  # floats from one sample to the next
    velocity: int  # offset of the momentum, which ends where the samples begin
    padded_start: int  # offset of activations with padding; the arena's end without padding


class SampleArrays(NamedTuple):
    """Samples for the kernels, as bytes or as floats."""

    bytes: Any  # uint8 [n, inputs]; [0, inputs] if the samples are floats
    floats: Any  # float32 [n, inputs]; [0, inputs] if the samples are bytes
    labels: Any  # int64 [n]
    scale: Any  # float32 [inputs]
    shift: Any
    sides: tuple[int, int]  # height and width of an image, if images are moved
    crop: int  # pixels of border around a moved image


class Schedule(NamedTuple):
    """The mini-batches of some rows. With more models than rows, the rows repeat."""

    index: Any  # int64 [rows, steps, batch], sample numbers
    counts: Any  # int64 [rows, steps], samples of each mini-batch; 0 for a step that is not taken
    sizes: Any  # int64 [rows, steps], which program
    rates: Any  # float32 [rows, steps], learning rates; [0, 0]: evaluate and do not train
    moves: Any  # int64 [rows, steps, batch, 3], of images; [0, 0, 0, 0]: they stay as they are
    moments: Any  # float32 [models, P], momentum, changed in place; [0, 0]: zero at the beginning


@compiled
def train_or_evaluate(
    network: Network, samples: SampleArrays, schedule: Schedule, models: Any, results: Any
) -> None:
    """Train models [A, W] one after another, in place, or only evaluate them.

    Adds the number of correctly classified samples and the summed loss to results [A, 2].
    """
    last, trains = -1, len(schedule.rates) > 0
    for m in range(len(models)):
        row = m % len(schedule.counts)
        _copy(models[m], network.arena)
        velocity = network.arena[network.velocity : network.samples]
        velocity[:] = _ZERO
        if len(schedule.moments):
            _copy(schedule.moments[m], velocity)
        for step in range(schedule.counts.shape[1]):
            if schedule.sizes[row, step] != last:
                _clear(network)
                last = schedule.sizes[row, step]
            if schedule.counts[row, step]:
                _run_batch(network, samples, schedule, (row, step), results[m])
        if trains:
            _copy(network.arena, models[m])
        if len(schedule.moments):
            _copy(velocity, schedule.moments[m])


@compiled
def _run_batch(
    network: Network, samples: SampleArrays, schedule: Schedule, where: Any, result: Any
) -> None:
    """Train or evaluate on one mini-batch, that of (row, step)."""
    size, index = schedule.sizes[where], schedule.index[where][: schedule.counts[where]]
    if len(schedule.moves):
        _load_moved(network, samples, index, schedule.moves[where], network.sizes[size, 0])
    else:
        _load_samples(network, samples, index, network.sizes[size, 0])
    calls = network.programs[size]
    if len(schedule.rates):
        network.arena[network.rate] = schedule.rates[where]
    else:
        calls = calls[: network.sizes[size, 1]]
    for k in range(len(calls)):
        if calls[k].kind == LOSS:
            _loss(network, samples.labels, index, size, result)
        else:
            _execute(network.arena, network.table, calls[k])


@compiled
def _copy(source: Any, target: Any) -> None:
    """Copy as many numbers as the shorter array has."""
    for k in range(min(len(source), len(target))):
        target[k] = source[k]


@compiled
def _clear(network: Network) -> None:
    """Zero the padding, whose offsets depend on the size of the mini-batch."""
    for k in range(network.padded_start, len(network.arena)):
        network.arena[k] = _ZERO


@compiled
def _load_samples(network: Network, samples: SampleArrays, index: Any, batch: int) -> None:
    """Load normalised samples, one after another. The first sample fills an incomplete batch."""
    inputs = len(samples.scale)
    for b in range(batch):
        sample = index[b if b < len(index) else 0]
        row = network.arena[network.samples + b * network.sample_stride :][:inputs]
        if len(samples.bytes):
            _normalise(row, samples.bytes[sample], samples.scale, samples.shift)
        else:
            _normalise(row, samples.floats[sample], samples.scale, samples.shift)


@compiled
def _normalise(out: Any, raw: Any, scale: Any, shift: Any) -> None:
    for k in range(len(out)):
        out[k] = np.float32(raw[k]) * scale[k] + shift[k]


@compiled
def _load_moved(
    network: Network, samples: SampleArrays, index: Any, moves: Any, batch: int
) -> None:
    """Load normalised images after their moves (y, x, flip)."""
    inputs = len(samples.scale)
    for b in range(batch):
        at = b if b < len(index) else 0
        row = network.arena[network.samples + b * network.sample_stride :][:inputs]
        if len(samples.bytes):
            _move(row, samples.bytes[index[at]], samples, moves[at])
        else:
            _move(row, samples.floats[index[at]], samples, moves[at])


@compiled
def _move(out: Any, raw: Any, samples: SampleArrays, move: Any) -> None:
    """Cut one image out of a black border, mirror it, and normalise it."""
    height, width = samples.sides
    for first in range(0, len(out), width):  # of a line
        line = first // width % height
        y = line + move[0] - samples.crop
        source = first + (y - line) * width
        for k in range(width):
            x = (width - 1 - k if move[2] else k) + move[1] - samples.crop
            inside = 0 <= y < height and 0 <= x < width
            value = np.float32(raw[source + x]) if inside else _ZERO
            out[first + k] = value * samples.scale[first + k] + samples.shift[first + k]


@compiled
def _execute(arena: Any, table: Any, call: Any) -> None:
    """Execute one call of a program."""
    if call.kind == MULTIPLY:
        multiply(arena, table, call)
    elif call.kind == CORRELATE:
        correlate(arena, table, call)
    elif call.kind == AVERAGE:
        average(arena, table, call)
    elif call.kind == MAXIMUM:
        maximum(arena, table, call)
    elif call.kind == MAXIMUM_BACKWARD:
        maximum_backward(arena, table, call)
    else:
        _execute_cheap(arena, table, call)


@compiled
def _execute_cheap(arena: Any, table: Any, call: Any) -> None:
    if call.kind == RELU_BACKWARD:
        relu_backward(arena, table, call)
    elif call.kind == TRANSPOSE:
        transpose(arena, table, call)
    elif call.kind == UPDATE:
        update(arena, table, call)
    elif call.kind == UPDATE_BIAS:
        update_bias(arena, table, call)
    elif call.kind == UPDATE_WITH_MOMENTUM:
        update_with_momentum(arena, table, call)
    elif call.kind == UPDATE_BIAS_WITH_MOMENTUM:
        update_bias_with_momentum(arena, table, call)


@compiled
def _loss(network: Network, labels: Any, index: Any, size: int, result: Any) -> None:
    """Add up correct answers and cross-entropy; compute the gradient of its mean at the scores.

    Samples that only fill an incomplete batch have no gradient.
    """
    batch, offset, gradient = network.sizes[size, 0], network.sizes[size, 2], network.sizes[size, 3]
    for b in range(batch):
        scores = network.arena[offset + b : offset + network.classes * batch : batch]
        label = labels[index[b]] if b < len(index) else -1
        best = _argmax(scores)
        rest = _log_sum(scores, scores[best])
        for k in range(network.classes):
            part = math.exp(scores[k] - scores[best] - rest) - np.float32(k == label)
            part = part / np.float32(len(index)) if label >= 0 else _ZERO
            network.arena[gradient + k * batch + b] = part
        if label >= 0:
            result[0] += best == label
            result[1] += rest - (scores[label] - scores[best])


@compiled
def _argmax(scores: Any) -> int:
    """Return the class with the highest score, the first of equals. NaN is highest, as in torch."""
    best = 0
    for k in range(1, len(scores)):
        if scores[k] > scores[best] or (np.isnan(scores[k]) and not np.isnan(scores[best])):
            best = k
    return best


@compiled
def _log_sum(scores: Any, top: Any) -> Any:
    """Return the logarithm of the sum of the exponentials, minus the highest score."""
    total = _ZERO
    for k in range(len(scores)):
        total += math.exp(scores[k] - top)
    return math.log(total)
