"""The inner loops of the fused kernels, as blocks of vectors that stay in registers.

Every operation reads and writes one flat array of float32, the arena, and is described by a `CALL`
record of places and steps in it, made by `program`. A table of pairs says where the factors
of each term of a sum lie, in units of the left and the right operand.
"""

from typing import Any

import numpy as np

from dystop.compiled import compiled
from dystop.training.backends.cpu.vectors import LANES, REGISTERS, Emitter, Fields, Value, primitive

WIDE = 5  # rows in the largest block of `multiply`: 5 x 2 sums fit 16 registers
TALL = 5 if REGISTERS == 32 else 3  # rows in the largest block of `correlate`, which is 3 wide


CALL = np.dtype(
    [
        (name, np.int64)
        for name in (
            "kind",
            *("rows", "height", "width", "length"),  # how often; length in floats
            *("out", "out_step", "out_down", "out_across"),  # from row to row, y to y, x to x
            *("left", "left_step", "left_down", "left_across"),
            *("right", "right_step", "right_down", "right_across"),
            *("left_unit", "right_unit"),  # what the columns of the table count in
            *("first", "terms"),  # lines of the table
            *("repeats", "left_jump", "right_jump"),  # the same terms again, further on
            *("start", "start_step"),
            "rectifies",  # 0 or 1
        )
    ]
)

_1, _2, _3, _4, _5 = (0,), (0,) * 2, (0,) * 3, (0,) * 4, (0,) * 5
_SHUT = -1.0  # in place of a tap: a rectifier lets no gradient through


@compiled
def share(left: int, most: int) -> int:
    """Rows of the next block: blocks as equal as may be, except that two rows go one by one.

    >>> [int(share(n, 5)) for n in (1, 2, 3, 5, 6, 7, 10, 16)]
    [1, 1, 3, 5, 3, 4, 5, 4]
    """
    blocks = (left + most - 1) // most
    size = (left + blocks - 1) // blocks
    return 1 if size == 2 else size


@compiled
def multiply(arena: Any, table: Any, call: Any) -> None:
    """Sums of scaled vectors: out[i] = start[i] + sum over q, r of left[i, q, r] * right[q, r].

    Row i of out begins at out + i * out_step; left[i, q, r] is one number, at left + i * left_step
    + q * left_jump + table[r, 0] * left_unit; right[q, r] begins at right + q * right_jump +
    table[r, 1] * right_unit.
    """
    row, vectors = 0, call.length // LANES
    while row < call.rows:
        size = share(call.rows - row, WIDE)
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
    """The same, where each row has rights of its own, right_step apart."""
    for row in range(call.rows):
        for k in range(0, call.length, LANES):
            _product(arena, table, call, (row, k), (_1, _1))


@primitive
def _product(e: Emitter, table: Value, p: Fields, corner: list[Value], shape: list[int]) -> None:
    """One block of a product, from a corner (row, float) on."""
    (row, k), (rows, columns) = corner, shape
    first = [e.spread(p.start, (row, p.start_step), (i, p.start_step)) for i in range(rows)]
    sums = [[e.variable(start) for _ in range(columns)] for start in first]
    with e.loop(p.repeats) as q, e.loop(p.terms) as r:
        left, right = e.pair(table, e.place(p.first, r))
        start = e.place((right, p.right_unit), (q, p.right_jump), p.right, (row, p.right_step), k)
        vectors = [e.load(start, LANES * j) for j in range(columns)]
        factors = e.place((left, p.left_unit), (q, p.left_jump), p.left, (row, p.left_step))
        for i in range(rows):
            factor = e.spread(factors, (i, p.left_step))
            for j in range(columns):
                e.multiply_add(factor, vectors[j], sums[i][j])
    low = e.floor(p.rectifies)
    for i in range(rows):
        for j in range(columns):
            value = e.read(sums[i][j])
            value = e.choose("<", (value, low), low, value)
            e.store(value, p.out, (row, p.out_step), (i, p.out_step), k, LANES * j)


