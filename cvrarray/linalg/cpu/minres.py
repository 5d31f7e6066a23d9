"""MINRES on a CPU, for one right-hand side: three passes over vectors a step, beside the product.

The recurrences are those of :mod:`cvrarray.linalg.minres`, in the order of ``kernels/minres.cu``:

    y = A v                                               the product
    y -= beta / beta_old old;  alpha = v @ y              project
    y -= alpha / beta now;  z = M y;  beta = sqrt(y @ z)  extend    (M given as an operator: M, a dot product)
    w, x, r, v = z / beta;  |r|                           move

v is the Lanczos vector, `old`, `now` and y the last, this and the next one before their scaling. Factors are real, so
complex vectors count as real ones of twice the length.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cvrarray.cpu import simd
from cvrarray.linalg.cpu.steps import Steps
from cvrarray.linalg.cpu.vectors import kernel, reals
from cvrarray.linalg.ends import A_NAN, BREAKDOWN, M_NAN, M_NOT_DEFINITE
from cvrarray.linalg.system import System


@kernel
def _project(first, last, rows, factor, old, v, y, partial):
    """``y += factor old``; sums: ``v @ y``."""
    a = y.dtype.type(factor)
    for block in range(first, last):
        begin = block * rows
        before, along, to = simd.pointer(old, begin), simd.pointer(v, begin), simd.pointer(y, begin)
        total = 0.0
        for i in range(min(rows, len(y) - begin)):
            entry = to[i] + a * before[i]
            to[i] = entry
            total += np.float64(along[i]) * np.float64(entry)
        partial[block, 0] = total


@kernel
def _extend(first, last, rows, factor, now, inverse, y, partial):
    """``y += factor now``; sums: ``y @ y``, or with an inverse ``y @ (inverse * y)``."""
    a = y.dtype.type(factor)
    for block in range(first, last):
        begin = block * rows
        width = min(rows, len(y) - begin)
        this, to, weight = simd.pointer(now, begin), simd.pointer(y, begin), simd.pointer(inverse, begin)
        total = 0.0
        if len(inverse):
            for i in range(width):
                entry = to[i] + a * this[i]
                to[i] = entry
                total += np.float64(entry) * np.float64(weight[i] * entry)
        else:
            for i in range(width):
                entry = to[i] + a * this[i]
                to[i] = entry
                total += np.float64(entry) * np.float64(entry)
        partial[block, 0] = total


class Vectors(NamedTuple):
    """What a step moves."""

    w_old: np.ndarray
    w: np.ndarray
    v: np.ndarray
    x: np.ndarray
    r: np.ndarray


@kernel
def _move(first, last, rows, factors, y, z, inverse, vectors, partial):
    """The new w in the place of the last but one, x, r, and the next v; sums: ``r @ r``.

    Factors: of w_old, w and v in the new w; of that in x; of r and y in r; of z in v.
    """
    number = y.dtype.type
    of_w_old, of_w, of_v, of_x = number(factors[0]), number(factors[1]), number(factors[2]), number(factors[3])
    of_r, of_y, of_z = number(factors[4]), number(factors[5]), number(factors[6])
    for block in range(first, last):
        begin = block * rows
        width = min(rows, len(y) - begin)
        lanczos, weighed, weight = simd.pointer(y, begin), simd.pointer(z, begin), simd.pointer(inverse, begin)
        before, this = simd.pointer(vectors.w_old, begin), simd.pointer(vectors.w, begin)
        along, to, left = simd.pointer(vectors.v, begin), simd.pointer(vectors.x, begin), simd.pointer(vectors.r, begin)
        total = 0.0
        for i in range(width):
            direction = of_w_old * before[i] + of_w * this[i] + of_v * along[i]
            residual = of_r * left[i] + of_y * lanczos[i]
            before[i] = direction
            to[i] += of_x * direction
            left[i] = residual
            total += np.float64(residual) * np.float64(residual)
        if len(inverse):
            for i in range(width):
                along[i] = of_z * (weight[i] * lanczos[i])
        else:
            for i in range(width):
                along[i] = of_z * weighed[i]
        partial[block, 0] = total


class Passes(Steps):
    """The steps of :class:`cvrarray.linalg.minres.MINRES`, beside which it is a base."""

    def __init__(self, system: System) -> None:
        super().__init__(system)
        like = reals(self.r)
        self._factors = np.zeros(7)
        self._z = self.v.empty() if self.is_separate else None
        self._project = self.prepare(_project, 0.0, like, like, like)
        self._extend = self.prepare(_extend, 0.0, like, self.inverse, like)
        self._move = self.prepare(_move, self._factors, like, like, self.inverse, Vectors(like, like, like, like, like))

    def start(self) -> None:
        """See :class:`cvrarray.linalg.minres.MINRES`; numbers are plain ones."""
        super().start()
        v = self.v
        v.combine(self.ratio(1.0, self.beta), self.basis, 0.0, self.basis, self.basis)
        self._numbers = 0.0, float(self.beta), 0.0, 0.0, float(self.beta), -1.0, 0.0

    def step(self, x: Any) -> Any:
        """See :class:`cvrarray.linalg.iteration.Method`."""
        beta_old, beta, epsilon_old, delta_bar, phi_bar, c, s = self._numbers
        old, now, y, v = map(reals, (self.old, self.new, self.y, self.basis))
        inverse = self.inverse
        self.times(self.basis, self.y)
        self._project(-beta / beta_old if beta_old else 0.0, old, v, y)
        alpha = self.total(0)
        if not math.isfinite(alpha):
            return self.end_here(A_NAN)
        self._extend(-alpha / beta if beta else 0.0, now, inverse, y)
        z = self.y
        if self._z is not None:
            z = self.precondition(self.y, self._z)
            square = float(self.v.real_dot(self.y, z))
        else:
            square = self.total(0)
        if not math.isfinite(square):
            return self.end_here(M_NAN)
        if square < 0:
            return self.end_here(M_NOT_DEFINITE)
        beta_old, beta = beta, math.sqrt(square)
        delta, gamma_bar = c * delta_bar + s * alpha, s * delta_bar - c * alpha
        gamma = math.hypot(gamma_bar, beta)
        if gamma == 0:
            return self.end_here(BREAKDOWN)
        epsilon, delta_bar = s * beta, -c * beta
        c, s = gamma_bar / gamma, beta / gamma
        of_x, phi_bar = c * phi_bar, s * phi_bar
        of_y = -c * phi_bar / beta if beta else 0.0
        self._factors[:] = -epsilon_old / gamma, -delta / gamma, 1 / gamma, of_x, s * s, of_y, 1 / beta if beta else 0.0
        moved = Vectors(reals(self.w_old), reals(self.w), v, reals(x), reals(self.r))
        self._move(self._factors, y, reals(z), inverse, moved)
        self.old, self.new, self.y = self.new, self.y, self.old
        self.w_old, self.w = self.w, self.w_old
        self._numbers = beta_old, beta, epsilon, delta_bar, phi_bar, c, s
        self.beta = beta
        return math.sqrt(self.total(0))
