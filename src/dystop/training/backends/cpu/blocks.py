"""The inner loops of the CPU kernels, as blocks of vectors that stay in registers.

Every operation reads and writes one flat array of float32, the arena. A `CALL` record, which
`program` writes, holds its offsets and strides. A table of pairs holds the offsets of the two
factors of each term of a sum, in units of the left and of the right operand.
"""

from typing import Any

import numpy as np

from dystop.compiled import compiled
from dystop.training.backends.cpu.vectors import LANES, REGISTERS, Emitter, Fields, Value, primitive

MULTIPLY_ROWS = 5  # in the largest block of `multiply`: 5 x 2 sums fit 16 registers
CORRELATE_ROWS = 5 if REGISTERS == 32 else 3  # in the largest block of `correlate`, 3 wide


CALL = np.dtype(
    [
        (name, np.int64)
        for name in (
            "kind",
            *("rows", "height", "width", "length"),  # repetitions; length in floats
            *("out", "out_step", "out_down", "out_across"),  # strides of rows, of y and of x
            *("left", "left_step", "left_down", "left_across"),
            *("right", "right_step", "right_down", "right_across"),
            *("left_unit", "right_unit"),  # units of the table's columns
            *("first", "terms"),  # rows of the table
            *("repeats", "left_jump", "right_jump"),  # repetitions of the terms, and their strides
            *("start", "start_step"),
            "relu",  # 0 or 1
        )
    ]
)

_1, _2, _3, _4, _5 = (0,), (0,) * 2, (0,) * 3, (0,) * 4, (0,) * 5
_NO_GRADIENT = -1.0  # in place of a tap: the ReLU passes no gradient


@compiled
def block_rows(left: int, most: int) -> int:
    """Return the rows of the next block. Blocks are nearly equal, but none has two rows.

    >>> [int(block_rows(n, 5)) for n in (1, 2, 3, 5, 6, 7, 10, 16)]
    [1, 1, 3, 5, 3, 4, 5, 4]
    """
    blocks = (left + most - 1) // most
    size = (left + blocks - 1) // blocks
    return 1 if size == 2 else size


@compiled
def multiply(arena: Any, table: Any, call: Any) -> None:
    """Compute out[i] = start[i] + sum over q, r of left[i, q, r] * right[q, r].

    Row i of out begins at out + i * out_step; left[i, q, r] is one number, at left + i * left_step
    + q * left_jump + table[r, 0] * left_unit; right[q, r] begins at right + q * right_jump +
    table[r, 1] * right_unit.
    """
    row, vectors = 0, call.length // LANES
    while row < call.rows:
        size = block_rows(call.rows - row, MULTIPLY_ROWS)
        for column in range(0, vectors - 1, 2):
            _block(arena, table, call, (row, column * LANES), size, _2)
        if vectors % 2:
            _block(arena, table, call, (row, (vectors - 1) * LANES), size, _1)
        row += size


@compiled
def _block(arena: Any, table: Any, call: Any, corner: Any, size: int, columns: Any) -> None:
    if size == 5:
        _product(arena, table, call, corner, (_5, columns))
    elif size == 4:
        _product(arena, table, call, corner, (_4, columns))
    elif size == 3:
        _product(arena, table, call, corner, (_3, columns))
    else:
        _product(arena, table, call, corner, (_1, columns))


@compiled
def average(arena: Any, table: Any, call: Any) -> None:
    """Compute sums of scaled vectors where each row has its own vectors, right_step apart."""
    for row in range(call.rows):
        for k in range(0, call.length, LANES):
            _product(arena, table, call, (row, k), (_1, _1))


