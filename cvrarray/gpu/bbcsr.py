"""BBCSR on the GPU. The same functions as :mod:`cvrarray.cpu.bbcsr`; the kernels' files say what each does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

from .._tables import CSR, WARP, BBCSRTables
from .compiler import NULL, PRODUCTS, blocks, instantiation, kernel, struct, update

BLOCK = 128  # threads: four bins


def unroll(block_size: int, itemsize: int) -> int:
    """Blocks in flight: about 8 values of 8 bytes a thread, whatever the block size and the product's dtype."""
    return max(1, 8 // (block_size * max(1, itemsize // 8)))


def convert(csr: CSR, block_size: int) -> BBCSRTables:
    """Canonical CSR on the current device as BBCSR tables there."""
    n_rows = csr.shape[0]
    pointer, index = csr.indptr.dtype, csr.indices.dtype
    n_bins = -(-n_rows // WARP)
    n_block_rows = -(-n_rows // block_size)
    group = 1 << (block_size - 1).bit_length()  # threads of a block row: see BlockRow in the kernel file

    n_blocks = cupy.empty(n_block_rows, np.int32)
    col_low, col_high = cupy.empty(n_block_rows, index), cupy.empty(n_block_rows, index)
    col_base = cupy.empty(n_bins, index)
    # slots of blocks, and of them the narrow ones, by bin, with a 0 in front: their running sums are the offsets
    sizes = cupy.zeros((2, n_bins + 1), np.int64)
    holes = cupy.zeros(1, np.int32)
    if n_bins:
        kernel("bbcsr_convert", "bbcsr_count", pointer, index, block_size)(
            blocks(n_block_rows * group, BLOCK),
            (BLOCK,),
            (csr.indptr, csr.indices, np.int64(n_rows), np.int64(n_block_rows), n_blocks, col_low,
             col_high, holes),
        )  # fmt: skip
        kernel("bbcsr_convert", "bbcsr_bins", index)(
            blocks(n_bins * WARP, BLOCK),
            (BLOCK,),
            (n_blocks, col_low, col_high, np.int64(n_rows), np.int32(block_size), np.int64(n_bins), sizes[0, 1:],
             sizes[1, 1:], col_base),
        )  # fmt: skip
    del n_blocks, col_low, col_high
    block_ptr, narrow_ptr = offsets = cupy.cumsum(sizes, axis=1)
    n_slots, n_narrow, has_holes = cupy.concatenate([offsets[:, -1], holes.astype(np.int64)]).get().tolist()
    bits = mask_dtype(block_size)
    tables = BBCSRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        block_size=block_size,
        bin_rowptr=block_ptr * block_size,
        data=cupy.empty(n_slots * block_size, csr.data.dtype),
        col_base=col_base,
        col_ptr=cupy.where(col_base >= 0, narrow_ptr[:-1], (block_ptr - narrow_ptr)[:-1]),
        col_narrow=cupy.empty(n_narrow, np.uint16),
        col_wide=cupy.empty(n_slots - n_narrow, index),
        present=cupy.empty(n_slots, bits) if has_holes else None,
    )
    if n_slots:
        rows_in_bins = n_bins * WARP
        kernel("bbcsr_convert", "bbcsr_fill", pointer, index, csr.data.dtype, bits, block_size)(
            blocks(-(-rows_in_bins // block_size) * group, BLOCK),
            (BLOCK,),
            (csr.indptr, csr.indices, csr.data, np.int64(n_rows), np.int64(n_bins), tables.bin_rowptr, col_base,
             tables.col_ptr, tables.data, tables.col_narrow, tables.col_wide,
             NULL if tables.present is None else tables.present),
        )  # fmt: skip
    return tables


def mask_dtype(block_size: int) -> np.dtype:
    """The smallest unsigned integer with a bit a column of a block."""
    return np.dtype(np.uint8 if block_size <= 8 else np.uint16 if block_size <= 16 else np.uint32)


def matvec(tables: BBCSRTables, x: cupy.ndarray, y: cupy.ndarray, alpha: Any, beta: Any) -> None:
    """``y = alpha * A @ x + beta * y`` on the current stream; `x` and `y` contiguous, of the product's dtype."""
    t = tables
    n_bins, size = t.col_base.size, t.block_size
    bins = struct(
        t.bin_rowptr, t.data, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.present, t.shape[0], n_bins
    )  # fmt: skip
    kernel(
        "bbcsr_matvec", "bbcsr_matvec", t.data.dtype, y.dtype, t.col_wide.dtype, mask_dtype(size), size,
        unroll(size, y.dtype.itemsize), t.present is not None,
    )(blocks(n_bins * WARP, BLOCK), (BLOCK,), (bins, x, y, alpha, beta, update(alpha, beta)))  # fmt: skip


def to_coo(tables: BBCSRTables) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """Row, column and value of every stored entry, in slot order; padding and holes left out."""
    t, index = tables, tables.col_wide.dtype
    n_bins = t.col_base.size
    row, col = cupy.empty(t.data.size, index), cupy.empty(t.data.size, index)
    if n_bins:
        kernel("bbcsr_convert", "bbcsr_slots", index, mask_dtype(t.block_size))(
            blocks(n_bins * WARP, BLOCK),
            (BLOCK,),
            (np.int64(n_bins), np.int32(t.block_size), t.bin_rowptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide,
             NULL if t.present is None else t.present, row, col),
        )  # fmt: skip
    stored = row >= 0
    return row[stored], col[stored], t.data[stored]


def instantiations() -> Iterator[tuple[str, list[str]]]:
    """What CI compiles without a GPU."""
    sizes = (1, 2, 3, 6, 7, 32)
    yield "bbcsr_convert", [
        *(instantiation("bbcsr_count", p, i, b) for p, i in (("int32", "int32"), ("int64", "int64")) for b in sizes),
        *(instantiation("bbcsr_bins", i) for i in ("int32", "int64")),
        *(instantiation("bbcsr_fill", "int32", "int32", a, mask_dtype(b), b) for b in sizes for a in ("bool", "complex128")),
        *(instantiation("bbcsr_fill", "int64", "int64", "float32", mask_dtype(b), b) for b in (1, 6)),
        *(instantiation("bbcsr_slots", i, m) for i in ("int32", "int64") for m in ("uint8", "uint16", "uint32")),
    ]
    yield "bbcsr_matvec", [
        instantiation("bbcsr_matvec", a, y, i, mask_dtype(b), b, unroll(b, np.dtype(y).itemsize), holes)
        for a, y in PRODUCTS
        for i, b, holes in (("int32", 1, False), ("int32", 3, False), ("int32", 6, True), ("int64", 7, True))
    ]
