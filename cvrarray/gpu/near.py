"""Entries of x in shared memory, for CVR: all of them where they fit, else those that most nonzeros meet; sums of ``A.T @ x``.

Scattered columns make every nonzero a gather of its own from L1 or L2, which bounds the product
(``docs/decisions/0003-gpu-products.md``). Shared memory serves 32 places at a time. Where x is too long for it and columns
are hit unevenly, as in graphs and recommender matrices, a few ten thousand popular ones are worth their place; the tables
then get other columns, which number these. Whether it pays is measured at an array's PREPARE_AT-th product; no bit of a
product depends on that. After S. Yesil, A. Heidarshenas, A. Morrison, J. Torrellas, "Speeding Up SpMV for Power-Law Graph
Analytics by Enhancing Locality & Vectorization", SC 2020, which does so on CPUs. ``A.T @ x`` has the sums of these columns
there, or of all, BBCSR's of one segment of columns after the other: they are integers, so that it does not matter who adds to
them first (``kernels/transposed.cuh``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.tables import WARP, BBCSRTables, CVRTables, mask_dtype
from . import transposed
from .compiler import NULL, Scratch, blocks, kernel, processors, struct, update

PREPARE_AT = 16  # products of an array before entries of x are shared, which takes what some 30 more gain
THREADS = 1024  # of a block, the only one on its multiprocessor
UNROLL = {1: 8, 2: 8, 4: 8, 8: 4, 16: 2}
BLOCK = 256
SAMPLE = 1 << 21  # columns that are counted
LEAST_SLOTS = 1 << 22  # smaller matrices do not make up for the time that it takes to fill shared memory
MOST_COLUMNS = 1 << 27  # a counter each, while this is prepared
L1_SHARE = 64 << 10  # bytes of shared memory that are left to L1: the rest of x and the tables stream through it
KERNELS_OWN = 1 << 10  # bytes of shared memory that the kernel needs beside x
LEAST_SHARE = 0.25  # of the gathers that popular columns must take over
MOST_SEGMENTS = 64
MOST_READ = 6  # times a matrix may be read by segments
WORTH_IT = 0.95  # of the plain product's time: what the other may take at most
SAMPLES, CALLS = 3, 4  # of which that is measured: calls in a row, so that the host's time does not count

Run = Callable[..., None]


class Columns(NamedTuple):
    """The columns of a CVR array's slots, popular ones packed."""

    packed: cupy.ndarray  # (n_slots,) the column, but ~i for popular[i]
    popular: cupy.ndarray  # (n_popular,)


