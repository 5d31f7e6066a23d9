"""Kernels of smoothed aggregation on the CPU: strength, aggregates, candidates by QR, sparse products of blocks.

Matrices are sparse in dense blocks: ``indptr`` (n_rows + 1,) int64, ``indices`` (n_blocks,) int32, ascending in each row,
``data`` (n_blocks, height, width) float64. A graph has weights (n_edges,) float64 instead, 0 on the diagonal.
What is written for a row depends on the row alone, so every number of threads gives the same bits.
"""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import CSR
from cvrarray.cpu import csr as whole
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import compiled, inlined, kernel

NONE, ROOT = np.uint64(0), np.uint64(2**64 - 1)  #: keys of nodes that are decided
LONG = 128  #: columns of a row that is sorted over gaps
PART = 1 << 12  #: blocks that are taken together
AHEAD = 8  #: entries of A from the one that a product is at to the one whose row of B is prefetched


def _run(function, work, *args, unit=1):
    """A kernel over rows with so much work before each: on threads."""
    threads.run(compiled(function, 0, 0, *args), work, *args, unit=unit)


def _sizes(data: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Tuples as long as blocks are high and wide, which the compiler then knows."""
    return tuple(tuple(range(n)) for n in data.shape[1:])


def _parts(work: np.ndarray, n_marks: int = 0) -> np.ndarray:
    """Where parts of the rows begin, each of which has marks of its own: they take no more memory than the matrices."""
    total = int(work[-1])
    n_parts = max(1, min(threads.RANGES * threads.count(), total // max(threads.SMALL, n_marks)))
    return np.array(threads.split(work, n_parts), np.int64) if n_parts > 1 else np.array([0, work.size - 1])


def _joined(begins: np.ndarray, parts: np.ndarray, ptr: np.ndarray, *rooms: np.ndarray) -> tuple[np.ndarray, ...]:
    """Offsets instead of the counts in `ptr`; and what parts of the rows have written from their begins on, next to one
    another: in the same memory where that is not much larger, for fresh memory takes longer to clear than to fill.
    """
    memory.accumulate(ptr)
    n, ends = ptr[-1], ptr[parts]
    found = [room[:n] if room.size <= 2 * n else np.empty(n, room.dtype) for room in rooms]
    for room, out in zip(rooms, found, strict=True):
        for begin, first, last in zip(begins, ends[:-1], ends[1:], strict=True):
            out[first:last] = room[begin : begin + last - first]
    return ptr, *found


def on_diagonal(indptr, indices):
    """(n,) which block of each row lies on the diagonal; -1: none."""
    found = np.full(indptr.size - 1, -1, np.int64)
    _run(_on_diagonal, indptr, indptr, indices, found)
    return found


@kernel
def _on_diagonal(first, last, indptr, indices, found):
    for i in range(first, last):
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] == i:
                found[i] = k


def strength(indptr, indices, data, theta, by_row=False):
    """The graph of strong connections: ``|A_ij| >= theta sqrt(|A_ii| |A_jj|)`` in the Frobenius norm, and not 0; and each
    node with itself. `by_row`: those too with ``|A_ij| >= theta |A_ii|``. Weights are squares over ``|A_ii| |A_jj|``.
    """
    n, sizes, parts = indptr.size - 1, tuple(range(data.shape[1])), _parts(indptr)
    norms, ptr, idx = np.zeros(n), np.zeros(n + 1, np.int64), np.empty(indices.size, np.int32)
    weight = np.empty(0 if by_row else indices.size)  # nobody aggregates along the others
    _run(_norms, indptr, indptr, indices, data, sizes, norms)
    args = parts, indptr, indices, data, sizes, norms, theta, by_row, ptr, idx, weight
    _run(_strong, indptr[parts], *args, unit=data[:1].size)
    return _joined(indptr[parts[:-1]], parts, ptr, idx, weight)


@inlined
def _square(data, k, sizes):
    """Of a block's Frobenius norm."""
    block, total = simd.pointer(data, k * len(sizes) * len(sizes)), 0.0
    for i in range(len(sizes) * len(sizes)):
        total += block[i] * block[i]
    return total


@inlined
def _least(norms, i, j, theta, by_row):
    return theta * theta * (norms[i] * (min(norms[i], norms[j]) if by_row else norms[j]))


@kernel
def _norms(first, last, indptr, indices, data, sizes, norms):
    for i in range(first, last):
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] == i:
                norms[i] = np.sqrt(_square(data, k, sizes))


