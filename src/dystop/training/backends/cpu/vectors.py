"""Vector instructions on float32, from which the inner loops of the CPU kernels are built.

Numba's own vectoriser cannot keep a block of sums in registers over a whole reduction. So the
innermost blocks are emitted as LLVM vector instructions, as wide as the registers of this machine.
On a machine with narrower registers, LLVM splits the vectors, and the results stay right.
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
Term = Any  # a value, an int, or a pair of factors

_WORD, _LONG = ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


class Emitter:
    """Emits instructions that work on one flat array of float32, addressed by index."""

    def __init__(self, builder: Any, data: Value) -> None:
        self.builder, self.data = builder, data

    def index(self, *terms: Term) -> Value:
        """Return the sum of the terms as an index."""
        total = _LONG(0)
        for term in terms:
            total = self.builder.add(total, self._as_value(term))
        return total

    def _as_value(self, term: Term) -> Value:
        if isinstance(term, tuple):
            return self.builder.mul(self._as_value(term[0]), self._as_value(term[1]))
        return _LONG(term) if isinstance(term, int) else term

    def load(self, *terms: Term) -> Value:
        """Load the vector that begins at an index."""
        made = self.builder.load(self._pointer(terms))
        made.align = 4
        return made

    def store(self, vector: Value, *terms: Term) -> None:
        """Store a vector from an index on."""
        self.builder.store(vector, self._pointer(terms)).align = 4

    def _pointer(self, terms: tuple[Term, ...]) -> Value:
        address = self.builder.gep(self.data, [self.index(*terms)])
        return self.builder.bitcast(address, _FLOATS.as_pointer())

    def broadcast(self, *terms: Term) -> Value:
        """Load the number at an index into all lanes."""
        return self.splat(self.builder.load(self.builder.gep(self.data, [self.index(*terms)])))

    def pair(self, table: Value, row: Value) -> tuple[Value, Value]:
        """Load both integers of a row of a table of pairs."""
        address = self.builder.gep(table, [self.index((2, row))])
        return self.builder.load(address), self.builder.load(self.builder.gep(address, [_LONG(1)]))

    def splat(self, number: Value) -> Value:
        """Copy a number into all lanes."""
        nothing = ir.Constant(_FLOATS, ir.Undefined)
        first = self.builder.insert_element(nothing, number, _WORD(0))
        everywhere = ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, nothing, everywhere)

    def number(self, integer: Value) -> Value:
        """Convert an integer to a float."""
        return self.builder.sitofp(integer, ir.FloatType())

    def floor(self, relu: Value) -> Value:
        """Return the lower bound of an output: 0 with a ReLU, else NaN, which nothing is below."""
        is_set = self.builder.icmp_signed("!=", relu, _LONG(0))
        return self.builder.select(is_set, self.constant(0.0), self.constant(float("nan")))

    def constant(self, number: float) -> Value:
        """Return a constant in all lanes."""
        return ir.Constant(_FLOATS, [number] * LANES)

    def variable(self, first: Value) -> Value:
        """Allocate a variable; read it with `read`, write it with `write`."""
        slot = cgutils.alloca_once(self.builder, _FLOATS)
        self.builder.store(first, slot)
        return slot

    def read(self, slot: Value) -> Value:
        """Return the value of a variable."""
        return self.builder.load(slot)

    def write(self, slot: Value, value: Value) -> None:
        """Set the value of a variable."""
        self.builder.store(value, slot)

    def multiply_add(self, left: Value, right: Value, slot: Value) -> None:
        """Add left * right to a variable, with one rounding where the machine supports it."""
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        fused = cgutils.get_or_insert_function(
            self.builder.module, kind, f"llvm.fmuladd.v{LANES}f32"
        )
        self.write(slot, self.builder.call(fused, [left, right, self.read(slot)]))

    def store_sum(self, vector: Value, *terms: Term) -> None:
        """Store the sum of a vector's lanes at an index, by adding halves."""
        width = LANES
        while width > 1:
            width //= 2
            low, high = (self._part(vector, first, width) for first in (0, width))
            vector = self.builder.fadd(low, high)
        address = self.builder.gep(self.data, [self.index(*terms)])
        self.builder.store(self.builder.extract_element(vector, _WORD(0)), address)

    def _part(self, vector: Value, first: int, width: int) -> Value:
        lanes = ir.Constant(ir.VectorType(_WORD, width), list(range(first, first + width)))
        return self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)

    def transposed(self, rows: list[Value]) -> list[Value]:
        """Transpose a square of numbers by exchanging blocks of growing size."""
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
        """Return the smaller of two integers."""
        return self.builder.select(self.builder.icmp_signed("<", one, other), one, other)

    def choose(self, test: str, pair: tuple[Value, Value], yes: Value, no: Value) -> Value:
        """Select, lane by lane, yes where the comparison of the pair holds, else no (NaN: no)."""
        return self.builder.select(self.builder.fcmp_ordered(test, *pair), yes, no)

    def is_nan(self, vector: Value) -> Value:
        """Return which lanes hold NaN."""
        return self.builder.fcmp_unordered("uno", vector, vector)

    @contextmanager
    def loop(self, count: Value, step: int = 1) -> Iterator[Value]:
        """Repeat the instructions emitted inside, for 0, step, ... below count."""
        with cgutils.for_range_slice(self.builder, _LONG(0), count, _LONG(step)) as (index, _):
            yield index

    @contextmanager
    def once(self) -> Iterator[Value]:
        """Emit the instructions inside once, for index 0."""
        yield _LONG(0)


class Fields:
    """The integers of a record, by name, each loaded once."""

    def __init__(self, builder: Any, kind: Any, record: Value) -> None:
        for name in kind.fields:
            address = cgutils.get_record_member(builder, record, kind.offset(name), _LONG)
            setattr(self, name, builder.load(address))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Value: ...


Emit = Callable[[Emitter, Value, Fields, list[Value], list[int]], None]


def primitive(emit: Emit) -> Callable[..., None]:
    """Turn a function that emits instructions into an operation of compiled code.

    Compiled code calls the operation with (arena, table, call, corner, shape): the flat array, an
    array of integers, a record of integers, a tuple of integers, and a tuple of tuples. Only the
    lengths of the inner tuples matter; they are part of the type, so every shape is compiled
    separately. The function receives the emitter, a pointer to the table, the fields of the
    record, the numbers of the corner and the lengths of the shape.
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
