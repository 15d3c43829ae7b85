"""The calls that make up a pass through a chain of layers, there and back.

A program is a list of `CALL` records for one size of mini-batch. Made once, in plain Python; the
compiled part only walks through it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.sparse import Ints
from dystop.training.backends.cpu.blocks import CALL, TALL, WIDE, share
from dystop.training.backends.cpu.chain import CONVOLUTION, LINEAR, MAX_POOL
from dystop.training.backends.cpu.layout import Lines, Plan, padded, runs_of, taps_of, windows_of

MULTIPLY, CORRELATE, AVERAGE, LARGEST, ROUTE, SHUT, TURN, DESCEND, DESCEND_BIAS, SCORE = range(10)


@dataclass(frozen=True)
class Program:
    """Calls for one size of mini-batch."""

    calls: NDArray[Any]  # of CALL
    turn: int  # the calls up to the scores; the others lead back
    table: Ints  # [lines, 2]; the same for every size


@lru_cache(maxsize=64)
def program_of(plan: Plan, batch: int) -> Program:
    """Write the program for mini-batches of exactly `batch` samples."""
    writer = _Writer(plan, batch)
    writer.enter()
    for k in range(len(plan.links)):
        writer.forward(k)
    writer.call(SCORE)
    turn = len(writer.calls)
    for k in reversed(range(len(plan.links))):
        writer.backward(k)
    names = CALL.names or ()
    calls = [tuple(call.get(name, 0) for name in names) for call in writer.calls]
    return Program(np.array(calls, CALL), turn, np.array(writer.lines, np.int64))


@dataclass
class _Writer:
    """Writes calls; places in samples' worth become floats here."""

    plan: Plan
    batch: int
    calls: list[dict[str, int]] = field(default_factory=list)
    lines: list[tuple[int, int]] = field(default_factory=list)
    known: dict[Lines, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = [size for link in self.plan.links for size in (link.taps, link.out[0])]
        self.lines += [(k, k) for k in range(max(self.plan.batch, *sizes))]  # for linear layers

    def call(self, kind: int, **fields: int) -> None:
        """One call more."""
        usual = {"kind": kind, "rows": 1, "repeats": 1, "start": self.plan.zero}
        self.calls.append(usual | fields)

    def at(self, place: int) -> int:
        """The float at a place."""
        return self.plan.base + place * self.batch

    def first(self, lines: Lines) -> int:
        """Where lines begin in the table; the same ones are kept once."""
        if lines not in self.known:
            self.known[lines] = len(self.lines)
            self.lines += lines
        return self.known[lines]

    def enter(self) -> None:
        """Put the samples side by side."""
        link, source = self.plan.links[0], self.plan.spots[0].source
        inputs = (
            c * source.plane + source.at(y + link.rim[0], x + link.rim[1])
            for c, y, x in np.ndindex(*link.shape)
        )
        self.call(
            TURN,
            rows=self.batch,
            width=prod(link.shape),
            right=self.plan.rows,
            right_step=self.plan.row,
            right_unit=self.batch,
            out=self.plan.base,
            first=self.first(tuple(enumerate(inputs))),
        )

    def forward(self, k: int) -> None:
        """Work out a link's output."""
        link = self.plan.links[k]
        if link.kind == MAX_POOL:
            self._pool_largest(k)
        elif link.kind in (CONVOLUTION, LINEAR):
            self._combine(k)
        else:
            self._pool_mean(k)

    def backward(self, k: int) -> None:
        """Pass the gradient on to the link before, if there is one, and descend."""
        link = self.plan.links[k]
        if link.rectifies and link.kind != MAX_POOL:
            self._shut(k)
        if k > 0:
            self._pass_on(k)
        if link.kind == CONVOLUTION:
            self._descend_convolution(k)
        elif link.kind == LINEAR:
            self._descend_linear(k)

    def _combine(self, k: int) -> None:
        """Convolution, or a linear layer, which is a convolution of 1 x 1 images.

        With a stride of one, a row of positions is one run of floats.
        """
        link, spots = self.plan.links[k], self.plan.spots[k]
        rows, columns = link.out[1:]
        run = columns if link.stride[1] == 1 else 1
        first = self.first(taps_of(link, spots.source))
        for y, x in ((y, x) for y in range(rows) for x in range(0, columns, run)):
            corner = spots.source.at(y * link.stride[0], x * link.stride[1])
            self.call(
                MULTIPLY,
                rows=link.out[0],
                length=run * self.batch,
                out=self.at(spots.target.at(y, x)),
                out_step=spots.target.plane * self.batch,
                start=self.plan.zero if link.bias is None else link.bias,
                start_step=int(link.bias is not None),
                left=link.weight,
                left_step=link.taps,
                left_unit=1,
                right=self.at(corner),
                right_unit=self.batch,
                first=first,
                terms=link.taps,
                rectifies=int(link.rectifies),
            )

    def _pool_largest(self, k: int) -> None:
        link, spots = self.plan.links[k], self.plan.spots[k]
        for y in range(link.out[1]):
            self.call(
                LARGEST,
                rows=link.out[0],
                width=link.out[2],
                length=self.batch,
                out=self.at(spots.target.at(y, 0)),
                out_step=spots.target.plane * self.batch,
                out_across=self.batch,
                left=self.at(spots.which + y * link.out[2]),
                left_step=prod(link.out[1:]) * self.batch,
                left_across=self.batch,
                right=self.at(spots.source.at(y * link.stride[0], 0)),
                right_step=spots.source.plane * self.batch,
                right_across=link.stride[1] * self.batch,
                right_unit=self.batch,
                first=self.first(taps_of(link, spots.source)),
                terms=link.taps,
                rectifies=int(link.rectifies),
            )

    def _pool_mean(self, k: int) -> None:
        link, spots = self.plan.links[k], self.plan.spots[k]
        for y, x in np.ndindex(*link.out[1:]):
            corner = spots.source.at(y * link.stride[0], x * link.stride[1])
            self.call(
                AVERAGE,
                rows=link.out[0],
                length=self.batch,
                out=self.at(spots.target.at(y, x)),
                out_step=spots.target.plane * self.batch,
                left=self.plan.mean(k),
                right=self.at(corner),
                right_step=spots.source.plane * self.batch,
                right_unit=self.batch,
                first=self.first(taps_of(link, spots.source)),
                terms=link.taps,
                rectifies=int(link.rectifies),
            )

    def _shut(self, k: int) -> None:
        """No gradient where a rectifier's output is zero."""
        link, spots = self.plan.links[k], self.plan.spots[k]
        self.call(
            SHUT,
            rows=link.out[0],
            height=link.out[1],
            length=link.out[2] * self.batch,
            out=self.at(spots.gradient),
            out_step=prod(link.out[1:]) * self.batch,
            out_down=link.out[2] * self.batch,
            right=self.at(spots.target.place),
            right_step=spots.target.plane * self.batch,
            right_down=spots.target.row * self.batch,
        )

    def _pass_on(self, k: int) -> None:
        """Gradient of a link's input."""
        link = self.plan.links[k]
        step = prod(link.out[1:]) * self.batch
        if link.kind == LINEAR:
            self._pass_on_linear(k)
        elif link.kind == CONVOLUTION:
            how = {"left": link.weight, "left_step": prod(link.kernel), "left_unit": 1}
            again = {"repeats": link.out[0], "left_jump": link.taps, "right_jump": step}
            self._gather(k, MULTIPLY, how | again)
        elif link.kind == MAX_POOL:
            how = {"left_step": step, "left_unit": self.batch, "right_step": step}
            self._gather(k, ROUTE, how)
        else:
            self._gather(k, AVERAGE, {"left": self.plan.mean(k), "right_step": step})

    def _gather(self, k: int, kind: int, how: dict[str, int]) -> None:
        """Every position of an input gathers from the windows that cover it.

        Neighbours whose windows lie alike are taken together.
        """
        link, spots = self.plan.links[k], self.plan.spots[k]
        target, size = self.plan.spots[k - 1].gradient, prod(link.shape[1:])
        for y, x, run in runs_of(link, kind == MULTIPLY):
            base, lines = windows_of(link, y, x)
            if kind == ROUTE:
                how["left"] = self.at(spots.which + base)
            self.call(
                kind,
                rows=link.shape[0],
                length=run * self.batch,
                out=self.at(target + y * link.shape[2] + x),
                out_step=size * self.batch,
                right=self.at(spots.gradient + base),
                right_unit=self.batch,
                first=self.first(lines),
                terms=len(lines),
                **how,
            )

    def _pass_on_linear(self, k: int) -> None:
        link = self.plan.links[k]
        self.call(
            MULTIPLY,
            rows=link.taps,
            length=self.batch,
            out=self.at(self.plan.spots[k - 1].gradient),
            out_step=self.batch,
            left=link.weight,
            left_step=1,
            left_unit=link.taps,
            right=self.at(self.plan.spots[k].gradient),
            right_unit=self.batch,
            terms=link.out[0],
        )

    def _descend_convolution(self, k: int) -> None:
        """A step of a convolution's weights, a few output channels at a time."""
        link, spots = self.plan.links[k], self.plan.spots[k]
        rows, columns = link.out[1:]
        run = columns if link.stride[1] == 1 else 1
        if link.trains[1]:
            self._descend_bias(k)
        for row, some in _blocks(link.out[0] if link.trains[0] else 0, TALL):
            self.call(
                CORRELATE,
                rows=some,
                height=rows,
                width=columns // run,
                length=run * self.batch,
                out=self.plan.spare,
                out_step=link.taps,
                left=self.at(spots.gradient + row * rows * columns),
                left_step=rows * columns * self.batch,
                left_down=columns * self.batch,
                left_across=self.batch,
                right=self.at(spots.source.place),
                right_down=link.stride[0] * spots.source.row * self.batch,
                right_across=link.stride[1] * self.batch,
                right_unit=self.batch,
                first=self.first(taps_of(link, spots.source)),
                terms=link.taps,
            )
            place = link.weight + row * link.taps
            slope = {"left": self.plan.rate, "right": self.plan.spare}
            self.call(DESCEND, out=place, length=some * link.taps, **slope)

    def _descend_linear(self, k: int) -> None:
        """A step of a linear layer's weights: sums over samples of vectors of inputs."""
        link, spots, plan = self.plan.links[k], self.plan.spots[k], self.plan
        if link.trains[1]:
            self._descend_bias(k)
        rows, row = (plan.turned, plan.turned_row) if k else (plan.rows, plan.row)
        if link.trains[0] and k:
            source = {"right": self.at(spots.source.place), "right_step": self.batch}
            self.call(TURN, rows=link.taps, width=self.batch, out=rows, right_unit=row, **source)
        for first, some in _blocks(link.out[0] if link.trains[0] else 0, WIDE):
            step = padded(link.taps)
            self.call(
                MULTIPLY,
                rows=some,
                length=step,
                out=plan.spare,
                out_step=step,
                left=self.at(spots.gradient + first),
                left_step=self.batch,
                left_unit=1,
                right=rows,
                right_unit=row,
                terms=self.batch,
            )
            self.call(
                DESCEND,
                rows=some,
                length=link.taps,
                out=link.weight + first * link.taps,
                out_step=link.taps,
                left=plan.rate,
                right=plan.spare,
                right_step=step,
            )

    def _descend_bias(self, k: int) -> None:
        """A step of the biases: the gradient summed over positions and samples."""
        link, spots = self.plan.links[k], self.plan.spots[k]
        step = prod(link.out[1:]) * self.batch
        self.call(
            DESCEND_BIAS,
            rows=link.out[0],
            length=step,
            out=link.bias or 0,
            left=self.plan.rate,
            right=self.at(spots.gradient),
            right_step=step,
            start=self.plan.sum,
        )


def _blocks(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut rows into blocks: the first row and how many."""
    row = 0
    while row < rows:
        some = int(share(rows - row, most))
        yield row, some
        row += some