def columns(tables: CVRTables, room: int) -> Columns | None:
    """The columns of `tables` with at most `room` popular ones packed, or None where these are too few of all.

    It waits for the device, 1 to 3 ms for 30 million nonzeros; 4 bytes a nonzero (8 beyond 2^31 columns) stay in use.
    """
    t, (_, n_cols) = tables, tables.shape
    index, n_chunks = t.tail.dtype, t.carry_row.size
    m = struct(t.step_ptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, n_chunks, t.n_lanes)
    every = max(1, t.val.size // SAMPLE)
    hits = cupy.zeros(n_cols, np.uint32)
    kernel("cvr_matvec", "cvr_count_columns", index)(
        blocks(-(-n_chunks // every) * WARP, BLOCK), (BLOCK,), (m, np.int64(every), hits)
    )
    popular = cupy.flatnonzero(hits > cupy.sort(hits)[max(0, n_cols - room - 1)]).astype(index)
    if not popular.size or int(hits[popular].sum()) < LEAST_SHARE * int(hits.sum()):
        return None
    place = cupy.zeros(n_cols, index)
    place[popular] = cupy.arange(1, popular.size + 1, dtype=index)
    packed = cupy.empty(t.val.size, index)
    kernel("cvr_matvec", "cvr_pack_columns", index)(blocks(n_chunks * WARP, BLOCK), (BLOCK,), (m, place, packed))
    return Columns(packed, popular)


def in_time(n_slots: int, n_cols: int, plain: Run, prepare: Callable[[], Run | None]) -> Run:
    """``run(x, y, alpha, beta)``: `plain`, and from the PREPARE_AT-th call on what ``prepare()`` makes, if that was measured
    to pay: the product with entries of a vector in shared memory.
    """
    if n_slots < LEAST_SLOTS or n_cols > MOST_COLUMNS:
        return plain
    run, n_calls = plain, 0

    def counting(x, y, alpha, beta):
        nonlocal run, n_calls
        n_calls += 1
        if n_calls == PREPARE_AT:
            if cupy.cuda.get_current_stream().is_capturing():  # a graph cannot wait for what is packed
                n_calls -= 1
            else:
                with suppress(cupy.cuda.memory.OutOfMemoryError):  # then it stays as it is
                    candidate = prepare()
                    if candidate is not None and _seconds(candidate, x, y) < WORTH_IT * _seconds(plain, x, y):
                        run = candidate
        run(x, y, alpha, beta)

    return counting


def _seconds(run: Run, x: cupy.ndarray, y: cupy.ndarray) -> float:
    """What a product takes: the least of some samples, after a call that does not count. `y` is not touched."""
    out, one, zero = cupy.empty_like(y), y.dtype.type(1), y.dtype.type(0)
    run(x, out, one, zero)
    samples = []
    for _ in range(SAMPLES):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(CALLS):
            run(x, out, one, zero)
        stop.record()
        stop.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3 / CALLS)
    return min(samples)


def product(t: CVRTables, dtype: np.dtype, struct_of: Callable[[CVRTables], Any], cuts: Callable[[], np.ndarray]) -> Run | None:
    """``run(x, y, alpha, beta)``, ``A @ x`` with entries of x in shared memory, or None where no column is popular enough.

    `struct_of(tables)` is the tables as kernels take them; `cuts()` what they take of cut rows.
    """
    device, n_cols = cupy.cuda.runtime.getDevice(), t.shape[1]
    most = shared_memory(device)
    whole = n_cols * dtype.itemsize <= most
    grid = (processors(device),)

    @cache
    def multiply(form):
        how = t.n_lanes, UNROLL[dtype.itemsize], int(form), THREADS, whole, t.cut_row.size > 0
        return _with_shared_memory(kernel("cvr_matvec", "cvr_matvec_shared", t.val.dtype, dtype, t.tail.dtype, *how), most)

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
    n_popular, pack = found.popular.size, kernel("cvr_matvec", "cvr_pack", dtype, found.popular.dtype)

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        values = scratch.empty(n_popular, dtype)
        pack(blocks(n_popular, BLOCK), (BLOCK,), (x, found.popular, np.int32(n_popular), values))
        launch(chunks, x, values, n_popular, y, alpha, beta)

    return run


def product_transposed(t: CVRTables, sums: transposed.Sums, struct_of: Callable[[CVRTables], Any]) -> Run | None:
    """``run(x, y, alpha, beta)``, ``A.T @ x`` with sums of columns in shared memory, or None where no column is popular enough.

    Atomics there do not wait for L2, which bounds the product else (``docs/decisions/0010-gpu-matrix-and-transposed.md``).
    """
    device, n_cols = cupy.cuda.runtime.getDevice(), t.shape[1]
    most = shared_memory(device)
    column = bytes_a_column(sums.dtype)
    whole = n_cols * column <= most
    found = None if whole else columns(t, most // column)
    if not whole and found is None:
        return None
    tables = t if whole else t._replace(col_wide=found.packed)
    chunks, popular, n_near = struct_of(tables), *((NULL, n_cols) if whole else (found.popular, found.popular.size))
    how = t.val.dtype, sums.dtype, t.tail.dtype, t.n_lanes, THREADS, whole, sums.floats
    scatter = _with_shared_memory(kernel("cvr_transposed", "cvr_transposed_near", *how), most)
    grid = (processors(device),)

    def add(x, of_call, _tables=tables):  # which the kernel knows by address
        scatter(grid, (THREADS,), (chunks, x, of_call, popular, np.int32(n_near)), shared_mem=n_near * column)

    return sums.product(add)


def product_transposed_by_segments(
    t: BBCSRTables, sums: transposed.Sums, struct_of: Callable[[BBCSRTables], Any]
) -> Run | None:
    """``run(x, y, alpha, beta)``, ``A.T @ x`` for blocks of 1 with sums of one segment of columns after the other in shared
    memory, or None where rows are too short for that: the 32 rows of a bin do not reach a segment in the same steps, so that
    many more are read.
    """
    device, (_, n_cols), n_bins = cupy.cuda.runtime.getDevice(), t.shape, t.col_base.size
    most = shared_memory(device)
    column = bytes_a_column(sums.dtype)
    n_segments = -(-n_cols // max(1, most // column))
    if n_segments > MOST_SEGMENTS:
        return None
    width, index, mask = -(-n_cols // n_segments), t.col_wide.dtype, mask_dtype(1)
    bins, steps = struct_of(t), cupy.empty((n_bins, n_segments, 2), np.int32)
    kernel("bbcsr_transposed", "bbcsr_segments", t.data.dtype, index, mask)(
        blocks(n_bins * WARP, BLOCK), (BLOCK,), (bins, np.int64(width), np.int32(n_segments), steps)
    )
    if int((steps[..., 1] - steps[..., 0]).sum()) * WARP > MOST_READ * t.data.size:
        return None
    found = kernel("bbcsr_transposed", "bbcsr_transposed_near", t.data.dtype, sums.dtype, index, mask, THREADS, sums.floats)
    scatter, grid = _with_shared_memory(found, most), (processors(device),)
    n_groups = max(1, processors(device) // n_segments)

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


def _with_shared_memory(found: cupy.cuda.Function, most: int) -> cupy.cuda.Function:
    """The kernel, allowed `most` bytes: arrays share it, so always the most that any of them may ask for."""
    cupy.cuda.driver.funcSetAttribute(found.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most)
    return found


@cache
def shared_memory(device: int) -> int:
    """Bytes of shared memory that one block may have for x."""
    return max(0, cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"] - KERNELS_OWN)
