"""What fills vectors: loads of neighbouring numbers, four ways to load scattered ones, and prefetching."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cvrarray.core.tables import THREES, WARP
from cvrarray.cpu.simd import llvm
from cvrarray.cpu.simd.vector import Vector

#: Elements that :func:`gather_contiguous` tests together: one odd offset among 32 must not cost the other groups.
RUN = 8
LINE_BYTES = 64  #: of a cache line
GATHERS = llvm.AVX512  #: without it :func:`gather` keeps no more misses in flight than :func:`gather_scalar` does
L2_BYTES = 1 << 20  #: of a core's second cache, about
STEPS_AHEAD = 16  #: steps of 32 values from the one that a product is at to the one that it prefetches
STEPS_AHEAD_IN_BLOCKS = 8  #: the same for blocks of 2 or more and for row triplets, which take less time a value
STEPS_AHEAD_INTO_L2 = 32  #: the same for wide columns in CVR
INTO_L1, INTO_L2 = (), (0,)  #: levels for :func:`prefetch`


@intrinsic
def load(typingctx, array, at, like, width):
    """``array[at : at + n]``, n the length of `width`, and 0 in the elements beyond.

    The precision is that of the array `like`; real numbers stay real.
    """
    vector = Vector(like.dtype if isinstance(llvm.value_dtype(array), types.Complex) else llvm.real(like.dtype))

    def codegen(context, builder, signature, args):
        start = llvm.pointer(context, builder, array, args[0], args[1])
        loaded = llvm.load_values(context, builder, array, start, llvm.real(like.dtype), len(width))
        return cgutils.pack_struct(builder, [llvm.padded(builder, part) for part in loaded])

    return vector(array, types.intp, like, width), codegen


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
def gather_scalar(typingctx, x, start, offsets, at):
    """``x[start + offsets[at + l]]`` in element l, by 32 scalar loads: the fastest way where x is in L1 or L2."""
    vector = Vector(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = llvm.pointer(context, builder, x, args[0], args[1])
        first = llvm.pointer(context, builder, offsets, args[2], args[3])
        return cgutils.pack_struct(builder, llvm.insert_each(builder, x.dtype, x_start, first, range(WARP)))

    return vector(x, types.intp, offsets, types.intp), codegen


@intrinsic
def gather_triplets(typingctx, x, start, offsets, at):
    """:func:`gather_scalar` of the elements before THREES, by one load for three where all come in equal triplets.

    Rows that have the same columns, as the three rows of a mesh's vertex have, lie in neighbouring lanes and stay
    there.
    """
    vector = Vector(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = llvm.pointer(context, builder, x, args[0], args[1])
        first = llvm.pointer(context, builder, offsets, args[2], args[3])
        columns = llvm.padded(builder, llvm.load_vector(builder, first, THREES))
        if columns.type.element.width < 32:  # the permutation below is quick for 32-bit elements, not for 16-bit ones
            columns = builder.zext(columns, ir.VectorType(llvm.I32, WARP))
        firsts = [element - element % 3 if element < THREES else element for element in range(WARP)]
        unequal = builder.icmp_unsigned("!=", columns, llvm.shuffle(builder, columns, columns, firsts))
        first = llvm.hidden(builder, first)
        in_triplets = builder.icmp_unsigned("==", builder.bitcast(unequal, llvm.I32), llvm.I32(0))
        with builder.if_else(in_triplets) as (once, singly):
            with once:
                thirds = llvm.insert_each(builder, x.dtype, x_start, first, range(0, THREES, 3))
                spread = [min(element, THREES - 1) // 3 for element in range(WARP)]
                thirds = [llvm.shuffle(builder, part, part, spread) for part in (llvm.fence(builder, t) for t in thirds)]
                after_once = builder.block
            with singly:
                scattered = llvm.insert_each(builder, x.dtype, x_start, first, range(THREES))
                after_singly = builder.block
        return cgutils.pack_struct(builder, llvm.phi(builder, (thirds, after_once), (scattered, after_singly)))

    return vector(x, types.intp, offsets, types.intp), codegen


@intrinsic
def gather_contiguous(typingctx, x, start, offsets, at):
    """:func:`gather_scalar` that loads 8 elements at once where their offsets are consecutive, as in stencils."""
    vector = Vector(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = llvm.pointer(context, builder, x, args[0], args[1])
        first = llvm.pointer(context, builder, offsets, args[2], args[3])
        contiguous = _in_runs(builder, first)
        first = llvm.hidden(builder, first)
        pieces = []
        for element in range(0, WARP, RUN):
            here = builder.gep(first, [llvm.I32(element)])
            piece = llvm.I32((1 << RUN) - 1 << element)
            is_run = builder.icmp_unsigned("==", builder.and_(contiguous, piece), piece)
            with builder.if_else(is_run) as (run, scattered):
                with run:
                    x_here = builder.gep(x_start, [llvm.index(builder, here)])
                    whole = llvm.load_parts(builder, x.dtype, x_here, RUN)
                    after_run = builder.block
                with scattered:
                    each = llvm.insert_each(builder, x.dtype, x_start, here, range(RUN))
                    after_scattered = builder.block
            pieces.append(llvm.phi(builder, (whole, after_run), (each, after_scattered)))
        return cgutils.pack_struct(builder, [llvm.join(builder, parts) for parts in zip(*pieces, strict=True)])

    return vector(x, types.intp, offsets, types.intp), codegen


def _in_runs(builder, first_offset):
    """Mask of the elements whose offset is that of the first in their group of 8, plus the distance from it."""
    offsets = llvm.load_vector(builder, first_offset, WARP)
    steps = builder.sub(offsets, offsets.type([element % RUN for element in range(WARP)]))
    firsts = llvm.shuffle(builder, offsets, offsets, [element - element % RUN for element in range(WARP)])
    return builder.bitcast(builder.icmp_unsigned("==", steps, firsts), llvm.I32)


@intrinsic
def gather(typingctx, x, start, offsets, at, mask):
    """``x[start + offsets[at + l]]`` in the elements of `mask`, 0 in others, by the machine's gather instruction.

    It keeps more cache misses in flight than 32 scalar loads do, and costs more where there is no miss.
    """
    vector = Vector(x.dtype)

    def codegen(context, builder, signature, args):
        x_start = llvm.pointer(context, builder, x, args[0], args[1])
        columns = llvm.load_vector(builder, llvm.pointer(context, builder, offsets, args[2], args[3]), WARP)
        columns = builder.zext(columns, ir.VectorType(llvm.I32, WARP)) if columns.type.element.width < 32 else columns
        vectors = []
        for part in llvm.parts(x.dtype):
            first = builder.gep(x_start, part) if part else x_start
            pointers = llvm.vector_of_pointers(builder, x_start.type.pointee, first, columns)
            zero = ir.VectorType(first.type.pointee, WARP)(None)
            vectors.append(llvm.masked_gather(builder, pointers, args[4], zero))
        return cgutils.pack_struct(builder, vectors)

    return vector(x, types.intp, offsets, types.intp, types.uint32), codegen


def prefetch_level(values: np.ndarray) -> tuple[int, ...]:
    """The level for :func:`prefetch` of these tables: L2 for 8-byte values that do not fit into it, else L1."""
    return INTO_L2 if values.itemsize >= 8 and values.nbytes > L2_BYTES else INTO_L1


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
