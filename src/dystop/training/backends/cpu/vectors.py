"""Instructions on short vectors of float32: what the fused kernels' inner loops are made of.

Numba's own vectoriser cannot keep a block of sums in registers over a whole reduction, so the
innermost blocks are emitted as vector instructions, as wide as the machine's registers. LLVM cuts
a vector in pieces where a machine has none so wide, so the code is right everywhere.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numba
from llvmlite import binding, ir
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

cgutils: Any = _cgutils  # only partly typed
types: Any = numba.types

_FEATURES: str = getattr(numba.config, "CPU_FEATURES", None) or (
    binding.get_host_cpu_features().flatten()
)
_IS_X86 = binding.get_default_triple().startswith(("x86", "i686"))

LANES: int = 16 if "+avx512f" in _FEATURES else 8 if "+avx" in _FEATURES else 4
REGISTERS: int = 16 if _IS_X86 and LANES < 16 else 32

Value = Any  # of llvmlite's intermediate representation
Term = Any  # a value, an int, or a pair that is to be multiplied

_WORD, _LONG = ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


class Emitter:
    """Writes instructions that work on one flat array of float32, addressed by index."""

    def __init__(self, builder: Any, data: Value) -> None:
        self.builder, self.data = builder, data

    def place(self, *terms: Term) -> Value:
        """The sum of the terms: an index."""
        total = _LONG(0)
        for term in terms:
            total = self.builder.add(total, self._whole(term))
        return total

    def _whole(self, term: Term) -> Value:
        if isinstance(term, tuple):
            return self.builder.mul(self._whole(term[0]), self._whole(term[1]))
        return _LONG(term) if isinstance(term, int) else term

    def load(self, *terms: Term) -> Value:
        """The vector that begins at a place."""
        made = self.builder.load(self._pointer(terms))
        made.align = 4
        return made

    def store(self, vector: Value, *terms: Term) -> None:
        """Write a vector from a place on."""
        self.builder.store(vector, self._pointer(terms)).align = 4

    def _pointer(self, terms: tuple[Term, ...]) -> Value:
        spot = self.builder.gep(self.data, [self.place(*terms)])
        return self.builder.bitcast(spot, _FLOATS.as_pointer())

    def spread(self, *terms: Term) -> Value:
        """The number at a place, in all lanes."""
        return self.splat(self.builder.load(self.builder.gep(self.data, [self.place(*terms)])))

    def pair(self, table: Value, line: Value) -> tuple[Value, Value]:
        """Both integers of a line of a table of pairs."""
        spot = self.builder.gep(table, [self.place((2, line))])
        return self.builder.load(spot), self.builder.load(self.builder.gep(spot, [_LONG(1)]))

    def splat(self, number: Value) -> Value:
        """A number in all lanes."""
        nothing = ir.Constant(_FLOATS, ir.Undefined)
        first = self.builder.insert_element(nothing, number, _WORD(0))
        everywhere = ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, nothing, everywhere)

    def number(self, integer: Value) -> Value:
        """An integer as a float."""
        return self.builder.sitofp(integer, ir.FloatType())

    def floor(self, rectifies: Value) -> Value:
        """Zero for a rectifier, else NaN, which nothing is below."""
        is_set = self.builder.icmp_signed("!=", rectifies, _LONG(0))
        return self.builder.select(is_set, self.constant(0.0), self.constant(float("nan")))

    def constant(self, number: float) -> Value:
        """A known number in all lanes."""
        return ir.Constant(_FLOATS, [number] * LANES)

    def variable(self, first: Value) -> Value:
        """A register that changes: read it with `read`, write it with `write`."""
        slot = cgutils.alloca_once(self.builder, _FLOATS)
        self.builder.store(first, slot)
        return slot

    def read(self, slot: Value) -> Value:
        """What a variable holds."""
        return self.builder.load(slot)

    def write(self, slot: Value, value: Value) -> None:
        """Give a variable another value."""
        self.builder.store(value, slot)

    def multiply_add(self, left: Value, right: Value, slot: Value) -> None:
        """Add left * right to a variable, in one rounding where the machine can."""
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        fused = cgutils.get_or_insert_function(
            self.builder.module, kind, f"llvm.fmuladd.v{LANES}f32"
        )
        self.write(slot, self.builder.call(fused, [left, right, self.read(slot)]))

    def store_sum(self, vector: Value, *terms: Term) -> None:
        """Write the sum of a vector's lanes to a place: halves upon each other."""
        width = LANES
        while width > 1:
            width //= 2
            low, high = (self._part(vector, first, width) for first in (0, width))
            vector = self.builder.fadd(low, high)
        spot = self.builder.gep(self.data, [self.place(*terms)])
        self.builder.store(self.builder.extract_element(vector, _WORD(0)), spot)

    def _part(self, vector: Value, first: int, width: int) -> Value:
        lanes = ir.Constant(ir.VectorType(_WORD, width), list(range(first, first + width)))
        return self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)

    def transposed(self, rows: list[Value]) -> list[Value]:
        """The columns of a square of numbers: ever larger squares inside it change places."""
        for size in (2**k for k in range(LANES.bit_length() - 1)):
            for i in (i for i in range(LANES) if not i & size):
                top, bottom = rows[i], rows[i + size]
                lanes = [(k & ~size) + (LANES if k & size else 0) for k in range(LANES)]
                rows[i] = self._mixed(top, bottom, lanes)
                rows[i + size] = self._mixed(top, bottom, [lane + size for lane in lanes])
        return rows

    def _mixed(self, one: Value, other: Value, lanes: list[int]) -> Value:
        which = ir.Constant(ir.VectorType(_WORD, LANES), lanes)
        return self.builder.shuffle_vector(one, other, which)

    def smaller(self, one: Value, other: Value) -> Value:
        """The smaller of two integers."""
        return self.builder.select(self.builder.icmp_signed("<", one, other), one, other)

    def choose(self, test: str, pair: tuple[Value, Value], yes: Value, no: Value) -> Value:
        """Lane by lane, yes where the pair compares so, else no; never so with a NaN."""
        return self.builder.select(self.builder.fcmp_ordered(test, *pair), yes, no)

    def is_nan(self, vector: Value) -> Value:
        """Which lanes hold no number."""
        return self.builder.fcmp_unordered("uno", vector, vector)

    @contextmanager
    def loop(self, count: Value, step: int = 1) -> Iterator[Value]:
        """Repeat what is emitted inside, for 0, step, ... below count."""
        with cgutils.for_range_slice(self.builder, _LONG(0), count, _LONG(step)) as (index, _):
            yield index

    @contextmanager
    def once(self) -> Iterator[Value]:
        """Emit what is inside as it is, for 0."""
        yield _LONG(0)


