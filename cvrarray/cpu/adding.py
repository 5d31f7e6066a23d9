"""``A + B`` of two matrices in any formats on the CPU, as canonical CSR: some rows of both are read at a time and merged.

What is read lies in the caches until it is merged, and its memory is used again: fresh memory takes longer than all
else. What one thread writes stands together; that of the next one begins where it would if no entries of the two met,
and is moved at last.
"""

from __future__ import annotations

import itertools

import numpy as np

from cvrarray.core.tables import CSR
from cvrarray.cpu import simd
from cvrarray.cpu.csr import offset_dtype
from cvrarray.cpu.decoding import Reader
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.compiler import inlined, kernel

TILE = 1 << 16  #: entries of both, about, that are read at a time


def add(a: Reader, b: Reader, sign: int, shape: tuple[int, int], dtype: np.dtype) -> CSR:
    """``a + sign * b`` of one shape, index dtype and floating-point `dtype`, without the entries that are 0."""
    work = np.add(a.indptr, b.indptr, dtype=np.int64)
    tiles = np.unique(threads.split(work, max(1, int(work[-1]) // TILE))).astype(np.int64)
    before = work[tiles]
    most = int(work[-1])  # there can be: what is not written to is no memory
    del work  # large arrays that are there at once may be given back to the system, which clears fresh ones
    indices, data = memory.empty(most, a.index), memory.empty(most, dtype)
    ptr = np.zeros(shape[0] + 1, offset_dtype(most, a.index))
    ends: dict[int, tuple[int, int]] = {}  # by the first tile of some: the last one, and where its rows end

    def rows(first: int, last: int) -> None:
        end = int(before[first])
        for begin, stop in itertools.pairwise(tiles[first : last + 1].tolist()):
            columns, values = b.read(begin, stop)
            both = a.indptr, *a.read(begin, stop), b.indptr, columns, values if sign > 0 else -values
            end = _add(begin, stop, *both, end, ptr, indices, data)
        ends[first] = last, end

    threads.run(rows, before)
    total = 0
    for first, (last, end) in sorted(ends.items()):
        begin = int(before[first])
        if begin != total:
            indices[total : total + end - begin], data[total : total + end - begin] = indices[begin:end], data[begin:end]
            ptr[tiles[first] + 1 : tiles[last] + 1] -= begin - total
        total += end - begin
    indices, data = indices[:total], data[:total]
    if 3 * total < most:
        indices, data = indices.copy(), data.copy()
    return CSR(ptr, indices, data, shape)


@kernel
def _add(first, last, a_ptr, a_columns, a_values, b_ptr, b_columns, b_values, out, ptr, indices, data):
    """The sums of some rows one after the other from ``indices[out]`` on; where they end.

    `a_columns` and the like are those of these rows alone.
    """
    a_columns, a_values = simd.pointer(a_columns, -a_ptr[first]), simd.pointer(a_values, -a_ptr[first])
    b_columns, b_values = simd.pointer(b_columns, -b_ptr[first]), simd.pointer(b_values, -b_ptr[first])
    zero, indices, data = data.dtype.type(0), simd.pointer(indices, 0), simd.pointer(data, 0)
    for row in range(first, last):
        i, j, i_end, j_end = a_ptr[row], b_ptr[row], a_ptr[row + 1], b_ptr[row + 1]
        if i < i_end and j < j_end:
            left, right = np.int64(a_columns[i]), np.int64(b_columns[j])
            while True:  # only what was taken is looked at again: half the comparisons
                if left < right:
                    out = _append(left, a_values[i], indices, data, out)
                    i += 1
                    if i == i_end:
                        break
                    left = np.int64(a_columns[i])
                elif right < left:
                    out = _append(right, zero + b_values[j], indices, data, out)
                    j += 1
                    if j == j_end:
                        break
                    right = np.int64(b_columns[j])
                else:
                    out = _append(left, a_values[i] + b_values[j], indices, data, out)
                    i += 1
                    j += 1
                    if i == i_end or j == j_end:
                        break
                    left, right = np.int64(a_columns[i]), np.int64(b_columns[j])
        for k in range(i, i_end):
            out = _append(a_columns[k], a_values[k], indices, data, out)
        for k in range(j, j_end):
            out = _append(b_columns[k], zero + b_values[k], indices, data, out)
        ptr[row + 1] = out
    return out


@inlined
def _append(column, value, indices, data, out):
    """Write an entry, unless it is 0, behind which the next one goes; where that is."""
    indices[out], data[out] = column, value
    return out + (value != 0)
