"""Dense matrices in C order: CuPy's copy from Fortran order writes a number of a row at a time, up to 6 times as slowly."""

from __future__ import annotations

import cupy
import numpy as np

from .compiler import Kernel
from .words import WORDS, as_words

THREADS = 256  # of a block
TILE = 2304  # elements of the shared memory of a block
MOST, NARROW = 2048, 32  # elements of a tile; columns of one with many rows

TO_C_ORDER = Kernel("order", "to_c_order", [(word,) for word in WORDS.values()], lambda word: (word, THREADS, TILE))


def c_order(x: cupy.ndarray, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """A matrix in Fortran order, copied to C order: to `out`, or to a new array."""
    n_rows, n_cols = x.shape
    y = cupy.empty(x.shape, x.dtype) if out is None else out
    rows, cols = tile(n_rows, n_cols)
    n_row_tiles = -(-n_rows // rows)
    words = as_words(x.T)  # in C order, as views need it
    TO_C_ORDER(words.dtype)(
        (n_row_tiles * -(-n_cols // cols),),
        (THREADS,),
        (words, y, np.int64(n_rows), np.int64(n_cols), np.int32(rows), np.int32(cols), np.uint32(n_row_tiles)),
    )
    return y


def tile(n_rows: int, n_cols: int) -> tuple[int, int]:
    """Rows and columns of a tile: as many columns as there are, up to NARROW; more where there are few rows."""
    cols = min(n_cols, NARROW)
    rows = min(n_rows, MOST // cols, THREADS)
    return rows, min(n_cols, max(cols, min(MOST // rows, THREADS)))
