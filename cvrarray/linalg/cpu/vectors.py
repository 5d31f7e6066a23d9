"""Kernels of vectors on the CPU: few passes over memory, on several threads, with sums in a fixed order.

A vector is cut into blocks of rows. Each block's sum is added up in double precision and stored; the sums of the blocks are
added in their order. So a result has the same bits whatever the number of threads.

Complex vectors are taken as real ones of twice the length (:func:`reals`): the methods for Hermitian matrices need real factors
and the real parts of products alone. Kernels take ``first, last``, the blocks of a range, and ``rows``, those of a block; what
follows has (n,) arrays in the kernels of vectors, (n, columns) in those whose names end in ``_columns``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.caching import njit
from cvrarray.cpu.runtime.compiler import OPTIONS, compiled

BLOCK = 2048  #: numbers of a block: its part of five vectors fits the first cache
UNIT = 4  #: work of one number, in slots of a product: from 32,768 numbers on helpers may be worth their call


def kernel(function: Callable) -> Callable:
    """Decorator of a kernel whose sums LLVM may reorder into vectors: the order is fixed when it is compiled."""
    return njit(**OPTIONS, fastmath={"reassoc", "contract"})(function)


def reals(vector: np.ndarray) -> np.ndarray:
    """A contiguous vector (n,) or matrix (n, k) as real numbers: itself, or where it is complex (2 n,) or (n, 2 k)."""
    return vector.view(vector.real.dtype) if vector.dtype.kind == "c" else vector


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that begins at a cache line."""
    return memory.empty(int(np.prod(shape)), dtype).reshape(shape)


class Blocks:
    """Kernels over the blocks of vectors of `n` real numbers, or of `n` rows of `columns`, on threads.

    ``partial`` (n_blocks, sums) is where kernels leave the sums of blocks.
    """

    def __init__(self, n: int, columns: int | None, sums: int = 2) -> None:
        self.rows = BLOCK if columns is None else max(1, BLOCK // max(columns, 1))
        n_blocks = max(1, -(-n // self.rows))
        self.columns = columns
        self.partial = np.zeros((n_blocks, sums * (1 if columns is None else columns)))
        self._work = np.minimum(np.arange(n_blocks + 1, dtype=np.int64) * self.rows, n)

    def prepare(self, name: str, *args: Any) -> Callable[..., None]:
        """``call(*args)``, which runs the kernel `name` for arguments of these types over all blocks."""
        function = globals()[f"_{name}" if self.columns is None else f"_{name}_columns"]
        version = compiled(function, 0, 0, self.rows, *args)
        call = threads.prepare(version, self._work, UNIT * (self.columns or 1))
        rows = self.rows
        return lambda *args: call(rows, *args)


@kernel
def _dot(first, last, rows, x, y, partial):
    for block in range(first, last):
        total = 0.0
        for i in range(block * rows, min((block + 1) * rows, len(x))):
            total += np.float64(x[i]) * np.float64(y[i])
        partial[block, 0] = total


@kernel
def _dot_columns(first, last, rows, x, y, partial):
    n, k = x.shape
    for block in range(first, last):
        for j in range(k):
            partial[block, j] = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            for j in range(k):
                partial[block, j] += np.float64(x[i, j]) * np.float64(y[i, j])


@kernel
def _residual(first, last, rows, b, r, partial):
    """``r = b - r``; sums: ``r @ r``."""
    for block in range(first, last):
        total = 0.0
        for i in range(block * rows, min((block + 1) * rows, len(r))):
            left = b[i] - r[i]
            r[i] = left
            total += np.float64(left) * np.float64(left)
        partial[block, 0] = total


@kernel
def _residual_columns(first, last, rows, b, r, partial):
    n, k = r.shape
    for block in range(first, last):
        for j in range(k):
            partial[block, j] = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            for j in range(k):
                left = b[i, j] - r[i, j]
                r[i, j] = left
                partial[block, j] += np.float64(left) * np.float64(left)


@kernel
def _descend(first, last, rows, factor, q, r, inverse, partial):
    """``r -= factor q``; sums: ``r @ r``, and ``r @ (inverse * r)`` where there is an inverse."""
    a = r.dtype.type(factor[0])
    for block in range(first, last):
        begin, end = block * rows, min((block + 1) * rows, len(r))
        square, weighted = 0.0, 0.0
        if len(inverse):
            for i in range(begin, end):
                left = r[i] - a * q[i]
                r[i] = left
                square += np.float64(left) * np.float64(left)
                weighted += np.float64(left) * np.float64(left * inverse[i])
        else:
            for i in range(begin, end):
                left = r[i] - a * q[i]
                r[i] = left
                square += np.float64(left) * np.float64(left)
        partial[block, 0] = square
        partial[block, 1] = weighted


@kernel
def _descend_columns(first, last, rows, factor, q, r, inverse, partial):
    """As :func:`_descend`; columns whose factor is 0 keep theirs, whatever q holds."""
    n, k = r.shape
    for block in range(first, last):
        for j in range(2 * k):
            partial[block, j] = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            weight = inverse[i] if len(inverse) else r.dtype.type(1)
            for j in range(k):
                left = r[i, j] - r.dtype.type(factor[j]) * q[i, j] if factor[j] != 0 else r[i, j]
                r[i, j] = left
                partial[block, j] += np.float64(left) * np.float64(left)
                partial[block, k + j] += np.float64(left) * np.float64(left * weight)


@kernel
def _turn(first, last, rows, factor, ratio, x, p, z, inverse):
    """``x += factor p; p = z + ratio p``, or with an inverse ``p = inverse * z + ratio p``."""
    a, b = p.dtype.type(factor[0]), p.dtype.type(ratio[0])
    for block in range(first, last):
        begin, end = block * rows, min((block + 1) * rows, len(p))
        if len(inverse):
            for i in range(begin, end):
                old = p[i]
                x[i] += a * old
                p[i] = inverse[i] * z[i] + b * old
        else:
            for i in range(begin, end):
                old = p[i]
                x[i] += a * old
                p[i] = z[i] + b * old


@kernel
def _turn_columns(first, last, rows, factor, ratio, x, p, z, inverse):
    """As :func:`_turn`; columns whose factor is 0 keep theirs."""
    n, k = p.shape
    for block in range(first, last):
        for i in range(block * rows, min((block + 1) * rows, n)):
            weight = inverse[i] if len(inverse) else p.dtype.type(1)
            for j in range(k):
                old = p[i, j]
                if factor[j] != 0:
                    x[i, j] += p.dtype.type(factor[j]) * old
                    p[i, j] = weight * z[i, j] + p.dtype.type(ratio[j]) * old
