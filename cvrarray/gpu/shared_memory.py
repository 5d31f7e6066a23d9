"""Products with shared memory: of ``A @ x`` it holds entries of x, of ``A.T @ x`` the sums of columns.

Where columns are scattered, each nonzero makes a gather of its own from L1 or L2, and these bound the product
(``docs/measurements/gpu-products.md``). Shared memory serves 32 addresses at a time.

* CVR, ``A @ x``: all of x, where it fits. Else the entries of popular columns, those that most nonzeros are in. They
  are worth it where columns are hit unevenly, as in graphs and recommender matrices. The tables then get other column
  numbers, which tell popular columns from the others. After S. Yesil, A. Heidarshenas, A. Morrison, J. Torrellas,
  "Speeding Up SpMV for Power-Law Graph Analytics by Enhancing Locality & Vectorization", SC 2020, which does so on
  CPUs.
* CVR, ``A.T @ x``: the sums of all columns or of the popular ones.
* BBCSR with blocks of 1, ``A.T @ x``: the sums of one segment of columns after the other.

No bit of a product depends on it: sums of ``A.T @ x`` are integers (``kernels/transposed.cuh``), so it does not matter
who adds to them first. Whether it is faster is measured: :mod:`.autotune`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.arrays import Run
from ..core.tables import WARP, BBCSRTables, CVRTables, mask_dtype
from . import distinct, left_in_l2, transposed
from .compiler import PRODUCTS, ROWS_OF_X, STORED, Coded, Kernel, allowed
from .launches import ACCUMULATE, NULL, PLAIN, SCALE, Struct, blocks, struct, update
from .properties import attribute, processors
from .streams import Scratch

THREADS = 1024  # of a block, the only one on its multiprocessor
# steps that are loaded before the first is multiplied, by the product's item size
UNROLL = {1: 8, 2: 8, 4: 8, 8: 4, 16: 2}
BLOCK = 256
SAMPLE = 1 << 21  # columns that are counted
L1_SHARE = 64 << 10  # bytes of shared memory that are left to L1, for the rest of x and the tables
KERNELS_OWN = 1 << 10  # bytes of shared memory that the kernel needs beside x
LEAST_SHARE = 0.25  # of the gathers that popular columns must serve
MOST_SEGMENTS = 64
MOST_READ = 6  # times that a matrix may be read by segments

MATVEC_SHARED = Kernel(
    "cvr_matvec",
    "cvr_matvec_shared",
    [
        (*dtypes, *how)
        for dtypes in STORED + ROWS_OF_X
        for how in (
            ("int32", WARP, int(PLAIN), False, False, False),
            ("int32", WARP, int(ACCUMULATE), True, True, True),
            ("int64", WARP, int(SCALE), False, True, False),
        )
    ],
    lambda value, product, index, n_lanes, form, whole, cut, keeps: (
        value, product, index, n_lanes, UNROLL[product.itemsize], form, THREADS, whole, cut, keeps,
    ),
)  # fmt: skip
PACK = Kernel("cvr_matvec", "cvr_pack", [(product, "int32") for _, product in PRODUCTS + ROWS_OF_X])
COUNT_COLUMNS = Kernel("cvr_matvec", "cvr_count_columns", [("int32",), ("int64",)])
PACK_COLUMNS = Kernel("cvr_matvec", "cvr_pack_columns", [("int32",), ("int64",)])
TRANSPOSED_SHARED = Kernel(
    "cvr_transposed",
    "cvr_transposed_shared",
    [
        (*dtypes, *how)
        for dtypes in STORED
        for how in (
            ("int32", WARP, False, False),
            ("int32", WARP, True, transposed.may_be_floats(dtypes[1])),
            ("int64", WARP, False, transposed.may_be_floats(dtypes[1])),
        )
    ],
    lambda value, product, index, n_lanes, whole, floats: (value, product, index, n_lanes, THREADS, whole, floats),
)
SEGMENTS = Kernel(
    "bbcsr_transposed",
    "bbcsr_segments",
    [("float32", "int32"), ("float32", "int64"), (Coded("Few", "float32"), "int32"), (Coded("One", "float32"), "int32")],
    lambda value, index: (value, index, mask_dtype(1)),
)
TRANSPOSED_SEGMENTS = Kernel(
    "bbcsr_transposed",
    "bbcsr_transposed_shared",
    [(*dtypes, *how) for dtypes in STORED for how in (("int32", transposed.may_be_floats(dtypes[1])), ("int64", False))],
    lambda value, product, index, floats: (value, product, index, mask_dtype(1), THREADS, floats),
)


class Columns(NamedTuple):
    """The columns of a CVR array's slots, popular ones packed."""

    packed: cupy.ndarray  # (n_slots,) the column, but ~i for popular[i]
    popular: cupy.ndarray  # (n_popular,)


