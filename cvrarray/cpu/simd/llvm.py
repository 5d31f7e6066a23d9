"""LLVM instructions that the vectors' functions consist of. All functions here write code with an ``ir.IRBuilder``."""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils

from cvrarray.core.tables import WARP

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
AVX512 = binding.get_host_cpu_features().get("avx512f", False)


class Few(NamedTuple):
    """Stored values that are numbers of a table: arrays, or pointers."""

    numbers: Any  # uint8
    table: Any  # in the precision of the product


class One(NamedTuple):
    """Stored values that all are one, ``table[0]``."""

    table: Any


def real(dtype):
    """The type of a complex number's parts; any other type itself."""
    return getattr(dtype, "underlying_float", dtype)


def parts(dtype):
    """The ``getelementptr`` indices that lead from a number to its parts."""
    return [[I32(0), I32(0)], [I32(0), I32(1)]] if isinstance(dtype, types.Complex) else [[]]


def value_dtype(values):
    """The type of the numbers that an array, a pointer, :class:`Few` or :class:`One` stands for."""
    return values.types[-1].dtype if isinstance(values, types.BaseTuple) else values.dtype


def pointer(context, builder, array_type, array, at):
    """Pointer to element `at` of a contiguous array, or `at` elements on from a pointer; a list of them for a tuple.

    Of :class:`Few` the numbers move on, and the table stays.
    """
    if isinstance(array_type, types.BaseTuple):
        ahead = [at] * (len(array_type) - 1) + [I64(0)]
        members = zip(array_type.types, cgutils.unpack_tuple(builder, array), ahead, strict=True)
        return [pointer(context, builder, *member) for member in members]
    if isinstance(array_type, types.Array):
        array = context.data_model_manager[array_type].get(builder, array, "data")
    return builder.gep(array, [at])


def load_vector(builder, start, n):
    """The n numbers from the pointer `start` on, which needs no alignment."""
    vector = ir.VectorType(start.type.pointee, n)
    return builder.load(builder.bitcast(start, vector.as_pointer()), align=1)


def load_parts(builder, dtype, start, n):
    """n consecutive numbers: a list of one vector, or of two (real and imaginary parts) for complex numbers."""
    if isinstance(dtype, types.Record):  # float16: see runtime.memory.values
        start = builder.bitcast(start, ir.HalfType().as_pointer())
    if not isinstance(dtype, types.Complex):
        return [load_vector(builder, start, n)]
    both = load_vector(builder, builder.gep(start, [I32(0), I32(0)]), 2 * n)
    return [shuffle(builder, both, both, range(part, 2 * n, 2)) for part in (0, 1)]


def store_parts(builder, vectors, start, past_align=None):
    """Write what :func:`load_parts` loads; past the caches where `past_align` is given, the alignment of `start`."""
    if len(vectors) == 2:
        n = vectors[0].type.count
        vectors = [shuffle(builder, *vectors, [part * n + element for element in range(n) for part in (0, 1)])]
    stored = builder.store(vectors[0], builder.bitcast(start, vectors[0].type.as_pointer()), align=past_align or 1)
    if past_align:
        stored.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))


def load_values(context, builder, values, start, target, n=WARP):
    """n consecutive stored values, or their parts, converted to the real type `target`.

    `values` is their type, and `start` from :func:`pointer`. All decoding of stored values is here.
    """
    if not isinstance(values, types.BaseTuple):
        vectors = load_parts(builder, values.dtype, start, n)
        return [convert(context, builder, vector, real(values.dtype), target) for vector in vectors]
    dtype, table = value_dtype(values), start[-1]
    if len(start) == 1:
        return [splat(builder, extract(builder, part), n) for part in load_parts(builder, dtype, table, 1)]
    if n == 1 or isinstance(dtype, types.Complex):
        return [first(builder, vector, n) for vector in insert_each(builder, dtype, table, start[0], range(n))]
    numbers = builder.zext(padded(builder, load_vector(builder, start[0], n)), ir.VectorType(I32, WARP))
    pointers = vector_of_pointers(builder, table.type.pointee, table, numbers)
    return [first(builder, masked_gather(builder, pointers, I32(-1), ir.VectorType(table.type.pointee, WARP)(None)), n)]


def extract(builder, vector):
    """The first element of a vector."""
    return builder.extract_element(vector, I32(0))


def load_padded(builder, start, offset, n, length):
    """Vector of `length`: first the n real numbers from ``start[offset]`` on, then copies of the last of them."""
    start = builder.gep(start, [offset])
    if isinstance(start.type.pointee, ir.LiteralStructType):
        start = builder.gep(start, [I32(0), I32(0)])
    vector = load_vector(builder, start, n)
    return shuffle(builder, vector, vector, [min(k, n - 1) for k in range(length)])


def add(builder, a, b):
    """``a + b``, each a list of one vector, or of two for complex numbers; `b` may be real where `a` is complex."""
    add_numbers = builder.add if isinstance(a[0].type.element, ir.IntType) else builder.fadd
    return [*map(add_numbers, a, b), *a[len(b) :]]


def multiply_add(builder, sums, a, b):
    """``sums + a * b``, each a list as from :func:`load_parts`; `a` may be real where the others are complex."""
    if len(sums) == 1:
        return [fused(builder, a[0], b[0], sums[0])]
    sums = [fused(builder, a[0], b[part], sums[part]) for part in (0, 1)]
    if len(a) == 2:
        sums[0] = fused(builder, builder.fneg(a[1]), b[1], sums[0])
        sums[1] = fused(builder, a[1], b[0], sums[1])
    return sums


