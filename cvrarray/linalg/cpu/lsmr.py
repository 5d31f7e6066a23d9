"""LSMR on a CPU, for one right-hand side: three passes over vectors a step, beside two products.

The recurrences, estimates and tests are those of :mod:`cvrarray.linalg.lsmr`, in the order of ``kernels/lsmr.cu``:

    u = A v - alpha u / |u|;  beta = |u|        a product, left
    v = A^H u / beta - beta v;  alpha = |v|     a product, right: the rotations, and estimates
    v = v / alpha;  h_bar, x, h;  |x|           move: whether it has ended

Factors are real, so complex vectors count as real ones of twice the length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cvrarray.cpu import simd
from cvrarray.cpu.runtime import compiler
from cvrarray.linalg.bidiagonal import FIELDS, Vectors
from cvrarray.linalg.cpu.vectors import Blocks, kernel, reals, total, version_of

(
    ALPHA, BETA, LENGTH_U, DAMP, NORM_B, ATOL, BTOL, CTOL, ALPHA_BAR, ZETA_BAR, ZETA, RHO, RHO_BAR, C_BAR, S_BAR, BETA_DD,
    BETA_D, RHO_D, TAU, THETA, D, NORM_A2, NORM_A, MAX_RHO, MIN_RHO, COND, NORM_R, NORM_X, BACK, STEP, TURN,
) = range(len(FIELDS))  # fmt: skip


@kernel
def _lengthen(first, last, rows, a, b, x, y, partial):
    """``y = a x + b y``; sums: ``y @ y``."""
    left, right = y.dtype.type(a), y.dtype.type(b)
    for block in range(first, last):
        begin = block * rows
        source, to = simd.pointer(x, begin), simd.pointer(y, begin)
        found = 0.0
        for i in range(min(rows, len(y) - begin)):
            entry = left * source[i] + right * to[i]
            to[i] = entry
            found += np.float64(entry) * np.float64(entry)
        partial[block, 0] = found


@kernel
def _move(first, last, rows, state, v, h_bar, h, x, partial):
    """``v = v / alpha; h_bar = h - back h_bar; x += step h_bar; h = v - turn h``; sums: ``x @ x``."""
    number = v.dtype.type
    inverse = number(1 / state[ALPHA] if state[ALPHA] != 0 else 0.0)
    back, step, turn = number(state[BACK]), number(state[STEP]), number(state[TURN])
    for block in range(first, last):
        begin = block * rows
        along, bar, way, to = simd.pointer(v, begin), simd.pointer(h_bar, begin), simd.pointer(h, begin), simd.pointer(x, begin)
        found = 0.0
        for i in range(min(rows, len(v) - begin)):
            direction, before = inverse * along[i], way[i]
            averaged = before - back * bar[i]
            moved = to[i] + step * averaged
            along[i] = direction
            bar[i] = averaged
            to[i] = moved
            way[i] = direction - turn * before
            found += np.float64(moved) * np.float64(moved)
        partial[block, 0] = found


@compiler.helper
def _over(a, b):
    return a / b if b != 0 else 0.0


@compiler.helper
def _rotation(a, b):
    """c, s, r of ``[[c, s], [-s, c]] @ [a, b] = [r, 0]``."""
    r = math.hypot(a, b)
    return (a / r, b / r, r) if r > 0 else (1.0, 0.0, r)


@compiler.kernel
def _rotate(w, is_first):
    """The rotations of a step, the factors of its vectors, and what they say of A and of the residual."""
    c_hat, s_hat, alpha_hat = _rotation(w[ALPHA_BAR], w[DAMP])
    c, s, rho = _rotation(alpha_hat, w[BETA])
    rho_old, rho_bar_old, zeta_old = w[RHO], w[RHO_BAR], w[ZETA]
    theta, theta_bar, rho_temp = s * w[ALPHA], w[S_BAR] * rho, w[C_BAR] * rho
    c_bar, s_bar, rho_bar = _rotation(rho_temp, theta)
    zeta = c_bar * w[ZETA_BAR]
    w[RHO], w[ALPHA_BAR], w[C_BAR], w[S_BAR], w[RHO_BAR] = rho, c * w[ALPHA], c_bar, s_bar, rho_bar
    w[ZETA], w[ZETA_BAR] = zeta, -s_bar * w[ZETA_BAR]
    w[BACK] = _over(theta_bar * rho, rho_old * rho_bar_old)
    w[STEP], w[TURN] = _over(zeta, rho * rho_bar), _over(theta, rho)

    acute, check = c_hat * w[BETA_DD], -s_hat * w[BETA_DD]
    theta_old = w[THETA]
    c_tilde, s_tilde, rho_tilde = _rotation(w[RHO_D], theta_bar)
    w[BETA_DD] = -s * acute
    w[THETA], w[RHO_D] = s_tilde * rho_bar, c_tilde * rho_bar
    w[BETA_D] = -s_tilde * w[BETA_D] + c_tilde * c * acute
    w[TAU] = _over(zeta_old - theta_old * w[TAU], rho_tilde)
    w[D] += check * check
    tau_d = _over(zeta - w[THETA] * w[TAU], w[RHO_D])
    w[NORM_R] = math.sqrt(w[D] + (w[BETA_D] - tau_d) ** 2 + w[BETA_DD] ** 2)

    w[NORM_A2] += w[BETA] ** 2
    w[NORM_A] = math.sqrt(w[NORM_A2])
    w[NORM_A2] += w[ALPHA] ** 2
    w[MAX_RHO] = max(w[MAX_RHO], rho_bar_old)
    if not is_first:
        w[MIN_RHO] = min(w[MIN_RHO], rho_bar_old)
    w[COND] = _over(max(w[MAX_RHO], rho_temp), min(w[MIN_RHO], rho_temp))


@compiler.kernel
def _reason_to_stop(w, is_last):
    """SciPy's number of why it has ended, 0 where it has not."""
    norm_ar, below = abs(w[ZETA_BAR]), w[NORM_A] * w[NORM_R]
    of_r, size = _over(w[NORM_R], w[NORM_B]), _over(w[NORM_A] * w[NORM_X], w[NORM_B])
    if of_r <= w[BTOL] + w[ATOL] * size:
        return 1
    if below != 0 and norm_ar / below <= w[ATOL]:
        return 2
    if _over(1.0, w[COND]) <= w[CTOL]:
        return 3
    if 1 + of_r / (1 + size) <= 1:
        return 4
    if below != 0 and 1 + norm_ar / below <= 1:
        return 5
    if 1 + _over(1.0, w[COND]) <= 1:
        return 6
    return 7 if is_last or not math.isfinite(w[NORM_R] + norm_ar + w[NORM_X]) else 0


