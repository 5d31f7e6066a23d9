"""A checksum of memory that is about as fast as memory: zlib's CRC-32 would take longer than sending an array does.

As in Fletcher's checksum (J. G. Fletcher, "An Arithmetic Checksum for Serial Transmissions", IEEE Trans. Commun. 30(1),
1982) a block has two sums: of its words, and of its words times their places. Here they are exact integers, so that a
change of one word or two of a block always changes one of them. The loop over words compiles to vector instructions.
"""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import WARP
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import inlined, kernel

BLOCK = 1 << 14  #: words of 4 bytes that are summed up together: more could exceed the 64 bits of a sum
LINES = 1 << 8  #: words between two prefetches
AHEAD = 1 << 10  #: words from the one that is added to the one that is prefetched
FIRST, SECOND = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)  #: xxHash64's first two primes
LEFT, RIGHT = np.uint64(31), np.uint64(33)  #: a turn by 31 of 64 bits, as xxHash64 has it


def checksum(array: np.ndarray) -> int:
    """64 bits of the contents of a contiguous array."""
    content = array.reshape(-1).view(np.uint8)
    n_words = content.size // 4
    n_blocks = -(-n_words // BLOCK)
    sums = np.empty(2 * n_blocks + 1, np.uint64)
    sums[-1] = int.from_bytes(content[4 * n_words :].tobytes(), "little")
    if n_blocks:
        words = content[: 4 * n_words].view(np.uint32)
        threads.run(_sum_blocks, np.arange(n_blocks + 1), words, sums, unit=BLOCK)
    return int(_mix(sums))


@kernel
def _sum_blocks(first, last, words, sums):
    for block in range(first, last):
        sums[2 * block], sums[2 * block + 1] = _sum(words, block * BLOCK, min((block + 1) * BLOCK, len(words)))


@kernel
def _sum(words, begin, end):
    """The words from `begin` to before `end`: their sum, and that of each times its place."""
    total, weighted = np.uint64(0), np.uint64(0)
    for start in range(begin, end, LINES):
        for line in range(start + AHEAD, start + AHEAD + LINES, WARP):
            simd.prefetch(words, line, simd.INTO_L1)
        line_total, line_weighted = _sum_lines(simd.pointer(words, start), min(LINES, end - start))
        total += line_total
        weighted += line_weighted + np.uint64(start - begin) * line_total
    return total, weighted


@inlined
def _sum_lines(words, n):
    total, weighted = np.uint64(0), np.uint64(0)
    for k in range(n):
        word = np.uint64(words[k])
        total += word
        weighted += word * np.uint64(np.uint32(k))
    return total, weighted


@kernel
def _mix(sums):
    """All sums in order, by a function that is one to one in each of them."""
    total = FIRST
    for k in range(len(sums)):
        total += sums[k] * SECOND
        total = (total << LEFT | total >> RIGHT) * FIRST
    return total
