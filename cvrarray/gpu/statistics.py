"""Counts over a CSR in the memory of a GPU. The same functions as in :mod:`cvrarray.cpu.statistics`.

CuPy's own sums and extremes would each be compiled first, for a second or two.
"""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np

from ..core.tables import CSR, WARP, WINDOW
from .compiler import NULL, Kernel, blocks

BLOCK = 256
MOST_SIZES = 8  # that a kernel takes
_POINTERS_AND_INDICES = [(pointer, index) for pointer in ("int32", "int64") for index in ("int32", "int64")]

ROW_LENGTHS = Kernel("csr", "csr_row_lengths", [("int32",), ("int64",)])
ROWS = Kernel("statistics", "statistics_rows", _POINTERS_AND_INDICES)
BLOCKS = Kernel("statistics", "statistics_blocks", _POINTERS_AND_INDICES)
BINS = Kernel("statistics", "statistics_bins")


class Windows:
    """Windows of WINDOW rows of a canonical CSR, `n_counted` of the `n_windows` that it has, evenly spaced.

    `nnz`, `narrow` and ``single_rows[size]`` are those of :class:`cvrarray.cpu.statistics.Windows`.
    """

    def __init__(self, csr: CSR, n_windows: int, n_counted: int):
        self.nnz = self.narrow = 0
        self.single_rows: dict[int, int] = {}
        self._in_groups: dict[int, tuple[int, int]] = {}
        self._csr, self._of = csr, (np.int64(csr.shape[0]), np.int64(n_windows), np.int64(n_counted))

    def count_rows(self, sizes: Sequence[int], found: cupy.ndarray) -> None:
        """Launch what counts nonzeros, those in narrow bins, and blocks of single rows for each of `sizes`."""
        csr, n_bins = self._csr, int(self._of[2]) * (WINDOW // WARP)
        rows = ROWS(csr.indptr.dtype, csr.indices.dtype)
        rows((n_bins,), (WARP * WARP,), (csr.indptr, csr.indices, *self._of, _packed(sizes), found))

    def count_blocks(self, sizes: Sequence[int], counts: cupy.ndarray | np.uint64, found: cupy.ndarray) -> None:
        """Launch what counts blocks, and the most blocks of a row, summed over bins, for each of `sizes` that `counts`
        does not rule out.
        """
        csr, n_counted, packed = self._csr, int(self._of[2]), _packed(sizes)
        stride, n_bins = n_counted * (WINDOW // min(sizes)), n_counted * (WINDOW // WARP)
        n_blocks = cupy.empty(len(sizes) * stride, np.int32)
        BLOCKS(csr.indptr.dtype, csr.indices.dtype)(
            (stride, len(sizes)),
            (BLOCK,),
            (csr.indptr, csr.indices, *self._of, packed, np.int64(stride), counts, n_blocks, found),
        )
        grid = (*blocks(n_bins * WARP, BLOCK), len(sizes))
        BINS()(grid, (BLOCK,), (n_blocks, np.int64(n_bins), packed, np.int64(stride), found))

    def keep(self, sizes: Sequence[int], counts: list[int]) -> None:
        """Pairs of what :meth:`count_blocks` has found."""
        pairs = zip(sizes, counts[::2], counts[1::2], strict=False)
        self._in_groups |= {size: (blocks, slots) for size, blocks, slots in pairs if blocks}

    def in_groups(self, sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The different blocks, and the most blocks of a row, summed over bins, for each of `sizes`."""
        unknown = [size for size in sizes if size not in self._in_groups]
        if unknown:
            found = cupy.zeros(2 * len(unknown), np.int64)
            self.count_blocks(unknown, NULL, found)
            self.keep(unknown, found.get().tolist())
        return {size: self._in_groups[size] for size in sizes}


def survey(csr: CSR, n_windows: int, n_counted: int, sizes: Sequence[int]) -> tuple[tuple[int, int, int, int], Windows]:
    """Slots if bins were padded to their longest row, empty rows, the shortest and the longest row; and windows of rows.

    There is at least one row. It waits for the device once, and later only for blocks that could hardly win.
    """
    n_rows, windows = csr.shape[0], Windows(csr, n_windows, n_counted)
    found = cupy.zeros(4 + 2 + MOST_SIZES + 2 * len(sizes), np.int64)
    in_windows, in_groups = found[4:], found[4 + 2 + MOST_SIZES :]
    ROW_LENGTHS(csr.indptr.dtype)(blocks(n_rows, BLOCK), (BLOCK,), (csr.indptr, np.int64(n_rows), found))
    windows.count_rows(sizes, in_windows)
    windows.count_blocks(sizes, in_windows, in_groups)
    padded, empty, beyond_shortest, longest, windows.nnz, windows.narrow, *counts = found.get().tolist()
    windows.single_rows = dict(zip(sizes, counts[: len(sizes)], strict=True))
    windows.keep(sizes, counts[MOST_SIZES:])
    return (padded, empty, np.iinfo(np.int64).max - beyond_shortest, longest), windows


def _packed(sizes: Sequence[int]) -> np.uint64:
    """Block sizes as the kernels take them: a byte each."""
    assert len(sizes) <= MOST_SIZES
    assert all(WINDOW % size == 0 for size in sizes)
    return np.uint64(sum(size << 8 * k for k, size in enumerate(sizes)))
