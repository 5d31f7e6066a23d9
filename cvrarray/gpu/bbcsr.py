"""BBCSR on the GPU. The same functions as :mod:`cvrarray.cpu.bbcsr`; the kernels' files say what each does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import cupy
import numpy as np

from ..core import few_columns, sharing, short_rows
from ..core.arrays import Run
from ..core.tables import CSR, WARP, BBCSRTables, Measured, Wanted, mask_dtype
from . import bbcsr_matmat, bbcsr_rows, distinct, left_in_l2, plan, prefix, row_lanes, rows_as_entries
from .bbcsr_lengths import Lengths
from .bbcsr_tables import BLOCK, as_struct, is_wide, mean_blocks, n_slots, threads
from .captures import synchronize
from .compiler import LONG_ROWS_OF_X, PRODUCTS, ROWS_OF_X, STORED, Kernel
from .launches import MOST_IN_Y, argument, blocks, in_columns, scaling, struct
from .look import Look, host
from .memory import leading, together
from .properties import processors
from .words import WORDS

THREADS_OF_RUNS = 256  # that share a bin of long rows
#: Rows with more entries are long: where they decide how many are in flight, and where runs of whole rows are read as such.
LONG, LONG_RUN = 16, 40
#: Threads of a block whose multiprocessor has as many neighbouring bins as possible: they mostly need the same sectors of x.
THREADS_NEAR = 512
#: Of a stack: elements that a block of threads takes in turn, unless fewer keep the device busy; threads of a block, where each
#: has a row.
IN_TURN, THREADS_OF_ROWS = 8, 128


class Layout(NamedTuple):
    """How warps multiply by bins of single columns. No bit of a row that one warp has depends on it."""

    in_flight: int = 0  #: entries of a row in wide bins that are loaded together; 0: as many as :func:`unroll` says
    at_once: bool = False  #: a warp waits once for a round's loads, which takes registers: fewer warps are on a multiprocessor
    near: bool = False  #: neighbouring bins are on one multiprocessor


#: The candidates of ``A @ x`` by name, and those for rows of more than LONG entries in wide bins (:func:`reads_anywhere`): with
#: fewer entries in flight all warps together read a smaller part of x at a time, which caches hold.
LAYOUTS = {"bins, at once": Layout(at_once=True), "bins, plain": Layout(), "bins, near": Layout(near=True)}
LAYOUTS_ANYWHERE = {"bins, few": Layout(4, True, True), "bins, fewer": Layout(2, True, True)}
#: Then warps that share a row have FEWEST of its entries at least, and are no more than WARPS_ANYWHERE a multiprocessor. Bins
#: with more slots than EVEN times their entries end late if few warps share them.
FEWEST, WARPS_ANYWHERE, EVEN = 4, 48, 4 / 3


def unroll(block_size: int, itemsize: int, is_far: bool) -> tuple[int, int]:
    """Blocks in flight in a narrow and in a wide bin, measured on an H200: see ``docs/measurements/gpu-products.md``.

    More of them hide more latency, but widen the part of `x` that a multiprocessor's warps read at a time. Where rows
    are long and their columns far apart (`is_far`), only few keep that part in cache.
    """
    narrow = sharing.blocks_in_flight(block_size, itemsize)
    if block_size == 1:
        return narrow, (4 if is_far else 8 if itemsize <= 4 else 6 if itemsize <= 8 else 4)
    return narrow, narrow


def blocks_of_rows(slots: int, dtype: np.dtype) -> int:
    """Of a stack: blocks of a multiprocessor, at least, where a thread has registers for the columns, values and x of a row."""
    n_bytes = slots * dtype.itemsize
    if n_bytes <= 64:
        return 12 if slots <= 8 and dtype.kind != "c" else 6
    return 3 if n_bytes <= 128 else 1


def group(block_size: int) -> int:
    """Threads that merge a block row: ``BlockRow::GROUP`` of the kernel file."""
    return 1 << (block_size - 1).bit_length()


SIZES = (1, 2, 3, 6, 7, 32)  # of blocks, that are compiled without a GPU
COUNTED = [(*dtypes, size) for dtypes in (("int32", "int32"), ("int64", "int64")) for size in SIZES if size > 1]

COUNT_HOLES = Kernel("bbcsr_convert", "bbcsr_count_holes", COUNTED)
BINS = Kernel("bbcsr_convert", "bbcsr_bins", [("int32",), ("int64",)])
FILL = Kernel(
    "bbcsr_convert",
    "bbcsr_fill",
    [("int32", "int32", word) for word in WORDS.values()] + [("int64", "int64", "uint64")],
    lambda pointer, index, word: (pointer, index, word, warps_of_tiles(word)),
)
COLUMNS = Kernel("bbcsr_convert", "bbcsr_columns", COUNTED)
FILL_HOLES = Kernel(
    "bbcsr_convert",
    "bbcsr_fill_holes",
    [(*dtypes, size) for size in SIZES for dtypes in (("int32", "int32", "bool"), ("int64", "int64", "complex128"))]
    + [("int32", "int32", "float16", 6)],
    lambda pointer, index, value, size: (pointer, index, value, mask_dtype(size), size),
)
OFFSETS_AND_WORDS = [("int64", word) for word in WORDS.values()] + [("int32", "uint64")]
VALUES = Kernel("bbcsr_values", "bbcsr_values", OFFSETS_AND_WORDS, lambda pointer, word: (pointer, word, warps_of_tiles(word)))
VALUES_RUNS = Kernel(
    "bbcsr_values",
    "bbcsr_values_runs",
    OFFSETS_AND_WORDS,
    lambda pointer, word: (pointer, word, THREADS_OF_RUNS, numbers_of_runs(word)),
)
VALUES_HOLES = Kernel(
    "bbcsr_values", "bbcsr_values_holes", [(word, mask) for word in WORDS.values() for mask in ("uint8", "uint32")]
)
MATVEC = Kernel(
    "bbcsr_matvec",
    "bbcsr_matvec",
    [
        (*dtypes, *how)
        for dtypes in [*STORED, *ROWS_OF_X, *LONG_ROWS_OF_X]
        for how in (
            ("int32", 1, 0, 1, False, BLOCK, left_in_l2.ALL, True),
            ("int32", 1, 0, 16, False, THREADS_NEAR, left_in_l2.ENDS, False),
            ("int32", 1, 2, 1, False, THREADS_NEAR, left_in_l2.ALL, True),
            ("int32", 3, 0, 2, False, BLOCK, left_in_l2.ENDS, False),
            ("int32", 6, 0, 1, True, BLOCK, left_in_l2.ALL, False),
            ("int64", 7, 0, 4, True, BLOCK, left_in_l2.ENDS, False),
        )
    ],
    lambda value, product, index, size, alike, sharers, holes, threads, kept, at_once: (
        value, product, index, mask_dtype(size), size, unroll(size, product.itemsize, False)[0],
        alike or unroll(size, product.itemsize, False)[1], holes, sharers, threads, kept, at_once,
    ),
)  # fmt: skip

STACK_ROWS = Kernel(
    "bbcsr_stack",
    "bbcsr_stack_rows",
    [
        (*dtypes, *how)
        for dtypes in PRODUCTS
        for how in (("int32", 7, True), ("int32", short_rows.WIDEST, False), ("int64", 5, True))
    ],
    lambda value, product, index, slots, pads: (
        value, product, index, slots, pads, THREADS_OF_ROWS, blocks_of_rows(slots, product),
    ),
)  # fmt: skip
STACK = Kernel(
    "bbcsr_stack",
    "bbcsr_stack",
    [
        (*dtypes, *how)
        for dtypes in PRODUCTS
        for how in (("int32", 1, 0, 1, False), ("int32", 3, 0, 2, False), ("int64", 7, 0, 4, True))
    ],
    lambda value, product, index, size, alike, sharers, holes: (
        value, product, index, mask_dtype(size), size, unroll(size, product.itemsize, False)[0],
        alike or unroll(size, product.itemsize, False)[1], holes, sharers, threads(sharers),
    ),
)  # fmt: skip


def convert(csr: CSR, block_size: int) -> BBCSRTables:
    """Canonical CSR on the current device as BBCSR tables there, which the current stream fills."""
    n_rows, n_bins = csr.shape[0], -(-csr.shape[0] // WARP)
    pointer, index, value = csr.indptr.dtype, csr.indices.dtype, csr.data.dtype
    *_, sums, col_base, n_values, n_narrow, has_holes = _measured(csr, block_size)
    bin_rowptr, narrow_ptr = leading(sums, n_bins + 1), sums.data.ptr + 8 * (n_bins + 1)
    n_columns = n_values // block_size
    col_ptr, col_narrow, col_wide, present = together(
        (n_bins, np.int64),
        (n_narrow, np.uint16),
        (n_columns - n_narrow, index),
        (n_columns if has_holes else 0, mask_dtype(block_size)),
    )
    tables = BBCSRTables(
        shape=csr.shape,
        nnz=csr.nnz,
        block_size=block_size,
        bin_rowptr=bin_rowptr,
        data=cupy.empty(n_values, value),
        col_base=col_base,
        col_ptr=col_ptr,
        col_narrow=col_narrow,
        col_wide=col_wide,
        present=present if has_holes else None,
    )
    if not n_bins:
        return tables
    columns = struct(bin_rowptr, narrow_ptr, col_base, col_ptr, col_narrow, col_wide)
    arrays = csr.indptr, csr.indices, csr.data, np.int64(n_rows), np.int64(n_bins), columns, tables.data
    if has_holes:
        grid = blocks(-(-n_bins * WARP // block_size) * group(block_size), BLOCK)
        FILL_HOLES(pointer, index, value, block_size)(grid, (BLOCK,), (*arrays, present))
    elif block_size == 1:
        word = WORDS[value.itemsize]
        threads = WARP * warps_of_tiles(word)
        FILL(pointer, index, word)(blocks(n_bins * WARP, threads), (threads,), arrays)
    else:
        _fill_values(tables, csr.indptr, csr.data, tables.data)
        COLUMNS(pointer, index, block_size)(blocks(n_bins * WARP, BLOCK), (BLOCK,), (*arrays[:2], *arrays[3:6]))
    return tables


def _measured(csr: CSR, block_size: int) -> Measured:
    """The bins, which the check of the CSR may have seen: of blocks without holes. Those of others are counted here."""
    seen, n_bins = csr.seen, -(-csr.shape[0] // WARP)
    if not n_bins:
        nothing = cupy.zeros(1, np.int64)
        return Measured(csr.indptr, csr.indices, block_size, nothing, cupy.empty(0, csr.indices.dtype), 0, 0, False)
    if seen.measured is not None and seen.measured.is_of(csr, block_size):
        return seen.measured
    if block_size == 1 or seen.with_holes != block_size:
        wanted = Wanted(block_size=block_size)
        measured = Look(csr.indptr, csr.indices, csr.shape[1], wanted, checks=False).found().measured
        if measured is not None:
            return measured
    return _measured_with_holes(csr, block_size, n_bins)


def _measured_with_holes(csr: CSR, block_size: int, n_bins: int) -> Measured:
    """The bins of any blocks."""
    index, n_rows = csr.indices.dtype, np.int64(csr.shape[0])
    n_block_rows, n_sizes = -(-csr.shape[0] // block_size), 2 * (n_bins + 1)
    n_states, (pointer, numbers) = prefix.n_states(n_sizes), host()
    counts, col_base = cupy.empty(n_sizes + n_states, np.int64), cupy.empty(n_bins, index)
    n_blocks, columns = cupy.empty(n_block_rows, np.int32), cupy.empty(2 * n_block_rows, index)
    by_row = n_blocks, columns, columns[n_block_rows:]
    COUNT_HOLES(csr.indptr.dtype, index, block_size)(
        blocks(n_block_rows * group(block_size), BLOCK),
        (BLOCK,),
        (csr.indptr, csr.indices, n_rows, np.int64(n_block_rows), *by_row),
    )
    end = n_bins + 1
    bins = struct(n_bins, counts, counts.data.ptr + 8 * end, col_base)
    states = np.uint64(counts.data.ptr + 8 * n_sizes)
    BINS(index)(blocks(n_bins * WARP, 1024), (1024,), (*by_row, n_rows, np.int32(block_size), bins, states, np.int32(n_states)))
    sums = prefix.sums(counts, n_sizes, pointer, 2)
    synchronize()
    n_values, both = numbers[:2].tolist()
    n_narrow = both - n_values
    return Measured(csr.indptr, csr.indices, block_size, sums, col_base, n_values, n_narrow, True)


def product(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y`` on the current device and stream.

    `x` and `y` are contiguous and `dtype`, the product's, as are the scalars.
    """
    t = tables
    even = row_lanes.product(t, dtype, partial(slots_by_rows, t)) if t.block_size == 1 else None
    if even is not None:
        return even
    ways = [plan.Candidate(name, partial(_product, t, dtype, layout)) for name, layout in layouts(t, dtype).items()]
    return plan.fastest(ways, t.bin_rowptr, ("A @ x", dtype))


