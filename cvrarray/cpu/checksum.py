"""A checksum of memory that is about as fast as memory: zlib's CRC-32 would take longer than sending an array does."""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import WARP
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import inlined, kernel

BLOCK = 1 << 13  #: words of 8 bytes that are summed up together
LINES = 1 << 7  #: words between two prefetches
AHEAD = 1 << 9  #: words from the one that is added to the one that is prefetched
PRIME = np.uint64(0x9E3779B185EBCA87)  #: xxHash64's first
LEFT, RIGHT = np.uint64(31), np.uint64(33)  #: a turn by 31 of 64 bits, as xxHash64 has it


def checksum(array: np.ndarray) -> int:
    """64 bits of the contents of a contiguous array. A change within one word of 8 bytes always changes them."""
    content = array.reshape(-1).view(np.uint8)
    return _checksum(content, content[:0])


def copied(content: np.ndarray) -> tuple[np.ndarray, int]:
    """A copy of an array of uint8 that begins at a cache line, and the checksum of both: memory is read once."""
    own = memory.empty(content.size, np.uint8)
    rest = content.size // 8 * 8
    own[rest:] = content[rest:]
    return own, _checksum(content, own)


def _checksum(content: np.ndarray, to: np.ndarray) -> int:
    """The checksum of `content`, whose whole words are copied to `to` unless that is empty."""
    n_words = content.size // 8
    n_blocks = -(-n_words // BLOCK)
    sums = np.empty(n_blocks + 1, np.uint64)
    sums[n_blocks] = int.from_bytes(content[n_words * 8 :].tobytes(), "little")
    if n_blocks:
        words, copy = (a[: n_words * 8].view(np.uint64) for a in (content, to))
        threads.run(_sum_blocks, np.arange(n_blocks + 1), words, copy, sums, unit=BLOCK)
    return int(_sum(sums, 0, n_blocks + 1))


@kernel
def _sum_blocks(first, last, words, copy, sums):
    for block in range(first, last):
        begin, end = block * BLOCK, min((block + 1) * BLOCK, len(words))
        if len(copy):
            of, to = simd.pointer(words, begin), simd.pointer(copy, begin)
            for k in range(end - begin):
                to[k] = of[k]
        sums[block] = _sum(words, begin, end)


@kernel
def _sum(words, begin, end):
    """The words from `begin` to before `end`, eight at a time, which do not wait for one another."""
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    e, f, g, h = np.uint64(5), np.uint64(6), np.uint64(7), np.uint64(8)
    whole = end - (end - begin) % 8
    for line in range(begin, whole, LINES):
        for at in range(line + AHEAD, line + AHEAD + LINES, WARP):
            simd.prefetch(words, at, simd.INTO_L1)
        of_line = simd.pointer(words, line)
        for k in range(0, min(LINES, whole - line), 8):
            a, b, c, d = _add(a, of_line[k]), _add(b, of_line[k + 1]), _add(c, of_line[k + 2]), _add(d, of_line[k + 3])
            e, f, g, h = _add(e, of_line[k + 4]), _add(f, of_line[k + 5]), _add(g, of_line[k + 6]), _add(h, of_line[k + 7])
    for k in range(whole, end):
        a = _add(a, words[k])
    return _add(_add(_add(a, b), _add(c, d)), _add(_add(e, f), _add(g, h)))


@inlined
def _add(total, word):
    """One to one in each of its arguments."""
    total += word
    return (total << LEFT | total >> RIGHT) * PRIME
