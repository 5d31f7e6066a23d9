"""Counts over a CSR in the memory of a GPU. The same functions as in :mod:`cvrarray.cpu.statistics`.

CuPy's own sums and extremes would each be compiled first, for a second or two.
"""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np

from ..core.tables import CSR, WARP, WINDOW, Measured, Wanted
from .compiler import Kernel
from .launches import blocks
from .look import Look, more, packed

BLOCK = 256
_POINTERS_AND_INDICES = [(pointer, index) for pointer in ("int32", "int64") for index in ("int32", "int64")]

BLOCKS = Kernel("statistics", "statistics_blocks", _POINTERS_AND_INDICES)
BINS = Kernel("statistics", "statistics_bins")


class Windows:
    """Windows of WINDOW rows of a canonical CSR, `n_counted` of the `n_windows` that it has, evenly spaced.

    `counts` has their nonzeros, those in narrow bins, sectors and lines of x, and for each of `sizes` the blocks of single
    rows.
    """

    is_part = False  # of the nonzeros of these rows
    measured: Measured | None = None  # bins of blocks of the size that will probably be chosen, once it is known

    def __init__(self, csr: CSR, n_windows: int, n_counted: int, sizes: Sequence[int], counts: list[int]):
        # of bins: the longest rows, summed
        self.nnz, self.narrow, self._longest, self.sectors, self.lines, *of_sizes = counts
        self.single_rows = dict(zip(sizes, of_sizes, strict=False))
        self._csr, self._which = csr, (csr.shape[0], n_windows, n_counted)

    def in_groups(self, sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The different blocks, and the most blocks of a row, summed over bins, for each of `sizes`. It waits for the
        device.

        Where single rows are whole blocks of some of these sizes, the largest of them will probably be chosen. So its
        bins are looked at in the same wait; and where no block of the matrix has a hole, single rows tell the numbers of
        blocks of that size, and of sizes that divide it.
        """
        csr, n_rows = self._csr, self._which[0]
        whole = max((size for size in sizes if self.single_rows[size] * size == self.nnz), default=0)
        told = [size for size in sizes if whole and whole % size == 0 and n_rows % size == 0]
        others = [size for size in sizes if size not in told]
        if not sizes:
            return {}
        if others:
            self._count(others)
        looked = Look(csr.indptr, csr.indices, csr.shape[1], Wanted(block_size=whole), checks=False).found()
        found = dict(zip(others, _pairs(looked.more), strict=False))
        self.measured = looked.measured
        if looked.measured is None and told:
            self._count(told)
            looked = Look(csr.indptr, csr.indices, csr.shape[1], checks=False).found()
            return found | dict(zip(told, _pairs(looked.more), strict=False))
        return found | {size: (self.single_rows[size] // size, self._longest // size) for size in told}

    def _count(self, sizes: Sequence[int]) -> None:
        """Have the device count blocks of several rows; the next :class:`.Look` passes the numbers on."""
        csr, (n_rows, n_windows, n_counted) = self._csr, self._which
        stride, n_bins = n_counted * (WINDOW // min(sizes)), n_counted * (WINDOW // WARP)
        found, of_sizes = more(), np.uint64(packed(tuple(sizes)))
        n_blocks = cupy.empty(len(sizes) * stride, np.int32)
        which = np.int64(n_rows), np.int64(n_windows), np.int64(n_counted)
        BLOCKS(csr.indptr.dtype, csr.indices.dtype)(
            (stride, len(sizes)),
            (BLOCK,),
            (csr.indptr, csr.indices, *which, of_sizes, np.int64(stride), n_blocks, found),
        )
        BINS()(
            (*blocks(n_bins * WARP, BLOCK), len(sizes)),
            (BLOCK,),
            (n_blocks, np.int64(n_bins), of_sizes, np.int64(stride), found),
        )


def _pairs(numbers: list[int]) -> list[tuple[int, int]]:
    """Each second number with the one after it."""
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def survey(
    csr: CSR, n_windows: int, n_counted: int, sizes: Sequence[int], most: int | None = None
) -> tuple[tuple[int, int, int, int], Windows]:
    """Slots if bins were padded to their longest row, empty rows, the shortest and the longest row; and windows of rows.

    There is at least one row. It waits for the device once, unless the check of the CSR has counted that. However `most`
    nonzeros are wanted, all of these rows count: that takes no longer here.
    """
    asked, seen = (n_windows, n_counted, tuple(sizes)), csr.seen.survey
    if seen is None or not seen.is_of(csr) or seen.asked != asked:
        seen = Look(csr.indptr, csr.indices, csr.shape[1], Wanted(asked), checks=False).found().survey
    *lengths, counts = *seen.numbers[:4], seen.numbers[4:]
    return tuple(lengths), Windows(csr, n_windows, n_counted, sizes, counts)