def columns(tables: CVRTables, room: int) -> Columns | None:
    """The columns of `tables` with at most `room` popular ones packed, or None where few nonzeros are in these.

    It waits for the device, 1 to 3 ms for 30 million nonzeros. 4 bytes a nonzero (8 beyond 2^31 columns) stay in use.
    """
    t, (_, n_cols) = tables, tables.shape
    index, n_chunks = t.tail.dtype, t.carry_row.size
    m = struct(t.step_ptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, n_chunks, t.n_lanes)
    n_slots = t.rec_mask.size * t.n_lanes
    every = max(1, n_slots // SAMPLE)
    hits = cupy.zeros(n_cols, np.uint32)
    COUNT_COLUMNS(index)(blocks(-(-n_chunks // every) * WARP, BLOCK), (BLOCK,), (m, np.int64(every), hits))
    popular = cupy.flatnonzero(hits > cupy.sort(hits)[max(0, n_cols - room - 1)]).astype(index)
    if not popular.size or int(hits[popular].sum()) < LEAST_SHARE * int(hits.sum()):
        return None
    place = cupy.zeros(n_cols, index)
    place[popular] = cupy.arange(1, popular.size + 1, dtype=index)
    packed = cupy.empty(n_slots, index)
    PACK_COLUMNS(index)(blocks(n_chunks * WARP, BLOCK), (BLOCK,), (m, place, packed))
    return Columns(packed, popular)


def product(t: CVRTables, dtype: np.dtype, struct_of: Callable[[CVRTables], Struct], cuts: Callable[[], Struct]) -> Run | None:
    """``run(x, y, alpha, beta)``, ``A @ x`` with entries of x in shared memory, or None where no column is popular
    enough.

    `struct_of(tables)` is the tables as kernels take them; `cuts()` what they take of cut rows.
    """
    n_cols, most = t.shape[1], shared_memory() - distinct.shared_bytes(t.distinct)
    whole = n_cols * dtype.itemsize <= most
    grid = (processors(),)
    keeps = left_in_l2.keeps(left_in_l2.bytes_of_tables(t), alone=whole)

    @cache
    def multiply(form):
        kind, is_cut = distinct.kind(t.val, t.distinct), t.cut_row.size > 0
        return allowed(MATVEC_SHARED(kind, dtype, t.tail.dtype, t.n_lanes, int(form), whole, is_cut, keeps), most)

    def launch(chunks, x, values, n_shared, y, alpha, beta):
        multiply(update(alpha, beta))(
            grid,
            (THREADS,),
            (chunks, x, values, np.int32(n_shared), y, cuts(), alpha, beta),
            shared_mem=n_shared * dtype.itemsize,
        )

    if whole:
        chunks = struct_of(t)
        return lambda x, y, alpha, beta: launch(chunks, x, x, n_cols, y, alpha, beta)

    room = max(0, most - L1_SHARE) // dtype.itemsize
    found = columns(t, room) if room else None
    if found is None:
        return None
    chunks, scratch = struct_of(t._replace(col_wide=found.packed)), Scratch()
    n_popular, pack = found.popular.size, PACK(dtype, found.popular.dtype)

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        values = scratch.empty(n_popular, dtype)
        pack(blocks(n_popular, BLOCK), (BLOCK,), (x, found.popular, np.int32(n_popular), values))
        launch(chunks, x, values, n_popular, y, alpha, beta)

    return run


def product_transposed(t: CVRTables, sums: transposed.ColumnSums, struct_of: Callable[[CVRTables], Struct]) -> Run | None:
    """``run(x, y, alpha, beta)``, ``A.T @ x`` with sums of columns in shared memory, or None where no column is popular
    enough.

    Without shared memory L2's atomics bound the product (``docs/measurements/matrix-products.md``).
    """
    n_cols, most = t.shape[1], shared_memory() - distinct.shared_bytes(t.distinct)
    column = bytes_a_column(sums.dtype)
    whole = n_cols * column <= most
    found = None if whole else columns(t, most // column)
    if not whole and found is None:
        return None
    chunks = struct_of(t if whole else t._replace(col_wide=found.packed))
    popular, n_shared = (NULL, n_cols) if whole else (found.popular, found.popular.size)
    kernel = TRANSPOSED_SHARED(distinct.kind(t.val, t.distinct), sums.dtype, t.tail.dtype, t.n_lanes, whole, sums.floats)
    scatter, grid = allowed(kernel, most), (processors(),)

    def add(x, of_call):
        scatter(grid, (THREADS,), (chunks, x, of_call, popular, np.int32(n_shared)), shared_mem=n_shared * column)

    return sums.product(add)


def product_transposed_by_segments(
    t: BBCSRTables, sums: transposed.ColumnSums, struct_of: Callable[[BBCSRTables], Struct]
) -> Run | None:
    """``run(x, y, alpha, beta)``, ``A.T @ x`` for blocks of 1 with sums of one segment of columns after the other in
    shared memory, or None where rows are too short for it.

    The 32 rows of a bin reach a segment in different steps, and all steps that any row needs are read. With short rows
    these are many more than their entries.
    """
    (_, n_cols), n_bins = t.shape, t.col_base.size
    most = shared_memory() - distinct.shared_bytes(t.distinct)
    column = bytes_a_column(sums.dtype)
    n_segments = -(-n_cols // max(1, most // column))
    if n_segments > MOST_SEGMENTS:
        return None
    width, index, kind = -(-n_cols // n_segments), t.col_wide.dtype, distinct.kind(t.data, t.distinct)
    bins, steps = struct_of(t), cupy.empty((n_bins, n_segments, 2), np.int32)
    SEGMENTS(kind, index)(blocks(n_bins * WARP, BLOCK), (BLOCK,), (bins, np.int64(width), np.int32(n_segments), steps))
    if int((steps[..., 1] - steps[..., 0]).sum()) * WARP > MOST_READ * (t.col_narrow.size + t.col_wide.size):
        return None
    kernel = TRANSPOSED_SEGMENTS(kind, sums.dtype, index, sums.floats)
    scatter, grid = allowed(kernel, most), (processors(),)
    n_groups = max(1, processors() // n_segments)

    def add(x, of_call):
        scatter(
            grid,
            (THREADS,),
            (bins, x, of_call, steps, np.int64(width), np.int32(n_segments), np.int32(n_groups)),
            shared_mem=width * column,
        )

    return sums.product(add)


def bytes_a_column(dtype: np.dtype) -> int:
    """Of the sums of ``A.T @ x`` in shared memory."""
    return 8 * transposed.components(dtype) * transposed.limbs(dtype)


def shared_memory() -> int:
    """Bytes of shared memory that one block may have for x."""
    return max(0, attribute("MaxSharedMemoryPerBlockOptin") - KERNELS_OWN)
