"""The sums of 32 lanes as one value that stays in vector registers, for use inside Numba functions.

Numba keeps even a small array in memory, which costs a load and a store for every product. A :class:`Lanes` is an LLVM
vector of 32 elements instead (a pair of them, real and imaginary, for complex numbers); LLVM maps it to whatever
registers the machine has: 4 of AVX-512 for float64, 8 of AVX2, 16 of SSE or NEON.

Entries of ``x`` are loaded one by one and inserted: on AMD's Zen 4 that is 1.4 times as fast as its gather instruction,
and machines without such an instruction need it anyway. See docs/decisions/0002-cpu-kernels.md.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from cvrarray._tables import WARP


class Lanes(types.Type):
    """32 numbers of a NumPy type (`dtype`, as Numba has it; not bool)."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        vector = ir.VectorType(manager.lookup(_real(lanes.dtype)).get_value_type(), WARP)
        parts = 2 if isinstance(lanes.dtype, types.Complex) else 1
        super().__init__(manager, lanes, ir.LiteralStructType([vector] * parts))


@intrinsic
def zeros(typingctx, like):
    """``zeros(array)``: 32 zeros of the array's dtype."""
    lanes = Lanes(like.dtype)

    def codegen(context, builder, signature, args):
        return context.get_value_type(lanes)(None)

    return lanes(like), codegen


@intrinsic
def multiply_add(typingctx, acc, val, slot, x, base, col, at):
    """``acc + val[slot : slot + 32] * x[base + col[at : at + 32]]``, values converted to the sums' dtype."""

    def codegen(context, builder, signature, args):
        acc, val, slot, x, base, col, at = args
        acc_t, val_t, _, x_t, _, col_t, _ = signature.args
        first_col = _at(context, builder, col_t, col, at)
        offsets = [_load_index(builder, builder.gep(first_col, [_int(lane)])) for lane in range(WARP)]
        entries = _gather(builder, x_t, _at(context, builder, x_t, x, base), offsets)
        values = _load_values(context, builder, val_t, val, slot, acc_t.dtype)
        return _multiply_add(context, builder, acc_t, acc, values, entries)

    return acc(acc, val, types.intp, x, types.intp, col, types.intp), codegen


