"""BBCSR's tables on the GPU as a canonical CSR: the host's side of ``kernels/bbcsr_rows.cu``.

The rows of a bin lie in order, so nothing is sorted: one kernel counts, and after a prefix sum one copies.
"""

from __future__ import annotations

import cupy
import numpy as np

from ..core.tables import CSR, WARP, BBCSRTables, mask_dtype
from . import prefix
from .bbcsr_tables import BLOCK
from .compiler import Kernel
from .launches import Struct, blocks, struct
from .words import WORDS, as_words

UNROLL = 4  # slots of a row that are loaded before the first is stored

INDICES_AND_MASKS = [(index, mask) for index in ("int32", "int64") for mask in ("uint8", "uint16", "uint32")]
LENGTHS = Kernel("bbcsr_rows", "bbcsr_row_lengths", INDICES_AND_MASKS)
BLOCKS_OF_ROWS = Kernel("bbcsr_rows", "bbcsr_blocks_of_rows", INDICES_AND_MASKS)
ROWS = Kernel(
    "bbcsr_rows",
    "bbcsr_rows",
    [("int32", "uint8", word) for word in WORDS.values()] + [("int64", "uint32", "uint64"), ("int32", "uint16", "uint32")],
    lambda index, mask, word: (index, mask, word, UNROLL),
)


def to_csr(tables: BBCSRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last), numbered as the tables have them; it waits once.

    The tables may be those of some bins, with the columns of all.
    """
    t, index, mask = tables, tables.col_wide.dtype, mask_dtype(tables.block_size)
    n_bins, rows = t.col_base.size, (np.int64(first), np.int64(last))
    bins, grid, n = _struct(t), blocks(n_bins * WARP, BLOCK), last - first + 1
    counts = cupy.zeros(n + prefix.n_states(n), np.int64)
    if n_bins:
        LENGTHS(index, mask)(grid, (BLOCK,), (bins, *rows, counts[1:]))
    indptr = prefix.sums(counts, n)
    nnz = int(indptr[-1])
    indices, data = cupy.empty(nnz, index), cupy.empty(nnz, t.data.dtype)
    if nnz:
        values, words = as_words(t.data), as_words(data)
        ROWS(index, mask, words.dtype)(grid, (BLOCK,), (bins, *rows, indptr, values, indices, words))
    return CSR(indptr, indices, data, (last - first, t.shape[1]))


def blocks_of_rows(tables: BBCSRTables) -> cupy.ndarray:
    """(n_bins, 32) int32: how many blocks each row has, padding left out."""
    t, n_bins = tables, tables.col_base.size
    n_blocks = cupy.empty((n_bins, WARP), np.int32)
    if n_bins:
        kernel = BLOCKS_OF_ROWS(t.col_wide.dtype, mask_dtype(t.block_size))
        kernel(blocks(n_bins * WARP, BLOCK), (BLOCK,), (_struct(t), n_blocks))
    return n_blocks


def _struct(t: BBCSRTables) -> Struct:
    return struct(t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.present, t.col_base.size, t.block_size)
