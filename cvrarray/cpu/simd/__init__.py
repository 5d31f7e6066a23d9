"""Vectors of 32 numbers in registers, for use inside functions that Numba compiles.

Numba keeps even a small array in memory, which costs a load and a store at every product. A :class:`Vector` is an
LLVM vector instead: ``<32 x double>`` for float64, two vectors (real and imaginary parts) for complex numbers. LLVM
maps it to the registers of the machine: 4 of AVX-512 for 32 float64, 8 of AVX2, 16 of SSE or NEON.

The functions here are Numba intrinsics. Three conventions hold for all of them:

* A *mask* is a uint32: bit l stands for element l of a vector.
* A *width* is a tuple of which only the length counts. A tuple's length is part of its type, so it is known when a
  kernel is compiled: ``store(acc, y, at, width)`` writes ``len(width)`` numbers without a loop. :data:`WHOLE` stands
  for all 32.
* An array and an offset, ``array, at``, may also be a pointer and an offset: see :func:`pointer` and :func:`scratch`.
  Offsets are never negative, and nothing checks them.

``vector`` has the type and its arithmetic; ``masks`` compares integers; ``loads`` what fills vectors, prefetching
included; ``stores`` what writes them; ``blocks`` products with blocks of BBCSR; ``llvm`` the instructions that the
others consist of.
"""

from .blocks import BLOCK_SIZES, multiply_add_blocks, multiply_add_blocks_masked
from .llvm import AVX512, Few, One
from .loads import (
    GATHERS,
    INTO_L1,
    INTO_L2,
    LINE_BYTES,
    LOADS,
    RUNS,
    gather,
    load,
    load_number,
    prefetch,
    take,
)
from .stores import (
    BATCH_ROW,
    SINGLE,
    advance,
    gather_store,
    pointer,
    scale,
    scatter_add,
    scratch,
    store,
    stream,
)
from .vector import (
    WHOLE,
    Vector,
    add,
    add_row,
    add_where,
    bit_set,
    clear,
    highest,
    lowest,
    multiply_add,
    multiply_add_row,
    not_equal_mask,
    zeros,
)

__all__ = [
    "AVX512",
    "BATCH_ROW",
    "BLOCK_SIZES",
    "GATHERS",
    "INTO_L1",
    "INTO_L2",
    "LINE_BYTES",
    "LOADS",
    "RUNS",
    "SINGLE",
    "WHOLE",
    "Few",
    "One",
    "Vector",
    "add",
    "add_row",
    "add_where",
    "advance",
    "bit_set",
    "clear",
    "gather",
    "gather_store",
    "highest",
    "load",
    "load_number",
    "lowest",
    "multiply_add",
    "multiply_add_blocks",
    "multiply_add_blocks_masked",
    "multiply_add_row",
    "not_equal_mask",
    "pointer",
    "prefetch",
    "scale",
    "scatter_add",
    "scratch",
    "store",
    "stream",
    "take",
    "zeros",
]
