"""BBCSR on the GPU. The same functions as :mod:`cvrarray.cpu.bbcsr`; the kernels' files say what each does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cupy
import numpy as np

from ..core.tables import CSR, WARP, BBCSRTables, mask_dtype
from . import near, transposed
from .compiler import (
    NULL,
    PRODUCTS,
    blocks,
    instantiation,
    kernel,
    matrix_tiles,
    processors,
    settle,
    struct,
    update,
    vector_width,
)

BLOCK = 128  # threads, at least: four warps
#: Warps share a bin, at most MOST_SHARERS, until there are MANY_WARPS a multiprocessor (FEW_WARPS for long rows with columns
#: far apart), or while rows leave each more than LONG entries; never so many that a row leaves each fewer than FEWEST.
#: Measured: ``docs/decisions/0003-gpu-products.md``.
MOST_SHARERS, FEW_WARPS, MANY_WARPS, LONG, FEWEST = 16, 32, 124, 40, 4


def unroll(block_size: int, itemsize: int, is_far: bool) -> tuple[int, int]:
    """Blocks in flight in a narrow and in a wide bin, measured on an H200: see ``docs/decisions/0003-gpu-products.md``.

    More of them hide more latency, but spread the part of `x` that a processor's warps read at a time: where rows are long
    and their columns far apart (`is_far`), few keep it in cache.
    """
    if block_size == 1:
        return (8 if itemsize <= 4 else 4), (4 if is_far else 8 if itemsize <= 4 else 6 if itemsize <= 8 else 4)
    blocks_in_flight = 4 if block_size <= 3 else 2 if block_size <= 6 else 1
    return blocks_in_flight, blocks_in_flight


def convert(csr: CSR, block_size: int) -> BBCSRTables:
    """Canonical CSR on the current device as BBCSR tables there."""
    n_rows, n_bins = csr.shape[0], -(-csr.shape[0] // WARP)
    pointer, index, value = csr.indptr.dtype, csr.indices.dtype, csr.data.dtype
    bin_rowptr, narrow_ptr, col_base, n_values, n_narrow, has_holes = _measure(csr, block_size)
    n_columns, bits = n_values // block_size, mask_dtype(block_size)
    tables = BBCSRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        block_size=block_size,
        bin_rowptr=bin_rowptr,
        data=cupy.empty(n_values, value),
        col_base=col_base,
        col_ptr=cupy.empty(n_bins, np.int64),
        col_narrow=cupy.empty(n_narrow, np.uint16),
        col_wide=cupy.empty(n_columns - n_narrow, index),
        present=cupy.empty(n_columns, bits) if has_holes else None,
    )
    inputs = (csr.indptr, csr.indices, csr.data, np.int64(n_rows), np.int64(n_bins), bin_rowptr, narrow_ptr, col_base)
    outputs = (tables.col_ptr, tables.data, tables.col_narrow, tables.col_wide)
    if n_bins and has_holes:
        kernel("bbcsr_convert", "bbcsr_fill_holes", pointer, index, value, bits, block_size)(
            blocks(-(-n_bins * WARP // block_size) * group(block_size), BLOCK), (BLOCK,), (*inputs, *outputs, tables.present)
        )
    elif n_bins:
        warps = tiles_in_a_block(value, index)
        kernel("bbcsr_convert", "bbcsr_fill_full", pointer, index, value, block_size, warps)(
            blocks(n_bins * WARP, warps * WARP), (warps * WARP,), (*inputs, *outputs)
        )
    settle()
    return tables


def _measure(csr: CSR, block_size: int) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray, int, int, bool]:
    """Where bins begin, in values and in narrow columns; their col_base; values and narrow columns in all; is there a hole?

    The quick count, for matrices without holes, comes first; where it finds a hole, what it counted means nothing.
    """
    index = csr.indices.dtype
    n_rows, n_bins, n_block_rows = csr.shape[0], -(-csr.shape[0] // WARP), -(-csr.shape[0] // block_size)
    n_blocks = cupy.empty(n_block_rows, np.int32)
    col_low, col_high = cupy.empty((2, n_block_rows), index)
    col_base = cupy.empty(n_bins, index)
    # values by bin, and columns of narrow bins, each with a 0 in front: one running sum through both makes all offsets
    sizes = cupy.zeros((2, n_bins + 1), np.int64)
    has_holes = False
    threads = {"bbcsr_count_full": 1 if block_size == 1 else WARP, "bbcsr_count_holes": group(block_size)}  # a block row
    for count in threads:
        totals = cupy.zeros(3, np.int64)  # values, columns of narrow bins, whether there is a hole
        if n_bins:
            rows = (csr.indptr, csr.indices, np.int64(n_rows), np.int64(n_block_rows), n_blocks, col_low, col_high)
            kernel("bbcsr_convert", count, csr.indptr.dtype, index, block_size)(
                blocks(n_block_rows * threads[count], BLOCK), (BLOCK,), (*rows, totals[2:])
            )
            kernel("bbcsr_convert", "bbcsr_bins", index)(
                blocks(n_bins * WARP, 1024),
                (1024,),
                (n_blocks, col_low, col_high, np.int64(n_rows), np.int32(block_size), np.int64(n_bins), sizes[0, 1:],
                 sizes[1, 1:], col_base, totals),
            )  # fmt: skip
        bin_rowptr, narrow_ptr = cupy.cumsum(sizes).reshape(2, -1)
        n_values, n_narrow, hole = totals.get().tolist()
        if not hole:
            break
        has_holes = True
    return bin_rowptr, narrow_ptr, col_base, n_values, n_narrow, has_holes


def group(block_size: int) -> int:
    """Threads that merge a block row: ``BlockRow::GROUP`` of the kernel file."""
    return 1 << (block_size - 1).bit_length()


def tiles_in_a_block(value: np.dtype, index: np.dtype) -> int:
    """Warps a block of ``bbcsr_fill_full``, each with a tile of values and columns in the 48 KB of shared memory."""
    return 2 if 2 * WARP * (WARP + 1) * (np.dtype(value).itemsize + np.dtype(index).itemsize) <= 48 << 10 else 1


def product(tables: BBCSRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y`` on the current device and stream.

    `x` and `y` are contiguous and `dtype`, the product's, as are the scalars.
    """
    t, size, n_bins = tables, tables.block_size, tables.col_base.size
    bins, in_flight = _struct(t), unroll(size, dtype.itemsize, is_far(t))
    sharers = warps_a_bin(t)
    multiply = kernel(
        "bbcsr_matvec", "bbcsr_matvec", t.data.dtype, dtype, t.col_wide.dtype, mask_dtype(size), size, *in_flight,
        t.present is not None, sharers,
    )  # fmt: skip
    block = max(BLOCK, sharers * WARP)
    grid = blocks(n_bins * sharers * WARP, block)
    return lambda x, y, alpha, beta: multiply(grid, (block,), (bins, x, y, alpha, beta, update(alpha, beta)))


