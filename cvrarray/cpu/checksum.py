"""A checksum of memory that is about as fast as memory: of structures that are compared by it.

Words of 8 bytes are dealt out to 32 sums, each of which is turned and multiplied before the next word is added, as
xxHash64 does it: vectors that do not wait for one another. All processors come to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from cvrarray.cpu import simd
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel
from cvrarray.cpu.simd import words

BLOCK = 1 << 13  #: words of 8 bytes that are summed up together
LANES = 32  #: sums
STRIPE = 8 * LANES  #: bytes that are added together
AHEAD = 4096  #: bytes from those that are added to those that are prefetched
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
    for lane in range(LANES):
        lanes[lane] = np.uint64(lane + 1)
    n, at = end - begin, 0
    while at + STRIPE <= n:
        for line in range(at + AHEAD, at + AHEAD + STRIPE, 64):
            simd.prefetch(of, line, simd.INTO_L1)
        for lane in range(LANES):  # without a way out, so it compiles to vector instructions
            lanes[lane] = _add(lanes[lane], words.load_word(of, at + 8 * lane))
        at += STRIPE
    total = lanes[0]
    for lane in range(1, LANES):
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