@primitive
def _product(e: Emitter, table: Value, p: Fields, corner: list[Value], shape: list[int]) -> None:
    """Compute one block of a product, from a corner (row, float) on."""
    (row, k), (rows, columns) = corner, shape
    first = [e.broadcast(p.start, (row, p.start_step), (i, p.start_step)) for i in range(rows)]
    sums = [[e.variable(start) for _ in range(columns)] for start in first]
    with e.loop(p.repeats) as q, e.loop(p.terms) as r:
        left, right = e.pair(table, e.index(p.first, r))
        start = e.index((right, p.right_unit), (q, p.right_jump), p.right, (row, p.right_step), k)
        vectors = [e.load(start, LANES * j) for j in range(columns)]
        factors = e.index((left, p.left_unit), (q, p.left_jump), p.left, (row, p.left_step))
        for i in range(rows):
            factor = e.broadcast(factors, (i, p.left_step))
            for j in range(columns):
                e.multiply_add(factor, vectors[j], sums[i][j])
    low = e.floor(p.relu)
    for i in range(rows):
        for j in range(columns):
            value = e.read(sums[i][j])
            value = e.choose("<", (value, low), low, value)
            e.store(value, p.out, (row, p.out_step), (i, p.out_step), k, LANES * j)


@compiled
def correlate(arena: Any, table: Any, call: Any) -> None:
    """Compute dot products: out[i, t] = sum over y, x, k of left[i, y, x, k] * right[t, y, x, k].

    There are 1, 3, 4 or 5 rows i. Three taps t are computed at a time; the last three may overlap
    those before, with the same result.
    """
    if call.terms < 3:
        for tap in range(call.terms):
            for row in range(call.rows):
                _dots(arena, table, call, (tap, row), (_1, _1))
        return
    for third in range(0, call.terms, 3):
        corner = (min(third, call.terms - 3), 0)
        if call.rows == 5:
            _dots(arena, table, call, corner, (_5, _3))
        elif call.rows == 4:
            _dots(arena, table, call, corner, (_4, _3))
        elif call.rows == 3:
            _dots(arena, table, call, corner, (_3, _3))
        else:
            _dots(arena, table, call, corner, (_1, _3))


@primitive
def _dots(e: Emitter, table: Value, c: Fields, corner: list[Value], shape: list[int]) -> None:
    """Compute one block of dot products, from a corner (tap, row) on."""
    (tap, row), (rows, columns) = corner, shape
    sums = [[e.variable(e.constant(0.0)) for _ in range(columns)] for _ in range(rows)]
    inputs = [e.pair(table, e.index(c.first, tap, j))[1] for j in range(columns)]
    starts = [e.index((one, c.right_unit)) for one in inputs]
    with e.loop(c.height) as y, e.loop(c.width) as x:
        left = e.index(c.left, (y, c.left_down), (x, c.left_across), (row, c.left_step))
        right = e.index(c.right, (y, c.right_down), (x, c.right_across))
        with e.loop(c.length, LANES) as k:
            vectors = [e.load(right, start, k) for start in starts]
            for i in range(rows):
                other = e.load(left, (i, c.left_step), k)
                for j in range(columns):
                    e.multiply_add(other, vectors[j], sums[i][j])
    for i in range(rows):
        for j in range(columns):
            index = (c.out, (row, c.out_step), (i, c.out_step), tap, j)
            e.store_sum(e.read(sums[i][j]), *index)


@compiled
def maximum(arena: Any, table: Any, call: Any) -> None:
    """Compute max-pooling: out = the maximum of the taps at right, left = the number of that tap.

    Rows are channels, columns x. NaN is the maximum, as in torch.
    """
    _maximum(arena, table, call, (), ())


@primitive
def _maximum(e: Emitter, table: Value, c: Fields, _: list[Value], __: list[int]) -> None:
    low = e.floor(c.relu)
    with e.loop(c.rows) as row, e.loop(c.width) as x, e.loop(c.length, LANES) as k:
        source = e.index(c.right, (row, c.right_step), (x, c.right_across), k)
        best = e.variable(e.load(source, (e.pair(table, c.first)[1], c.right_unit)))
        which = e.variable(e.constant(0.0))
        with e.loop(c.terms) as r:
            tap, right = e.pair(table, e.index(c.first, r))
            value, top = e.load(source, (right, c.right_unit)), e.read(best)
            takes = e.builder.or_(e.builder.fcmp_ordered(">", value, top), e.is_nan(value))
            e.write(best, e.builder.select(takes, value, top))
            e.write(which, e.builder.select(takes, e.splat(e.number(tap)), e.read(which)))
        top, out = e.read(best), e.index(c.out, (row, c.out_step), (x, c.out_across), k)
        e.store(e.choose("<", (top, low), low, top), out)
        argmax = e.index(c.left, (row, c.left_step), (x, c.left_across), k)
        e.store(e.choose("<=", (top, low), e.constant(_NO_GRADIENT), e.read(which)), argmax)


