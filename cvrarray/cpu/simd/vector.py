"""The vector type, its arithmetic, and masks of its elements."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from cvrarray.core.tables import WARP
from cvrarray.cpu.simd import llvm

WHOLE = (0,) * WARP  #: the width of a whole vector


class Vector(types.Type):
    """Numba's type of `count` numbers of `dtype` (a Numba type; not bool) in vector registers."""

    def __init__(self, dtype: types.Type, count: int = WARP) -> None:
        self.dtype = dtype
        self.count = count
        super().__init__(name=f"Vector({dtype}, {count})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    """An LLVM vector, or a pair of them for complex numbers."""

    def __init__(self, manager, vector):
        part = ir.VectorType(manager.lookup(llvm.real(vector.dtype)).get_value_type(), vector.count)
        super().__init__(manager, vector, ir.LiteralStructType([part] * len(llvm.parts(vector.dtype))))


@intrinsic
def zeros(typingctx, like, width):
    """As many zeros as `width` says, of the dtype of the array `like`."""
    vector = Vector(like.dtype, len(width))

    def codegen(context, builder, signature, args):
        return context.get_value_type(vector)(None)

    return vector(like, width), codegen


@intrinsic
def add(typingctx, a, b):
    """``a + b``; `b` may be real where `a` is complex."""

    def codegen(context, builder, signature, args):
        return cgutils.pack_struct(builder, llvm.add(builder, *(cgutils.unpack_tuple(builder, arg) for arg in args)))

    return a(a, b), codegen


@intrinsic
def add_row(typingctx, acc, array, at):
    """``acc + array[at : at + n]``, n the number of elements of `acc`."""

    def codegen(context, builder, signature, args):
        start = llvm.pointer(context, builder, array, args[1], args[2])
        row = llvm.load_parts(builder, acc.dtype, start, acc.count)
        return cgutils.pack_struct(builder, llvm.add(builder, cgutils.unpack_tuple(builder, args[0]), row))

    return acc(acc, array, types.intp), codegen


@intrinsic
def multiply_add(typingctx, acc, a, b):
    """``acc + a * b``; `a` may be real where the others are complex."""

    def codegen(context, builder, signature, args):
        sums = llvm.multiply_add(builder, *(cgutils.unpack_tuple(builder, arg) for arg in args))
        return cgutils.pack_struct(builder, sums)

    return acc(acc, a, b), codegen


@intrinsic
def multiply_add_row(typingctx, acc, values, at, x, start):
    """``acc + values[at] * x[start : start + n]``, n the number of elements of `acc`."""

    def codegen(context, builder, signature, args):
        acc_vectors, values_array, at, x_array, start = args
        first = llvm.pointer(context, builder, values, values_array, at)
        loaded = llvm.load_values(context, builder, values, first, llvm.real(acc.dtype), 1)
        value = [llvm.splat(builder, llvm.extract(builder, part), acc.count) for part in loaded]
        row = llvm.load_parts(builder, acc.dtype, llvm.pointer(context, builder, x, x_array, start), acc.count)
        return cgutils.pack_struct(builder, llvm.multiply_add(builder, cgutils.unpack_tuple(builder, acc_vectors), value, row))

    return acc(acc, values, types.intp, x, types.intp), codegen


@intrinsic
def clear(typingctx, acc, mask):
    """`acc` with 0 in the elements of `mask`."""

    def codegen(context, builder, signature, args):
        chosen = llvm.bits(builder, args[1])
        vectors = [builder.select(chosen, v.type(None), v) for v in cgutils.unpack_tuple(builder, args[0])]
        return cgutils.pack_struct(builder, vectors)

    return acc(acc, types.uint32), codegen


@intrinsic
def add_where(typingctx, acc, mask, terms):
    """``acc + terms`` in the elements of `mask`, `acc` in others."""

    def codegen(context, builder, signature, args):
        before, mask, terms_vectors = cgutils.unpack_tuple(builder, args[0]), args[1], cgutils.unpack_tuple(builder, args[2])
        chosen = llvm.bits(builder, mask)
        after = llvm.add(builder, before, terms_vectors)
        return cgutils.pack_struct(builder, [builder.select(chosen, a, b) for a, b in zip(after, before, strict=True)])

    return acc(acc, types.uint32, terms), codegen


@intrinsic
def not_equal_mask(typingctx, array, at, value):
    """Mask of the elements l where ``array[at + l] != value``; integers."""

    def codegen(context, builder, signature, args):
        numbers = llvm.load_vector(builder, llvm.pointer(context, builder, array, args[0], args[1]), WARP)
        value = builder.trunc(args[2], numbers.type.element) if numbers.type.element.width < 64 else args[2]
        return builder.bitcast(builder.icmp_unsigned("!=", numbers, llvm.splat(builder, value)), llvm.I32)

    return types.uint32(array, types.intp, types.intp), codegen


@intrinsic
def bit_set(typingctx, array, at, bit):
    """Mask of the elements l where ``array[at + l]`` has the bit number `bit` set."""

    def codegen(context, builder, signature, args):
        numbers = llvm.load_vector(builder, llvm.pointer(context, builder, array, args[0], args[1]), WARP)
        element = numbers.type.element
        bit = builder.shl(element(1), builder.trunc(args[2], element))
        chosen = builder.and_(numbers, llvm.splat(builder, bit))
        return builder.bitcast(builder.icmp_unsigned("!=", chosen, numbers.type(None)), llvm.I32)

    return types.uint32(array, types.intp, types.intp), codegen


@intrinsic
def highest(typingctx, mask):
    """The number of the highest bit of a mask that is not 0."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.sub(llvm.I32(31), builder.ctlz(args[0], cgutils.true_bit)), llvm.I64)

    return types.intp(types.uint32), codegen


@intrinsic
def lowest(typingctx, mask):
    """The number of the lowest bit of a mask that is not 0."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.cttz(args[0], cgutils.true_bit), llvm.I64)

    return types.intp(types.uint32), codegen
