"""``A @ x`` of CVR with entries of x in shared memory.

Where columns are scattered, each nonzero makes a gather of its own from L1 or L2, and these bound the product
(``docs/measurements/gpu-products.md``). Shared memory serves 32 addresses at a time.

It holds all of x, where that fits. Else the entries of popular columns, those that most nonzeros are in. They are worth
it where columns are hit unevenly, as in graphs and recommender matrices. The tables then get other column numbers, which
tell popular columns from the others. After S. Yesil, A. Heidarshenas, A. Morrison, J. Torrellas, "Speeding Up SpMV for
Power-Law Graph Analytics by Enhancing Locality & Vectorization", SC 2020, which does so on CPUs.

No bit of a product depends on it. Whether it is faster is measured: :mod:`.plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from ..core.arrays import Run
from ..core.remembered import Remembered
from ..core.tables import WARP, CVRTables
from . import distinct, left_in_l2
from .compiler import PRODUCTS, ROWS_OF_X, STORED, Kernel, allowed
from .cvr_tables import n_slots
from .launches import ACCUMULATE, PLAIN, SCALE, Struct, blocks, struct, update
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
LEAST_SLOTS = 1 << 22  # smaller matrices do not make up for the time that filling shared memory takes
MOST_COLUMNS = 1 << 27  # each has a counter while popular ones are looked for

#: By the table of a structure, and how many columns have room.
_POPULAR = Remembered()

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


class Columns(NamedTuple):
    """The columns of a CVR array's slots, popular ones packed."""

    packed: cupy.ndarray  # (n_slots,) the column, but ~i for popular[i]
    popular: cupy.ndarray  # (n_popular,)


def is_large(t: CVRTables) -> bool:
    """Whether a product may make up for the time that filling shared memory takes."""
    return n_slots(t) >= LEAST_SLOTS and t.shape[1] <= MOST_COLUMNS


def columns(tables: CVRTables, room: int) -> Columns | None:
    """The columns of `tables` with at most `room` popular ones packed, or None where few nonzeros are in these.

    It waits for the device, 1 to 3 ms for 30 million nonzeros. 4 bytes a nonzero (8 beyond 2^31 columns) stay in use.
    """
    t, (_, n_cols) = tables, tables.shape
    index, n_chunks = t.tail.dtype, t.carry_row.size
    m = struct(t.step_ptr, t.col_base, t.col_ptr, t.col_narrow, t.col_wide, n_chunks, t.n_lanes)
    every = max(1, n_slots(t) // SAMPLE)
    hits = cupy.zeros(n_cols, np.uint32)
    COUNT_COLUMNS(index)(blocks(-(-n_chunks // every) * WARP, BLOCK), (BLOCK,), (m, np.int64(every), hits))
    popular = cupy.flatnonzero(hits > cupy.sort(hits)[max(0, n_cols - room - 1)]).astype(index)
    if not popular.size or int(hits[popular].sum()) < LEAST_SHARE * int(hits.sum()):
        return None
    place = cupy.zeros(n_cols, index)
    place[popular] = cupy.arange(1, popular.size + 1, dtype=index)
    packed = cupy.empty(n_slots(t), index)
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
    found = _POPULAR.of(t.step_ptr, room, lambda: columns(t, room)) if room else None
    if found is None:
        return None
    chunks, scratch = struct_of(t._replace(col_wide=found.packed)), Scratch()
    n_popular, pack = found.popular.size, PACK(dtype, found.popular.dtype)

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        values = scratch.empty(n_popular, dtype)
        pack(blocks(n_popular, BLOCK), (BLOCK,), (x, found.popular, np.int32(n_popular), values))
        launch(chunks, x, values, n_popular, y, alpha, beta)

    return run


def shared_memory() -> int:
    """Bytes of shared memory that one block may have for x."""
    return max(0, attribute("MaxSharedMemoryPerBlockOptin") - KERNELS_OWN)
