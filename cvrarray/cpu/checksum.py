"""A checksum of memory that is about as fast as memory: zlib's CRC-32 would take longer than sending an array does."""

from __future__ import annotations

import numpy as np

from cvrarray.cpu import simd
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import inlined, kernel

BLOCK = 1 << 13  #: words of 8 bytes that are summed up together
FIRST, SECOND = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)  #: xxHash64's first two primes
LEFT, RIGHT = np.uint64(31), np.uint64(33)  #: a turn by 31 of 64 bits, as xxHash64 has it


def checksum(array: np.ndarray) -> int:
    """64 bits of the contents of a contiguous array. A change within one word of 8 bytes always changes them."""
    content = array.reshape(-1).view(np.uint8)
    n_words = content.size // 8
    n_blocks = -(-n_words // BLOCK)
    sums = np.empty(n_blocks + 1, np.uint64)
    sums[n_blocks] = int.from_bytes(content[n_words * 8 :].tobytes(), "little")
    if n_blocks:
        words = content[: n_words * 8].view(np.uint64)
        threads.run(_sum_blocks, np.arange(n_blocks + 1), words, sums, unit=BLOCK)
    return int(_sum(sums, 0, n_blocks + 1))


@kernel
def _sum_blocks(first, last, words, sums):
    for block in range(first, last):
        sums[block] = _sum(words, block * BLOCK, min((block + 1) * BLOCK, len(words)))


@kernel
def _sum(words, begin, end):
    """The words from `begin` to before `end`: as xxHash64 does it, four at a time, which do not wait for one another."""
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    words = simd.pointer(words, begin)
    for k in range(0, end - begin - 3, 4):
        a, b, c, d = _add(a, words[k]), _add(b, words[k + 1]), _add(c, words[k + 2]), _add(d, words[k + 3])
    for k in range((end - begin) // 4 * 4, end - begin):
        a = _add(a, words[k])
    return _add(_add(_add(a, b), c), d)


@inlined
def _add(total, word):
    """One to one in each of its arguments."""
    total += word * SECOND
    return (total << LEFT | total >> RIGHT) * FIRST
