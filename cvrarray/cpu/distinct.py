"""Values in few bytes on the CPU: finding them, numbering them, and what products take them as.

Values are compared by their bits. A sample comes first, so that a matrix of many different values is hardly looked at.
Its values make a table, in which all values are looked up by hashing; those that are missing go into the table, and all
are looked up once more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cvrarray.core.distinct import MOST, NARROWER, arranged
from cvrarray.core.tables import ValueSample
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import kernel

#: Bytes of values from which it pays to store one value once, and others in fewer bytes: smaller tables lie in the
#: caches, where a look-up takes longer than a load. See ``docs/measurements/values.md``.
ONE_FROM, OTHERS_FROM = 1 << 22, 1 << 24
SAMPLES = (512, 8192)  #: values that are looked at first, evenly spaced; where they are few, so many more
ROUNDS = 8  #: times that all values are numbered, at most, each time with those that were missed before
PART = 1 << 16  #: values that are numbered together
ONE = np.uint64(1)
ODD = 0x9E3779B185EBCA87  #: xxHash64's first prime; times an odd number it makes the next hash


class Hash(NamedTuple):
    """Where values stand in a table: no two of them at one place."""

    known: np.ndarray  # the table's words: unsigned integers, two of 64 bits for a value of 16 bytes
    factor: np.uint64
    shift: np.uint64
    number: np.ndarray  # (n_places,) uint8: that of the value whose hash this is; else any


def encode(data: np.ndarray, known: ValueSample | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """What a conversion takes for the values `data` (nnz,), and what that stands for: see ``distinct`` of the tables.

    What is `known` of them is nothing, on a CPU.

    Returns
    -------
    stored : (nnz,) array
        `data` itself; or numbers, uint8; or the values in a narrower dtype.
    distinct : array or None
        None: `stored` are the values. One element: all of them are it, and `stored` is :func:`nothing`.
    """
    most = most_values(data)
    if data.size and most:
        numbers, distinct = numbered(data, most)
        if distinct is not None:
            return numbers, distinct
    if data.dtype in NARROWER and narrower_pays(data) and (narrow := narrowed(data)) is not None:
        return narrow, np.empty(0, data.dtype)
    return data, None


def nothing(size: int) -> np.ndarray:
    """(size,) numbers uint8, all of them 0, that take no memory."""
    return np.broadcast_to(np.zeros(1, np.uint8), size)


def is_nothing(stored: np.ndarray) -> bool:
    """Whether a conversion is given :func:`nothing` for values: it need not lay them out."""
    return stored.size > 1 and stored.strides == (0,)


def most_values(data: np.ndarray) -> int:
    """Different values up to which it pays to store them apart: 0, 1 or MOST.

    Numbers pay for real values of 8 bytes alone: those of 4 come from memory as fast as numbers are looked up, and
    complex ones are looked up one by one.
    """
    if data.itemsize == 8 and data.dtype.kind != "c" and data.nbytes >= OTHERS_FROM:
        return MOST
    return 1 if data.nbytes >= ONE_FROM else 0


def narrower_pays(data: np.ndarray) -> bool:
    """Whether it pays to store values in half the bytes, where all of them have such a value."""
    return data.nbytes >= OTHERS_FROM


def numbered(data: np.ndarray, most: int = MOST) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers (nnz,) uint8 for the values `data`, and the table of what they stand for; None where they are above
    `most`.
    """
    for n in SAMPLES:
        different = _different(data[:: max(1, data.size // n)])
        if different.size > most:
            return data, None
    if different.size == 1 and arranged(different) is different:
        missed = _other_than(data, different)
        if not missed.size:
            return nothing(data.size), different
        different = _different(np.concatenate([different, data[missed]]))
    numbers = memory.empty(data.size, np.uint8)
    for _ in range(ROUNDS):
        table = arranged(different) if different.size <= most else None
        if table is None or table.size > most:
            break
        missed = _number(data, table, numbers, most)
        if not missed.size:
            return numbers, table
        different = _different(np.concatenate([different, data[missed]]))
    return data, None


def _other_than(data: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The first place of each part whose value is not that of `value`; none where all are that."""
    words, n_words = _words(data)
    first = np.empty(-(-data.size // PART), np.int64)
    threads.run(
        _find_others, np.arange(first.size + 1), words, _words(value)[0], n_words, first, unit=PART, least=threads.QUICK
    )
    found: np.ndarray = first[first >= 0]
    return found


def _number(data: np.ndarray, table: np.ndarray, numbers: np.ndarray, most: int) -> np.ndarray:
    """Set `numbers` to where values stand in the table; the places of some that do not, if there are such."""
    words, n_words = _words(data)
    n_parts = -(-data.size // PART)
    count, listed = np.zeros(n_parts, np.int64), np.empty((n_parts, most), np.int64)
    threads.run(_number_parts, np.arange(n_parts + 1), words, n_words, _hash(table), numbers, count, listed, unit=PART)
    missed: np.ndarray = listed[np.arange(most) < count[:, None]]
    return missed


def _hash(table: np.ndarray) -> Hash:
    """A hash without collisions: with as many places as pairs of values, most factors make one."""
    known, n_words = _words(table)
    words = known.astype(np.uint64).reshape(-1, n_words)
    n_bits = max(1, 2 * (table.size - 1).bit_length())
    for k in range(1, 1 << 20, 2):
        factor, shift = np.uint64(ODD * k % 2**64), np.uint64(64 - n_bits)
        mixed = words[:, 0] if n_words == 1 else words[:, 0] ^ (words[:, 1] * factor >> np.uint64(1))
        at = mixed * factor >> shift
        number = np.zeros(1 << n_bits, np.uint8)
        number[at] = np.arange(table.size)
        if np.array_equal(number[at], np.arange(table.size)):
            break
    return Hash(known, factor, shift, number)


def narrowed(data: np.ndarray) -> np.ndarray | None:
    """The values in the narrower dtype, where that changes no bit of them; else None."""
    narrower = NARROWER[data.dtype]
    sample = data[:: max(1, data.size // SAMPLES[0])]
    if not _same_bits(sample.astype(narrower).astype(data.dtype), sample):
        return None
    narrow = memory.empty(data.size, narrower)
    for begin in range(0, data.size, PART):
        part = data[begin : begin + PART]
        narrow[begin : begin + PART] = part
        if not _same_bits(narrow[begin : begin + PART].astype(data.dtype), part):
            return None
    return narrow


def values(stored: np.ndarray, distinct: np.ndarray | None, dtype: np.dtype) -> Any:
    """Stored values as kernels that multiply in `dtype` take them: an array, or a tuple of :mod:`cvrarray.cpu.simd`."""
    if distinct is None or not distinct.size:
        return memory.values(stored)
    is_complex = distinct.dtype.kind == "c"
    table = memory.empty(MOST if distinct.size > 1 else 1, dtype if is_complex else np.empty(0, dtype).real.dtype)
    table[:] = 0
    table[: distinct.size] = distinct
    return simd.Few(stored, table) if distinct.size > 1 else simd.One(table)


def widened(stored: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The values that :func:`narrowed` ones stand for, in any order."""
    return stored.astype(dtype)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint64), np.ascontiguousarray(b).view(np.uint64))


def _different(data: np.ndarray) -> np.ndarray:
    """The values that differ in their bits, in no order that means anything."""
    data = np.ascontiguousarray(data)
    bits = data.view(np.dtype((np.void, data.itemsize))) if data.itemsize > 8 else memory.bits(data)
    if (bits == bits[0]).all():  # often so; sorting takes ten times as long
        return data[:1].copy()
    return np.unique(bits).view(data.dtype)


def _words(data: np.ndarray) -> tuple[np.ndarray, int]:
    """Values as unsigned integers, and how many of these each is: 2 of 64 bits for 16 bytes."""
    return (data.view(np.uint64), 2) if data.itemsize > 8 else (memory.bits(data), 1)


@kernel
def _find_others(first, last, words, word, n_words, found):
    """found[part] = the first place in a part whose value is not `word`; -1: none."""
    n, words = len(words) // n_words, simd.pointer(words, 0)
    for part in range(first, last):
        begin, end = part * PART, min((part + 1) * PART, n)
        found[part] = -1
        unlike = 0
        if n_words == 1:
            here, only = simd.pointer(words, begin), word[0]
            for i in range(end - begin):  # without a way out, so it compiles to vector instructions
                unlike |= here[i] != only
        else:
            for i in range(begin, end):
                unlike |= (words[2 * i] != word[0]) | (words[2 * i + 1] != word[1])
        i = begin
        while unlike and found[part] < 0:
            if words[n_words * i] != word[0] or words[n_words * (i + 1) - 1] != word[n_words - 1]:
                found[part] = i
            i += 1


@kernel
def _number_parts(first, last, words, n_words, table, numbers, count, listed):
    """The number of each value in `table`; ``count[part]`` and ``listed[part]`` tell of those that are not in it.

    A part is left where its list is full.
    """
    known, number, factor, shift = simd.pointer(table.known, 0), simd.pointer(table.number, 0), table.factor, table.shift
    words, numbers, n_values = simd.pointer(words, 0), simd.pointer(numbers, 0), len(numbers)
    for part in range(first, last):
        n = 0
        for i in range(part * PART, min((part + 1) * PART, n_values)):
            if n_words == 1:
                word = words[i]
                found = number[np.int64(np.uint64(word) * factor >> shift)]
                missed = known[found] != word
            else:
                low, high = words[2 * i], words[2 * i + 1]
                mixed = np.uint64(low) ^ np.uint64(high) * factor >> ONE
                found = number[np.int64(mixed * factor >> shift)]
                missed = known[2 * found] != low or known[2 * found + 1] != high
            numbers[i] = found
            if missed:
                listed[part, n] = i
                n += 1
                if n == listed.shape[1]:
                    break
        count[part] = n
