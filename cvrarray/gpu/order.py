"""Dense matrices in C order: CuPy's copy from Fortran order writes a number of a row at a time, up to 6 times as slowly."""

from __future__ import annotations

import cupy
import numpy as np

from .compiler import Kernel
from .launches import blocks
from .words import WORDS, as_words

THREADS = {1: 128, 2: 128, 4: 128, 8: 256, 16: 256}  # of a block, by the size of an element
TILE = 2304  # elements of the shared memory of a block
MOST, NARROW = 2048, 32  # elements of a tile; columns of one with many rows
#: Bytes of a row that a thread reads, at most, where a block has so many of them.
BYTES_OF_FEW, THREADS_OF_FEW = 128, 256

TO_C_ORDER = Kernel(
    "order",
    "to_c_order",
    [(word,) for word in WORDS.values()],
    lambda word: (word, THREADS[word.itemsize], TILE),
)
FEW_TO_C_ORDER = Kernel(
    "order",
    "few_to_c_order",
    [(word, columns) for word in WORDS.values() for columns in (2, 3, BYTES_OF_FEW // word.itemsize) if columns <= NARROW],
    lambda word, columns: (word, columns, THREADS_OF_FEW),
)


def c_order(x: cupy.ndarray, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """A matrix of at least two columns, each of which is contiguous, copied to C order: to `out`, or to a new array."""
    n_rows, n_cols = x.shape
    y = cupy.empty(x.shape, x.dtype) if out is None else out
    words = as_words(x.T)  # whose last axis is contiguous, as views need it
    apart = np.int64(x.strides[1] // x.itemsize)
    if n_cols <= min(NARROW, BYTES_OF_FEW // words.itemsize):
        FEW_TO_C_ORDER(words.dtype, n_cols)(
            blocks(n_rows, THREADS_OF_FEW), (THREADS_OF_FEW,), (words, apart, y, np.int64(n_rows))
        )
        return y
    if not n_rows:
        return y
    threads = THREADS[words.itemsize]
    rows, cols = tile(n_rows, n_cols, threads)
    n_row_tiles = -(-n_rows // rows)
    TO_C_ORDER(words.dtype)(
        (n_row_tiles * -(-n_cols // cols),),
        (threads,),
        (words, apart, y, np.int64(n_rows), np.int64(n_cols), np.int32(rows), np.int32(cols), np.uint32(n_row_tiles)),
    )  # fmt: skip
    return y


def tile(n_rows: int, n_cols: int, threads: int) -> tuple[int, int]:
    """Rows and columns of a tile: as many columns as there are, up to NARROW; more where there are few rows. Where there are
    many, a power of two, so that every one of the threads reads.
    """
    cols = min(n_cols, NARROW)
    rows = min(n_rows, 1 << (min(MOST // cols, threads).bit_length() - 1))
    return rows, min(n_cols, max(cols, min(MOST // rows, threads)))
