"""Values in few bytes on the GPU: finding them, numbering them, and how kernels take them (``kernels/values.cuh``).

The same functions as :mod:`cvrarray.cpu.distinct`, and the same tables: values are compared by their bits, a sample
comes first, its values make a table, all values are looked up in it, and those that are missing go into the next one.
"""

from __future__ import annotations

import cupy
import numpy as np

from ..core.distinct import MOST, NARROWER, arranged
from ..core.tables import ValueSample
from .compiler import Coded, Kernel
from .launches import strided
from .look import read, sample_of
from .words import WORDS, as_words

#: Bytes of values from which fewer pay: below, tables are in the caches, and a call takes as long as its launch.
LEAST_BYTES = 1 << 24
SAMPLES = (512, 2048)  #: values that are looked at first, evenly spaced; where they are few, so many more
ROUNDS = 8  #: times that all values are numbered, at most, each time with those that were missed before
MISSED = 4096  #: values that one round may miss, before it ends
BLOCK = 256

SAMPLE = Kernel("distinct", "distinct_sample", [()], lambda: (SAMPLES[0], BLOCK))
NUMBER = Kernel("distinct", "distinct_number", [(word,) for word in WORDS.values()], lambda word: (word, MISSED))
NARROW = Kernel("distinct", "distinct_narrow")
WIDEN = Kernel("distinct", "distinct_widen")


def kind(table: cupy.ndarray, distinct: cupy.ndarray | None) -> np.dtype | Coded:
    """What kernels are instantiated for: the dtype of the values where every slot has its own.

    `table` and `distinct` are a matrix's value table and what it stands for: see :mod:`cvrarray.core.tables`. Values in
    a narrower dtype need no kernels of their own, as all products widen.
    """
    if not is_coded(distinct):
        return table.dtype
    return Coded("One" if is_one(distinct) else "Few", distinct.dtype)


def fields(table: cupy.ndarray, distinct: cupy.ndarray | None) -> tuple[cupy.ndarray | int, ...]:
    """The kernels' structure ``Values``."""
    if not is_coded(distinct):
        return (table,)
    return (table, distinct) if is_one(distinct) else (table, distinct, distinct.size)


def shared_bytes(distinct: cupy.ndarray | None) -> int:
    """Shared memory of each block in which kernels look values up, beside their own variables."""
    return MOST * distinct.itemsize if is_coded(distinct) and not is_one(distinct) else 0


def is_coded(distinct: cupy.ndarray | None) -> bool:
    """Does the value table hold numbers of distinct values, or nothing?"""
    return distinct is not None and distinct.size > 0


def is_one(distinct: cupy.ndarray | None) -> bool:
    """Are all values one, so that slots hold nothing?"""
    return distinct is not None and distinct.size == 1


def encode(data: cupy.ndarray, known: ValueSample | None = None) -> tuple[cupy.ndarray, cupy.ndarray | None]:
    """What a conversion takes for the values `data` (nnz,), and what that stands for: see ``distinct`` of the tables.

    It waits for the device, once where the first sample shows that values are many; not then where it is `known`.
    """
    if not may_be_few(data):
        return data, None
    most, may_be_narrow = most_values(data), data.dtype in NARROWER and narrower_pays(data)
    _, n_different, changes = known if known is not None and known.values is data else _sampled(data)
    if n_different <= most:
        numbers, distinct = numbered(data, most)
        if distinct is not None:
            return numbers, distinct
    if may_be_narrow and not changes and (narrow := narrowed(data)) is not None:
        return narrow, cupy.empty(0, data.dtype)
    return data, None


def may_be_few(data: cupy.ndarray) -> bool:
    """Whether it pays to look at the values."""
    return bool(data.size) and bool(most_values(data) or (data.dtype in NARROWER and narrower_pays(data)))


def most_values(data: cupy.ndarray) -> int:
    """Different values up to which it pays to store them apart: 0, 1 or MOST.

    Numbers are half of what values of 2 bytes take, and that with their columns: too little for a look-up.
    """
    if data.nbytes < LEAST_BYTES:
        return 0
    return MOST if data.itemsize >= 4 else 1


def narrower_pays(data: cupy.ndarray) -> bool:
    """Whether it pays to store values in half the bytes, where all of them have such a value."""
    return data.nbytes >= LEAST_BYTES


def begin_sample(data: cupy.ndarray, found: cupy.ndarray) -> None:
    """Have the device look at SAMPLES[0] values, and write what :func:`.look.sample_of` reads to 8 bytes of its memory,
    `found`.
    """
    SAMPLE()((1,), (BLOCK,), (data, np.int64(data.size), np.int32(data.itemsize), data.dtype in NARROWER, found))


def _sampled(data: cupy.ndarray) -> ValueSample:
    """The sample by itself. It waits for the device."""
    found = cupy.empty(1, np.int64)
    begin_sample(data, found)
    return sample_of(data, read(found))


def numbered(data: cupy.ndarray, most: int = MOST) -> tuple[cupy.ndarray, cupy.ndarray | None]:
    """Numbers (nnz,) uint8 for the values `data`, and the table of what they stand for; None where they are above
    `most`.
    """
    different = _different(data[:: max(1, data.size // SAMPLES[1])].get())
    numbers, missed, count = cupy.empty(data.size, np.uint8), cupy.empty(MISSED, np.int64), cupy.empty(1, np.uint32)
    for _ in range(ROUNDS):
        table = arranged(different) if different.size <= most else None
        if table is None or table.size > most:
            break
        known = cupy.asarray(table)
        count.fill(0)
        NUMBER(WORDS[data.itemsize])(
            strided(data.size),
            (BLOCK,),
            (as_words(data), np.int64(data.size), as_words(known), np.int32(table.size), numbers, count, missed),
        )
        n_missed = min(MISSED, int(count[0]))
        if not n_missed:
            return numbers, known
        different = _different(np.concatenate([different, data[missed[:n_missed]].get()]))
    return data, None


def narrowed(data: cupy.ndarray) -> cupy.ndarray | None:
    """The values in the narrower dtype, where that changes no bit of them; else None."""
    wide, n_changed = data.view(np.float64), cupy.zeros(1, np.uint32)
    narrow = cupy.empty(wide.size, np.float32)
    NARROW()(strided(wide.size), (BLOCK,), (wide, np.int64(wide.size), narrow, n_changed))
    if int(n_changed[0]):
        return None
    return narrow.view(NARROWER[data.dtype])


def widened(stored: cupy.ndarray, dtype: np.dtype) -> cupy.ndarray:
    """The values that :func:`narrowed` ones stand for, in any order."""
    narrow, data = cupy.ascontiguousarray(stored), cupy.empty(stored.shape, dtype)
    if data.size:
        n = data.nbytes // 8
        WIDEN()(strided(n), (BLOCK,), (narrow, np.int64(n), data))
    return data


def _different(values: np.ndarray) -> np.ndarray:
    """The values that differ in their bits, in order of these."""
    bits = values.view(np.dtype((np.void, values.itemsize)) if values.itemsize > 8 else f"u{values.itemsize}")
    return np.unique(bits).view(values.dtype)