class Fields:
    """Numbers of a record, by name; read once."""

    def __init__(self, builder: Any, kind: Any, record: Value) -> None:
        for name in kind.fields:
            spot = cgutils.get_record_member(builder, record, kind.offset(name), _LONG)
            setattr(self, name, builder.load(spot))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Value: ...


Emit = Callable[[Emitter, Value, Fields, list[Value], list[int]], None]


def primitive(emit: Emit) -> Callable[..., None]:
    """Make an operation of compiled code from a function that emits it.

    The operation is called with (arena, table, call, corner, shape): the flat array, an array of
    integers, a record of integers, a tuple of integers, and a tuple of tuples whose lengths count,
    so that every shape is compiled for itself. The function gets the emitter, a pointer to the
    table, the record's fields, the corner's numbers and the shape's lengths.
    """

    def typed(_: Any, arena: Any, table: Any, call: Any, corner: Any, shape: Any) -> Any:
        lengths = [len(one) for one in shape]

        def lower(context: Any, builder: Any, signature: Any, values: list[Any]) -> Any:
            data, whole = (
                cgutils.create_struct_proxy(kind)(context, builder, value).data
                for kind, value in zip(signature.args[:2], values[:2], strict=True)
            )
            fields = Fields(builder, call, values[2])
            indices = cgutils.unpack_tuple(builder, values[3], len(corner))
            emit(Emitter(builder, data), whole, fields, indices, lengths)
            return context.get_dummy_value()

        index = types.UniTuple(types.intp, len(corner))
        return types.void(arena, table, call, index, shape), lower

    typed.__name__ = emit.__name__
    made: Callable[..., None] = intrinsic(typed)
    return made