def insert_each(builder, dtype, x_start, first_offset, numbers):
    """The numbers at the offsets ``first_offset[k]``, k in `numbers`, from `x_start`, loaded one by one.

    A list of vectors as from :func:`load_parts`. Their length is a power of two; elements beyond `numbers` are
    undefined.
    """
    offsets = [index(builder, builder.gep(first_offset, [I32(k)])) for k in numbers]
    places = [builder.gep(x_start, [offset]) for offset in offsets]
    vectors = []
    for part in parts(dtype):
        loaded = [builder.load(builder.gep(place, part) if part else place) for place in places]
        vector = ir.VectorType(loaded[0].type, 1 << (len(loaded) - 1).bit_length())(ir.Undefined)
        for element, number in enumerate(loaded):
            vector = builder.insert_element(vector, number, I32(element))
        vectors.append(vector)
    return vectors


def hidden(builder, pointer):
    """The pointer, of which LLVM knows nothing: it then loads single offsets from memory again.

    Otherwise LLVM extracts them from a vector that it has loaded already, which is slower.
    """
    return builder.asm(ir.FunctionType(pointer.type, [pointer.type]), "", "=r,0", [pointer], False)


def phi(builder, *incoming):
    """The vectors of the basic block that control came from; `incoming` are pairs of a list of vectors and a block."""
    merged = [builder.phi(vector.type) for vector in incoming[0][0]]
    for vectors, block in incoming:
        for node, vector in zip(merged, vectors, strict=True):
            node.add_incoming(vector, block)
    return merged


def join(builder, vectors):
    """Vectors of one length, a power of two of them, end to end."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [shuffle(builder, a, b, range(2 * a.type.count)) for a, b in pairs]
    return vectors[0]


def index(builder, pointer):
    """The integer at `pointer`, which is never negative, as a 64-bit integer."""
    value = builder.load(pointer)
    return value if value.type.width == 64 else builder.zext(value, I64)


def bits(builder, mask):
    """A mask as a vector of 32 bits."""
    return builder.bitcast(mask, ir.VectorType(I1, WARP))


def padded(builder, vector):
    """The vector with zeros appended up to 32 elements."""
    n = vector.type.count
    return vector if n == WARP else shuffle(builder, vector, vector.type(None), [min(k, n) for k in range(WARP)])


def first(builder, vector, n):
    """The first n elements of the vector."""
    return vector if n == vector.type.count else shuffle(builder, vector, vector, range(n))


def shuffle(builder, a, b, order):
    """The elements of the concatenation of `a` and `b` whose numbers are `order`."""
    order = list(order)
    return builder.shuffle_vector(a, b, ir.VectorType(I32, len(order))(order))


def splat(builder, value, n=WARP):
    """A vector of n times the number `value`."""
    one = builder.insert_element(ir.VectorType(value.type, n)(ir.Undefined), value, I32(0))
    return shuffle(builder, one, one, [0] * n)


def convert(context, builder, vector, source, dtype):
    """Numbers of a real type in another that holds them all; a bool is 0 or 1."""
    target = ir.VectorType(context.get_value_type(dtype), vector.type.count)
    if vector.type == target:
        return vector
    if isinstance(source, types.Record):  # half to float to double: both steps are exact, and machines have only these
        vector = builder.fpext(vector, ir.VectorType(ir.FloatType(), vector.type.count))
        source = types.float32
        if vector.type == target:
            return vector
    if isinstance(source, types.Float):
        return builder.fpext(vector, target)
    signed = getattr(source, "signed", False)
    if isinstance(dtype, types.Float):
        return builder.sitofp(vector, target) if signed else builder.uitofp(vector, target)
    return builder.sext(vector, target) if signed else builder.zext(vector, target)


def fused(builder, a, b, c):
    """``a * b + c``, rounded once where the machine has such an instruction."""
    if isinstance(a.type.element, ir.IntType):
        return builder.add(builder.mul(a, b), c)
    return call(builder, "llvm.fmuladd", a.type, [a, b, c], f"v{a.type.count}{letters(a.type)}")


def masked_gather(builder, pointers, mask, otherwise):
    """What the `pointers` point to in the elements of `mask`, the elements of the vector `otherwise` elsewhere."""
    vector = otherwise.type
    args = [pointers, I32(1), bits(builder, mask), otherwise]
    return call(builder, "llvm.masked.gather", vector, args, f"v{WARP}{letters(vector)}.v{WARP}p0")


def call(builder, intrinsic, returns, args, overload):
    """Call the LLVM intrinsic `intrinsic`, whose name ends with the types `overload`."""
    signature = ir.FunctionType(returns, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, f"{intrinsic}.{overload}"), args)


def letters(vector):
    """``f32`` for a vector of float, as names of LLVM's intrinsics have it."""
    element = vector.element
    return f"i{element.width}" if isinstance(element, ir.IntType) else {"float": "f32", "double": "f64"}[str(element)]


def vector_of_pointers(builder, element, start, offsets):
    """Pointers to the elements, of type `element`, at the vector `offsets` from `start`."""
    pointers = _VectorOfPointers(builder.block, element, start, offsets)
    builder._insert(pointers)
    return pointers


class _VectorOfPointers(ir.instructions.Instruction):
    """``getelementptr`` with a vector of offsets, which llvmlite's builder does not make."""

    def __init__(self, block, element, start, offsets):
        super().__init__(block, ir.VectorType(ir.PointerType(), WARP), "getelementptr", [start, offsets])
        self.element = element

    def descr(self, buf):
        start, offsets = self.operands
        buf.append(
            f"getelementptr {self.element}, {start.type} {start.get_reference()}, {offsets.type} {offsets.get_reference()}\n"
        )
