"""CVR on the CPU: products on raw arrays, and the module's functions. Conversions are in :mod:`.cvr_conversion`.

A chunk is laid out and multiplied by one thread; chunks are handed out in contiguous ranges
(:mod:`cvrarray.cpu.runtime.threads`). Chunks depend on the conversion's parameters alone, never on the threads.

Kernels take the tables as they are, as one named tuple ``t``; float16 values as
:func:`cvrarray.cpu.runtime.memory.values` has them. What decides which loops a kernel has comes as a tuple of its
own, of which only the length counts: it is known when the kernel is compiled (see :mod:`cvrarray.cpu.simd`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from cvrarray.core.arrays import Run
from cvrarray.core.tables import CSR, WARP, CVRTables
from cvrarray.cpu import decoding, distinct, plan, simd, statistics
from cvrarray.cpu.cvr_conversion import convert, convert_anew, fill
from cvrarray.cpu.products import parts, tiling
from cvrarray.cpu.products.scaling import scaled
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel
from cvrarray.cpu.runtime.team import Work

__all__ = [
    "convert", "convert_anew", "default_n_chunks", "default_n_lanes", "default_split", "fill",
    "product", "product_matrix", "product_transposed", "row_sums", "to_csr", "work_of_product",
]  # fmt: skip

#: Steps a chunk should have: STEPS, fewer (to MIN_STEPS) where there would be less than ENOUGH_CHUNKS, more (to
#: MAX_STEPS) where rows are longer. Measured: ``docs/measurements/cpu-kernels.md``.
MIN_STEPS, STEPS, MAX_STEPS = 32, 64, 512
ENOUGH_CHUNKS = 256
#: The same where keeping lanes in phase brings nothing: rows whose lengths spread over UNEVEN times their mean.
MIN_LONG, LONG, UNEVEN = 256, 512, 0.5
ALL = np.uint32(0xFFFFFFFF)  #: mask of all lanes
AHEAD = 32  #: steps from the one that a product is at to the one that it prefetches
NO_PADDING = -1  #: no narrow column: pads have their chunk's smallest


class Sums(NamedTuple):
    """Where the sums of a chunk go."""

    y: np.ndarray
    carry: np.ndarray  # (n_chunks,)
    tail: np.ndarray  # pointer to the sums of the entries of the chunk's tail
    chunk: int
    carry_row: int  # the row whose sum goes to carry[chunk], or -1


def default_n_lanes(csr: CSR) -> int:
    """Lanes for a matrix: WARP, two AVX-512 vectors of float32."""
    return WARP


def default_n_chunks(csr: CSR, n_lanes: int) -> int:
    """Chunks for a matrix: whole groups of `n_lanes` average rows, in about STEPS steps.

    A group of long rows is cut where it would leave too few chunks, or have more than MAX_STEPS steps. Short chunks
    keep lanes in phase, so that they find x side by side. Where nothing keeps or nothing breaks the phase, long ones
    have fewer ends.
    """
    n_rows, nnz = csr.shape[0], csr.nnz
    least, most = MIN_STEPS, STEPS
    mean = max(1.0, nnz / max(1, n_rows))
    if mean <= STEPS and statistics.spread(csr.indptr) >= UNEVEN:
        least, most = MIN_LONG, LONG
    share = nnz / (n_lanes * ENOUGH_CHUNKS)
    wanted = min(max(share, least), most)
    steps = min(mean * max(1, round(wanted / mean)), max(share, wanted), MAX_STEPS)
    return max(1, round(nnz / (steps * n_lanes)))


def default_split(csr: CSR, n_lanes: int) -> str:
    """Where chunks end."""
    return "rows"


def product(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A @ x + beta * y``.

    x (n_cols,) and y (n_rows,) are contiguous arrays of `dtype`: any number type but bool (compute ``bool @ bool`` in
    int64 and cast). alpha and beta are scalars of it. Where beta is 0, y is written and never read.
    """
    return scaled(_multiply(tables, dtype, plan.fastest(_product_of(tables, dtype))))


def row_sums(tables: CVRTables, dtype: np.dtype) -> Callable[[np.ndarray], None]:
    """``run(y)``, which does ``y = A @ ones``, y (n_rows,) of `dtype`, as for :func:`product`: columns are not read."""
    multiply = _multiply(tables, dtype, _product_of(tables, dtype).prepared(plan.NONE))
    return partial(multiply, np.empty(0, dtype))