@compiled
def correlate(arena: Any, table: Any, call: Any) -> None:
    """Dot products: out[i, t] = sum over y, x, k of left[i, y, x, k] * right[t, y, x, k].

    There are 1, 3, 4 or 5 rows i. Three taps t at a time; the last three may overlap those before,
    with the same result.
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
    """One block of dot products, from a corner (tap, row) on."""
    (tap, row), (rows, columns) = corner, shape
    sums = [[e.variable(e.constant(0.0)) for _ in range(columns)] for _ in range(rows)]
    spots = [e.pair(table, e.place(c.first, tap, j))[1] for j in range(columns)]
    starts = [e.place((spot, c.right_unit)) for spot in spots]
    with e.loop(c.height) as y, e.loop(c.width) as x:
        left = e.place(c.left, (y, c.left_down), (x, c.left_across), (row, c.left_step))
        right = e.place(c.right, (y, c.right_down), (x, c.right_across))
        with e.loop(c.length, LANES) as k:
            vectors = [e.load(right, start, k) for start in starts]
            for i in range(rows):
                other = e.load(left, (i, c.left_step), k)
                for j in range(columns):
                    e.multiply_add(other, vectors[j], sums[i][j])
    for i in range(rows):
        for j in range(columns):
            place = (c.out, (row, c.out_step), (i, c.out_step), tap, j)
            e.store_sum(e.read(sums[i][j]), *place)


@compiled
def largest(arena: Any, table: Any, call: Any) -> None:
    """Max-pooling: out = the largest of the taps at right, left = its number.

    Rows are channels, columns x. A NaN counts as largest, as torch has it.
    """
    _largest(arena, table, call, (), ())


@primitive
def _largest(e: Emitter, table: Value, c: Fields, _: list[Value], __: list[int]) -> None:
    low = e.floor(c.rectifies)
    with e.loop(c.rows) as row, e.loop(c.width) as x, e.loop(c.length, LANES) as k:
        source = e.place(c.right, (row, c.right_step), (x, c.right_across), k)
        best = e.variable(e.load(source, (e.pair(table, c.first)[1], c.right_unit)))
        which = e.variable(e.constant(0.0))
        with e.loop(c.terms) as r:
            tap, right = e.pair(table, e.place(c.first, r))
            value, top = e.load(source, (right, c.right_unit)), e.read(best)
            takes = e.builder.or_(e.builder.fcmp_ordered(">", value, top), e.is_nan(value))
            e.write(best, e.builder.select(takes, value, top))
            e.write(which, e.builder.select(takes, e.splat(e.number(tap)), e.read(which)))
        top, out = e.read(best), e.place(c.out, (row, c.out_step), (x, c.out_across), k)
        e.store(e.choose("<", (top, low), low, top), out)
        place = e.place(c.left, (row, c.left_step), (x, c.left_across), k)
        e.store(e.choose("<=", (top, low), e.constant(_SHUT), e.read(which)), place)


@compiled
def route(arena: Any, table: Any, call: Any) -> None:
    """Back through max-pooling: out = sum of right[r] over the windows r where out was largest.

    That is what left[r] says. The table holds, for each window that covers the position, the
    position's number in it and where the window's results lie. Rows are channels.
    """
    if call.terms == 1:
        _route(arena, table, call, (), (_1,))
    else:
        _route(arena, table, call, (), (_2,))


@primitive
def _route(e: Emitter, table: Value, c: Fields, _: list[Value], shape: list[int]) -> None:
    """For one window (windows that do not overlap), or for any number."""
    with e.loop(c.rows) as row, e.loop(c.length, LANES) as k:
        total = e.variable(e.constant(0.0))
        with e.loop(c.terms) if shape[0] > 1 else e.once() as r:
            tap, window = e.pair(table, e.place(c.first, r))
            which = e.load(c.left, (row, c.left_step), (window, c.left_unit), k)
            gradient = e.load(c.right, (row, c.right_step), (window, c.right_unit), k)
            pair = (which, e.splat(e.number(tap)))
            mine = e.choose("==", pair, gradient, e.constant(0.0))
            e.write(total, e.builder.fadd(e.read(total), mine))
        e.store(e.read(total), c.out, (row, c.out_step), k)


@compiled
def shut(arena: Any, table: Any, call: Any) -> None:
    """No gradient through a closed rectifier: out = 0 where right <= 0 (not NaN, as in torch)."""
    _shut(arena, table, call, (), ())


@primitive
def _shut(e: Emitter, _: Value, c: Fields, __: list[Value], ___: list[int]) -> None:
    none = e.constant(0.0)
    with e.loop(c.rows) as row, e.loop(c.height) as y, e.loop(c.length, LANES) as k:
        out = e.place(c.out, (row, c.out_step), (y, c.out_down), k)
        tested = e.load(c.right, (row, c.right_step), (y, c.right_down), k)
        e.store(e.choose("<=", (tested, none), none, e.load(out)), out)


@compiled
def turn(arena: Any, table: Any, call: Any) -> None:
    """Transpose: column j of right becomes row j of out, which begins at table[j, 1] * right_unit.

    Works in squares. What a last square reads beyond the rows lands beyond the columns of out;
    what it reads beyond the columns is written to the last row and then overwritten.
    """
    _turn(arena, table, call, (), ())


@primitive
def _turn(e: Emitter, table: Value, c: Fields, _: list[Value], __: list[int]) -> None:
    last = e.builder.sub(c.width, e.place(1))
    with e.loop(c.rows, LANES) as row, e.loop(c.width, LANES) as column:
        start = e.place(c.right, (row, c.right_step), column)
        square = e.transposed([e.load(start, (i, c.right_step)) for i in range(LANES)])
        for j in reversed(range(LANES)):
            line = e.smaller(e.place(column, j), last)
            out = e.pair(table, e.place(c.first, line))[1]
            e.store(square[j], c.out, (out, c.right_unit), row)


@compiled
def descend(arena: Any, table: Any, call: Any) -> None:
    """Plain SGD on rows of weights (paper eq:updating): out -= left * right; left is the rate."""
    _descend(arena, table, call, (), ())
    for row in range(call.rows):
        for k in range(call.length // LANES * LANES, call.length):
            slope = arena[call.right + row * call.right_step + k]
            arena[call.out + row * call.out_step + k] -= arena[call.left] * slope


@primitive
def _descend(e: Emitter, _: Value, c: Fields, __: list[Value], ___: list[int]) -> None:
    down = e.builder.fneg(e.spread(c.left))
    whole = e.place((e.builder.sdiv(c.length, e.place(LANES)), LANES))
    with e.loop(c.rows) as row, e.loop(whole, LANES) as k:
        out = e.place(c.out, (row, c.out_step), k)
        weight = e.variable(e.load(out))
        e.multiply_add(down, e.load(c.right, (row, c.right_step), k), weight)
        e.store(e.read(weight), out)


@compiled
def descend_bias(arena: Any, table: Any, call: Any) -> None:
    """The same for biases: the gradients at right are summed over positions and samples."""
    for row in range(call.rows):
        _sum(arena, table, call, (row,), ())
        arena[call.out + row] -= arena[call.left] * arena[call.start]


@primitive
def _sum(e: Emitter, _: Value, c: Fields, corner: list[Value], __: list[int]) -> None:
    """Sum of a row, to start; four sums at once would not be faster than the memory."""
    total = e.variable(e.constant(0.0))
    with e.loop(c.length, LANES) as k:
        vector = e.load(c.right, (corner[0], c.right_step), k)
        e.write(total, e.builder.fadd(e.read(total), vector))
    e.store_sum(e.read(total), c.start)