@compiled
def maximum_backward(arena: Any, table: Any, call: Any) -> None:
    """Compute the gradient of max-pooling.

    Output out = the sum of right[r] over the windows r whose maximum was at this position, which
    left[r] says. For each window that covers the position, the table holds the position's number
    in the window and the offset of the window's results. Rows are channels.
    """
    if call.terms == 1:
        _maximum_backward(arena, table, call, (), (_1,))
    else:
        _maximum_backward(arena, table, call, (), (_2,))


@primitive
def _maximum_backward(
    e: Emitter, table: Value, c: Fields, _: list[Value], shape: list[int]
) -> None:
    """Emit the loop for one window (windows do not overlap), or for any number of windows."""
    with e.loop(c.rows) as row, e.loop(c.length, LANES) as k:
        total = e.variable(e.constant(0.0))
        with e.loop(c.terms) if shape[0] > 1 else e.once() as r:
            tap, window = e.pair(table, e.index(c.first, r))
            which = e.load(c.left, (row, c.left_step), (window, c.left_unit), k)
            gradient = e.load(c.right, (row, c.right_step), (window, c.right_unit), k)
            pair = (which, e.splat(e.number(tap)))
            mine = e.choose("==", pair, gradient, e.constant(0.0))
            e.write(total, e.builder.fadd(e.read(total), mine))
        e.store(e.read(total), c.out, (row, c.out_step), k)


@compiled
def relu_backward(arena: Any, table: Any, call: Any) -> None:
    """Compute the gradient of a ReLU: out = 0 where right <= 0 (not at NaN, as in torch)."""
    _relu_backward(arena, table, call, (), ())


@primitive
def _relu_backward(e: Emitter, _: Value, c: Fields, __: list[Value], ___: list[int]) -> None:
    none = e.constant(0.0)
    with e.loop(c.rows) as row, e.loop(c.height) as y, e.loop(c.length, LANES) as k:
        out = e.index(c.out, (row, c.out_step), (y, c.out_down), k)
        tested = e.load(c.right, (row, c.right_step), (y, c.right_down), k)
        e.store(e.choose("<=", (tested, none), none, e.load(out)), out)


@compiled
def transpose(arena: Any, table: Any, call: Any) -> None:
    """Transpose: column j of right becomes row j of out, which begins at table[j, 1] * right_unit.

    The loop works in squares. What the last square reads beyond the rows goes beyond the columns
    of out. What it reads beyond the columns goes to the last row and is overwritten.
    """
    _transpose(arena, table, call, (), ())


@primitive
def _transpose(e: Emitter, table: Value, c: Fields, _: list[Value], __: list[int]) -> None:
    last = e.builder.sub(c.width, e.index(1))
    with e.loop(c.rows, LANES) as row, e.loop(c.width, LANES) as column:
        start = e.index(c.right, (row, c.right_step), column)
        square = e.transposed([e.load(start, (i, c.right_step)) for i in range(LANES)])
        for j in reversed(range(LANES)):
            line = e.smaller(e.index(column, j), last)
            out = e.pair(table, e.index(c.first, line))[1]
            e.store(square[j], c.out, (out, c.right_unit), row)


