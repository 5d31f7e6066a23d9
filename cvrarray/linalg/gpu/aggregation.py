"""Smoothed aggregation on the GPU: ``kernels/aggregation.cu``. The same functions as :mod:`cvrarray.linalg.cpu.aggregation`."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from cvrarray.core.tables import CSR
from cvrarray.gpu import csr, sorting
from cvrarray.gpu.compiler import Kernel
from cvrarray.gpu.launches import NULL, blocks
from cvrarray.gpu.sparse_product import panels

BLOCK = 256
LANES = 8  # of a row, or of an entry of a matrix that is multiplied
OF_NODE = (2, LANES)  # lanes of a node of a graph: few where it has few edges
WARP = 32
WIDE = (4, 8, 16, WARP)  # lanes of a row of a product
WIDE_OF_BLOCKS = (WARP, 128)
ROUNDS = 2  # of decisions, before the host looks whether all are made
ROOT = np.uint64(2**64 - 1)
#: Lanes of a row of a product, and how many columns their table in shared memory holds: most rows are short.
TABLES = ((8, 64), (WARP, 512))
#: Terms of a product whose places are sorted together: each takes some 30 bytes meanwhile.
MOST_TERMS = 1 << 28

NORMS = Kernel("aggregation", "aggregation_norms")
STRONG = Kernel("aggregation", "aggregation_strong", [(False,), (True,)])
SPREAD = Kernel("aggregation", "aggregation_spread", [(lanes,) for lanes in OF_NODE])
DECIDE = Kernel("aggregation", "aggregation_decide", [(lanes,) for lanes in OF_NODE])
JOIN = Kernel("aggregation", "aggregation_join", [(False,), (True,)])
ORTHONORMAL = Kernel("aggregation", "aggregation_orthonormal")
COLUMNS = Kernel(
    "aggregation",
    "aggregation_columns",
    [(fill, *table) for fill in (False, True) for table in TABLES],
    lambda fill, lanes, size: (fill, lanes, size, BLOCK),
)
EXPAND = Kernel("aggregation", "aggregation_expand", [()], lambda: (LANES,))
MULTIPLY = Kernel(
    "aggregation",
    "aggregation_multiply",
    [(lanes, True) for lanes in WIDE] + [(lanes, False) for lanes in WIDE_OF_BLOCKS],
)
FILTER = Kernel("aggregation", "aggregation_filter")
SMOOTH = Kernel("aggregation", "aggregation_smooth", [()], lambda: (LANES,))
ENTRIES = Kernel("aggregation", "aggregation_entries", [(False,), (True,)])


def _each(n: int, lanes: int = 1) -> tuple[tuple[int], tuple[int]]:
    """Grid and block of so many lanes for each of n."""
    block = BLOCK if lanes <= WARP else lanes
    return blocks(int(n) * lanes, block), (block,)


def on_diagonal(indptr, indices):
    """(n,) which block of each row lies on the diagonal; -1: none."""
    n = indptr.size - 1
    row = cupy.arange(n)
    return csr.places(CSR(indptr, indices, indices, (n, n)), row, row) if n else row


def strength(indptr, indices, data, theta, by_row=False):
    """The graph of strong connections: ``|A_ij| >= theta sqrt(|A_ii| |A_jj|)`` in the Frobenius norm, and not 0; and each
    node with itself. `by_row`: those too with ``|A_ij| >= theta |A_ii|``. Weights are squares over ``|A_ii| |A_jj|``.
    """
    n, size = np.int64(indptr.size - 1), np.int32(data.shape[1] * data.shape[2])
    norms, counts = cupy.empty(indptr.size - 1), cupy.zeros(indptr.size, np.int64)
    NORMS()(*_each(n), (indptr, indices, data, n, size, norms))
    args = indptr, indices, data, n, size, norms, np.float64(theta), np.int32(by_row)
    STRONG(False)(*_each(n), (*args, counts, NULL, NULL))
    ptr = cupy.cumsum(counts)
    n_edges = int(ptr[-1])
    idx, weight = cupy.empty(n_edges, np.int32), cupy.empty(n_edges)
    STRONG(True)(*_each(n), (*args, ptr, idx, weight))
    return ptr, idx, weight


def filtered(indptr, indices, data, ptr, idx, near):
    """The entries of a matrix of numbers that a graph has. Those of the others are added to the diagonal, each by what it
    multiplies in the candidate `near` (n,): the product with that stays.
    """
    n, out = indptr.size - 1, cupy.zeros((idx.size, 1, 1))
    FILTER()(*_each(n), (indptr, indices, data, ptr, idx, np.int64(n), near, out))
    return out


def aggregate(ptr, idx, weight):
    """The aggregate of each node, int32, numbered from 0 in the order of their roots; -1: it has no neighbour. And how
    many there are.
    """
    n = ptr.size - 1
    state = (cupy.diff(ptr) > 1).astype(np.uint64)
    near, number, last = cupy.zeros(n, np.uint64), 0, cupy.zeros(1, np.int32)
    lanes = OF_NODE[idx.size >= 2 * LANES * n]
    launch = _each(n, lanes)
    while number == 0 or int(last[0]) == number:
        for _ in range(ROUNDS):
            graph = ptr, idx, np.int64(n), np.uint64(number)
            SPREAD(lanes)(*launch, (*graph, state, near))
            DECIDE(lanes)(*launch, (*graph, near, state, last))
            number += 1
    root = cupy.flatnonzero(state == ROOT)
    label, found = cupy.full(n, -1, np.int32), cupy.empty(n, np.int32)
    label[root] = cupy.arange(root.size, dtype=np.int32)
    JOIN(False)(*_each(n), (ptr, idx, weight, np.int64(n), label, found))
    JOIN(True)(*_each(n), (ptr, idx, weight, np.int64(n), found, label))
    return label, int(root.size)


def tentative(aggregate, n, candidates, dependent):
    """The candidates (n_nodes, height, k), orthonormal in each aggregate, 0 beyond; those of the aggregates, (n, k, k); and
    a node of each.
    """
    order = cupy.argsort(aggregate)  # stable
    ptr = cupy.searchsorted(aggregate[order], cupy.arange(n + 1, dtype=np.int32))
    (_, height, k), factor = candidates.shape, cupy.zeros((n, candidates.shape[2], candidates.shape[2]))
    basis = cupy.where((aggregate >= 0)[:, None, None], candidates, 0.0)
    args = ptr, order, np.int64(n), np.int32(height), np.int32(k), np.float64(dependent), basis, factor
    ORTHONORMAL()(*_each(n, WARP), args)
    return basis, factor, order[ptr[:-1]]


def n_terms(a_ptr, a_idx, b_ptr):
    """How many products of blocks a product of two matrices is the sum of."""
    return int(cupy.diff(b_ptr)[a_idx].sum())


def product_structure(a_ptr, a_idx, b_ptr, b_idx, n_cols, ascends=True):
    """``indptr`` and ``indices`` of the product of two matrices."""
    n_rows, counts, full = a_ptr.size - 1, cupy.zeros(a_ptr.size, np.int64), cupy.zeros(1, np.int64)
    args = a_ptr, a_idx, b_ptr, b_idx, np.int64(n_rows)
    for table in TABLES:
        full.fill(0)
        launch = _each(n_rows, table[0])
        COLUMNS(False, *table)(*launch, (*args, counts, NULL, full))
        ptr = cupy.cumsum(counts)
        n, is_full = cupy.concatenate([ptr[-1:], full]).get().tolist()
        if not is_full:
            idx = cupy.empty(n, np.int32)
            COLUMNS(True, *table)(*launch, (*args, ptr, idx, full))
            return ptr, idx
    return _sorted_structure(a_ptr, a_idx, b_ptr, b_idx, n_cols)


def _sorted_structure(a_ptr, a_idx, b_ptr, b_idx, n_cols):
    """The same where rows have many columns: the places of all terms, sorted, each once."""
    n_rows, before = a_ptr.size - 1, cupy.zeros(a_idx.size + 1, np.int64)
    before[1:] = cupy.cumsum(cupy.diff(b_ptr)[a_idx])
    a_row, total = csr.row_of_nonzero(a_ptr, a_idx), int(before[-1])
    ends = [0, n_rows] if total <= MOST_TERMS else panels(before[a_ptr].get(), MOST_TERMS)
    found = []
    for first, last in zip(ends, ends[1:], strict=False):
        begin, end = (0, a_idx.size) if len(ends) == 2 else (int(a_ptr[first]), int(a_ptr[last]))
        n_terms = total if len(ends) == 2 else int(before[end] - before[begin])
        row, col = cupy.empty(n_terms, np.int32), cupy.empty(n_terms, np.int32)
        args = (
            a_row[begin:end] - np.int32(first),
            a_idx[begin:end],
            np.int64(end - begin),
            before[begin:],
            b_ptr,
            b_idx,
            row,
            col,
        )
        EXPAND()(*_each(end - begin, LANES), args)
        found.append(_places(row, col, (last - first, n_cols)))
    if len(found) == 1:
        return found[0]
    starts = np.concatenate([[0], np.cumsum([part[1].size for part in found])])
    ptr = [part[0][:-1] + start for part, start in zip(found, starts[:-1].tolist(), strict=True)]
    return cupy.concatenate([*ptr, cupy.asarray(starts[-1:])]), cupy.concatenate([part[1] for part in found])


def _places(row, col, shape):
    """``indptr`` and ``indices`` of the places that these coordinates name."""
    if not row.size:
        return cupy.zeros(shape[0] + 1, np.int64), col
    buckets = sorting.in_buckets(row, col, shape)
    if buckets is not None:
        sorted_ = buckets.sorted()
        starts = sorted_.starts()[:-1]
        return cupy.searchsorted(starts, sorted_.indptr), sorted_.entries.view(np.int32)[1::2][starts]
    _, row, col, starts = sorting.grouped(row, col, shape)
    first = starts[:-1]
    return cupy.searchsorted(row[first], cupy.arange(shape[0] + 1, dtype=row.dtype)), col[first]


def product(a_ptr, a_idx, a, b_ptr, b_idx, b, ptr, idx, n_cols):
    """The blocks of the product of two matrices, of which the structure is known."""
    (_, height, depth), width, n_rows = a.shape, b.shape[2], a_ptr.size - 1
    out = cupy.empty((idx.size, height, width))
    is_scalar = height == depth == width == 1
    numbers = b_idx.size * height * width / max(1, b_ptr.size - 1)  # of a row of b, in the mean
    if is_scalar:
        lanes = min((lanes for lanes in WIDE if lanes >= numbers), default=WARP)
    else:
        lanes = max((lanes for lanes in WIDE_OF_BLOCKS if lanes <= numbers), default=WARP)
    sizes = np.int64(n_rows), np.int32(height), np.int32(depth), np.int32(width)
    MULTIPLY(lanes, is_scalar)(*_each(n_rows, lanes), (a_ptr, a_idx, a, b_ptr, b_idx, b, ptr, idx, *sizes, out))
    return out


def smooth(ptr, idx, data, scale, aggregate, basis):
    """In place ``data = T - scale * data``, where `data` are the blocks of ``A T``; `scale` is (n, height)."""
    n, (_, height, width) = ptr.size - 1, data.shape
    args = ptr, idx, np.int64(n), np.int32(height), np.int32(width), cupy.ascontiguousarray(scale), aggregate, basis, data
    SMOOTH()(*_each(n, LANES), args)


def transposed(ptr, idx, n_cols):
    """The structure of the transpose, and which block each of its blocks is: ``indptr``, ``indices``, ``order``."""
    found = csr.transpose(CSR(ptr, idx, cupy.arange(idx.size), (ptr.size - 1, n_cols)))
    return found.indptr.astype(np.int64, copy=False), found.indices, found.data


def taken(data, order):
    """The transposes of the blocks in this order."""
    return cupy.ascontiguousarray(data[order].transpose(0, 2, 1))


def entries(ptr, data):
    """The numbers of the blocks, row by row of the whole matrix."""
    values = cupy.empty(data.size)
    _entries(False, ptr, NULL, data, *data.shape[1:], values, NULL)
    return values


def entries_structure(ptr, idx, height, width):
    """``indptr`` and ``indices`` of the same."""
    indptr, columns = cupy.zeros((ptr.size - 1) * height + 1, np.int64), cupy.empty(idx.size * height * width, np.int32)
    indptr[1:] = cupy.cumsum(cupy.repeat(cupy.diff(ptr) * width, height))
    _entries(True, ptr, idx, NULL, height, width, NULL, columns)
    return indptr, columns


def _entries(columns: bool, ptr: Any, idx: Any, data: Any, height: int, width: int, values: Any, to: Any) -> None:
    n = ptr.size - 1
    args = ptr, idx, data, np.int64(n), np.int32(height), np.int32(width), values, to
    ENTRIES(columns)(*_each(n, WARP), args)


def blocks_structure(indptr, indices, size):
    """The blocks that hold entries: ``indptr``, ``indices``, and where the number of each entry lies among theirs."""
    n = (indptr.size - 1) // size
    b_ptr, block_col = cupy.arange(n + 1), indices // np.int32(size)
    ptr, idx = product_structure(cupy.ascontiguousarray(indptr[::size]), block_col, b_ptr, b_ptr[:-1].astype(np.int32), n)
    row = csr.row_of_nonzero(indptr, indices)
    found = csr.places(CSR(ptr, idx, idx, (n, n)), (row // np.int32(size)).astype(np.int64), block_col.astype(np.int64))
    return ptr, idx, (found * size + row % size) * size + indices % size