@kernel
def _strong(first, last, parts, indptr, indices, data, sizes, norms, theta, by_row, ptr, idx, weight):
    of, to, strong = simd.pointer(norms, 0), simd.pointer(idx, 0), simd.pointer(weight, 0)
    for p in range(first, last):
        at = indptr[parts[p]]
        for i in range(parts[p], parts[p + 1]):
            begin = at
            for k in range(indptr[i], indptr[i + 1]):
                j, square = indices[k], _square(data, k, sizes)
                to[at] = j  # there is room for every entry
                if not by_row:
                    strong[at] = 0.0 if j == i else square / (of[i] * of[j])
                at += j == i or (square > 0 and square >= _least(of, i, j, theta, by_row))
            ptr[i + 1] = at - begin


def aggregate(ptr, idx, weight):
    """The aggregate of each node, int32, numbered from 0 in the order of their roots; -1: it has no neighbour. And how
    many there are.

    Roots are a maximal set of nodes more than two edges apart: Bell, Dalton and Olson 2012, section 4. Of nodes that
    are not decided yet, the one with the largest key within two edges becomes one. Keys are hashes of the node's number
    and of the round, so all devices find the same.
    """
    n, number, left = ptr.size - 1, 0, np.ones(1, np.uint8)
    key = (np.diff(ptr) > 1).astype(np.uint64)
    near = key + np.uint64(1)  # no node's key, and no root's: the first turn decides nothing, and gives keys
    while left[0]:
        left[0] = 0
        _run(_decide, ptr, ptr, idx, near, number, key, left)
        _run(_spread, ptr, ptr, idx, key, near)
        number += 1
    root = np.flatnonzero(key == ROOT)
    label = np.full(n, -1, np.int32)
    label[root] = np.arange(root.size, dtype=np.int32)
    joined, found = np.empty(n, np.int32), np.empty(n, np.int32)
    _run(_join_roots, ptr, ptr, idx, label, joined)
    _run(_join_strongest, ptr, ptr, idx, weight, joined, found)
    return found, root.size


def filtered(indptr, indices, data, ptr, idx, near):
    """The entries of a matrix of numbers that a graph has. Those of the others are added to the diagonal, each by what it
    multiplies in the candidate `near` (n,): the product with that stays.
    """
    out = np.zeros(idx.size)
    _run(_filter, indptr, indptr, indices, data.reshape(-1), ptr, idx, near, out)
    return out.reshape(-1, 1, 1)


@kernel
def _filter(first, last, indptr, indices, data, ptr, idx, near, out):
    for i in range(first, last):
        own, at = ptr[i], ptr[i]
        while own < ptr[i + 1] - 1 and idx[own] != i:
            own += 1
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if at < ptr[i + 1] and idx[at] == j:
                out[at] += data[k]
                at += 1
            else:
                out[own] += data[k] * (near[j] / near[i] if near[i] != 0 else 1.0)


@inlined
def _key(i, number):
    """Of a node that is not decided: 31 bits, SplitMix64's finalizer, of Steele, Lea and Flood 2014; then its number."""
    x = np.uint64(i) + np.uint64(number + 1) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (((x ^ (x >> np.uint64(31))) >> np.uint64(33)) << np.uint64(32)) | np.uint64(i) + np.uint64(2)


@kernel
def _spread(first, last, ptr, idx, key, near):
    of = simd.pointer(key, 0)
    for i in range(first, last):
        if near[i] != ROOT and near[i] != NONE:  # else it stays: a neighbour is a root, or all are decided
            most, row = of[i], simd.pointer(idx, ptr[i])
            for k in range(ptr[i + 1] - ptr[i]):
                most = max(most, of[row[k]])
            near[i] = most


@kernel
def _decide(first, last, ptr, idx, near, number, key, left):
    of = simd.pointer(near, 0)
    for i in range(first, last):
        if key[i] != NONE and key[i] != ROOT:
            most, row = of[i], simd.pointer(idx, ptr[i])
            for k in range(ptr[i + 1] - ptr[i]):
                most = max(most, of[row[k]])
            if most == key[i]:
                key[i] = ROOT
            elif most == ROOT:
                key[i] = NONE
            else:
                key[i], left[0] = _key(i, number), 1


