"""CVR on the GPU. The same functions as :mod:`cvrarray.cpu.cvr`; the kernels' files say what each does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import cupy
import numpy as np

from ..core.tables import CSR, WARP, CVRTables
from . import near, transposed
from .compiler import (
    ACCUMULATE,
    NULL,
    PLAIN,
    PRODUCTS,
    SCALE,
    PerStream,
    Scratch,
    blocks,
    instantiation,
    kernel,
    matrix_tiles,
    settle,
    struct,
    update,
    vector_width,
)

BLOCK = 128  # threads: four chunks
#: Steps at once: so many that as many warps fit a multiprocessor as with 8 whose successors' columns were not under way.
UNROLL = {1: 6, 2: 6, 4: 6, 8: 6, 16: 4}
#: Empty rows that a thread stores, at least, and blocks for that, at most.
EMPTY_ROWS_A_THREAD, MOST_BLOCKS_FOR_EMPTY = 8, 1 << 14
#: Threads that write the rows without nonzeros, where there are more of these than chunks.
EMPTY_ROW_THREADS = 1 << 18


def convert(csr: CSR, n_lanes: int, n_chunks: int, split: str) -> CVRTables:
    """Canonical CSR on the current device as CVR tables there; `n_chunks` at most ``csr.nnz``, 0 without nonzeros."""
    index = csr.indices.dtype
    row_id, ptr, empty_row = _without_empty_rows(csr)
    n_rows = ptr.size - 1
    warps = blocks(n_chunks * WARP, BLOCK)

    chunk_ptr = cupy.empty(n_chunks + 1, np.int64)
    sizes = cupy.zeros((4, n_chunks + 1), np.int64)
    totals = cupy.zeros(4, np.int64)
    col_low, col_base, carry_row = (cupy.empty(n_chunks, index) for _ in range(3))
    if n_chunks:
        kernel("cvr_convert", "cvr_cuts", ptr.dtype)(
            blocks(n_chunks + 1, BLOCK),
            (BLOCK,),
            (ptr, np.int64(n_rows), np.int64(csr.nnz), np.int64(n_chunks), np.int32(n_lanes), split == "rows", chunk_ptr),
        )
        kernel("cvr_convert", "cvr_count", ptr.dtype, index)(
            warps,
            (BLOCK,),
            (ptr, row_id, csr.indices, np.int64(n_rows), chunk_ptr, np.int64(n_chunks), np.int32(n_lanes),
             sizes, col_low, col_base, carry_row, totals),
        )  # fmt: skip
    sums = cupy.cumsum(sizes)
    n_steps, n_records, n_narrow, n_cut = totals.get().tolist()
    tables = CVRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        n_lanes=n_lanes,
        step_ptr=cupy.empty(n_chunks + 1, np.int64),
        val=cupy.empty(n_steps * n_lanes, csr.data.dtype),
        col_base=col_base,
        col_ptr=cupy.empty(n_chunks, np.int64),
        col_narrow=cupy.empty(n_narrow, np.uint16),
        col_wide=cupy.empty(n_steps * n_lanes - n_narrow, index),
        rec_mask=cupy.empty(n_steps, np.uint32),
        rec_ptr=cupy.empty(n_chunks + 1, np.int64),
        rec_wb=cupy.empty(n_records, index),
        tail=cupy.empty((n_chunks, n_lanes), index),
        carry_row=carry_row,
        cut_row=cupy.empty(n_cut, index),
        cut_ptr=cupy.empty((n_cut, 2), np.int64),
        empty_row=empty_row,
    )
    t = tables
    kernel("cvr_convert", "cvr_offsets", index)(
        blocks(n_chunks + 1, BLOCK),
        (BLOCK,),
        (
            sums,
            col_base,
            carry_row,
            np.int64(n_chunks),
            np.int32(n_lanes),
            t.step_ptr,
            t.rec_ptr,
            t.col_ptr,
            t.cut_row,
            t.cut_ptr,
        ),
    )
    if n_chunks:
        kernel("cvr_convert", "cvr_fill", ptr.dtype, index, csr.data.dtype)(
            warps,
            (BLOCK,),
            (ptr, row_id, csr.indices, csr.data, np.int64(n_rows), chunk_ptr, np.int64(n_chunks), np.int32(n_lanes),
             t.step_ptr, t.rec_ptr, t.col_ptr, col_low, col_base, t.val, t.col_narrow, t.col_wide, t.rec_mask, t.rec_wb,
             t.tail),
        )  # fmt: skip
    settle()
    return tables


def _without_empty_rows(csr: CSR) -> tuple[Any, cupy.ndarray, cupy.ndarray]:
    """The non-empty rows' numbers (null where that is all rows) and offsets, and the empty rows' numbers."""
    index, n_rows = csr.indices.dtype, csr.shape[0]
    if not n_rows:
        return NULL, csr.indptr, cupy.empty(0, index)
    rank = cupy.cumsum(csr.indptr[1:] != csr.indptr[:-1], dtype=index)
    n_filled = int(rank[-1])
    if n_filled == n_rows:
        return NULL, csr.indptr, cupy.empty(0, index)
    ptr, row_id, empty_row = (
        cupy.empty(n_filled + 1, csr.indptr.dtype),
        cupy.empty(n_filled, index),
        cupy.empty(n_rows - n_filled, index),
    )
    kernel("cvr_convert", "cvr_split_rows", csr.indptr.dtype, index)(
        blocks(n_rows, BLOCK), (BLOCK,), (csr.indptr, rank, np.int64(n_rows), ptr, row_id, empty_row)
    )
    return row_id, ptr, empty_row


def product(tables: CVRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y`` on the current device and stream.

    `x` and `y` are contiguous and `dtype`, the product's, as are the scalars.
    """
    t = tables

    @cache
    def multiply(form):
        how = t.n_lanes, UNROLL[dtype.itemsize], int(form), t.cut_row.size > 0
        return kernel("cvr_matvec", "cvr_matvec", t.val.dtype, dtype, t.tail.dtype, *how)

    n_for_empty = min(-(-t.empty_row.size // (BLOCK * EMPTY_ROWS_A_THREAD)), MOST_BLOCKS_FOR_EMPTY)
    grid = (max(1, n_for_empty + -(-t.carry_row.size * WARP // BLOCK)),)
    chunks, cuts = _struct(t), _cuts(t, dtype)

    def plain(x, y, alpha, beta):
        multiply(update(alpha, beta))(grid, (BLOCK,), (chunks, x, y, cuts(), np.int32(n_for_empty), alpha, beta))

    return near.in_time(t.val.size, t.shape[1], plain, lambda: near.product(t, dtype, _struct, cuts))


def _cuts(t: CVRTables, dtype: np.dtype) -> Callable[[], np.ndarray]:
    """A function that gives the ``Cuts`` of the kernel file, for a product on the current stream."""
    n_chunks, n_cut = t.carry_row.size, t.cut_row.size
    if not n_cut:
        nothing = struct(*[None] * 3)
        return lambda: nothing
    begins = cupy.zeros(n_chunks, np.int32)
    begins[t.cut_ptr[:, 0]] = 1
    cut = cupy.cumsum(begins) - 1  # the last cut row up to each chunk
    span = cupy.full((n_chunks + 1, 2), -1, np.int32)
    span[:-1] = cupy.where(t.carry_row[:, None] >= 0, t.cut_ptr[cut] - cupy.array([1, 0]), -1)
    settle()

    def make():
        arrived = cupy.zeros(n_chunks, np.uint32)
        part = cupy.zeros((2 * n_chunks, -(-dtype.itemsize // 4)), np.uint64)
        return struct(span, arrived, part), arrived, part

    by_stream = PerStream(make)
    return lambda: by_stream.get()[0]


def product_matrix(tables: CVRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; X (n_cols, k) and Y (n_rows, k) in C order."""
    t, index = tables, tables.tail.dtype
    n_chunks, n_empty, n_cut = t.carry_row.size, t.empty_row.size, t.cut_row.size
    chunks, scratch = _struct(t), Scratch()

    def run(x, y, alpha, beta):
        k = x.shape[1]
        members, width, tiles = matrix_tiles(k, dtype, x, y)
        carry = scratch.empty((n_chunks if n_cut else 0, k), dtype)
        kernel(
            "cvr_matmat", "cvr_matmat", t.val.dtype, dtype, index, t.n_lanes, members, width, matrix_unroll(members),
            BLOCK // WARP,
        )(
            (*blocks(max(n_chunks * WARP, min(n_empty, EMPTY_ROW_THREADS)), BLOCK), tiles),
            (BLOCK,),
            (chunks, np.int64(k), x, y, carry, alpha, beta, update(alpha, beta)),
        )  # fmt: skip
        if n_cut and k:
            kernel("cvr_matmat", "cvr_carry_rows", dtype, index)(
                (n_cut,), (min(k, BLOCK),), (t.cut_row, t.cut_ptr, carry, np.int64(k), y)
            )

    return run


def matrix_unroll(members: int) -> int:
    """Steps in flight: several where a step's turns alone give few loads."""
    return 4 if members <= 2 else 2


def product_transposed(tables: CVRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``; x (n_rows,) and y (n_cols,)."""
    t, n_cols = tables, tables.shape[1]
    chunks, grid = _struct(t), blocks(t.carry_row.size * WARP, BLOCK)
    how = t.val.dtype, dtype, t.tail.dtype, t.n_lanes

    def scatter(step, floats, x, sums):
        kernel("cvr_transposed", "cvr_transposed", *how, step, floats)(grid, (BLOCK,), (chunks, x, sums))

    def finish(floats, x, sums, y, alpha, beta, form):
        found = kernel("cvr_transposed", "cvr_transposed_finish", *how, floats)
        transposed.cooperative(found, chunks, x, sums, np.int64(n_cols), y, alpha, beta, form)

    passes = transposed.Passes(partial(scatter, transposed.COUNT, False, NULL), finish)
    sums = transposed.Sums(passes, "cvr_transposed", t.val, n_cols, dtype)
    plain = sums.product(partial(scatter, transposed.ADD, sums.floats))
    return near.in_time(t.val.size, n_cols, plain, lambda: near.product_transposed(t, sums, _struct))


def _struct(t: CVRTables) -> np.ndarray:
    """The tables as kernels take them."""
    return struct(
        t.step_ptr, t.val, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.rec_mask, t.rec_ptr, t.rec_wb, t.tail,
        t.carry_row, t.empty_row, t.carry_row.size, t.empty_row.size,
    )  # fmt: skip


def to_coo(tables: CVRTables) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """Row, column and value of every stored entry, in slot order."""
    t, index, n_chunks = tables, tables.tail.dtype, tables.carry_row.size
    row, col = cupy.empty(t.val.size, index), cupy.empty(t.val.size, index)
    if n_chunks:
        kernel("cvr_convert", "cvr_slots", index)(
            blocks(n_chunks * WARP, BLOCK),
            (BLOCK,),
            (np.int64(n_chunks), np.int32(t.n_lanes), t.step_ptr, t.rec_ptr, t.col_ptr, t.col_base, t.col_narrow, t.col_wide,
             t.rec_mask, t.rec_wb, t.tail, row, col),
        )  # fmt: skip
    stored = row >= 0
    return row[stored], col[stored], t.val[stored]


def instantiations() -> Iterator[tuple[str, list[str]]]:
    """What CI compiles without a GPU."""
    offsets_and_indices = [("int32", "int32"), ("int64", "int32"), ("int64", "int64")]
    yield (
        "cvr_convert",
        [
            *(instantiation("cvr_split_rows", p, i) for p, i in offsets_and_indices),
            *(instantiation("cvr_cuts", p) for p in ("int32", "int64")),
            *(instantiation("cvr_count", p, i) for p, i in offsets_and_indices),
            *(instantiation("cvr_fill", p, i, a) for p, i in offsets_and_indices for a in ("bool", "float32", "complex128")),
            instantiation("cvr_fill", "int32", "int32", "float16"),
            *(instantiation(f, i) for f in ("cvr_offsets", "cvr_slots") for i in ("int32", "int64")),
        ],
    )
    yield (
        "cvr_matvec",
        [
            *(
                instantiation("cvr_matvec", a, y, i, n_lanes, UNROLL[np.dtype(y).itemsize], form, cut)
                for a, y in PRODUCTS
                for i, n_lanes, form, cut in (
                    ("int32", WARP, int(PLAIN), False),
                    ("int32", WARP, int(ACCUMULATE), True),
                    ("int64", WARP, int(SCALE), False),
                    ("int32", 4, int(PLAIN), True),
                )
            ),
            *(
                instantiation("cvr_matvec_shared", a, y, i, WARP, near.UNROLL[np.dtype(y).itemsize], *how)
                for a, y in PRODUCTS
                for i, *how in (
                    ("int32", int(PLAIN), near.THREADS, False, False),
                    ("int32", int(ACCUMULATE), near.THREADS, True, True),
                    ("int64", int(SCALE), near.THREADS, False, True),
                )
            ),
            *(instantiation("cvr_pack", y, "int32") for _, y in PRODUCTS),
            *(instantiation(f, i) for f in ("cvr_count_columns", "cvr_pack_columns") for i in ("int32", "int64")),
        ],
    )
    yield (
        "cvr_matmat",
        [
            *(
                instantiation("cvr_matmat", a, y, i, n_lanes, members, width, matrix_unroll(members), BLOCK // WARP)
                for a, y in PRODUCTS
                for i, n_lanes, members, width in (
                    ("int32", WARP, 1, vector_width(y)),
                    ("int32", WARP, 16, vector_width(y)),
                    ("int64", 4, 8, 1),
                )
            ),
            *(instantiation("cvr_carry_rows", y, "int32") for _, y in PRODUCTS),
        ],
    )
    yield (
        "cvr_transposed",
        [
            *(
                instantiation("cvr_transposed", a, y, i, n_lanes, step, floats)
                for a, y in PRODUCTS
                for i, n_lanes, step, floats in (
                    ("int32", WARP, transposed.COUNT, False),
                    ("int32", WARP, transposed.ADD, transposed.limbs(np.dtype(y)) == 2),
                    ("int64", 4, transposed.ADD, False),
                )
                if step == transposed.ADD or np.dtype(y).kind in "fc"
            ),
            *(
                instantiation("cvr_transposed_finish", a, y, i, n_lanes, floats)
                for a, y in PRODUCTS
                for i, n_lanes, floats in (("int32", WARP, transposed.limbs(np.dtype(y)) == 2), ("int64", 4, False))
            ),
            *(
                instantiation("cvr_transposed_near", a, y, i, WARP, near.THREADS, whole, floats)
                for a, y in PRODUCTS
                for i, whole, floats in (
                    ("int32", False, False),
                    ("int32", True, transposed.limbs(np.dtype(y)) == 2),
                    ("int64", False, transposed.limbs(np.dtype(y)) == 2),
                )
            ),
        ],
    )