def layouts(t: BBCSRTables, dtype: np.dtype) -> dict[str, Layout]:
    """The candidates; the first serves first products. Warps that share a row take its entries by as many as are in flight, so
    all candidates have the same number then.
    """
    if t.block_size > 1 or not t.nnz:
        return {"bins": Layout()}
    fits = dtype.itemsize <= 8  # the registers, with all loads at once
    found = LAYOUTS if fits else {name: layout for name, layout in LAYOUTS.items() if not layout.at_once}
    if reads_anywhere(t):
        few = {name: layout._replace(at_once=fits) for name, layout in LAYOUTS_ANYWHERE.items()}
        found = few | found if _sharers(t, dtype.itemsize) == 1 else {"bins, few": few["bins, few"]}
    return found


def _product(t: BBCSRTables, dtype: np.dtype, layout: Layout) -> Run:
    """:func:`product` by this layout."""
    bins, n_bins, size, sharers = as_struct(t), t.col_base.size, t.block_size, _sharers(t, dtype.itemsize)
    in_flight, at_once, near = layout
    n_threads = THREADS_NEAR if near else threads(sharers)
    n_kept = n_bins if in_flight else left_in_l2.kept_at_ends(t, n_bins)
    multiply = MATVEC(
        distinct.kind(t.data, t.distinct), dtype, t.col_wide.dtype, size, in_flight, sharers, t.present is not None, n_threads,
        left_in_l2.kept(n_kept, n_bins), at_once,
    )  # fmt: skip
    n_blocks = -(-n_bins * sharers * WARP // n_threads)
    grid = in_columns(n_blocks) if near else (max(1, n_blocks),)
    turns, ends = left_in_l2.turns(), argument(np.int64(n_kept))
    return lambda x, y, alpha, beta: multiply(grid, (n_threads,), (bins, x, y, *scaling(alpha, beta), next(turns), ends))


def product_stack(tables: BBCSRTables, values: cupy.ndarray, dtype: np.dtype) -> Callable[[cupy.ndarray, cupy.ndarray], None]:
    """``run(x, y)``, which does ``y[i] = A_i @ x[i]``, or ``A_i @ x`` for a vector x, on the current device and stream.

    A_i has the structure of `tables` and the value table ``values[i]``, and adds its terms in the order of :func:`product`.
    """
    t, count = tables._replace(data=values[0], distinct=None), len(values)
    bins, index = as_struct(t), t.col_wide.dtype
    longest, is_even = row_lanes.longest_even(t, dtype, partial(slots_by_rows, t)) if t.block_size == 1 else (0, False)
    sharers = 1 if is_even else _sharers(t, dtype.itemsize)
    if not is_even and t.block_size == 1 and sharers == 1:
        longest = int(Lengths(t).most)
    if 0 < longest <= short_rows.WIDEST:
        multiply = STACK_ROWS(values.dtype, dtype, index, longest, not is_even)
        n_threads, at_once = THREADS_OF_ROWS, blocks_of_rows(longest, dtype) * processors()
        n_blocks = -(-t.col_base.size * WARP // THREADS_OF_ROWS)
    else:
        in_flight = next(iter(layouts(t, dtype).values())).in_flight
        multiply = STACK(values.dtype, dtype, index, t.block_size, in_flight, sharers, t.present is not None)
        n_threads = threads(sharers)
        at_once = sharing.warps_at_once(t.block_size, dtype.itemsize) * WARP * processors() // n_threads
        n_blocks = -(-t.col_base.size * sharers * WARP // n_threads)
    groups = max(1, at_once // n_blocks)  # of elements, whose blocks are all on the device at once
    in_turn = min(IN_TURN, -(-count // groups))
    (n_rows, n_cols), apart = t.shape, values.shape[1]

    def run(x: cupy.ndarray, y: cupy.ndarray) -> None:
        for begin in range(0, count, MOST_IN_Y * in_turn):  # a launch, but for hundreds of thousands of elements
            left, x_apart = min(count - begin, MOST_IN_Y * in_turn), n_cols if x.ndim > 1 else 0
            of = struct(left, apart, x_apart, n_rows, in_turn)
            here = bins if not begin else as_struct(t._replace(data=values[begin]))
            grid = n_blocks, -(-left // in_turn)
            multiply(grid, (n_threads,), (here, of, x[begin:] if x.ndim > 1 else x, y[begin:]))

    return run


def _sharers(t: BBCSRTables, itemsize: int) -> int:
    """Warps that share a bin, by the model of waits: of the structure and the device alone."""
    n_bins, size = t.col_base.size, t.block_size
    if not 0 < n_bins <= sharing.MOST_BINS:
        return 1
    if reads_anywhere(t):
        most = min(WARPS_ANYWHERE * processors() / n_bins, mean_blocks(t) // FEWEST)
        return max(sharers for sharers in sharing.SHARERS if sharers == 1 or sharers <= most)
    lengths = Lengths(t)
    bins = sharing.Bins(n_bins, float(lengths.bins.mean()), float(lengths.most), size, itemsize, is_wide(t))
    return sharing.least(bins, processors()).sharers


def reads_anywhere(t: BBCSRTables) -> bool:
    """Are rows of single columns long and even, and these columns so far apart that bins are wide?"""
    return is_wide(t) and mean_blocks(t) > LONG and n_slots(t) <= EVEN * t.nnz


def is_far(t: BBCSRTables) -> bool:
    """Are rows long, and most columns so far apart that bins are wide?"""
    return t.col_wide.size > t.col_narrow.size and mean_blocks(t) * t.block_size > LONG_RUN


def numbers_pay(t: BBCSRTables) -> bool:
    """Whether products gain by values that are looked up: not in long rows whose columns are far apart.

    There the speed is 0.73 to 0.79 times that with plain values. L1 may bound them: tables of values leave less of it
    for x.
    """
    return not is_far(t)


def product_matrix(tables: BBCSRTables, dtype: np.dtype) -> Run:
    """See :func:`.bbcsr_matmat.product`."""
    t, lengths = tables, Lengths(tables)

    def of_vector(entry):
        bins = few_columns.Bins(t.col_base.size, t.block_size, lengths.mean, lengths.most, n_slots(t) / max(1, t.nnz))
        return product(t, entry) if few_columns.suit_bins(entry.itemsize, dtype.itemsize, bins) else None

    return rows_as_entries.product(dtype, of_vector, bbcsr_matmat.product(t, dtype))


def fill(tables: BBCSRTables, starts: cupy.ndarray, data: cupy.ndarray, values: cupy.ndarray) -> None:
    """Write the value table `values` of the structure `tables`, whose values `data` are in the order of a canonical
    CSR.

    `starts` (n_rows + 1,) int64: its row offsets.
    """
    if tables.present is None:
        _fill_values(tables, starts, data, values)
        return
    t, sizes = tables, (np.int64(tables.shape[0]), np.int64(tables.col_base.size))
    VALUES_HOLES(WORDS[values.itemsize], t.present.dtype)(
        blocks(t.col_base.size * WARP, BLOCK),
        (BLOCK,),
        (t.bin_rowptr, starts, *sizes, np.int32(t.block_size), t.present, data, values),
    )


def _fill_values(tables: BBCSRTables, starts: cupy.ndarray, data: cupy.ndarray, values: cupy.ndarray) -> None:
    """:func:`fill` of a structure without holes; the row offsets may have 32 bits."""
    t, n_bins, how = tables, tables.col_base.size, (starts.dtype, WORDS[values.itemsize])
    if has_long_rows(values, n_bins):
        VALUES_RUNS(*how)((n_bins,), (THREADS_OF_RUNS,), (t.bin_rowptr, starts, np.int64(t.shape[0]), data, values))
    else:
        warps = warps_of_tiles(how[1])
        sizes = np.int64(t.shape[0]), np.int64(n_bins)
        VALUES(*how)(blocks(n_bins * WARP, warps * WARP), (warps * WARP,), (t.bin_rowptr, starts, *sizes, data, values))


def has_long_rows(values: cupy.ndarray, n_bins: int) -> bool:
    """Whether runs of whole rows of a value table are long enough to be read as such."""
    return bool(values.size > LONG_RUN * WARP * n_bins)


def numbers_of_runs(word: np.dtype) -> int:
    """Numbers that a block of ``bbcsr_values_runs`` holds in the 48 KB of shared memory: 32 rows of 180, or 80."""
    return 5760 if word.itemsize <= 8 else 2560


def warps_of_tiles(word: np.dtype) -> int:
    """Warps a block of ``bbcsr_values``, each with a tile of values in the 48 KB of shared memory."""
    return {1: 4, 2: 4, 4: 4, 8: 4, 16: 2}[word.itemsize]


to_csr = bbcsr_rows.to_csr


def slots_by_rows(t: BBCSRTables) -> CSR:
    """Canonical CSR with the number of each entry's slot for its value, from 1, of blocks of 1 without holes."""
    return to_csr(t._replace(data=cupy.arange(1, n_slots(t) + 1, dtype=np.int32)), 0, t.shape[0])