def warps_a_bin(t: BBCSRTables) -> int:
    """Warps that share a bin: 1 where there are bins enough to keep the device busy, else more, as far as rows reach.

    Where columns are far apart, warps that work on different parts of a long row read different parts of `x`: few share then.
    """
    n_bins, size, far = t.col_base.size, t.block_size, is_far(t)
    mean_blocks = _mean_blocks(t)
    least_blocks = -(-FEWEST // size)
    enough = (FEW_WARPS if far else MANY_WARPS) * processors(cupy.cuda.runtime.getDevice())
    sharers = 1
    while sharers < MOST_SHARERS and 2 * sharers * least_blocks <= mean_blocks:
        is_long = mean_blocks * size > LONG * sharers and not far
        if n_bins * sharers >= enough and not is_long:
            break
        sharers *= 2
    return sharers


def is_far(t: BBCSRTables) -> bool:
    """Are rows long, and most columns so far apart that bins are wide?"""
    return t.col_wide.size > t.col_narrow.size and _mean_blocks(t) * t.block_size > LONG


def _mean_blocks(t: BBCSRTables) -> int:
    """Blocks of a row, padding counted."""
    return t.data.size // (WARP * t.block_size * max(1, t.col_base.size))


def product_matrix(tables: BBCSRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; X (n_cols, k) and Y (n_rows, k) in C order."""
    t, size = tables, tables.block_size
    bins, n_warps = _struct(t), t.col_base.size

    def run(x, y, alpha, beta):
        k = x.shape[1]
        members, width, tiles = matrix_tiles(k, dtype, x, y)
        kernel(
            "bbcsr_matmat", "bbcsr_matmat", t.data.dtype, dtype, t.col_wide.dtype, mask_dtype(size), size,
            t.present is not None, members, width, matrix_unroll(size, members),
        )(
            (*blocks(n_warps * WARP, BLOCK), tiles), (BLOCK,), (bins, np.int64(k), x, y, alpha, beta, update(alpha, beta))
        )  # fmt: skip

    return run


def matrix_unroll(block_size: int, members: int) -> int:
    """Blocks in flight: several where a block and turn alone give few loads."""
    return 4 if block_size * members <= 2 else 2 if block_size * members <= 4 else 1


def product_transposed(tables: BBCSRTables, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray, Any, Any], None]:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``; x (n_rows,) and y (n_cols,)."""
    t, size = tables, tables.block_size
    bins, grid = _struct(t), blocks(t.col_base.size * WARP, BLOCK)
    how = t.data.dtype, dtype, t.col_wide.dtype, mask_dtype(size), size, t.present is not None

    def scatter(step, floats, x, sums):
        kernel("bbcsr_transposed", "bbcsr_transposed", *how, step, BLOCK // WARP, floats)(grid, (BLOCK,), (bins, x, sums))

    def finish(floats, x, sums, y, alpha, beta, form):
        found = kernel("bbcsr_transposed", "bbcsr_transposed_finish", *how, transposed.BLOCK // WARP, floats)
        transposed.cooperative(found, bins, x, sums, y, alpha, beta, form)

    passes = transposed.Passes(partial(scatter, transposed.COUNT, False, NULL), finish)
    sums = transposed.Sums(passes, "bbcsr_transposed", t.data, t.shape[1], dtype)
    plain = sums.product(partial(scatter, transposed.ADD, sums.floats))
    if size > 1 or t.present is not None:
        return plain
    return near.in_time(t.data.size, t.shape[1], plain, lambda: near.product_transposed_by_segments(t, sums, _struct))


def _struct(t: BBCSRTables) -> np.ndarray:
    """The tables as kernels take them."""
    return struct(t.bin_rowptr, t.data, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, t.present, *t.shape, t.col_base.size)


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
    yield (
        "bbcsr_convert",
        [
            *(
                instantiation(count, p, i, b)
                for count in ("bbcsr_count_full", "bbcsr_count_holes")
                for p, i in (("int32", "int32"), ("int64", "int64"))
                for b in sizes
            ),
            *(instantiation("bbcsr_bins", i) for i in ("int32", "int64")),
            *(
                instantiation("bbcsr_fill_full", p, i, a, b, tiles_in_a_block(a, i))
                for b in sizes
                for p, i, a in (("int32", "int32", "bool"), ("int32", "int32", "complex128"), ("int64", "int64", "complex128"))
            ),
            *(
                instantiation("bbcsr_fill_holes", p, i, a, mask_dtype(b), b)
                for b in sizes
                for p, i, a in (("int32", "int32", "bool"), ("int64", "int64", "complex128"))
            ),
            instantiation("bbcsr_fill_full", "int32", "int32", "float16", 3, tiles_in_a_block("float16", "int32")),
            instantiation("bbcsr_fill_holes", "int32", "int32", "float16", mask_dtype(6), 6),
            *(instantiation("bbcsr_slots", i, m) for i in ("int32", "int64") for m in ("uint8", "uint16", "uint32")),
        ],
    )
    yield (
        "bbcsr_matvec",
        [
            instantiation("bbcsr_matvec", a, y, i, mask_dtype(b), b, *unroll(b, np.dtype(y).itemsize, far), holes, sharers)
            for a, y in PRODUCTS
            for i, b, holes, sharers, far in (
                ("int32", 1, False, 1, False),
                ("int32", 1, False, 16, True),
                ("int32", 3, False, 2, False),
                ("int32", 6, True, 1, False),
                ("int64", 7, True, 4, False),
            )
        ],
    )
    shapes = (("int32", 1, False), ("int32", 3, False), ("int32", 6, True), ("int64", 7, True))
    yield (
        "bbcsr_matmat",
        [
            instantiation("bbcsr_matmat", a, y, i, mask_dtype(b), b, holes, members, width, matrix_unroll(b, members))
            for a, y in PRODUCTS
            for (i, b, holes), members, width in zip(shapes, (1, 16, 4, 8), (1, vector_width(y)) * 2, strict=True)
        ],
    )
    yield (
        "bbcsr_transposed",
        [
            *(
                instantiation("bbcsr_transposed", a, y, i, mask_dtype(b), b, holes, step, BLOCK // WARP, floats)
                for a, y in PRODUCTS
                for floats in ((False, True) if transposed.limbs(np.dtype(y)) == 2 else (False,))
                for k, (i, b, holes) in enumerate(shapes)
                for step in (
                    (transposed.COUNT, transposed.ADD) if not (k or floats) and np.dtype(y).kind in "fc" else (transposed.ADD,)
                )
            ),
            *(
                instantiation("bbcsr_transposed_finish", a, y, i, mask_dtype(b), b, holes, transposed.BLOCK // WARP, floats)
                for a, y in PRODUCTS
                for k, (i, b, holes) in enumerate(shapes)
                for floats in (k % 2 == 0 and transposed.limbs(np.dtype(y)) == 2,)
            ),
            *(
                instantiation("bbcsr_transposed_near", a, y, i, mask_dtype(1), near.THREADS, floats)
                for a, y in PRODUCTS
                for i, floats in (("int32", transposed.limbs(np.dtype(y)) == 2), ("int64", False))
            ),
            *(instantiation("bbcsr_segments", "float32", i, mask_dtype(1)) for i in ("int32", "int64")),
            *transposed.instantiations(),
        ],
    )
