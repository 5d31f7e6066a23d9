"""Popular columns of a CVR array: the entries of x that most nonzeros meet, kept in shared memory by the product.

Scattered columns make every nonzero a gather from L2, which bounds the product (``docs/decisions/0003-gpu-products.md``).
Where columns are hit unevenly, as in graphs and recommender matrices, a few ten thousand of them are worth shared memory.
They are packed at an array's PREPARE_AT-th product; no bit of a product depends on that. After S. Yesil, A. Heidarshenas,
A. Morrison, J. Torrellas, "Speeding Up SpMV for Power-Law Graph Analytics by Enhancing Locality & Vectorization", SC 2020,
which does so on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from .._tables import CVRTables
from .compiler import Scratch, blocks, kernel, processors, update

PREPARE_AT = 16  # products of an array before its columns are packed, which takes what some 30 more gain
THREADS = 1024  # of a block, the only one on its multiprocessor
UNROLL = {1: 8, 2: 8, 4: 8, 8: 4, 16: 2}
BLOCK = 256
SAMPLE = 1 << 21  # columns that are counted
LEAST_SLOTS = 1 << 22  # of wide chunks: smaller matrices have their x near anyway
MOST_COLUMNS = 1 << 27  # a counter each, while this is prepared
L1_SHARE = 64 << 10  # bytes of shared memory that are left to L1: the rest of x and the tables stream through it
LEAST_SHARE = 0.25  # of the gathers that popular columns must take over
WORTH_IT = 0.95  # of the plain product's time: what the other may take at most, measured in so many samples
SAMPLES = 5


class Columns(NamedTuple):
    """The packed columns of a CVR array."""

    col_wide: cupy.ndarray  # as CVRTables.col_wide, but ~i for popular[i]
    popular: cupy.ndarray  # (n_popular,) the popular columns


def columns(tables: CVRTables, dtype: np.dtype) -> Columns | None:
    """The columns of `tables` with popular ones packed, or None where these are too few of all.

    It waits for the device, 1 to 3 ms for 30 million nonzeros; as much memory as ``col_wide`` stays in use.
    """
    t, n_cols = tables, tables.shape[1]
    room = shared_memory(cupy.cuda.runtime.getDevice()) // dtype.itemsize
    sample = t.col_wide[:: max(1, t.col_wide.size // SAMPLE)]
    hits = cupy.bincount(sample, minlength=n_cols).astype(np.int32)
    popular = cupy.flatnonzero(hits > cupy.sort(hits)[-room - 1]).astype(t.col_wide.dtype)
    if not popular.size or int(hits[popular].sum()) < LEAST_SHARE * sample.size:
        return None
    place = cupy.zeros(n_cols, t.col_wide.dtype)
    place[popular] = cupy.arange(1, popular.size + 1, dtype=place.dtype)
    packed = cupy.empty_like(t.col_wide)
    kernel("cvr_matvec", "cvr_pack_columns", packed.dtype)(
        blocks(packed.size // 8, BLOCK), (BLOCK,), (t.col_wide, place, np.int64(packed.size), packed)
    )
    return Columns(packed, popular)


def in_time(
    tables: CVRTables,
    dtype: np.dtype,
    plain: Callable[..., None],
    struct_with: Callable[[Any], Any],
    cuts: Callable[[], np.ndarray],
) -> Callable[..., None]:
    """``run(x, y, alpha, beta)``: `plain`, and from the PREPARE_AT-th call on the product with packed columns where that was
    measured to pay.

    `struct_with(col_wide)` is the tables as kernels take them, with other columns; `cuts()` what they take of cut rows.
    """
    if not _may_pay(tables, dtype):
        return plain
    run, n_calls = plain, 0

    def counting(x, y, alpha, beta):
        nonlocal run, n_calls
        n_calls += 1
        if n_calls == PREPARE_AT:
            if cupy.cuda.get_current_stream().is_capturing():  # a graph cannot wait for what is packed
                n_calls -= 1
            elif (packed := columns(tables, dtype)) is not None:
                candidate = _product(packed, tables, dtype, struct_with(packed.col_wide), cuts)
                if _seconds(candidate, x, y) < WORTH_IT * _seconds(plain, x, y):
                    run = candidate
        run(x, y, alpha, beta)

    return counting


def _seconds(run: Callable[..., None], x: cupy.ndarray, y: cupy.ndarray) -> float:
    """What a product takes: the least of some samples, after one that does not count. `y` is not touched."""
    out, one, zero = cupy.empty_like(y), y.dtype.type(1), y.dtype.type(0)
    run(x, out, one, zero)
    samples = []
    for _ in range(SAMPLES):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        run(x, out, one, zero)
        stop.record()
        stop.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3)
    return min(samples)


def _may_pay(t: CVRTables, dtype: np.dtype) -> bool:
    """Whether the tables are large, mostly wide, and have many more columns than shared memory has room for."""
    room = shared_memory(cupy.cuda.runtime.getDevice()) // dtype.itemsize
    is_large = t.col_wide.size >= LEAST_SLOTS and 2 * t.col_wide.size >= t.val.size
    return is_large and 2 * room < t.shape[1] <= MOST_COLUMNS


def _product(
    packed: Columns, tables: CVRTables, dtype: np.dtype, chunks: np.ndarray, cuts: Callable[[], np.ndarray]
) -> Callable[..., None]:
    """``run(x, y, alpha, beta)`` for `chunks`, the tables with packed columns."""
    t, n = tables, packed.popular.size
    pack = kernel("cvr_matvec", "cvr_pack", dtype, packed.popular.dtype)
    multiply = kernel(
        "cvr_matvec", "cvr_matvec_popular", t.val.dtype, dtype, t.tail.dtype, t.n_lanes, UNROLL[dtype.itemsize], THREADS,
        t.cut_row.size > 0,
    )  # fmt: skip
    device = cupy.cuda.runtime.getDevice()
    room = shared_memory(device)
    n_shared = min(n, room // dtype.itemsize)
    # of the kernel, which arrays share: so always the most that any of them may ask for
    cupy.cuda.driver.funcSetAttribute(multiply.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, room)
    grid, pack_grid, scratch = (processors(device),), blocks(n, BLOCK), Scratch()

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        values = scratch.empty(n, dtype)
        pack(pack_grid, (BLOCK,), (x, packed.popular, np.int32(n), values))
        multiply(
            grid, (THREADS,), (chunks, x, values, np.int32(n_shared), y, cuts(), alpha, beta, update(alpha, beta)),
            shared_mem=n_shared * dtype.itemsize,
        )  # fmt: skip

    return run


@cache
def shared_memory(device: int) -> int:
    """Bytes of shared memory that one block may have, less what keeps some L1."""
    return cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"] - L1_SHARE