@compiled
def update(arena: Any, table: Any, call: Any) -> None:
    """Take an SGD step on rows of weights (paper eq:updating): out -= left * right; left is eta."""
    _update(arena, table, call, (), ())
    for row in range(call.rows):
        for k in range(call.length // LANES * LANES, call.length):
            gradient = arena[call.right + row * call.right_step + k]
            arena[call.out + row * call.out_step + k] -= arena[call.left] * gradient


@primitive
def _update(e: Emitter, _: Value, c: Fields, __: list[Value], ___: list[int]) -> None:
    step = e.builder.fneg(e.broadcast(c.left))
    whole = e.index((e.builder.sdiv(c.length, e.index(LANES)), LANES))
    with e.loop(c.rows) as row, e.loop(whole, LANES) as k:
        out = e.index(c.out, (row, c.out_step), k)
        weight = e.variable(e.load(out))
        e.multiply_add(step, e.load(c.right, (row, c.right_step), k), weight)
        e.store(e.read(weight), out)


@compiled
def update_bias(arena: Any, table: Any, call: Any) -> None:
    """Take an SGD step on biases: out -= left * (right summed over positions and samples)."""
    for row in range(call.rows):
        _sum(arena, table, call, (row,), ())
        arena[call.out + row] -= arena[call.left] * arena[call.start]


@primitive
def _sum(e: Emitter, _: Value, c: Fields, corner: list[Value], __: list[int]) -> None:
    """Sum a row and store the sum at `start`."""
    e.store_sum(_row_sum(e, c, corner[0]), c.start)


def _row_sum(e: Emitter, c: Fields, row: Value) -> Value:
    """Return the sums of a row, lane by lane. The memory limits the speed: one vector is enough."""
    total = e.variable(e.constant(0.0))
    with e.loop(c.length, LANES) as k:
        vector = e.load(c.right, (row, c.right_step), k)
        e.write(total, e.builder.fadd(e.read(total), vector))
    return e.read(total)


@compiled
def update_with_momentum(arena: Any, table: Any, call: Any) -> None:
    """Take a step of SGD with momentum on rows of weights.

    With the numbers (m, d, p, q) at `first`, the velocity v at `start` and the gradient at right:
    g = right + d * out; v = m * v + g; out -= left * (p * v + q * g). left is eta.
    """
    _update_with_momentum(arena, table, call, (), ())
    for row in range(call.rows):
        for k in range(call.length // LANES * LANES, call.length):
            gradient = arena[call.right + row * call.right_step + k]
            _momentum_step(arena, call, row * call.out_step + k, gradient)


@compiled
def _momentum_step(arena: Any, call: Any, k: int, gradient: Any) -> None:
    """Take the step of one weight."""
    momentum, decay = arena[call.first], arena[call.first + 1]
    gradient += decay * arena[call.out + k]
    velocity = momentum * arena[call.start + k] + gradient
    arena[call.start + k] = velocity
    change = arena[call.first + 2] * velocity + arena[call.first + 3] * gradient
    arena[call.out + k] -= arena[call.left] * change


@primitive
def _update_with_momentum(e: Emitter, _: Value, c: Fields, __: list[Value], ___: list[int]) -> None:
    momentum, decay = e.broadcast(c.first), e.broadcast(c.first, 1)
    rate = e.builder.fneg(e.broadcast(c.left))
    slopes = [e.builder.fmul(rate, e.broadcast(c.first, k)) for k in (2, 3)]
    whole = e.index((e.builder.sdiv(c.length, e.index(LANES)), LANES))
    with e.loop(c.rows) as row, e.loop(whole, LANES) as k:
        out, at = e.index(c.out, (row, c.out_step), k), e.index(c.start, (row, c.out_step), k)
        weight = e.variable(e.load(out))
        gradient = e.variable(e.load(c.right, (row, c.right_step), k))
        e.multiply_add(decay, e.read(weight), gradient)
        velocity = e.variable(e.read(gradient))
        e.multiply_add(momentum, e.load(at), velocity)
        e.store(e.read(velocity), at)
        e.multiply_add(slopes[0], e.read(velocity), weight)
        e.multiply_add(slopes[1], e.read(gradient), weight)
        e.store(e.read(weight), out)


@compiled
def update_bias_with_momentum(arena: Any, table: Any, call: Any) -> None:
    """Take a step of SGD with momentum on biases; the sum of a row is left at `terms`."""
    for row in range(call.rows):
        _sum_to(arena, table, call, (row,), ())
        _momentum_step(arena, call, row, arena[call.terms])


@primitive
def _sum_to(e: Emitter, _: Value, c: Fields, corner: list[Value], __: list[int]) -> None:
    """Sum a row and store the sum at `terms`."""
    e.store_sum(_row_sum(e, c, corner[0]), c.terms)
