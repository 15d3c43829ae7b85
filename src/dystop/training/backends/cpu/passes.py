"""Whole local trainings, or examinations, in one compiled call without the interpreter lock."""

import math
from typing import Any, NamedTuple

import numpy as np

from dystop.compiled import compiled
from dystop.training.backends.cpu.blocks import (
    average,
    correlate,
    descend,
    descend_bias,
    largest,
    multiply,
    route,
    shut,
    turn,
)
from dystop.training.backends.cpu.program import (
    AVERAGE,
    CORRELATE,
    DESCEND,
    DESCEND_BIAS,
    LARGEST,
    MULTIPLY,
    ROUTE,
    SCORE,
    SHUT,
    TURN,
)

_ZERO = np.float32(0)


class Net(NamedTuple):
    """A chain as the kernels take it; programs for several sizes of mini-batch."""

    arena: Any  # float32
    table: Any  # int64 [lines, 2]
    programs: Any  # records of CALL [sizes, calls]
    places: Any  # int64 [sizes, 4]: batch, calls up to the scores, places of those and of slopes
    classes: int
    width: int  # floats of the model, at the arena's beginning
    rate: int  # where the step size goes
    rows: int  # where samples go
    row: int  # floats from one to the next
    rims: int  # where activations with a rim begin; the arena's end if there are none


class Data(NamedTuple):
    """Samples as the kernels take them, as bytes or as floats."""

    bytes: Any  # uint8 [n, inputs]; [0, inputs] where there are floats
    floats: Any  # float32, likewise
    labels: Any  # int64 [n]
    scale: Any  # float32 [inputs]
    shift: Any


class Work(NamedTuple):
    """Mini-batches of some rows; where there are more models than rows, the rows begin anew."""

    index: Any  # int64 [rows, steps, batch], sample numbers
    counts: Any  # int64 [rows, steps], samples that count; 0 where a step does not take place
    sizes: Any  # int64 [rows, steps], which program
    rates: Any  # float32 [models]; without them nothing is learned


@compiled
def work_through(net: Net, data: Data, work: Work, models: Any, results: Any) -> None:
    """Train models [A, W] one after another, in place, or only examine them.

    Adds up, in results [A, 2], the samples that were classified rightly and the losses.
    """
    last, learns = -1, len(work.rates) > 0
    for m in range(len(models)):
        row = m % len(work.counts)
        _copy(models[m], net.arena)
        net.arena[net.rate] = work.rates[m] if learns else _ZERO
        for step in range(work.counts.shape[1]):
            size, index = work.sizes[row, step], work.index[row, step, : work.counts[row, step]]
            if size != last:
                _clear(net)
                last = size
            if len(index):
                _fetch(net, data, index, net.places[size, 0])
                calls = net.programs[size] if learns else net.programs[size, : net.places[size, 1]]
                for k in range(len(calls)):
                    if calls[k].kind == SCORE:
                        _score(net, data.labels, index, size, results[m])
                    else:
                        _do(net.arena, net.table, calls[k])
        if learns:
            _copy(net.arena, models[m])


@compiled
def _copy(source: Any, target: Any) -> None:
    """As many numbers as the shorter of the two has."""
    for k in range(min(len(source), len(target))):
        target[k] = source[k]


@compiled
def _clear(net: Net) -> None:
    """Rims must hold zeros, and they lie elsewhere with every size of mini-batch."""
    for k in range(net.rims, len(net.arena)):
        net.arena[k] = _ZERO


@compiled
def _fetch(net: Net, data: Data, index: Any, batch: int) -> None:
    """Normalised samples, one after another; the first one fills what is left over."""
    inputs = len(data.scale)
    for b in range(batch):
        sample = index[b if b < len(index) else 0]
        row = net.arena[net.rows + b * net.row :][:inputs]
        if len(data.bytes):
            _normalise(row, data.bytes[sample], data.scale, data.shift)
        else:
            _normalise(row, data.floats[sample], data.scale, data.shift)


@compiled
def _normalise(out: Any, raw: Any, scale: Any, shift: Any) -> None:
    for k in range(len(out)):
        out[k] = np.float32(raw[k]) * scale[k] + shift[k]


@compiled
def _do(arena: Any, table: Any, call: Any) -> None:
    """One call of a program."""
    if call.kind == MULTIPLY:
        multiply(arena, table, call)
    elif call.kind == CORRELATE:
        correlate(arena, table, call)
    elif call.kind == AVERAGE:
        average(arena, table, call)
    elif call.kind == LARGEST:
        largest(arena, table, call)
    elif call.kind == ROUTE:
        route(arena, table, call)
    else:
        _do_small(arena, table, call)


@compiled
def _do_small(arena: Any, table: Any, call: Any) -> None:
    if call.kind == SHUT:
        shut(arena, table, call)
    elif call.kind == TURN:
        turn(arena, table, call)
    elif call.kind == DESCEND:
        descend(arena, table, call)
    elif call.kind == DESCEND_BIAS:
        descend_bias(arena, table, call)


@compiled
def _score(net: Net, labels: Any, index: Any, size: int, result: Any) -> None:
    """Right answers and cross-entropy, summed, and the gradient of its mean by the scores.

    Samples that only fill up the mini-batch have no gradient.
    """
    batch, place, slope = net.places[size, 0], net.places[size, 2], net.places[size, 3]
    for b in range(batch):
        scores = net.arena[place + b : place + net.classes * batch : batch]
        label = labels[index[b]] if b < len(index) else -1
        best = _best(scores)
        rest = _log_sum(scores, scores[best])
        for k in range(net.classes):
            part = math.exp(scores[k] - scores[best] - rest) - np.float32(k == label)
            part = part / np.float32(len(index)) if label >= 0 else _ZERO
            net.arena[slope + k * batch + b] = part
        if label >= 0:
            result[0] += best == label
            result[1] += rest - (scores[label] - scores[best])


@compiled
def _best(scores: Any) -> int:
    """Class with the highest score, the first of equals; a NaN is highest, as torch has it."""
    best = 0
    for k in range(1, len(scores)):
        if scores[k] > scores[best] or (np.isnan(scores[k]) and not np.isnan(scores[best])):
            best = k
    return best


@compiled
def _log_sum(scores: Any, top: Any) -> Any:
    """Logarithm of the sum of the exponentials, less the highest score."""
    total = _ZERO
    for k in range(len(scores)):
        total += math.exp(scores[k] - top)
    return math.log(total)
