"""``A @ X`` with CVR where rows take several lanes of a chunk: rows cut at the same columns.

The lanes of a chunk that share a row have parts of it, at other columns each, so a chunk meets few rows of X twice. So long
rows are cut into pieces, by segments of columns, and the pieces of a segment follow each other. A chunk of these reads rows
of X of one segment, and finds them in L1. The chunks' product has a row for each piece; a second launch adds those of a row
of A, in the order of columns. After the column segments of S. Yesil et al., as in :mod:`.segments`, which is for vectors.

Arrays of one structure share the pieces; each has a copy of its values. The order of sums is another one than without: the
structure and the number of columns alone decide. Measured: ``docs/measurements/matrix-products.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.arrays import Run
from ..core.remembered import Remembered
from ..core.tables import CSR, WARP, CVRTables
from . import copied, prefix, rechunked
from .captures import aside, synchronize
from .compiler import PRODUCTS, Kernel
from .launches import argument, blocks, matrix_grid, matrix_width, scaling, vector_width
from .look import host
from .properties import attribute
from .streams import Scratch

THREADS = 256
SEGMENTS = 8
#: Lanes of a chunk that a row takes to be cut, at least; the nonzeros of such rows over all, and pieces of a chunk, likewise.
LEAST_LANES, LEAST_SHARE, LEAST_PIECES = 3, 0.75, 2
#: Nonzeros of a row of A on average: fewer make more pieces than the rows of X that are met again are worth. Bytes of a row of
#: X, and of those that all nonzeros read.
LEAST_LENGTH, LEAST_ROW_BYTES, LEAST_BYTES = 64, 256, 200_000_000
MOST_SLOTS = 1 << 30  # of the matrix: their numbers take 32 bits

COUNT = Kernel("cut_rows", "cut_rows_count", [("int32",), ("int64",)])
FILL = Kernel("cut_rows", "cut_rows_fill", [(index, column) for index in ("int32", "int64") for column in (index, "uint16")])
FINISH = Kernel(
    "cut_rows",
    "cut_rows_finish",
    [(product, width) for _, product in PRODUCTS for width in (1, vector_width(np.dtype(product)))],
    lambda product, width: (product, width, SEGMENTS),
)

#: By the table of a structure: what cuts would leave.
_COUNTED = Remembered()

#: What makes tables of a CSR of slots' numbers, in so many chunks.
Convert = Callable[[CSR, int], CVRTables]


class Cut(NamedTuple):
    """How rows are cut."""

    n_chunks: int  # of the pieces
    least: int  # nonzeros of a row that is cut
    width: int  # of a segment


class Counted(NamedTuple):
    """The pieces that a cut would make."""

    n_pieces: int
    nnz_cut: int  # nonzeros of the rows that are cut


def cut(t: CVRTables, n_bytes: int, n_chunks: int, nonzeros: Callable[[], CSR]) -> Cut | None:
    """How rows are cut for a product with rows of X of so many bytes, by so many chunks; None where they should stay whole.
    ``nonzeros()`` is the CSR of the slots' numbers, from 1.
    """
    n_rows, n_cols = t.shape
    if n_bytes < LEAST_ROW_BYTES or t.nnz * n_bytes < LEAST_BYTES or t.nnz < LEAST_LENGTH * n_rows:
        return None
    if t.n_lanes != WARP or t.rec_mask.size * WARP >= MOST_SLOTS or (SEGMENTS + 1) * n_rows >= MOST_SLOTS:
        return None
    of = Cut(n_chunks, -(-LEAST_LANES * t.nnz // (n_chunks * WARP)), -(-n_cols // SEGMENTS))
    reads_again = t.nnz > n_chunks * of.width or n_cols * n_bytes > attribute("L2CacheSize")
    if not reads_again:
        return None

    def counted() -> Counted:
        with aside():
            return _count(nonzeros(), of)[1]

    found: Counted = _COUNTED.of(copied.structure(t), of, counted)
    pays = found.nnz_cut >= LEAST_SHARE * t.nnz and found.n_pieces >= LEAST_PIECES * n_chunks
    return of if pays else None


def _count(nonzeros: CSR, of: Cut) -> tuple[cupy.ndarray, Counted]:
    """The sums that :func:`counted` gives, and what they come to."""
    pointer, numbers = host()
    sums = counted(nonzeros, (SEGMENTS, of.width, of.least), pointer)
    synchronize()
    nnz_cut, nnz, everything = (int(numbers[part]) for part in (SEGMENTS - 1, SEGMENTS, 2 * SEGMENTS + 1))
    return sums, Counted(everything - nnz, nnz_cut)


def counted(nonzeros: CSR, of: tuple[int, int, int], host: int = 0) -> cupy.ndarray:
    """Behind a 0, the sums of the kernel's counts up to and with each. `of`: segments, the columns of one, and the nonzeros of
    a row that is cut, at least. `host` is where memory of the host begins that gets the sum at the end of each segment, or 0.
    """
    n_parts = 2 * (of[0] + 1)
    n = n_parts * nonzeros.shape[0]
    counts, sums = cupy.zeros(n + prefix.n_states(n), np.int64), cupy.zeros(1 + n, np.int64)
    COUNT(nonzeros.indices.dtype)(blocks(n // 2, THREADS), (THREADS,), (*_arguments(nonzeros, of), counts))
    prefix.sums(counts, n, host, n_parts, out=sums[1:])
    return sums


def fill(
    nonzeros: CSR, of: tuple[int, int, int], sums: cupy.ndarray, ptr: Any, col: cupy.ndarray, slot: cupy.ndarray, number: Any
) -> None:
    """Put the nonzeros of pieces side by side: `sums` are those of :func:`counted`; the kernel says what the others are."""
    n_pieces = (of[0] + 1) * nonzeros.shape[0]
    FILL(nonzeros.indices.dtype, col.dtype)(
        blocks(n_pieces * WARP, THREADS),
        (THREADS,),
        (*_arguments(nonzeros, of), sums[1:], nonzeros.data, ptr, col, slot, number),
    )


def _arguments(nonzeros: CSR, of: tuple[int, int, int]) -> tuple[Any, ...]:
    """The matrix and its cut, as kernels take them."""
    n_segments, width, least = of
    n_rows = np.int64(nonzeros.shape[0])
    return nonzeros.indptr, nonzeros.indices, n_rows, np.int32(n_segments), np.int64(width), np.int64(least)


class Layout(rechunked.Layout):
    """The pieces' tables, and which pieces each row has."""

    def __init__(self, of: Cut, nonzeros: CSR, convert: Convert) -> None:
        sums, found = _count(nonzeros, of)
        (n_rows, n_cols), index, nnz = nonzeros.shape, nonzeros.indices.dtype, nonzeros.indices.size
        #: (SEGMENTS + 1, n_rows) the piece of a row in each segment, and behind these that of a row that is not cut; -1: none
        self.number = cupy.empty((SEGMENTS + 1) * n_rows, np.int32)
        ptr, col, slot = cupy.empty(found.n_pieces + 1, index), cupy.empty(nnz, index), cupy.empty(nnz, np.int32)
        fill(nonzeros, (SEGMENTS, of.width, of.least), sums, ptr, col, slot, self.number)
        super().__init__(convert(CSR(ptr, col, slot, (found.n_pieces, n_cols)), of.n_chunks))


