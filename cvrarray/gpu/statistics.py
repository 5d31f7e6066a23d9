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
WORDS = 4 + 2 + MOST_SIZES  # of what :func:`begin` counts
_POINTERS_AND_INDICES = [(pointer, index) for pointer in ("int32", "int64") for index in ("int32", "int64")]

ROW_LENGTHS = Kernel("csr", "csr_row_lengths", [("int32",), ("int64",)])
ROWS = Kernel("statistics", "statistics_rows", _POINTERS_AND_INDICES)
BLOCKS = Kernel("statistics", "statistics_blocks", _POINTERS_AND_INDICES)
BINS = Kernel("statistics", "statistics_bins")


class Windows:
    """Windows of WINDOW rows of a canonical CSR, `n_counted` of the `n_windows` that it has, evenly spaced.

    `counts` has their nonzeros, those in narrow bins, and for each of `sizes` the blocks of single rows.
    """

    is_part = False  # of the nonzeros of these rows

    def __init__(self, csr: CSR, n_windows: int, n_counted: int, sizes: Sequence[int], counts: list[int]):
        self.nnz, self.narrow, *of_sizes = counts
        self.single_rows = dict(zip(sizes, of_sizes, strict=False))
        self._csr, self._which = csr, (np.int64(csr.shape[0]), np.int64(n_windows), np.int64(n_counted))

    def in_groups(self, sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The different blocks, and the most blocks of a row, summed over bins, for each of `sizes`. It waits for the
        device.
        """
        if not sizes:
            return {}
        csr, n_counted = self._csr, int(self._which[2])
        stride, n_bins = n_counted * (WINDOW // min(sizes)), n_counted * (WINDOW // WARP)
        found, packed = cupy.zeros(2 * len(sizes), np.int64), _packed(sizes)
        n_blocks = cupy.empty(len(sizes) * stride, np.int32)
        BLOCKS(csr.indptr.dtype, csr.indices.dtype)(
            (stride, len(sizes)),
            (BLOCK,),
            (csr.indptr, csr.indices, *self._which, packed, np.int64(stride), n_blocks, found),
        )
        BINS()(
            (*blocks(n_bins * WARP, BLOCK), len(sizes)), (BLOCK,), (n_blocks, np.int64(n_bins), packed, np.int64(stride), found)
        )
        counts = found.get().tolist()
        return dict(zip(sizes, zip(counts[::2], counts[1::2], strict=True), strict=True))


def survey(
    csr: CSR, n_windows: int, n_counted: int, sizes: Sequence[int], most: int | None = None
) -> tuple[tuple[int, int, int, int], Windows]:
    """Slots if bins were padded to their longest row, empty rows, the shortest and the longest row; and windows of rows.

    There is at least one row. It waits for the device once, unless the check of the CSR has counted that. However `most`
    nonzeros are wanted, all of these rows count: that takes no longer here.
    """
    asked, seen = (n_windows, n_counted, tuple(sizes)), csr.seen.survey
    if seen is not None and seen.is_of(csr) and seen.asked == asked:
        numbers = seen.numbers
    else:
        found = cupy.zeros(WORDS, np.int64)
        begin(csr.indptr, csr.indices, asked, found)
        numbers = found.get().tolist()
    padded, empty, beyond_shortest, longest, *counts = numbers
    lengths = padded, empty, np.iinfo(np.int64).max - beyond_shortest, longest
    return lengths, Windows(csr, n_windows, n_counted, sizes, counts)


def empty_rows(csr: CSR) -> int | None:
    """How many rows are empty, where the check of the CSR has counted them."""
    seen = csr.seen.survey
    return seen.numbers[1] if seen is not None and seen.is_of(csr) else None


def begin(
    indptr: cupy.ndarray,
    indices: cupy.ndarray,
    windows: tuple[int, int, tuple[int, ...]],
    found: cupy.ndarray,
    status: cupy.ndarray | np.uint64 = NULL,
) -> None:
    """Have the device count what :func:`survey` gives, into the WORDS words `found`, which are 0.

    `status` is that of a check that is under way: where it finds offsets that are wrong, nothing is counted by them.
    """
    n_rows, (n_windows, n_counted, sizes) = indptr.size - 1, windows
    ROW_LENGTHS(indptr.dtype)(blocks(n_rows, BLOCK), (BLOCK,), (indptr, np.int64(n_rows), found))
    ROWS(indptr.dtype, indices.dtype)(
        (n_counted * (WINDOW // WARP),),
        (WARP * WARP,),
        (indptr, indices, np.int64(n_rows), np.int64(n_windows), np.int64(n_counted), np.int64(indices.size),
         _packed(sizes), status, found[4:]),
    )  # fmt: skip


def _packed(sizes: Sequence[int]) -> np.uint64:
    """Block sizes as the kernels take them: a byte each."""
    assert len(sizes) <= MOST_SIZES
    assert all(WINDOW % size == 0 for size in sizes)
    return np.uint64(sum(size << 8 * k for k, size in enumerate(sizes)))
