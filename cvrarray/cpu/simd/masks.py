"""Masks of the elements for which a comparison of 32 integers in memory holds; integers count as unsigned.

Numba's own loops widen every number to 64 bits: on 16-bit columns they take four times as many vectors as these.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from cvrarray.core.tables import WARP
from cvrarray.cpu.simd import llvm


@intrinsic
def not_below(typingctx, array, at, other):
    """Mask of the elements l where ``array[at + l] >= array[other + l]``."""

    def codegen(context, builder, signature, args):
        numbers = [llvm.load_vector(builder, llvm.pointer(context, builder, array, args[0], place), WARP) for place in args[1:]]
        return _compared(builder, ">=", *numbers)

    return types.uint32(array, types.intp, types.intp), codegen


@intrinsic
def equal(typingctx, array, at, others, other):
    """Mask of the elements l where ``array[at + l] == others[other + l]``; both arrays have one dtype."""

    def codegen(context, builder, signature, args):
        starts = [llvm.pointer(context, builder, of, *args[k : k + 2]) for of, k in ((array, 0), (others, 2))]
        return _compared(builder, "==", *(llvm.load_vector(builder, start, WARP) for start in starts))

    return types.uint32(array, types.intp, others, types.intp), codegen


@intrinsic
def unlike_before(typingctx, array, at):
    """Mask of the elements l, from 1 on, where ``array[at + l] != array[at + l - 1]``."""

    def codegen(context, builder, signature, args):
        numbers = llvm.load_vector(builder, llvm.pointer(context, builder, array, args[0], args[1]), WARP)
        before = llvm.shuffle(builder, numbers, numbers, [0, *range(WARP - 1)])
        return _compared(builder, "!=", numbers, before)

    return types.uint32(array, types.intp), codegen


@intrinsic
def count(typingctx, mask):
    """How many elements a mask has."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.ctpop(args[0]), llvm.I64)

    return types.intp(types.uint32), codegen


def _compared(builder, how, a, b):
    return builder.bitcast(builder.icmp_unsigned(how, a, b), llvm.I32)
