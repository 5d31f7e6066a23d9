"""Kernels of vectors on the CPU: few passes over memory, on several threads, with sums in a fixed order.

A vector is cut into blocks of rows. Each block's sum is added up in double precision and stored; the sums of the blocks
are added in their order. So a result has the same bits whatever the number of threads.

Complex vectors are taken as real ones of twice the length (:func:`reals`): the methods for Hermitian matrices need real
factors and the real parts of products alone. Kernels take ``first, last``, the blocks of a range, and ``rows``, those
of a block; what follows has (n,) arrays in the kernels of vectors, (n, columns) in those whose names end in
``_columns``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cvrarray.cpu import simd
from cvrarray.cpu.runtime import memory, threads
from cvrarray.cpu.runtime.caching import njit
from cvrarray.cpu.runtime.compiler import OPTIONS, compiled
from cvrarray.cpu.runtime.team import Work

#: Numbers of a block: its part of five vectors fits the first cache; fewer where there would be less than ENOUGH.
BLOCK, LEAST, ENOUGH = 2048, 256, 64
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


_versions: dict[tuple[Any, ...], Callable] = {}


def version_of(function: Callable, *args: Any) -> Callable:
    """:func:`cvrarray.cpu.runtime.compiler.compiled`, remembered: most solves are short, and asking Numba takes 20 us."""
    key = (function, *map(_kind, args))
    found = _versions.get(key)
    if found is None:
        found = _versions[key] = compiled(function, *args)
    return found


def _kind(arg: Any) -> Any:
    """What a version is compiled for."""
    if isinstance(arg, np.ndarray):
        return arg.dtype, arg.ndim
    return (type(arg), *map(_kind, arg)) if hasattr(arg, "_fields") else type(arg)


class Blocks:
    """Kernels over the blocks of vectors of `n` real numbers, or of `n` rows of `columns`, on threads.

    ``partial`` (n_blocks, sums) is where kernels leave the sums of blocks.
    """

    def __init__(self, n: int, columns: int | None, sums: int = 2) -> None:
        numbers = max(LEAST, min(BLOCK, 1 << (n * (columns or 1) // ENOUGH).bit_length()))
        self.rows = numbers if columns is None else max(1, numbers // max(columns, 1))
        n_blocks = max(1, -(-n // self.rows))
        self.columns = columns
        self.partial = np.zeros((n_blocks, sums * (1 if columns is None else columns)))
        self._work = np.minimum(np.arange(n_blocks + 1, dtype=np.int64) * self.rows, n)

    def prepare(self, kernel: str | Callable[..., None], *args: Any) -> Callable[..., None]:
        """``call(*args)``, which runs a kernel, or that of this name, for arguments of these types over all blocks."""
        function = self._kernel(kernel) if isinstance(kernel, str) else kernel
        call = threads.prepare(version_of(function, 0, 0, self.rows, *args), self._work, UNIT * (self.columns or 1))
        rows = self.rows
        return lambda *args: call(rows, *args)

    def work(self, name: str, *args: Any) -> Work:
        """The kernel `name` with these arguments over all blocks, for loops in compiled code."""
        return Work(self._kernel(name), (self.rows, *args), self._work, UNIT * (self.columns or 1))

    def _kernel(self, name: str) -> Callable[..., None]:
        found: Callable[..., None] = globals()[f"_{name}" if self.columns is None else f"_{name}_columns"]
        return found


@kernel
def _dot(first, last, rows, x, y, partial):
    for block in range(first, last):
        begin = block * rows
        left, right = simd.pointer(x, begin), simd.pointer(y, begin)
        total = 0.0
        for i in range(min(rows, len(x) - begin)):
            total += np.float64(left[i]) * np.float64(right[i])
        partial[block, 0] = total


@kernel
def _dot_columns(first, last, rows, x, y, partial):
    n, k = x.shape
    for block in range(first, last):
        sums = simd.pointer(partial, block * partial.shape[1])
        for j in range(k):
            sums[j] = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            left, right = simd.pointer(x, i * k), simd.pointer(y, i * k)
            for j in range(k):
                sums[j] += np.float64(left[j]) * np.float64(right[j])


@kernel
def _residual(first, last, rows, b, r, partial):
    """``r = b - r``; sums: ``r @ r``."""
    for block in range(first, last):
        begin = block * rows
        source, to = simd.pointer(b, begin), simd.pointer(r, begin)
        total = 0.0
        for i in range(min(rows, len(r) - begin)):
            left = source[i] - to[i]
            to[i] = left
            total += np.float64(left) * np.float64(left)
        partial[block, 0] = total


@kernel
def _residual_columns(first, last, rows, b, r, partial):
    n, k = r.shape
    for block in range(first, last):
        sums = simd.pointer(partial, block * partial.shape[1])
        for j in range(k):
            sums[j] = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            source, to = simd.pointer(b, i * k), simd.pointer(r, i * k)
            for j in range(k):
                left = source[j] - to[j]
                to[j] = left
                sums[j] += np.float64(left) * np.float64(left)


@kernel
def _descend(first, last, rows, factor, q, r, inverse, partial):
    """``r -= factor q``; sums: ``r @ r``, and ``r @ (inverse * r)`` where there is an inverse."""
    a = r.dtype.type(factor[0])
    for block in range(first, last):
        begin = block * rows
        width = min(rows, len(r) - begin)
        source, to, weight = simd.pointer(q, begin), simd.pointer(r, begin), simd.pointer(inverse, begin)
        square, weighted = 0.0, 0.0
        if len(inverse):
            for i in range(width):
                left = to[i] - a * source[i]
                to[i] = left
                square += np.float64(left) * np.float64(left)
                weighted += np.float64(left) * np.float64(left * weight[i])
        else:
            for i in range(width):
                left = to[i] - a * source[i]
                to[i] = left
                square += np.float64(left) * np.float64(left)
        partial[block, 0] = square
        partial[block, 1] = weighted


@kernel
def _descend_columns(first, last, rows, factor, q, r, inverse, partial):
    """As :func:`_descend`; columns whose factor is 0 keep theirs, whatever q holds."""
    n, k = r.shape
    a = simd.pointer(factor, 0)
    for block in range(first, last):
        squares = simd.pointer(partial, block * partial.shape[1])
        weighted = simd.pointer(partial, block * partial.shape[1] + k)
        for j in range(2 * k):
            squares[j] = 0
        for i in range(block * rows, min((block + 1) * rows, n)):
            weight = inverse[i] if len(inverse) else r.dtype.type(1)
            source, to = simd.pointer(q, i * k), simd.pointer(r, i * k)
            for j in range(k):
                left = to[j] - r.dtype.type(a[j]) * source[j] if a[j] != 0 else to[j]
                to[j] = left
                squares[j] += np.float64(left) * np.float64(left)
                weighted[j] += np.float64(left) * np.float64(left * weight)


@kernel
def _turn(first, last, rows, factor, ratio, x, p, z, inverse):
    """``x += factor p; p = z + ratio p``, or with an inverse ``p = inverse * z + ratio p``."""
    a, b = p.dtype.type(factor[0]), p.dtype.type(ratio[0])
    for block in range(first, last):
        begin = block * rows
        width = min(rows, len(p) - begin)
        to, along, new = simd.pointer(x, begin), simd.pointer(p, begin), simd.pointer(z, begin)
        weight = simd.pointer(inverse, begin)
        if len(inverse):
            for i in range(width):
                old = along[i]
                to[i] += a * old
                along[i] = weight[i] * new[i] + b * old
        else:
            for i in range(width):
                old = along[i]
                to[i] += a * old
                along[i] = new[i] + b * old


@kernel
def _turn_columns(first, last, rows, factor, ratio, x, p, z, inverse):
    """As :func:`_turn`; columns whose factor is 0 keep theirs."""
    n, k = p.shape
    a, b = simd.pointer(factor, 0), simd.pointer(ratio, 0)
    for block in range(first, last):
        for i in range(block * rows, min((block + 1) * rows, n)):
            weight = inverse[i] if len(inverse) else p.dtype.type(1)
            to, along, new = simd.pointer(x, i * k), simd.pointer(p, i * k), simd.pointer(z, i * k)
            for j in range(k):
                old, before = along[j], to[j]
                to[j] = before + p.dtype.type(a[j]) * old if a[j] != 0 else before
                along[j] = weight * new[j] + p.dtype.type(b[j]) * old if a[j] != 0 else old


@kernel
def _move(first, last, rows, factor, p, x):
    """``x += factor p``."""
    a = x.dtype.type(factor[0])
    for block in range(first, last):
        begin = block * rows
        along, to = simd.pointer(p, begin), simd.pointer(x, begin)
        for i in range(min(rows, len(x) - begin)):
            to[i] += a * along[i]


@kernel
def _move_columns(first, last, rows, factor, p, x):
    """As :func:`_move`; columns whose factor is 0 keep theirs."""
    n, k = x.shape
    a = simd.pointer(factor, 0)
    for i in range(first * rows, min(last * rows, n)):
        along, to = simd.pointer(p, i * k), simd.pointer(x, i * k)
        for j in range(k):
            to[j] = to[j] + x.dtype.type(a[j]) * along[j] if a[j] != 0 else to[j]


@kernel
def _turn_chebyshev(first, last, rows, factors, is_first, inverse, b, product, d, x):
    """``d = old d + new inverse (b - product); x += d``, factors are old and new; the first step from 0 reads b alone."""
    old, new = d.dtype.type(factors[0]), d.dtype.type(factors[1])
    for block in range(first, last):
        begin = block * rows
        width = min(rows, len(x) - begin)
        weight, right, left = simd.pointer(inverse, begin), simd.pointer(b, begin), simd.pointer(product, begin)
        along, to = simd.pointer(d, begin), simd.pointer(x, begin)
        if is_first:
            for i in range(width):
                step = new * weight[i] * right[i]
                along[i] = step
                to[i] = step
        elif old == 0:
            for i in range(width):
                step = new * weight[i] * (right[i] - left[i])
                along[i] = step
                to[i] += step
        else:
            for i in range(width):
                step = old * along[i] + new * weight[i] * (right[i] - left[i])
                along[i] = step
                to[i] += step


def chebyshev_turn(inverse: np.ndarray, like: np.ndarray) -> Callable[..., None]:
    """``turn(old, new, is_first, b, product, d, x)`` for contiguous vectors or matrices like this one."""
    real = reals(np.empty(0, like.dtype))
    scale = np.repeat(inverse.astype(real.dtype), math.prod(like.shape[1:]) * like.itemsize // real.itemsize)
    run = Blocks(scale.size, None).prepare("turn_chebyshev", np.empty(2), True, scale, real, real, real, real)

    def turn(old: float, new: float, is_first: bool, *vectors: np.ndarray) -> None:
        flat = map(reals, vectors) if like.ndim == 1 else (reals(vector).reshape(-1) for vector in vectors)
        run(np.array([old, new], np.float64), is_first, scale, *flat)

    return turn


@kernel
def _step(first, last, rows, beta, root, old, x, product, partial):
    """``product = root product - beta old``; sums: ``x @ product``."""
    b = x.dtype.type(beta[0])
    for block in range(first, last):
        begin = block * rows
        scale, before, along = simd.pointer(root, begin), simd.pointer(old, begin), simd.pointer(x, begin)
        to, total = simd.pointer(product, begin), 0.0
        for i in range(min(rows, len(x) - begin)):
            new = scale[i] * to[i] - b * before[i]
            to[i] = new
            total += np.float64(along[i]) * np.float64(new)
        partial[block, 0] = total


@kernel
def _unit(first, last, rows, beta, root, product, x, scaled):
    """``x = product / beta; scaled = root x``."""
    b = x.dtype.type(1 / beta[0]) if beta[0] > 0 else x.dtype.type(0)
    for block in range(first, last):
        begin = block * rows
        source, scale = simd.pointer(product, begin), simd.pointer(root, begin)
        to, other = simd.pointer(x, begin), simd.pointer(scaled, begin)
        for i in range(min(rows, len(x) - begin)):
            new = b * source[i]
            to[i] = new
            other[i] = scale[i] * new


def scattered(n: int) -> np.ndarray:
    """(n,) float64 in [-1, 1), the same in every run: SplitMix64 (Steele, Lea, Flood 2014) of the places."""
    x = np.arange(1, 1 + n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    numbers: np.ndarray = (x >> np.uint64(11)) * 2.0**-52 - 1
    return numbers


def lanczos(multiply: Callable[[Any, Any], Any], root: np.ndarray, x: np.ndarray, steps: int) -> np.ndarray:
    """(steps, 2) the diagonal, and beside it, of Lanczos' tridiagonal matrix for ``root A root``, from x on, which is
    overwritten; ``multiply(x, out)`` is by A. What follows a 0 beside the diagonal means nothing.
    """
    old, scaled, product = (empty(x.shape, x.dtype) for _ in range(3))
    old.fill(0)
    product[...] = x
    views = [reals(vector) for vector in (x, old, scaled, product)]
    weight = np.repeat(root.astype(views[0].dtype), views[0].size // max(x.size, 1))
    blocks, alpha, beta, found = Blocks(weight.size, None), np.zeros(1), np.zeros(1), np.zeros((steps, 2))
    sums, (own, before, weighted, new) = blocks.partial, views
    step = blocks.prepare("step", beta, weight, before, own, new, sums)
    descend = blocks.prepare("descend", alpha, own, new, weight[:0], sums)
    unit = blocks.prepare("unit", beta, weight, new, own, weighted)
    descend(alpha, own, new, weight[:0], sums)
    beta[0] = np.sqrt(sums[:, 0].sum())
    unit(beta, weight, new, own, weighted)
    beta[0] = 0
    for k in range(steps):
        multiply(scaled, product)
        step(beta, weight, before, own, new, sums)
        alpha[0] = sums[:, 0].sum()
        descend(alpha, own, new, weight[:0], sums)
        beta[0] = np.sqrt(sums[:, 0].sum())
        found[k] = alpha[0], beta[0]
        own, before = before, own
        unit(beta, weight, new, own, weighted)
    return found


@kernel
def _multiply_blocks(first, last, inverse, r, out):
    """``out = inverse @ r``, block by block; the last one may reach beyond the vectors."""
    size, n = inverse.shape[1], len(r)
    for block in range(first, last):
        begin = block * size
        width = min(size, n - begin)
        source, to = simd.pointer(r, begin), simd.pointer(out, begin)
        for i in range(width):
            row = simd.pointer(inverse, (block * size + i) * size)
            total = row[0] * source[0]
            for j in range(1, width):
                total += row[j] * source[j]
            to[i] = total


def work_of_blocks(inverse: np.ndarray, r: np.ndarray, out: np.ndarray) -> Work:
    """``out = inverse @ r``, for loops in compiled code."""
    return Work(_multiply_blocks, (inverse, r, out), np.arange(len(inverse) + 1, dtype=np.int64), inverse.shape[1] ** 2)


def block_product(inverse: np.ndarray) -> Callable[..., None]:
    """``call(inverse, r, out)`` for blocks of this shape, on threads."""
    like = np.empty(0, inverse.dtype)
    work = work_of_blocks(inverse, like, like)
    return threads.prepare(version_of(work.function, 0, 0, *work.args), work.work, work.unit)