@kernel
def _join_roots(first, last, ptr, idx, label, joined):
    for i in range(first, last):
        joined[i] = label[i]
        for k in range(ptr[i], ptr[i + 1]):
            if joined[i] < 0:
                joined[i] = label[idx[k]]


@kernel
def _join_strongest(first, last, ptr, idx, weight, joined, found):
    for i in range(first, last):
        found[i] = joined[i]
        if joined[i] < 0:
            most = 0.0
            for k in range(ptr[i], ptr[i + 1]):
                j = idx[k]
                if joined[j] >= 0 and weight[k] > most:
                    most = weight[k]
                    found[i] = joined[j]


def tentative(aggregate, n, candidates, dependent):
    """The candidates (n_nodes, height, k), orthonormal in each aggregate, 0 beyond; those of the aggregates, (n, k, k); and
    a node of each.

    QR by Gram and Schmidt, twice: Vanek, Mandel and Brezina 1996, section 2. A column that keeps less than the part `dependent`
    of its length, when those before are taken out, is 0.
    """
    has_one = aggregate >= 0
    ptr, order, _ = transposed(np.concatenate([[0], np.cumsum(has_one)]), aggregate[has_one], n)  # nodes of each aggregate
    basis, factor = np.where(has_one[:, None, None], candidates, 0.0), np.zeros((n, *candidates.shape[2:] * 2))
    _run(_orthonormal, ptr, ptr, order, dependent, basis, factor, unit=candidates[:1].size * candidates.shape[2])
    return basis, factor, order[ptr[:-1]]


@inlined
def _dot(order, basis, begin, end, c, d):
    total = 0.0
    for m in range(begin, end):
        for r in range(basis.shape[1]):
            total += basis[order[m], r, c] * basis[order[m], r, d]
    return total


@kernel
def _orthonormal(first, last, ptr, order, dependent, basis, factor):
    height, k = basis.shape[1], basis.shape[2]
    for a in range(first, last):
        begin, end = ptr[a], ptr[a + 1]
        for c in range(k):
            before = _dot(order, basis, begin, end, c, c)
            for _ in range(2):
                for d in range(c):
                    along = _dot(order, basis, begin, end, c, d)
                    factor[a, d, c] += along
                    for m in range(begin, end):
                        for r in range(height):
                            basis[order[m], r, c] -= along * basis[order[m], r, d]
            length = np.sqrt(_dot(order, basis, begin, end, c, c))
            scale = 0.0
            if length > dependent * np.sqrt(before):
                scale = 1 / length
                factor[a, c, c] = length
            for m in range(begin, end):
                for r in range(height):
                    basis[order[m], r, c] *= scale


def n_terms(a_ptr, a_idx, b_ptr):
    """How many products of blocks a product of two matrices is the sum of."""
    return int(_terms(a_ptr, a_idx, b_ptr).sum())


def _terms(a_ptr, a_idx, b_ptr):
    """Those of each row, from place 1 on."""
    terms = np.zeros(a_ptr.size, np.int64)
    _run(_count_terms, a_ptr, a_ptr, a_idx, b_ptr, terms)
    return terms


def product_structure(a_ptr, a_idx, b_ptr, b_idx, n_cols, ascends=True):
    """``indptr`` and ``indices`` of the product of two matrices; columns ascend where that is asked for."""
    terms, ptr = _terms(a_ptr, a_idx, b_ptr), np.zeros(a_ptr.size, np.int64)
    memory.accumulate(terms)  # before each row
    parts = _parts(terms, n_cols)
    marks = np.zeros((parts.size - 1, n_cols), np.int32)
    room = np.empty(terms[-1], np.int32)  # of which what is not written to takes no memory
    _run(_columns_of_product, terms[parts], parts, a_ptr, a_idx, b_ptr, b_idx, marks, terms, ascends, ptr, room)
    return _joined(terms[parts[:-1]], parts, ptr, room)


@kernel
def _count_terms(first, last, a_ptr, a_idx, b_ptr, terms):
    of_b = simd.pointer(b_ptr, 0)
    for i in range(first, last):
        n, row = 0, simd.pointer(a_idx, a_ptr[i])
        for k in range(a_ptr[i + 1] - a_ptr[i]):
            n += of_b[row[k] + 1] - of_b[row[k]]
        terms[i + 1] = n


