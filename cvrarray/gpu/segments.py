"""``A @ x`` by segments of columns, for CVR arrays of few long rows over many columns.

Each nonzero of such a matrix gathers an entry of x from L2: its row has none nearby, and other rows that need the same
entry are far away. So the nonzeros are copied in the order of segments of columns. A multiprocessor keeps a segment of
x in shared memory, and sums up what rows have in it: their pieces, long ones in parts. The sums of a row's parts are
then added in the order of segments. After S. Yesil, A. Heidarshenas, A. Morrison, J. Torrellas, "Speeding Up SpMV for
Power-Law Graph Analytics by Enhancing Locality & Vectorization", SC 2020, whose segments are for a CPU's cache.
Measured: ``docs/measurements/gpu-products.md``.

The order of sums is another one than without. So it is the structure alone that decides, before the first product; and
where memory is short, an error says so, for the plain product has other bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.arrays import Run
from ..core.remembered import Remembered
from ..core.tables import CSR, WARP, CVRTables
from . import copied, cut_rows, memory, prefix
from .captures import aside, synchronize
from .compiler import PLAIN_ROWS_OF_X, PRODUCTS, Kernel, allowed
from .cvr_tables import n_slots
from .launches import NULL, blocks, scaling, struct
from .look import host
from .properties import processors
from .shared_memory import THREADS, shared_memory
from .streams import Scratch

BLOCK = 256
SHARES = 8  # warps that share the segments of a row
#: Nonzeros of a lane that are loaded before the first is multiplied, by the product's item size.
UNROLL = {1: 4, 2: 4, 4: 4, 8: 4, 16: 2}
MOST_COLUMNS = 1 << 16  # of a segment: columns have 16 bits
LEAST_NONZEROS = 1 << 22  # fewer are not worth a second launch
MOST_SLOTS = 1 << 30  # a copy of more, and WHILE_MADE bytes for each, would be too much
WHILE_MADE = 24  # bytes of a slot, while the copy is made
LEAST_LENGTH = 48  # nonzeros of a piece, on average
FAR = 4  # columns between neighbours in a row, that count as far apart
LONGEST = 1024  # nonzeros of a part of a piece
#: Bytes of the nonzeros over those of all segments that are loaded, at least: one for each multiprocessor.
WORTH_IT = 1.5
#: Segments are narrower than they must be, for less to load, while their pieces have LONG_ENOUGH nonzeros, and each is
#: for as many multiprocessors: few have to load two.
LONG_ENOUGH, PROCESSORS_A_SEGMENT = 256, 2

PARTS = Kernel("segments", "segments_parts")
MATVEC = Kernel(
    "segments",
    "segments_matvec",
    PRODUCTS + PLAIN_ROWS_OF_X,
    lambda value, product: (value, product, UNROLL[product.itemsize], THREADS),
)
FINISH = Kernel(
    "segments", "segments_finish", [(product,) for _, product in PRODUCTS + PLAIN_ROWS_OF_X], lambda product: (product, SHARES)
)


#: By the table of a structure: each kind of product asks.
_SCATTERED = Remembered()


class Cut(NamedTuple):
    """How columns are cut into segments."""

    n_segments: int
    width: int


def cut(t: CVRTables, dtype: np.dtype) -> Cut | None:
    """The segments for a matrix; None where these are not for it: see the module's page.

    Its columns are far apart, and x does not fit shared memory as a whole. Its rows have LEAST_LENGTH nonzeros in a
    segment, and it has so many that loading the segments counts little beside them.
    """
    n_rows, n_cols = t.shape
    most = max(1, min(MOST_COLUMNS, shared_memory() // dtype.itemsize))
    if n_cols <= most or not LEAST_NONZEROS <= t.nnz <= n_slots(t) < MOST_SLOTS:
        return None
    n_filled = n_rows - t.empty_row.size
    n_segments = max(-(-n_cols // most), min(processors() // PROCESSORS_A_SEGMENT, t.nnz // (LONG_ENOUGH * n_filled)))
    width = -(-n_cols // n_segments)
    loaded = processors() * width * dtype.itemsize
    is_long = t.nnz >= LEAST_LENGTH * n_filled * n_segments and n_rows * n_segments <= t.nnz
    if not is_long or t.nnz * (_values(t).dtype.itemsize + 2) < WORTH_IT * loaded or not _are_scattered(t):
        return None
    return Cut(-(-n_cols // width), width)


def _are_scattered(t: CVRTables) -> bool:
    """Are the columns of most chunks so far apart that few nonzeros of a row share a sector of x?"""

    def find() -> bool:
        with aside():
            base, carry = t.col_base.get(), t.carry_row.get()
        follows = (carry[1:] >= 0) & (base[:-1] >= 0) & (base[1:] >= base[:-1])  # the next chunk goes on in the same row
        distance = (base[1:] - base[:-1])[follows] / (t.nnz / base.size)
        return bool(2 * (np.count_nonzero(base < 0) + np.count_nonzero(distance >= FAR)) >= base.size)

    scattered: bool = _SCATTERED.of(t.col_base, "scattered", find)
    return scattered


def _values(t: CVRTables) -> cupy.ndarray:
    """An array of the dtype of the matrix's values, however they are stored."""
    return t.val if t.distinct is None else t.distinct


