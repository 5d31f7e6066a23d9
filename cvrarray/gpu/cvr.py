"""CVR on the GPU. The same functions as :mod:`cvrarray.cpu.cvr`; the kernels' files say what each does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

from .._tables import CSR, WARP, CVRTables
from .compiler import NULL, PRODUCTS, blocks, instantiation, kernel, struct, update

BLOCK = 128  # threads: four chunks
#: Steps in flight: the same bytes for every product dtype.
UNROLL = {1: 8, 2: 8, 4: 8, 8: 8, 16: 4}
#: Threads that write the rows without nonzeros, where there are more of these than chunks.
EMPTY_ROW_THREADS = 1 << 18


def convert(csr: CSR, n_lanes: int, n_chunks: int, split: str) -> CVRTables:
    """Canonical CSR on the current device as CVR tables there; `n_chunks` at most ``csr.nnz``, 0 without nonzeros."""
    index = csr.indices.dtype
    length = csr.indptr[1:] - csr.indptr[:-1]
    row_id = None
    n_empty = int((length == 0).sum())
    if n_empty:
        row_id = cupy.flatnonzero(length).astype(index)
        ptr = cupy.concatenate([csr.indptr[row_id], csr.indptr[-1:]])
        empty_row = cupy.flatnonzero(length == 0).astype(index)
    else:
        ptr, empty_row = csr.indptr, cupy.empty(0, index)
    del length
    n_rows = ptr.size - 1
    warps = blocks(n_chunks * WARP, BLOCK)

    chunk_ptr = cupy.zeros(n_chunks + 1, np.int64)
    # n_steps, n_records, n_narrow by chunk, with a 0 in front: their running sums are the offsets
    sizes = cupy.zeros((3, n_chunks + 1), np.int64)
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
            (ptr, NULL if row_id is None else row_id, csr.indices, np.int64(n_rows), chunk_ptr, np.int64(n_chunks), np.int32(n_lanes),
             sizes[0, 1:], sizes[1, 1:], sizes[2, 1:], col_low, col_base, carry_row),
        )  # fmt: skip
    step_ptr, rec_ptr, narrow_ptr = offsets = cupy.cumsum(sizes, axis=1)
    n_steps, n_records, n_narrow = offsets[:, -1].get().tolist()
    wide_ptr = step_ptr * n_lanes - narrow_ptr
    col_ptr = cupy.where(col_base >= 0, narrow_ptr[:-1], wide_ptr[:-1])
    del sizes

    tables = CVRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        n_lanes=n_lanes,
        step_ptr=step_ptr.copy(),
        val=cupy.empty(n_steps * n_lanes, csr.data.dtype),
        col_base=col_base,
        col_ptr=col_ptr,
        col_narrow=cupy.empty(n_narrow, np.uint16),
        col_wide=cupy.empty(n_steps * n_lanes - n_narrow, index),
        rec_mask=cupy.empty(n_steps, np.uint32),
        rec_ptr=rec_ptr.copy(),
        rec_wb=cupy.empty(n_records, index),
        tail=cupy.empty((n_chunks, n_lanes), index),
        carry_row=carry_row,
        **_cuts(carry_row),
        empty_row=empty_row,
    )
    if n_chunks:
        kernel("cvr_convert", "cvr_fill", ptr.dtype, index, csr.data.dtype)(
            warps,
            (BLOCK,),
            (ptr, NULL if row_id is None else row_id, csr.indices, csr.data, np.int64(n_rows), chunk_ptr, np.int64(n_chunks),
             np.int32(n_lanes), tables.step_ptr, tables.rec_ptr, col_ptr, col_low, col_base, tables.val, tables.col_narrow,
             tables.col_wide, tables.rec_mask, tables.rec_wb, tables.tail),
        )  # fmt: skip
    return tables


def _cuts(carry_row: cupy.ndarray) -> dict[str, cupy.ndarray]:
    """The rows that chunks' starts cut, and for each the run of chunks that carry into it."""
    cut = cupy.flatnonzero(carry_row >= 0)
    if not cut.size:
        return {"cut_row": carry_row[:0].copy(), "cut_ptr": cupy.empty((0, 2), np.int64)}
    rows = carry_row[cut]
    starts = cupy.flatnonzero(cupy.concatenate([cupy.ones(1, bool), rows[1:] != rows[:-1]]))
    ends = cupy.concatenate([starts[1:], cupy.array([cut.size])]) - 1
    return {"cut_row": rows[starts], "cut_ptr": cupy.stack([cut[starts], cut[ends] + 1], axis=1)}


def matvec(tables: CVRTables, x: cupy.ndarray, y: cupy.ndarray, alpha: Any, beta: Any) -> None:
    """``y = alpha * A @ x + beta * y`` on the current stream; `x` and `y` contiguous, of the product's dtype."""
    t, index = tables, tables.tail.dtype
    n_chunks, n_empty, n_cut = t.carry_row.size, t.empty_row.size, t.cut_row.size
    chunks = struct(
        t.step_ptr, t.val, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.rec_mask, t.rec_ptr, t.rec_wb, t.tail,
        t.carry_row, t.empty_row, n_chunks, n_empty,
    )  # fmt: skip
    carry = cupy.empty(n_chunks if n_cut else 0, y.dtype)
    unroll = UNROLL[y.dtype.itemsize]
    kernel("cvr_matvec", "cvr_matvec", t.val.dtype, y.dtype, index, t.n_lanes, unroll)(
        blocks(max(n_chunks * WARP, min(n_empty, EMPTY_ROW_THREADS)), BLOCK),
        (BLOCK,),
        (chunks, x, y, carry, alpha, beta, update(alpha, beta)),
    )
    if n_cut:
        kernel("cvr_matvec", "cvr_carry", y.dtype, index)(
            blocks(n_cut * WARP, BLOCK), (BLOCK,), (t.cut_row, t.cut_ptr, np.int64(n_cut), carry, y)
        )


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
    yield "cvr_convert", [
        *(instantiation("cvr_cuts", p) for p in ("int32", "int64")),
        *(instantiation("cvr_count", p, i) for p, i in offsets_and_indices),
        *(instantiation("cvr_fill", p, i, a) for p, i in offsets_and_indices for a in ("bool", "float32", "complex128")),
        *(instantiation("cvr_slots", i) for i in ("int32", "int64")),
    ]
    yield "cvr_matvec", [
        *(
            instantiation("cvr_matvec", a, y, i, n_lanes, UNROLL[np.dtype(y).itemsize])
            for a, y in PRODUCTS
            for i, n_lanes in (("int32", WARP), ("int64", WARP), ("int32", 4))
        ),
        *(instantiation("cvr_carry", y, "int32") for _, y in PRODUCTS),
    ]