@inlined
def _prefetch(k, a_idx, b_ptr, b_idx, b, unit):
    """The row of B that is next but a few in a product, and where the row lies that is as many further on."""
    row, last = simd.pointer(a_idx, 0), len(a_idx) - 1
    begin = simd.pointer(b_ptr, 0)[row[min(k + AHEAD, last)]]
    simd.prefetch(b_ptr, np.int64(row[min(k + 2 * AHEAD, last)]), simd.INTO_L1)
    simd.prefetch(b_idx, begin, simd.INTO_L1)
    if unit:
        simd.prefetch(b, begin * unit, simd.INTO_L1)


@kernel
def _columns_of_product(first, last, parts, a_ptr, a_idx, b_ptr, b_idx, marks, terms, ascends, ptr, room):
    of_row, of_b, of_a = simd.pointer(a_ptr, 0), simd.pointer(b_ptr, 0), simd.pointer(a_idx, 0)
    for p in range(first, last):
        mark, at = simd.pointer(marks, p * marks.shape[1]), terms[parts[p]]
        for i in range(parts[p], parts[p + 1]):
            n, found = 0, simd.pointer(room, at)
            for k in range(of_row[i], of_row[i + 1]):
                _prefetch(k, a_idx, b_ptr, b_idx, b_idx, 0)
                j = of_a[k]
                columns = simd.pointer(b_idx, of_b[j])
                for t in range(of_b[j + 1] - of_b[j]):
                    column = columns[t]
                    seen, mark[column] = mark[column], i + 1
                    found[n] = column  # there is room for every term
                    n += seen != i + 1
            if ascends:
                _sort(found, n)
            ptr[i + 1] = n
            at += n


@inlined
def _sort(numbers, n):
    """By insertion: rows ascend in pieces. In long ones over shrinking gaps: Shell 1959, with the gaps of Knuth 1973."""
    gap = 1
    while LONG * gap < n:
        gap = 3 * gap + 1
    while gap:
        for k in range(gap, n):
            own, at = numbers[k], k
            while at >= gap and numbers[at - gap] > own:
                numbers[at] = numbers[at - gap]
                at -= gap
            numbers[at] = own
        gap //= 3


def product(a_ptr, a_idx, a, b_ptr, b_idx, b, ptr, idx, n_cols):
    """The blocks of the product of two matrices, of which the structure is known."""
    out = memory.empty(idx.size * a.shape[1] * b.shape[2], np.float64).reshape(idx.size, a.shape[1], b.shape[2])
    parts = _parts(a_ptr, n_cols)
    marks = np.empty((parts.size - 1, n_cols), np.int32)
    sizes = *_sizes(a), tuple(range(b.shape[2]))
    unit = a.shape[1] * a.shape[2] * b.shape[2]
    _run(_multiply, a_ptr[parts], parts, a_ptr, a_idx, a, b_ptr, b_idx, b, ptr, idx, marks, *sizes, out, unit=unit)
    return out


@kernel
def _multiply(first, last, parts, a_ptr, a_idx, a, b_ptr, b_idx, b, ptr, idx, marks, rows, inner, columns, out):
    height, depth, width = len(rows), len(inner), len(columns)  # which the compiler knows
    of_row, of_b, row = simd.pointer(a_ptr, 0), simd.pointer(b_ptr, 0), simd.scratch(out, simd.SINGLE)
    for p in range(first, last):
        mark = simd.pointer(marks, p * marks.shape[1])
        for i in range(parts[p], parts[p + 1]):
            found, sums = simd.pointer(idx, ptr[i]), simd.pointer(out, ptr[i] * (height * width))
            for t in range(ptr[i + 1] - ptr[i]):
                mark[found[t]] = t
            for q in range((ptr[i + 1] - ptr[i]) * (height * width)):
                sums[q] = 0
            for k in range(of_row[i], of_row[i + 1]):
                _prefetch(k, a_idx, b_ptr, b_idx, b, depth * width)
                j, left = a_idx[k], simd.pointer(a, k * (height * depth))
                first_of_left = left[0]  # not read again where that is all
                of, right = simd.pointer(b_idx, of_b[j]), simd.pointer(b, of_b[j] * (depth * width))
                for t in range(of_b[j + 1] - of_b[j]):
                    to = np.int64(mark[of[t]]) * (height * width)
                    for r in range(height):
                        for c in range(width):
                            row[c] = sums[to + r * width + c]
                        for m in range(depth):
                            factor = first_of_left if height == depth == 1 else left[r * depth + m]
                            for c in range(width):
                                row[c] += factor * right[t * (depth * width) + m * width + c]
                        for c in range(width):
                            sums[to + r * width + c] = row[c]