class Layout:
    """Which slot each nonzero comes from, in the order of pieces, and where parts begin: 6 bytes a nonzero."""

    def __init__(self, of: Cut, nonzeros: CSR):
        """`nonzeros`: the number of each one's slot, from 1."""
        (n_rows, n_cols), nnz = nonzeros.shape, nonzeros.indices.size
        cut, n_pieces, longest = (of.n_segments, of.width, 0), of.n_segments * n_rows, np.int64(LONGEST)
        sums = cut_rows.counted(nonzeros, cut)
        self.source, self.col = cupy.empty(nnz, np.int32), cupy.empty(nnz, np.uint16)
        cut_rows.fill(nonzeros, cut, sums, NULL, self.col, self.source, NULL)
        of_piece, (pointer, numbers) = sums[: n_pieces + 1], host()
        part_of = prefix.parts(of_piece, LONGEST, 0, pointer)
        synchronize()
        self.n_parts = int(numbers[0])
        ptr = cupy.empty(self.n_parts + 1, np.int64)
        PARTS()(blocks(n_pieces + 1, BLOCK), (BLOCK,), (of_piece, part_of, np.int64(n_pieces), longest, ptr))
        self.struct = struct(part_of, ptr, n_rows, n_cols, of.n_segments, of.width, nnz)


def product(t: CVRTables, dtype: np.dtype, of: Cut, nonzeros: Callable[[], CSR]) -> Run:
    """``run(x, y, alpha, beta)``, as that of ``gpu.cvr``; ``nonzeros()`` is the CSR of the slots' numbers, from 1.

    Raises
    ------
    MemoryError
        The device has none for the copy.
    """
    scratch, n_rows = Scratch(), t.shape[0]
    try:
        layout, values = copied.prepared(t, ("segments", of), lambda: Layout(of, nonzeros()), in_full=True)
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise MemoryError(_too_little(t)) from error
    multiply = allowed(MATVEC(values.copy.dtype, dtype), shared_memory())
    finish, grid, bins, in_shared = FINISH(dtype), (processors(),), blocks(n_rows, WARP), of.width * dtype.itemsize

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        sums = scratch.empty(layout.n_parts, dtype)
        multiply(grid, (THREADS,), (layout.struct, values.copy, layout.col, x, sums), shared_mem=in_shared)
        finish(bins, (SHARES * WARP,), (layout.struct, sums, y, *scaling(alpha, beta)))

    run.renew = values.renew  # type: ignore[attr-defined]
    return run


def _too_little(t: CVRTables) -> str:
    """What the copy needs, what there is, and what to do."""
    free = memory.free(cupy.cuda.runtime.getDevice())
    made, kept = WHILE_MADE * n_slots(t), (6 + _values(t).dtype.itemsize) * t.nnz
    return (
        f"CVR multiplies few long rows over many columns by a copy of their {t.nnz:,} nonzeros, which needs "
        f"{made / 1e9:,.2g} GB while it is made and {kept / 1e9:,.2g} GB then; the device has {free / 1e9:,.2g} GB. "
        "Free memory there, or name the other format, which needs no copy: cvrarray.asarray(A, format='bbcsr')"
    )