def run(matrix: Any, adjoint: Callable[[Any, Any], Any], times: Callable[..., Any], vectors: Vectors, begin: np.ndarray) -> Any:
    """Iterate from the state `begin` (1,) until it has ended; the state then."""
    words, numbers = begin[0], begin.view(np.float64)
    u, product, v, back, h, h_bar, x = map(reals, vectors)
    of_rows, of_cols = Blocks(len(u), None), Blocks(len(v), None)
    left, right = (
        blocks.prepare(_lengthen, 0.0, 0.0, like, like, blocks.partial) for blocks, like in ((of_rows, u), (of_cols, v))
    )
    move = of_cols.prepare(_move, numbers, v, v, v, v, of_cols.partial)
    rotate, reason = version_of(_rotate, numbers, True), version_of(_reason_to_stop, numbers, True)
    add_up = version_of(total, of_rows.partial, 0)
    limit, done, stop = int(words["limit"]), 0, 0
    while words["going"] and not stop:
        done += 1
        times(matrix, vectors.v, vectors.product)
        left(1.0, -numbers[ALPHA] / numbers[LENGTH_U] if numbers[LENGTH_U] else 0.0, product, u, of_rows.partial)
        beta = math.sqrt(add_up(of_rows.partial, 0))
        adjoint(vectors.u, vectors.back)
        right(1 / beta if beta else 0.0, -beta, back, v, of_cols.partial)
        numbers[BETA] = numbers[LENGTH_U] = beta
        numbers[ALPHA] = math.sqrt(add_up(of_cols.partial, 0)) if beta > 0 else 0.0
        rotate(numbers, done == 1)
        move(numbers, v, h_bar, h, x, of_cols.partial)
        numbers[NORM_X] = math.sqrt(add_up(of_cols.partial, 0))
        stop = reason(numbers, done >= limit)
    if done:
        words["iterations"], words["stop"], words["going"] = done, stop, 0
    return begin