def smooth(ptr, idx, data, scale, aggregate, basis):
    """In place ``data = T - scale * data``, where `data` are the blocks of ``A T``; `scale` is (n, height)."""
    _run(_smooth, ptr, ptr, idx, data, scale, aggregate, basis, *_sizes(data), unit=data[:1].size)


@kernel
def _smooth(first, last, ptr, idx, data, scale, aggregate, basis, rows, columns):
    for i in range(first, last):
        for t in range(ptr[i], ptr[i + 1]):
            for r in range(len(rows)):
                for c in range(len(columns)):
                    own = basis[i, r, c] if idx[t] == aggregate[i] else 0.0
                    data[t, r, c] = own - scale[i, r] * data[t, r, c]


def transposed(ptr, idx, n_cols):
    """The structure of the transpose, and which block each of its blocks is: ``indptr``, ``indices``, ``order``."""
    order = np.arange(idx.size, dtype=whole.offset_dtype(idx.size, idx.dtype))
    found = whole.transpose(CSR(ptr, idx, order, (ptr.size - 1, n_cols)))
    return found.indptr.astype(np.int64), found.indices, found.data


def taken(data, order):
    """The transposes of the blocks in this order."""
    out = memory.empty(data.size, np.float64).reshape(order.size, data.shape[2], data.shape[1])
    parts = np.arange(0, order.size + PART, PART).clip(max=order.size)
    _run(_take, parts, parts, data, order, *_sizes(data), out, unit=data[:1].size)
    return out


@kernel
def _take(first, last, parts, data, order, rows, columns, out):
    for t in range(parts[first], parts[last]):
        for r in range(len(rows)):
            for c in range(len(columns)):
                out[t, c, r] = data[order[t], r, c]


def entries(ptr, data):
    """The numbers of the blocks, row by row of the whole matrix."""
    return _in_rows(ptr, data, *data.shape[1:])


def entries_structure(ptr, idx, height, width):
    """``indptr`` and ``indices`` of the same."""
    indptr = np.zeros((ptr.size - 1) * height + 1, np.int64)
    indptr[1:] = np.repeat(np.diff(ptr) * width, height)
    memory.accumulate(indptr)
    return indptr, _in_rows(ptr, idx, height, width)


def _in_rows(ptr, blocks, height, width):
    """The numbers of blocks, or from the blocks' columns those of the numbers, row by row of the whole matrix."""
    out = np.empty(len(blocks) * height * width, blocks.dtype)
    _run(_fill_rows, ptr, ptr, blocks, height, width, out, unit=height * width)
    return out


@kernel
def _fill_rows(first, last, ptr, blocks, height, width, out):
    for i in range(first, last):
        n = (ptr[i + 1] - ptr[i]) * width
        for t in range(ptr[i], ptr[i + 1]):
            at = ptr[i] * height * width + (t - ptr[i]) * width
            for r in range(height):
                for c in range(width):
                    if blocks.ndim == 1:
                        out[at + r * n + c] = blocks[t] * width + c
                    else:
                        out[at + r * n + c] = blocks[t, r, c]


def blocks_structure(indptr, indices, size):
    """The blocks that hold entries: ``indptr``, ``indices``, and where the number of each entry lies among theirs."""
    n = (indptr.size - 1) // size
    a_ptr, a_idx = indptr[::size].astype(np.int64), indices // np.int32(size)
    b_ptr = np.arange(n + 1, dtype=np.int64)
    ptr, idx = product_structure(a_ptr, a_idx, b_ptr, b_ptr[:-1].astype(np.int32), n)
    place = np.empty(indices.size, np.int64)
    parts = _parts(a_ptr, n)
    marks = np.empty((parts.size - 1, n), np.int64)
    _run(_places, a_ptr[parts], parts, indptr, indices, size, ptr, idx, marks, place)
    return ptr, idx, place


@kernel
def _places(first, last, parts, indptr, indices, size, ptr, idx, marks, place):
    for p in range(first, last):
        for i in range(parts[p], parts[p + 1]):
            for t in range(ptr[i], ptr[i + 1]):
                marks[p, idx[t]] = t
            for r in range(size):
                for k in range(indptr[i * size + r], indptr[i * size + r + 1]):
                    place[k] = (marks[p, indices[k] // size] * size + r) * size + indices[k] % size