class Pieces(rechunked.Rearranged):
    """The matrix of `own`, its long rows cut."""

    layout: Layout

    def __init__(self, own: CVRTables, of: Cut, nonzeros: Callable[[], CSR], convert: Convert) -> None:
        too_little = (
            f"A @ X with few long rows needs a copy of their {own.nnz:,} nonzeros, for which the device has no memory. Free"
            " memory there, or name the other format, which needs no copy: cvrarray.asarray(A, format='bbcsr')"
        )
        super().__init__(own, of, lambda: Layout(of, nonzeros(), convert), too_little)
        self._n_rows = own.shape[0]

    def product(self, k: int, dtype: np.dtype, multiply: Callable[[int, int], Run]) -> Run:
        """``run(x, y, alpha, beta)`` of `k` columns; ``multiply(k, width)`` is that of ``tables``, in vectors of `width`."""
        scratch, shape, one, zero = Scratch(), (self.tables.shape[0], k), dtype.type(1), dtype.type(0)
        n_blocks, rows = blocks(self._n_rows * WARP, THREADS)[0], (self.layout.number, argument(np.int64(self._n_rows)))
        columns = argument(np.int32(k))

        @cache
        def finish(width: int) -> Callable[..., None]:
            return partial(FINISH(dtype, width), matrix_grid(n_blocks, -(-k // (WARP * width))), (THREADS,))

        def run(x: cupy.ndarray, y: cupy.ndarray, alpha: np.generic, beta: np.generic) -> None:
            sums = scratch.empty(shape, dtype)
            multiply(k, matrix_width(k, x, sums))(x, sums, one, zero)
            finish(matrix_width(k, y, sums))((*rows, sums, columns, y, *scaling(alpha, beta)))

        return run
