"""The basis of GMRES on a CPU, for one real right-hand side: Gram-Schmidt in two passes over it, or four.

A pass takes all basis vectors for a block of w, which stays in the first cache. Classical Gram-Schmidt loses
orthogonality where w is nearly a combination of the basis. What it has lost is bounded as it goes on, and a second
projection is made before it is more than LOSS: the residuals of a Krylov method need no more than that (H. D. Simon,
"The Lanczos algorithm with partial reorthogonalization", Math. Comp. 42, 1984).
"""

from __future__ import annotations

import math

import numpy as np

from cvrarray.cpu import simd
from cvrarray.linalg.cpu.vectors import Blocks, kernel, version_of

#: Of orthogonality: the most that ``v_i @ v_j`` may be for two basis vectors.
LOSS = 1e-5


@kernel
def _project(first, last, rows, basis, w, partial):
    """Sums: of each basis vector with w, and then ``w @ w``."""
    count, n = basis.shape
    for block in range(first, last):
        begin = block * rows
        width = min(rows, n - begin)
        along = simd.pointer(w, begin)
        for k in range(count):
            one = simd.pointer(basis, k * n + begin)
            found = 0.0
            for i in range(width):
                found += np.float64(one[i]) * np.float64(along[i])
            partial[block, k] = found
        found = 0.0
        for i in range(width):
            found += np.float64(along[i]) * np.float64(along[i])
        partial[block, count] = found


@kernel
def _remove(first, last, rows, basis, factors, w, partial):
    """``w -= factors @ basis``; sums: ``w @ w``."""
    count, n = basis.shape
    for block in range(first, last):
        begin = block * rows
        width = min(rows, n - begin)
        to = simd.pointer(w, begin)
        for k in range(count):
            one, factor = simd.pointer(basis, k * n + begin), w.dtype.type(factors[k])
            for i in range(width):
                to[i] -= factor * one[i]
        found = 0.0
        for i in range(width):
            found += np.float64(to[i]) * np.float64(to[i])
        partial[block, 0] = found


@kernel
def _scale(first, last, rows, factor, w, to, partial):
    """``to = factor w``."""
    number = to.dtype.type(factor)
    for block in range(first, last):
        begin = block * rows
        source, target = simd.pointer(w, begin), simd.pointer(to, begin)
        for i in range(min(rows, len(w) - begin)):
            target[i] = number * source[i]


@kernel
def _totals(partial, sums):
    """Sums over blocks, in their order."""
    for k in range(len(sums)):
        sums[k] = 0
    for block in range(len(partial)):
        for k in range(len(sums)):
            sums[k] += partial[block, k]


class Orthogonal:
    """Basis vectors (restart + 1, n), each made orthogonal to those before."""

    def __init__(self, basis: np.ndarray) -> None:
        count, n = basis.shape
        self.basis = basis
        self._blocks = blocks = Blocks(n, None, count)
        like = basis[0]
        self._sums, self._factors = np.zeros(count), np.zeros(count)
        self._project = blocks.prepare(_project, basis, like, blocks.partial)
        self._remove = blocks.prepare(_remove, basis, self._factors, like, blocks.partial)
        self._scale = blocks.prepare(_scale, 0.0, like, like, blocks.partial)
        self._totals = version_of(_totals, blocks.partial, self._sums)
        self._eps = float(np.finfo(basis.dtype).eps)
        self._lost = 0.0

    def extend(self, step: int, w: np.ndarray) -> np.ndarray:
        """Basis vector ``step + 1`` from w, which is overwritten; (step + 2,) its coefficients, as a column."""
        h = np.zeros((step + 2, 1))
        if step == 0:
            self._lost = self._eps
        before, length = self._orthogonalise(step + 1, w, h)
        lost = self._worse(before, length)
        if lost > LOSS:
            before, length = self._orthogonalise(step + 1, w, h)
            lost = self._worse(before, length)
        self._lost = max(self._lost, lost)
        h[step + 1] = length
        self._scale(1 / length if length > 0 and math.isfinite(length) else 0.0, w, self.basis[step + 1], self._blocks.partial)
        return h

    def _worse(self, before: float, length: float) -> float:
        """A bound of the products of the new vector with the others."""
        return self._lost * before / length if length > 0 else math.inf

    def _orthogonalise(self, count: int, w: np.ndarray, h: np.ndarray) -> tuple[float, float]:
        """Remove the first basis vectors from w; its lengths before and after."""
        known, partial, sums = self.basis[:count], self._blocks.partial, self._sums[: count + 1]
        self._project(known, w, partial)
        self._totals(partial, sums)
        h[:count, 0] += sums[:count]
        self._remove(known, sums, w, partial)
        before = sums.item(count)
        self._totals(partial, sums[:1])
        return math.sqrt(before), math.sqrt(sums.item(0))