@intrinsic
def store(typingctx, acc, out):
    """``out[:32] = acc``."""

    def codegen(context, builder, signature, args):
        acc_t, out_t = signature.args
        parts = [builder.extract_value(args[0], p) for p in range(len(args[0].type.elements))]
        vector = parts[0] if len(parts) == 1 else _interleave(builder, *parts)
        start = _at(context, builder, out_t, args[1], _int(0))
        builder.store(vector, builder.bitcast(start, vector.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(acc, out), codegen


@intrinsic
def clear(typingctx, acc, mask):
    """`acc` with 0 in the lanes whose bit of `mask` is set."""

    def codegen(context, builder, signature, args):
        acc, mask = args
        bits = builder.bitcast(mask, ir.VectorType(ir.IntType(1), WARP))
        for p, vector_t in enumerate(acc.type.elements):
            kept = builder.select(bits, vector_t(None), builder.extract_value(acc, p))
            acc = builder.insert_value(acc, kept, p)
        return acc

    return acc(acc, types.uint32), codegen


@intrinsic
def lowest_bit(typingctx, mask):
    """Number of the lowest bit set; `mask` is not 0."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.cttz(args[0], cgutils.true_bit), ir.IntType(64))

    return types.intp(types.uint32), codegen


@intrinsic
def contiguous(typingctx, col, at):
    """Whether ``col[at : at + 32]`` counts up by ones."""

    def codegen(context, builder, signature, args):
        start = _at(context, builder, signature.args[0], *args)
        cols = _load_vector(builder, start, WARP)
        first = _splat(builder, builder.load(start))
        same = builder.icmp_unsigned("==", builder.sub(cols, cols.type(list(range(WARP)))), first)
        return builder.icmp_unsigned("==", builder.bitcast(same, ir.IntType(WARP)), ir.IntType(WARP)(-1))

    return types.boolean(col, types.intp), codegen


@intrinsic
def multiply_add_contiguous(typingctx, acc, val, slot, x, start):
    """``acc + val[slot : slot + 32] * x[start : start + 32]``."""

    def codegen(context, builder, signature, args):
        acc, val, slot, x, start = args
        acc_t, val_t, _, x_t, _ = signature.args
        entries = _load_values(context, builder, x_t, x, start, acc_t.dtype)
        values = _load_values(context, builder, val_t, val, slot, acc_t.dtype)
        return _multiply_add(context, builder, acc_t, acc, values, entries)

    return acc(acc, val, types.intp, x, types.intp), codegen


def _int(value):
    return ir.IntType(64)(value)


def _at(context, builder, array_t, array, offset):
    """Pointer to an element of a contiguous array."""
    return builder.gep(context.make_array(array_t)(context, builder, array).data, [offset])


def _load_vector(builder, start, n):
    vector = ir.VectorType(start.type.pointee, n)
    return builder.load(builder.bitcast(start, vector.as_pointer()), align=1)


def _splat(builder, value):
    one = builder.insert_element(ir.VectorType(value.type, WARP)(ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, ir.VectorType(ir.IntType(32), WARP)([0] * WARP))


def _load_index(builder, pointer):
    """A column (never negative) as a 64-bit integer."""
    value = builder.load(pointer)
    return value if value.type.width == 64 else builder.zext(value, ir.IntType(64))


def _real(dtype):
    """The type of a complex number's parts; any other type itself."""
    return getattr(dtype, "underlying_float", dtype)


def _gather(builder, x_t, start, offsets):
    """x at 32 offsets, as a list of one vector, or two for complex numbers."""
    complex_x = isinstance(x_t.dtype, types.Complex)
    parts = []
    for p in range(2 if complex_x else 1):
        vector = None
        for lane, offset in enumerate(offsets):
            pointer = builder.gep(start, [offset])
            number = builder.load(builder.gep(pointer, [ir.IntType(32)(0), ir.IntType(32)(p)]) if complex_x else pointer)
            vector = ir.VectorType(number.type, WARP)(ir.Undefined) if vector is None else vector
            vector = builder.insert_element(vector, number, ir.IntType(32)(lane))
        parts.append(vector)
    return parts


def _load_values(context, builder, array_t, array, slot, dtype):
    """32 consecutive values in `dtype`, as a list of one vector, or two where the array is complex."""
    start = _at(context, builder, array_t, array, slot)
    if isinstance(array_t.dtype, types.Complex):
        both = _load_vector(builder, builder.gep(start, [ir.IntType(32)(0), ir.IntType(32)(0)]), 2 * WARP)
        parts = [_shuffle(builder, both, range(p, 2 * WARP, 2)) for p in (0, 1)]
    else:
        parts = [_load_vector(builder, start, WARP)]
    return [_convert(context, builder, part, _real(array_t.dtype), _real(dtype)) for part in parts]


def _convert(context, builder, vector, source, dtype):
    target = ir.VectorType(context.get_value_type(dtype), WARP)
    if vector.type == target:
        return vector
    if isinstance(source, types.Float):
        return builder.fpext(vector, target)
    signed = getattr(source, "signed", False)
    if isinstance(dtype, types.Float):
        return builder.sitofp(vector, target) if signed else builder.uitofp(vector, target)
    return builder.sext(vector, target) if signed else builder.zext(vector, target)


def _multiply_add(context, builder, acc_t, acc, a, b):
    """acc + a * b for sums in a struct of parts, factors in lists of parts."""
    products = [[(0, 0, 1)], []] if len(acc.type.elements) == 2 else [[(0, 0, 1)]]
    if len(acc.type.elements) == 2:
        products = [[(0, 0, 1)], [(0, 1, 1)]]
        if len(a) == 2:
            products = [[(0, 0, 1), (1, 1, -1)], [(0, 1, 1), (1, 0, 1)]]
    for p, terms in enumerate(products):
        total = builder.extract_value(acc, p)
        for i, j, sign in terms:
            total = _fused(builder, a[i] if sign > 0 else builder.fneg(a[i]), b[j], total)
        acc = builder.insert_value(acc, total, p)
    return acc


def _fused(builder, a, b, c):
    if isinstance(a.type.element, ir.IntType):
        return builder.add(builder.mul(a, b), c)
    name = f"llvm.fmuladd.v{WARP}f{32 if isinstance(a.type.element, ir.FloatType) else 64}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
    return builder.call(function, [a, b, c])


def _shuffle(builder, vector, order):
    order = list(order)
    return builder.shuffle_vector(vector, vector, ir.VectorType(ir.IntType(32), len(order))(order))


def _interleave(builder, real, imag):
    order = [p * WARP + lane for lane in range(WARP) for p in (0, 1)]
    return builder.shuffle_vector(real, imag, ir.VectorType(ir.IntType(32), 2 * WARP)(order))
