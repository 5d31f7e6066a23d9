"""A checksum of memory that is about as fast as memory: of structures that are compared by it.

Words of 8 bytes are dealt out to 64 sums, each of which is turned and multiplied before the next word is added, as
xxHash64 does it: eight vectors of AVX-512 that do not wait for one another. All processors come to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cvrarray.cpu import simd
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel
from cvrarray.cpu.simd import llvm

BLOCK = 1 << 13  #: words of 8 bytes that are summed up together
VECTOR, VECTORS = 8, 8  #: sums of a vector, and vectors
STRIPE = 8 * VECTOR * VECTORS  #: bytes that are added together
SEGMENT = 8 * STRIPE  #: bytes that are prefetched together, while those before them are added
LINE = 64  #: bytes
PRIME = np.uint64(0x9E3779B185EBCA87)  #: xxHash64's first
LEFT, RIGHT = np.uint64(31), np.uint64(33)  #: a turn by 31 of 64 bits, as xxHash64 has it


def checksum(array: np.ndarray) -> int:
    """64 bits of the contents of a contiguous array. A change within one word of 8 bytes always changes them."""
    content = array.reshape(-1).view(np.uint8)
    sum_blocks, sum_up = _kernels()
    n_blocks = -(-content.size // (8 * BLOCK))
    sums = np.empty(n_blocks, np.uint64)
    if n_blocks * BLOCK < 2 * threads.SMALL:
        sum_blocks(0, n_blocks, content, sums)
    else:
        threads.run(sum_blocks, np.arange(n_blocks + 1), content, sums, unit=BLOCK)
    return int(sum_up(content.size, sums))


@cache
def _kernels() -> tuple[Callable[..., None], Callable[..., int]]:
    """The one version of each, also for what is read-only."""
    content, sums = np.empty(0, np.uint8), np.empty(0, np.uint64)
    return compiled(_sum_blocks, 0, 0, content, sums), compiled(_sum_up, 0, sums)


@kernel
def _sum_blocks(first, last, content, sums):
    for block in range(first, last):
        begin, end = block * 8 * BLOCK, min((block + 1) * 8 * BLOCK, len(content))
        sums[block] = _sum(content, begin, end, sums)


@kernel
def _sum_up(n_bytes, sums):
    """The checksum of so many bytes, from the sums of their blocks."""
    total = np.uint64(n_bytes)
    for block in range(len(sums)):
        total = _add(total, sums[block])
    return total


@inlined
def _sum(content, begin, end, like):
    """The sum of the bytes from `begin` to before `end`."""
    of, lanes = simd.pointer(content, begin), simd.scratch(like, (0, 0))
    for lane in range(VECTOR * VECTORS):
        lanes[lane] = np.uint64(lane + 1)
    n, at = end - begin, 0
    while at + STRIPE <= n:
        n_stripes = min(SEGMENT, n - at) // STRIPE
        for ahead in range(at + SEGMENT, min(at + 2 * SEGMENT, n), LINE):
            simd.prefetch(of, ahead, simd.INTO_L1)
        _add_stripes(simd.pointer(of, at), n_stripes, lanes)
        at += n_stripes * STRIPE
    for lane in range(VECTOR, VECTOR * VECTORS):
        lanes[lane % VECTOR] = _add(lanes[lane % VECTOR], lanes[lane])
    total = lanes[0]
    for lane in range(1, VECTOR):
        total = _add(total, lanes[lane])
    while at < n:  # less than a stripe; the last word is filled with 0
        word = np.uint64(0)
        for k in range(min(8, n - at)):
            word |= np.uint64(of[at + k]) << np.uint64(8 * k)
        total = _add(total, word)
        at += 8
    return total


@inlined
def _add(total, word):
    """One to one in each of its arguments."""
    total += word
    return (total << LEFT | total >> RIGHT) * PRIME


@intrinsic
def _add_stripes(typingctx, of, n_stripes, lanes):
    """:func:`_add` each word of stripes to its lane; `of` and `lanes` are pointers."""

    def codegen(context, builder, signature, args):
        of, n_stripes, lanes = args
        vector = ir.VectorType(llvm.I64, VECTOR)
        places = [builder.gep(lanes, [llvm.I64(VECTOR * k)]) for k in range(VECTORS)]
        sums = [cgutils.alloca_once_value(builder, llvm.load_vector(builder, place, VECTOR)) for place in places]
        left, right, prime = (llvm.splat(builder, llvm.I64(int(n)), VECTOR) for n in (LEFT, RIGHT, PRIME))
        with cgutils.for_range(builder, n_stripes, intp=llvm.I64) as loop:
            for k in range(VECTORS):
                at = builder.add(builder.mul(loop.index, llvm.I64(STRIPE)), llvm.I64(8 * VECTOR * k))
                source = builder.bitcast(builder.gep(of, [at]), vector.as_pointer())
                words = builder.load(source, align=1)
                total = builder.add(builder.load(sums[k]), words)
                turned = builder.or_(builder.shl(total, left), builder.lshr(total, right))
                builder.store(builder.mul(turned, prime), sums[k])
        for place, total in zip(places, sums, strict=True):
            builder.store(builder.load(total), builder.bitcast(place, vector.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(of, types.intp, lanes), codegen