def _multiply(t: CVRTables, dtype: np.dtype, rows: Callable) -> Callable[[np.ndarray, np.ndarray], None]:
    """``multiply(x, y)`` from what calls the kernel."""
    n_chunks, n_cut = len(t.carry_row), len(t.cut_row)

    def multiply(x: np.ndarray, y: np.ndarray) -> None:
        carry = np.empty(n_chunks, dtype)
        rows(x, y, carry)
        if n_cut:
            _add_carries(0, n_cut, t.cut_row, t.cut_ptr, 0, carry.reshape(-1, 1), y.reshape(-1, 1))

    return multiply


def work_of_product(tables: CVRTables, x: np.ndarray, y: np.ndarray) -> list[Work]:
    """``y = A @ x`` as calls one after the other, for loops in compiled code. x and y are as for :func:`product`."""
    t, carry, of = tables, np.empty(len(tables.carry_row), x.dtype), _product_of(tables, x.dtype)
    rows = Work(_product, (*of.args(of.chosen()), x, y, carry), t.step_ptr, t.n_lanes)
    if not len(t.cut_row):
        return [rows]
    ends = t.cut_row, t.cut_ptr, 0, carry.reshape(-1, 1), y.reshape(-1, 1)
    return [rows, Work(_add_carries, ends, np.arange(len(t.cut_row) + 1))]


def _product_of(tables: CVRTables, dtype: np.dtype) -> plan.Product:
    t, like = _for_kernels(tables, dtype), np.empty(0, dtype)
    vectors = (0,) * (t.n_lanes == WARP)  # known when a kernel is compiled
    ways = plan.candidates(t, simd.LOADS)
    return plan.Product(_product, lambda ways: (t, vectors, ways), (like,) * 3, t.val, ways, t.step_ptr, t.n_lanes)


