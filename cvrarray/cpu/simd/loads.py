"""What fills vectors: loads of neighbouring numbers, four ways to load scattered ones, and prefetching."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cvrarray.core.tables import WARP
from cvrarray.cpu.simd import llvm
from cvrarray.cpu.simd.vector import Vector

#: Elements that :func:`take` by RUNS tests together: one odd offset among 32 must not cost the other groups.
RUN = 8
LINE_BYTES = 64  #: of a cache line
INTO_L1, INTO_L2 = (), (0,)  #: levels for :func:`prefetch`
RUNS, LOADS, GATHERS = ((0,) * n for n in (1, 2, 3))  #: ways for :func:`take`


@intrinsic
def load(typingctx, array, at, like):
    """``array[at : at + 32]`` in the precision of the array `like`; real numbers stay real."""
    vector = Vector(like.dtype if isinstance(llvm.value_dtype(array), types.Complex) else llvm.real(like.dtype))

    def codegen(context, builder, signature, args):
        start = llvm.pointer(context, builder, array, args[0], args[1])
        return cgutils.pack_struct(builder, llvm.load_values(context, builder, array, start, llvm.real(like.dtype)))

    return vector(array, types.intp, like), codegen


@intrinsic
def load_number(typingctx, values, at, like):
    """``values[at]``, one number: a real one in the precision of the array `like`."""
    dtype = llvm.value_dtype(values)
    result = dtype if isinstance(dtype, types.Complex) else llvm.real(like.dtype)

    def codegen(context, builder, signature, args):
        start = llvm.pointer(context, builder, values, args[0], args[1])
        loaded = llvm.load_values(context, builder, values, start, llvm.real(result), 1)
        parts = [llvm.extract(builder, part) for part in loaded]
        return cgutils.pack_struct(builder, parts) if isinstance(dtype, types.Complex) else parts[0]

    return result(values, types.intp, like), codegen


@intrinsic
def take(typingctx, x, start, offsets, at, way):
    """``x[start + offsets[at + l]]`` in element l, in one of three ways, all of which read the same.

    RUNS: 32 scalar loads, or 8 elements at once where their offsets are consecutive, as in stencils. LOADS: 32 scalar
    loads. GATHERS: :func:`gather`.
    """
    vector = Vector(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = llvm.pointer(context, builder, x, args[0], args[1])
        first = llvm.pointer(context, builder, offsets, args[2], args[3])
        if len(way) == len(GATHERS):
            vectors = _gathered(builder, x, x_start, llvm.load_vector(builder, first, WARP), llvm.I32(-1))
        elif len(way) == len(LOADS):
            vectors = llvm.insert_each(builder, x.dtype, x_start, first, range(WARP))
        else:
            vectors = _by_runs(builder, x.dtype, x_start, first)
        return cgutils.pack_struct(builder, vectors)

    return vector(x, types.intp, offsets, types.intp, way), codegen


def _by_runs(builder, dtype, x_start, first):
    contiguous = _in_runs(builder, first)
    first = llvm.hidden(builder, first)
    pieces = []
    for element in range(0, WARP, RUN):
        here = builder.gep(first, [llvm.I32(element)])
        piece = llvm.I32((1 << RUN) - 1 << element)
        is_run = builder.icmp_unsigned("==", builder.and_(contiguous, piece), piece)
        with builder.if_else(is_run) as (run, scattered):
            with run:
                whole = llvm.load_parts(builder, dtype, builder.gep(x_start, [llvm.index(builder, here)]), RUN)
                after_run = builder.block
            with scattered:
                each = llvm.insert_each(builder, dtype, x_start, here, range(RUN))
                after_scattered = builder.block
        pieces.append(llvm.phi(builder, (whole, after_run), (each, after_scattered)))
    return [llvm.join(builder, parts) for parts in zip(*pieces, strict=True)]


def _in_runs(builder, first_offset):
    """Mask of the elements whose offset is that of the first in their group of 8, plus the distance from it."""
    offsets = llvm.load_vector(builder, first_offset, WARP)
    steps = builder.sub(offsets, offsets.type([element % RUN for element in range(WARP)]))
    firsts = llvm.shuffle(builder, offsets, offsets, [element - element % RUN for element in range(WARP)])
    return builder.bitcast(builder.icmp_unsigned("==", steps, firsts), llvm.I32)


def _gathered(builder, x, x_start, columns, mask):
    columns = builder.zext(columns, ir.VectorType(llvm.I32, WARP)) if columns.type.element.width < 32 else columns
    vectors = []
    for part in llvm.parts(x.dtype):
        first = builder.gep(x_start, part) if part else x_start
        pointers = llvm.vector_of_pointers(builder, x_start.type.pointee, first, columns)
        vectors.append(llvm.masked_gather(builder, pointers, mask, ir.VectorType(first.type.pointee, WARP)(None)))
    return vectors


@intrinsic
def gather(typingctx, x, start, offsets, at, mask):
    """``x[start + offsets[at + l]]`` in the elements of `mask`, 0 in others, by the machine's gather instruction.

    It keeps more cache misses in flight than 32 scalar loads do, and costs more where there is no miss.
    """
    vector = Vector(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = llvm.pointer(context, builder, x, args[0], args[1])
        columns = llvm.load_vector(builder, llvm.pointer(context, builder, offsets, args[2], args[3]), WARP)
        return cgutils.pack_struct(builder, _gathered(builder, x, x_start, columns, args[4]))

    return vector(x, types.intp, offsets, types.intp, types.uint32), codegen


@intrinsic
def prefetch(typingctx, array, at, level):
    """Prefetch the cache lines of ``array[at : at + 32]``, which need not exist.

    `level` is INTO_L1 or INTO_L2. Narrow columns go into L1 in either case. On the way to L1, streams of 8-byte
    values would evict x, and would delay the loads of x that miss.
    """
    numbers = array.types[0] if isinstance(array, types.BaseTuple) else array
    locality = 2 if len(level) and numbers.dtype != types.uint16 else 3

    def codegen(context, builder, signature, args):
        first = llvm.pointer(context, builder, array, args[0], args[1])
        if isinstance(first, list):  # the table of numbers; of a single value there is nothing to fetch
            if len(first) == 1:
                return context.get_dummy_value()
            first = first[0]
        per_line = max(LINE_BYTES // context.get_abi_sizeof(first.type.pointee), 1)
        for element in range(0, WARP, per_line):
            line = builder.bitcast(builder.gep(first, [llvm.I32(element)]), llvm.I8.as_pointer())
            read, data = llvm.I32(0), llvm.I32(1)
            llvm.call(builder, "llvm.prefetch", ir.VoidType(), [line, read, llvm.I32(locality), data], "p0")
        return context.get_dummy_value()

    return types.none(array, types.intp, level), codegen
