"""Products of 32 rows with blocks of BBCSR: a block's part of x is loaded once for all rows of its block row."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cvrarray.core.tables import WARP
from cvrarray.cpu.simd import llvm

BLOCK_SIZES = (2, 3, 4, 6, 8)  #: sizes that have code here; others would make too much of it


@intrinsic
def multiply_add_blocks(typingctx, acc, values, x, col, phase, within):
    """``acc + sum over j of values[32 j + l] * x[size * col[l] + j]`` in element l: one whole block in every row.

    `values`, `x` and `col` are pointers. Element 0 is row `phase` of its block row. Elements of one block row have
    the same `col`, so its part of x is loaded once and spread over them. `size` is the length of the tuple `within`:
    it is known when this is compiled, and with it which elements lie in the same block row.
    """
    size = len(within)

    def codegen(context, builder, signature, args):
        acc_vectors, values_start, x_start, col_start, phase, _ = args

        def offset(element):
            return builder.mul(llvm.index(builder, builder.gep(col_start, [llvm.I32(element)])), llvm.I64(size))

        step = _Step(values_start, values, x_start, x.dtype, size, offset, None)
        return step.code(context, builder, acc_vectors, phase)

    return acc(acc, values, x, col, types.intp, within), codegen


@intrinsic
def multiply_add_blocks_masked(typingctx, acc, values, x, offsets, real, holes, present, phase, within):
    """:func:`multiply_add_blocks` of the elements in the mask `real`; where `holes`, only of stored entries.

    The block of element l begins at ``x[offsets[l]]``. Offsets of elements outside `real` must be valid too: they are
    read. Bit j of ``present[l]`` is set where entry j of the block is stored. `offsets` and `present` are pointers.
    """
    size = len(within)

    def codegen(context, builder, signature, args):
        acc_vectors, values_start, x_start, first, real, holes, present_start, phase, _ = args
        stored = []
        with builder.if_else(holes) as (some, none):
            with some:
                bits = llvm.load_vector(builder, present_start, WARP)
                for j in range(size):
                    bit = builder.and_(bits, llvm.splat(builder, bits.type.element(1 << j)))
                    bit = builder.icmp_unsigned("!=", bit, bits.type(None))
                    stored.append([builder.and_(bit, llvm.bits(builder, real))])
                after_some = builder.block
            with none:
                all_real = [llvm.bits(builder, real)]
                after_none = builder.block
        stored = [llvm.phi(builder, (mask, after_some), (all_real, after_none))[0] for mask in stored]

        def offset(element):
            return llvm.index(builder, builder.gep(first, [llvm.I32(element)]))

        step = _Step(values_start, values, x_start, x.dtype, size, offset, stored)
        return step.code(context, builder, acc_vectors, phase)

    return acc(acc, values, x, offsets, types.uint32, types.boolean, present, types.intp, within), codegen


class _Step(NamedTuple):
    """One block of 32 rows, and the code that multiplies it."""

    values: ir.Value  # pointer to the first
    kind: types.Type  # of that pointer
    x: ir.Value  # pointer
    dtype: types.Type  # of x and of the sums
    size: int
    offset: Any  # offset(element): where its block begins in x
    stored: list[ir.Value] | None  # masks of the elements that have entry j of their block; None: all have

    def code(self, context, builder, acc, phase):
        """The sums `acc` plus the products: one case for each row of a block row at which element 0 may stand."""
        after = builder.append_basic_block("after")
        outcomes = []
        with builder.goto_block(builder.append_basic_block("impossible")):
            impossible = builder.block
            builder.unreachable()
        switch = builder.switch(phase, impossible)
        for known_phase in range(0, self.size, math.gcd(self.size, WARP)) if self.size in BLOCK_SIZES else ():
            case = builder.append_basic_block(f"phase.{known_phase}")
            switch.add_case(llvm.I64(known_phase), case)
            builder.position_at_end(case)
            outcomes.append((self._case(context, builder, acc, known_phase), builder.block))
            builder.branch(after)
        builder.position_at_end(after)
        return cgutils.pack_struct(builder, llvm.phi(builder, *outcomes)) if outcomes else acc

    def _case(self, context, builder, acc, phase):
        size, n_parts = self.size, len(llvm.parts(self.dtype))
        stride = 1 << (size * n_parts - 1).bit_length()
        block_row = [(element + phase) // size for element in range(WARP)]
        blocks = [
            llvm.load_padded(builder, self.x, self.offset(element), size * n_parts, stride)
            for element in map(block_row.index, range(block_row[-1] + 1))
        ]
        blocks += [blocks[-1]] * (-len(blocks) % (1 << (len(blocks) - 1).bit_length()))
        entries = llvm.join(builder, blocks)
        sums = cgutils.unpack_tuple(builder, acc)
        for j in range(size):
            spread = [
                llvm.shuffle(builder, entries, entries, [b * stride + j * n_parts + part for b in block_row])
                for part in range(n_parts)
            ]
            if self.stored is not None:
                spread = [builder.select(self.stored[j], vector, vector.type(None)) for vector in spread]
            first = llvm.pointer(context, builder, self.kind, self.values, llvm.I64(WARP * j))
            loaded = llvm.load_values(context, builder, self.kind, first, llvm.real(self.dtype))
            sums = llvm.multiply_add(builder, sums, loaded, spread)
        return sums
