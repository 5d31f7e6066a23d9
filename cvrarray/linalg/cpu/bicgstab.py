"""BiCGSTAB on a CPU, for one real right-hand side: five passes over vectors a step, beside two products.

The recurrences are those of :mod:`cvrarray.linalg.bicgstab`. A step is, with p^ = M p and s^ = M r,

    v = A p^                                                     a product
    alpha = rho / shadow @ v                                     a dot product
    r -= alpha v                                                 half
    t = A s^                                                     a product
    omega = t @ r / t @ t                                        weigh
    x += alpha p^ + omega s^;  r -= omega t;  |r|, rho, beta     whole
    p = r + beta (p - omega v)                                   turn

Without M p^ is p and s^ is r; a diagonal one is applied where p and r are made.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cvrarray.cpu import simd
from cvrarray.linalg.cpu.steps import Steps
from cvrarray.linalg.cpu.vectors import kernel
from cvrarray.linalg.ends import A_NAN, BREAKDOWN, M_NAN
from cvrarray.linalg.system import System


@kernel
def _half(first, last, rows, alpha, v, inverse, r, s_hat, partial):
    """``r -= alpha v``, and with an inverse ``s_hat = inverse * r``."""
    a = r.dtype.type(alpha)
    for block in range(first, last):
        begin = block * rows
        width = min(rows, len(r) - begin)
        along, to = simd.pointer(v, begin), simd.pointer(r, begin)
        weight, weighed = simd.pointer(inverse, begin), simd.pointer(s_hat, begin)
        for i in range(width):
            to[i] -= a * along[i]
        if len(inverse):
            for i in range(width):
                weighed[i] = weight[i] * to[i]


@kernel
def _weigh(first, last, rows, t, r, partial):
    """Sums: ``t @ r`` and ``t @ t``."""
    for block in range(first, last):
        begin = block * rows
        left, right = simd.pointer(t, begin), simd.pointer(r, begin)
        mixed, square = 0.0, 0.0
        for i in range(min(rows, len(r) - begin)):
            entry = np.float64(left[i])
            mixed += entry * np.float64(right[i])
            square += entry * entry
        partial[block, 0] = mixed
        partial[block, 1] = square


class Moved(NamedTuple):
    """What the last pass before a turn reads and moves."""

    x: np.ndarray
    r: np.ndarray
    shadow: np.ndarray


@kernel
def _whole(first, last, rows, factors, p_hat, s_hat, t, moved, partial):
    """``x += alpha p_hat + omega s_hat; r -= omega t``; s_hat may be r. Sums: ``r @ r`` and ``shadow @ r``."""
    x, r = moved.x, moved.r
    alpha, omega = r.dtype.type(factors[0]), r.dtype.type(factors[1])
    for block in range(first, last):
        begin = block * rows
        width = min(rows, len(r) - begin)
        one, other, product = simd.pointer(p_hat, begin), simd.pointer(s_hat, begin), simd.pointer(t, begin)
        to, left, first_one = simd.pointer(x, begin), simd.pointer(r, begin), simd.pointer(moved.shadow, begin)
        square, rho = 0.0, 0.0
        for i in range(width):
            to[i] += alpha * one[i] + omega * other[i]
        for i in range(width):
            residual = left[i] - omega * product[i]
            left[i] = residual
            square += np.float64(residual) * np.float64(residual)
            rho += np.float64(first_one[i]) * np.float64(residual)
        partial[block, 0] = square
        partial[block, 1] = rho


@kernel
def _turn(first, last, rows, factors, r, v, inverse, p, p_hat, partial):
    """``p = r + beta (p - omega v)``, and with an inverse ``p_hat = inverse * p``."""
    omega, beta = p.dtype.type(factors[1]), p.dtype.type(factors[2])
    for block in range(first, last):
        begin = block * rows
        width = min(rows, len(p) - begin)
        left, along, to = simd.pointer(r, begin), simd.pointer(v, begin), simd.pointer(p, begin)
        weight, weighed = simd.pointer(inverse, begin), simd.pointer(p_hat, begin)
        for i in range(width):
            to[i] = left[i] + beta * (to[i] - omega * along[i])
        if len(inverse):
            for i in range(width):
                weighed[i] = weight[i] * to[i]


class Passes(Steps):
    """The steps of :class:`cvrarray.linalg.bicgstab.BiCGSTAB`, beside which it is a base."""

    def __init__(self, system: System) -> None:
        super().__init__(system)
        like, inverse = self.r, self.inverse
        self._factors = np.zeros(3)
        if system.preconditioner is None:
            self.p_hat, self.s_hat = self.p, self.r
        self._project = self.prepare("dot", like, like)
        self._half = self.prepare(_half, 0.0, like, inverse, like, like)
        self._weigh = self.prepare(_weigh, like, like)
        self._whole = self.prepare(_whole, self._factors, like, like, like, Moved(like, like, like))
        self._turn = self.prepare(_turn, self._factors, like, like, inverse, like, like)
        self._least = float(np.finfo(system.dtype).eps) ** 2

    def start(self) -> None:
        """See :class:`cvrarray.linalg.bicgstab.BiCGSTAB`."""
        super().start()
        if self.M is not None:
            self.precondition(self.p, self.p_hat)

    def step(self, x: Any) -> Any:
        """See :class:`cvrarray.linalg.iteration.Method`."""
        self.times(self.p_hat, self.v_)
        self._project(self.shadow, self.v_)
        bend, factors = self.total(0), self._factors
        if not math.isfinite(bend):
            return self.end_here(A_NAN if math.isfinite(self.v.norm(self.p_hat)) else M_NAN)
        if bend == 0:
            return self.end_here(BREAKDOWN)
        alpha = self.rho / bend
        self._half(alpha, self.v_, self.inverse, self.r, self.s_hat)
        if self.is_separate:
            self.precondition(self.r, self.s_hat)
        self.times(self.s_hat, self.t)
        self._weigh(self.t, self.r)
        square = self.total(1)
        omega = self.total(0) / square if square else 0.0
        factors[0], factors[1] = alpha, omega
        self._whole(factors, self.p_hat, self.s_hat, self.t, Moved(x, self.r, self.shadow))
        norm, rho = math.sqrt(self.total(0)), self.total(1)
        is_small = abs(rho) <= self._least * self.shadow_norm * norm
        self._lost = norm > 0 and (is_small or omega == 0)
        factors[2] = rho / self.rho * (alpha / omega) if self.rho and omega else 0.0
        self._turn(factors, self.r, self.v_, self.inverse, self.p, self.p_hat)
        if self.is_separate:
            self.precondition(self.p, self.p_hat)
        self.rho = rho
        return norm
