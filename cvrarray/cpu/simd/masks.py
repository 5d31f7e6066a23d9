"""Masks of the elements for which a comparison of 32 integers in memory holds.

Numba's own loops widen every number to 64 bits: on 16-bit columns they take four times as many vectors as these.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from cvrarray.core.tables import WARP
from cvrarray.cpu.simd import llvm


@intrinsic
def equal(typingctx, array, at, others, other):
    """Mask of the elements l where ``array[at + l] == others[other + l]``; both arrays have one dtype."""

    def codegen(context, builder, signature, args):
        starts = [llvm.pointer(context, builder, of, *args[k : k + 2]) for of, k in ((array, 0), (others, 2))]
        alike = builder.icmp_unsigned("==", *(llvm.load_vector(builder, start, WARP) for start in starts))
        return builder.bitcast(alike, llvm.I32)

    return types.uint32(array, types.intp, others, types.intp), codegen
