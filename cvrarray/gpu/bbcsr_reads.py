"""Which parts of `x`, or of a column of X, the rows of a BBCSR's bins read at a time: a sample on the GPU tells."""

from __future__ import annotations

import cupy
import numpy as np

from ..core.matmat_kernels import LINE, SECTOR
from ..core.remembered import Remembered
from ..core.tables import WARP, BBCSRTables
from .bbcsr_tables import is_wide, mean_blocks
from .captures import aside
from .compiler import Kernel

SAMPLED = 16, 8  #: bins, and steps of each, that are looked at
APART = 0.8  #: parts that rows read at a step, over their entries there: from then on each reads others
#: Warps read alike in rows of more than ALIKE_FROM entries, where bins have at most so much padding.
ALIKE_FROM, MOST_PADDING = 16, 0.25

SAMPLED_COLUMNS = Kernel("bbcsr_matvec", "bbcsr_sampled_columns", [("int32",), ("int64",)])

#: By the table of a structure: each kind of product asks.
_SAMPLES = Remembered()


def sampled_columns(t: BBCSRTables) -> np.ma.MaskedArray:
    """Block columns of the rows of some bins at some steps, (bins, steps, WARP), padding masked."""
    n_bins = t.col_base.size

    def find() -> np.ma.MaskedArray:
        with aside():
            columns = cupy.empty((*SAMPLED, WARP), t.col_wide.dtype)
            SAMPLED_COLUMNS(columns.dtype)(
                SAMPLED,
                (WARP,),
                (t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, np.int64(n_bins), np.int32(t.block_size),
                 columns),
            )  # fmt: skip
            return np.ma.masked_less(columns.get(), 0)

    return _SAMPLES.of(t.bin_rowptr, "columns", find) if n_bins else np.ma.masked_all((0, SAMPLED[1], WARP), t.col_wide.dtype)


def reads_apart(t: BBCSRTables, itemsize: int, n_bytes: int = SECTOR) -> bool:
    """Do the rows of a bin, of single columns, read other parts of `x` each, of so many bytes?"""
    columns = sampled_columns(t)
    return bool(_n_read(columns, n_bytes // min(n_bytes, itemsize)).sum() > APART * columns.count())


def reads_alike(t: BBCSRTables) -> bool:
    """Do warps that are as far along in their bins read the same part of `x`, whichever bins these are?

    They do where columns are anywhere, not where bins have columns near their own rows, or in diagonals. A sample
    tells: of 32 rows' columns at a step of a bin, the spread is larger than that of their means over bins. Nor where
    rows of a bin are uneven: much of it is padding then, and long bins end last if few warps share them.
    """
    if not is_wide(t) or mean_blocks(t) <= ALIKE_FROM:
        return False
    columns = sampled_columns(t)
    if np.ma.getmaskarray(columns).mean() > MOST_PADDING:
        return False
    return bool(columns.mean(axis=2).std(axis=0).mean() < columns.std(axis=2).mean())


def lines_of_a_step(t: BBCSRTables, itemsize: int) -> float:
    """Cache lines of a column of X that the rows of a bin read at a time, on average."""
    n_read = _n_read(sampled_columns(t) * t.block_size, LINE // itemsize)
    return float(n_read.sum() / max(1, np.count_nonzero(n_read)))


def _n_read(columns: np.ma.MaskedArray, together: int) -> np.ndarray:
    """(bins, steps) different groups of so many neighbouring columns, among those of rows; padding reads none."""
    groups = np.sort(columns.filled(-1) // together, axis=2)
    n_read: np.ndarray = np.count_nonzero(np.diff(groups, axis=2, prepend=-1), axis=2)
    return n_read
