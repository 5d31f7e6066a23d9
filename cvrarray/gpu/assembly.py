"""Value tables on the GPU from values in any order. The same functions as :mod:`cvrarray.cpu.assembly`."""

from __future__ import annotations

import cupy
import numpy as np

from ..core.tables import Sources
from . import sorting
from .compiler import Kernel
from .launches import blocks, strided
from .words import WORDS, as_words

BLOCK = 256
SLOTS, TERMS, UNITS = 4, 3, 2  # of a thread, that are loaded at once
#: Bytes of a unit up to which a thread holds it, and its terms, in registers.
MOST_HELD = 64
#: What sums are compiled for: dtypes of values and of their numbers.
SUMMED = [("float64", "int64")] + [
    (value, "int32") for value in ("bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128")
]

GATHER = Kernel(
    "assembly",
    "assembly_gather",
    [(word, number) for word in WORDS.values() for number in ("int32", "int64")],
    lambda word, number: (word, number, SLOTS),
)
ADD = Kernel(
    "assembly",
    "assembly_add",
    SUMMED,
    lambda value, number: (value, number, TERMS),
)
ADD_STEPS = Kernel(
    "assembly",
    "assembly_add_steps",
    SUMMED,
    lambda value, number: (value, number, TERMS),
)
ADD_UNITS = Kernel(
    "assembly",
    "assembly_add_units",
    [(value, number, size) for value, number in SUMMED for size in (2, 3, 6)],
    lambda value, number, size: (value, number, size, UNITS),
)
FINGERPRINT = Kernel("assembly", "assembly_fingerprint", [("uint8",), ("uint32",), ("uint64",)])


def sort(row: cupy.ndarray, col: cupy.ndarray, shape: tuple[int, int]) -> tuple[cupy.ndarray, cupy.ndarray]:
    """The order of places by row, then column, equal ones as they come; and where in it each different place begins.

    row, col : (n,) integers in range; the order is (n,) int64, the beginnings (n_places + 1,) int64.
    """
    if not row.size:
        return cupy.empty(0, np.int64), cupy.zeros(1, np.int64)
    buckets = sorting.in_buckets(row, col, shape)
    if buckets is not None:
        entries = buckets.sorted()
        return entries.order(), entries.starts()
    order, _, _, starts = sorting.grouped(row, col, shape)
    return order, starts


def fingerprint(*arrays: cupy.ndarray) -> tuple[int, ...]:
    """64 bits of the contents of each: others have others, but for one chance in 2^64. It waits for the device."""
    found = cupy.zeros(len(arrays), np.uint64)
    for k, array in enumerate(arrays):
        words = as_words(cupy.ascontiguousarray(array))
        if words.size:
            FINGERPRINT(words.dtype)(strided(words.size), (BLOCK,), (words, np.int64(words.size), found[k:]))
    return tuple(found.get().tolist())


def place(sources: Sources, data: cupy.ndarray, values: cupy.ndarray) -> None:
    """Write the value table `values` from `data`, of its dtype: what each slot is the sum of."""
    source, first, order, unit = sources
    size, number = np.int64(source.size), source.dtype
    if first is None:
        data, values = as_words(data), as_words(values)
        grid = blocks(source.size, BLOCK * SLOTS)
        GATHER(values.dtype, number)(grid, (BLOCK,), (source, size, np.int32(unit), data, values))
    elif order is None:
        sizes = blocks(values.size, BLOCK), (BLOCK,)
        ADD_STEPS(values.dtype, number)(*sizes, (first, np.int64(values.size), source, data, values))
    elif 1 < unit <= MOST_HELD // values.itemsize:
        sizes = blocks(source.size, BLOCK // 2), (BLOCK // 2,)
        ADD_UNITS(values.dtype, number, unit)(*sizes, (source, size, first, order, data, values))
    else:
        grid = blocks(source.size, BLOCK)
        ADD(values.dtype, number)(grid, (BLOCK,), (source, size, np.int32(unit), first, order, data, values))