def product_matrix(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``.

    X (n_cols, k) and Y (n_rows, k) are C-contiguous arrays, otherwise as for :func:`product`; k is any number of
    columns.
    """
    t = _for_kernels(tables, dtype)
    like = np.empty(0, dtype)

    @cache
    def rows(tile: tuple[int, ...]) -> Callable:
        return threads.prepare(compiled(_product_matrix, 0, 0, t, 0, 0, tile, like, like, like), t.step_ptr, t.n_lanes)

    def multiply(x: np.ndarray, y: np.ndarray, first: int, tile: tuple[int, ...]) -> None:
        carry = np.empty((len(t.carry_row), len(tile)), y.dtype)
        rows(tile)(t, y.shape[1], first, tile, x.ravel(), y.ravel(), carry.ravel())
        if len(t.cut_row):
            _add_carries(0, len(t.cut_row), t.cut_row, t.cut_ptr, first, carry, y)

    return tiling.product(multiply)


def product_transposed(tables: CVRTables, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * A.T @ x + beta * y``, from the tables of :func:`product`.

    x (n_rows,) and y (n_cols,) are as there. A call takes up to ``parts.MOST_VECTORS`` times the memory of y.
    """
    t, n_cols = _for_kernels(tables, dtype), tables.shape[1]
    low, high = parts.column_ranges(t.step_ptr, (t.n_lanes, 1), t, NO_PADDING, n_cols)
    of = parts.divide(t.step_ptr, t.n_lanes, low, high, n_cols)
    return scaled(parts.transposed(_scatter, of, t.step_ptr, t.n_lanes, (t,), n_cols, dtype))


def to_csr(tables: CVRTables, first: int, last: int) -> CSR:
    """Canonical CSR of the rows [first, last), numbered as the tables have them."""
    return decoding.from_cvr(tables, first, last)


def _for_kernels(t: CVRTables, dtype: np.dtype) -> CVRTables:
    """The tables as products in `dtype` take them: `val` is what :func:`cvrarray.cpu.distinct.values` gives."""
    return t._replace(val=distinct.values(t.val, t.distinct, dtype), distinct=None)


@kernel
def _product(first, last, t, vectors, ways, x, y, carry):
    """`ways` tells how x is loaded for narrow columns and for wide ones; nothing where there are none, or x is 1."""
    tail = simd.scratch(y, simd.SINGLE)
    for k in range(first, last):
        simd.store(simd.zeros(y, simd.WHOLE), tail, 0, simd.WHOLE)
        to = Sums(y, carry, tail, k, t.carry_row[k])
        if len(ways.narrow) and (len(ways.wide) == 0 or t.col_base[k] >= 0):
            _chunk(t, k, ways.narrow, t.col_base[k], t.col_narrow, vectors, x, to)
        else:
            _chunk(t, k, ways.wide, 0, t.col_wide, vectors, x, to)
        _store_tail(t, k, tail, to)
    begin, end = _empty_rows(first, last, len(t.carry_row), len(t.empty_row))
    for i in range(begin, end):
        y[t.empty_row[i]] = 0


@inlined
def _store_tail(t, k, tail, to):
    """Write the sums of the rows with which the lanes of chunk k end."""
    for lane in range(t.n_lanes):
        if t.tail[k, lane] >= 0:
            _store(t.tail[k, lane], tail[lane], to)


@inlined
def _empty_rows(first, last, n_chunks, n_empty):
    """The share of the empty rows that the call for the chunks `first` to before `last` sets to 0."""
    n_shares = max(n_chunks, 1)
    return n_empty * first // n_shares, n_empty * last // n_shares if last < n_chunks else n_empty


@inlined
def _chunk(t, k, way, base, col, vectors, x, to):
    """Multiply a chunk, whose columns are `base` plus `col`."""
    record, at, n_lanes = t.rec_ptr[k], t.col_ptr[k], t.n_lanes
    sums, acc = simd.scratch(to.y, simd.SINGLE), simd.zeros(to.y, simd.WHOLE)
    simd.store(acc, sums, 0, simd.WHOLE)
    for step in range(t.step_ptr[k], t.step_ptr[k + 1]):
        ended = t.rec_mask[step]
        if len(vectors) == 0:
            for lane in range(n_lanes):
                value = simd.load_number(t.val, step * n_lanes + lane, x)
                sums[lane] += value * x[base + col[at + lane]] if len(way) else value
            at += n_lanes
        else:
            simd.prefetch(t.val, (step + AHEAD) * WARP, simd.INTO_L2)
            if len(way):
                simd.prefetch(col, at + AHEAD * WARP, simd.INTO_L2)
            values = simd.load(t.val, step * WARP, to.y)
            acc = simd.multiply_add(acc, values, simd.take(x, base, col, at, way)) if len(way) else simd.add(acc, values)
            at += WARP
            if ended:
                simd.store(acc, sums, 0, simd.WHOLE)
                acc = simd.clear(acc, ended)
        while ended:
            lane = simd.lowest(ended)
            ended &= ended - np.uint32(1)
            _write(t.rec_wb[record], sums[lane], to)
            record += 1
            if len(vectors) == 0:
                sums[lane] = 0


@inlined
def _write(wb, total, to):
    if wb < 0:
        to.tail[~wb] += total
    else:
        _store(wb, total, to)


@inlined
def _store(row, total, to):
    if row == to.carry_row:
        to.carry[to.chunk] = total
    else:
        to.y[row] = total


@kernel
def _add_carries(first, last, cut_row, cut_ptr, first_column, carry, y):
    for i in range(first, last):
        for k in range(cut_ptr[i, 0], cut_ptr[i, 1]):
            for j in range(carry.shape[1]):
                y[cut_row[i], first_column + j] += carry[k, j]


@kernel
def _product_matrix(first, last, t, k, first_column, tile, x, y, carry):
    """As many columns as `tile` is long, from `first_column` on, of x and y, which have k columns each and are flat."""
    x, y = simd.pointer(x, first_column), simd.pointer(y, first_column)
    tail = simd.scratch(y, tile)
    for chunk in range(first, last):
        to = Sums(y, carry, tail, chunk, t.carry_row[chunk])
        if t.col_base[chunk] >= 0:
            _chunk_matrix(t, t.col_narrow, k, tile, simd.pointer(x, t.col_base[chunk] * k), to)
        else:
            _chunk_matrix(t, t.col_wide, k, tile, x, to)
    begin, end = _empty_rows(first, last, len(t.carry_row), len(t.empty_row))
    for i in range(begin, end):
        simd.store(simd.zeros(y, tile), y, t.empty_row[i] * k, tile)


@inlined
def _chunk_matrix(t, col, k, tile, x, to):
    """Lane by lane from record to record: a row's sums stay in registers, and a chunk's values in the cache."""
    n, n_lanes, first_step, at = len(tile), t.n_lanes, t.step_ptr[to.chunk], t.col_ptr[to.chunk]
    begin = simd.scratch(t.step_ptr, simd.SINGLE)
    for lane in range(n_lanes):
        begin[lane] = first_step
        simd.store(simd.zeros(x, tile), to.tail, lane * n, tile)
    done = 0
    record = t.rec_ptr[to.chunk]
    for step in range(first_step, t.step_ptr[to.chunk + 1]):
        ended = t.rec_mask[step]
        while ended:
            lane = simd.lowest(ended)
            ended &= ended - np.uint32(1)
            slot = (begin[lane] - first_step) * n_lanes + lane
            values = simd.pointer(t.val, begin[lane] * n_lanes + lane)
            length = step + 1 - begin[lane]
            tiling.prefetch_ahead(t.val, first_step * n_lanes + done, length)
            tiling.prefetch_ahead(col, at + done, length)
            done += length
            acc = _row(simd.pointer(col, at + slot), values, length, n_lanes, k, tile, x)
            begin[lane] = step + 1
            wb = t.rec_wb[record]
            record += 1
            if wb < 0:
                simd.store(simd.add_row(acc, to.tail, ~wb * n), to.tail, ~wb * n, tile)
            else:
                _store_row(wb, acc, k, tile, to)
    for lane in range(n_lanes):
        row = t.tail[to.chunk, lane]
        if row >= 0:
            _store_row(row, simd.add_row(simd.zeros(x, tile), to.tail, lane * n), k, tile, to)


@inlined
def _row(columns, values, length, stride, k, tile, x):
    """The sum of `length` entries, `stride` apart, times rows of x: in two sums that do not wait for each other."""
    even = simd.zeros(x, tile)
    odd = simd.zeros(x, tile)
    for s in range(0, length - 1, 2):
        even = simd.multiply_add_row(even, values, s * stride, x, columns[s * stride] * k)
        odd = simd.multiply_add_row(odd, values, (s + 1) * stride, x, columns[(s + 1) * stride] * k)
    if length % 2:
        s = length - 1
        even = simd.multiply_add_row(even, values, s * stride, x, columns[s * stride] * k)
    return simd.add(even, odd)


@inlined
def _store_row(row, acc, k, tile, to):
    if row == to.carry_row:
        simd.store(acc, to.carry, to.chunk * len(tile), tile)
    else:
        simd.store(acc, to.y, row * k, tile)


@kernel
def _scatter(first, last, part, t, x, sums):
    for p in range(first, last):
        y = parts.open_part(p, part, sums)
        for k in range(part.tile[p + 1] - 1, part.tile[p] - 1, -1):
            if t.col_base[k] >= 0:
                _scatter_chunk(t, k, t.col_narrow, x, simd.pointer(y, t.col_base[k]))
            else:
                _scatter_chunk(t, k, t.col_wide, x, y)


@inlined
def _scatter_chunk(t, k, col, x, y):
    """From the last step to the first: a record tells the row of the slots before it, and a lane's pads come first.

    Chunks are taken from the last to the first too, so that memory is read in one direction.
    """
    n_lanes = t.n_lanes
    entries = simd.scratch(x, simd.SINGLE)
    record = t.rec_ptr[k + 1]
    real = np.uint32(0)
    at = t.col_ptr[k] + (t.step_ptr[k + 1] - t.step_ptr[k]) * n_lanes
    for step in range(t.step_ptr[k + 1] - 1, t.step_ptr[k] - 1, -1):
        at -= n_lanes
        simd.prefetch(t.val, (step - AHEAD) * n_lanes, simd.INTO_L1)
        simd.prefetch(col, at - AHEAD * n_lanes, simd.INTO_L1)
        ended = t.rec_mask[step]
        real |= ended
        while ended:
            lane = simd.highest(ended)
            ended ^= np.uint32(1) << np.uint32(lane)
            record -= 1
            wb = t.rec_wb[record]
            entries[lane] = x[wb if wb >= 0 else t.tail[k, ~wb]]
        if real == ALL:
            values = simd.load(t.val, step * WARP, x)
            terms = simd.multiply_add(simd.zeros(x, simd.WHOLE), values, simd.load(entries, 0, x))
            simd.scatter_add(terms, y, col, at)
        else:
            for lane in range(n_lanes):
                if real >> np.uint32(lane) & np.uint32(1):
                    y[col[at + lane]] += simd.load_number(t.val, step * n_lanes + lane, x) * entries[lane]
