"""From arguments to a solution: what surrounds the loop of any method.

Columns that cannot be solved at all (nan or inf in b or x0) are left out and keep their start. Columns of extreme size
are scaled by a power of 2, so that their squares neither overflow nor vanish. A column that overflowed all the same, and
of which the method has no better iterate, ends as it began.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..array import transposed
from ..array.base import SparseArray
from ..core.devices import Device
from ..core.progress import shown
from . import arguments, operators, solution
from .arguments import Arguments
from .solution import Outcome, Solution
from .system import System

#: Columns are faster side by side where a matrix has so many nonzeros a row, and so many times their number: fewer cost
#: less than a pass over all vectors, or than the arithmetic of arrays of a number for each column.
NONZEROS_A_ROW, NONZEROS = 24, 1 << 20
#: Smaller numbers have squares that vanish.
SQUARED = 1e-150


def solved(
    method: Callable[[System], Any],
    given: tuple[Any, Any, Any, Any],
    limits: tuple[Any, Any, Any],
    callback: Callable[[Any], Any] | None,
) -> tuple[Any, int]:
    """x and SciPy's info, of a method for ``(A, b, x0, M)`` with ``(rtol, atol, maxiter)``."""
    rtol, atol = (arguments.tolerance(limit, name) for limit, name in zip(limits, ("rtol", "atol"), strict=False))
    checked = arguments.system(*given)
    limit = arguments.count(limits[2], "maxiter", 10 * checked.b.shape[0])
    columns = math.prod(checked.b.shape[1:])
    checked = checked._replace(matrix=transposed.for_many(checked.matrix, limit, columns))
    with checked.device.use():
        if callback is None and is_one_by_one(checked.matrix, checked.b, checked.device):
            found = one_by_one(lambda column: method(described(column)), checked, (rtol, atol), limit)
        else:
            found = run(lambda: method(described(checked)), checked, (rtol, atol), limit, callback)
    return found.x, found.info


def is_one_by_one(matrix: Any, b: Any, device: Device) -> bool:
    """Whether the columns of b are solved for one after the other, as kernels for one column are faster."""
    if device.kind != "cpu" or b.ndim == 1 or not b.shape[1] or not isinstance(matrix, SparseArray):
        return False
    is_dense_enough = matrix.nnz >= NONZEROS_A_ROW * len(b) and matrix.nnz * b.shape[1] >= NONZEROS
    return b.dtype.kind == "c" or not is_dense_enough


def one_by_one(engine: Callable[[Arguments], Any], given: Arguments, tolerances: tuple[float, float], limit: int) -> Solution:
    """:func:`run` for each column by itself, with the engine that is made for the first."""
    columns = [given._replace(b=b.copy(), x=x.copy()) for b, x in zip(given.b.T, given.x.T, strict=True)]
    made = cache(lambda: engine(columns[0]))
    ends = [run(made, column, tolerances, limit) for column in columns]
    given.x[...] = np.stack([end.x for end in ends], axis=1)
    iterations, residual, converged = (np.array([end[field] for end in ends]) for field in range(1, 4))
    return Solution(given.x, iterations, residual, converged, [end.reason for end in ends])


def described(given: Arguments, **options: Any) -> System:
    """The system of these arguments, for an engine or a method."""
    columns = None if given.b.ndim == 1 else given.b.shape[1]
    return System(given.matrix, given.preconditioner, given.b.shape[0], columns, given.b.dtype, given.device, **options)


def run(
    engine: Callable[[], Any],
    given: Arguments,
    tolerances: tuple[float, float],
    limit: int,
    callback: Callable[[Any], Any] | None = None,
) -> Solution:
    """Solve with what `engine` makes: checked numbers in, a solution out."""
    b, x, device = given.b, given.x, given.device
    sizes = arguments.norms(b, device)
    starts = arguments.norms(x, device) if given.has_start else np.zeros(len(sizes))
    bad = arguments.bad_start(sizes, starts)
    if not b.size:
        return answer(given, Outcome(np.zeros(len(sizes), int), sizes, [solution.CONVERGED] * len(sizes)), sizes)
    tolerance = np.maximum(tolerances[0] * sizes, tolerances[1])
    left_out = [j for j, reason in enumerate(bad) if reason]
    kept = _columns(x)[:, left_out].copy() if left_out else None  # an index of no columns takes a GPU long
    scale = scale_of(sizes, starts, b.dtype)
    if left_out or (scale != 1).any():
        b = b * device.xp.asarray(scale, b.real.dtype)
        x *= device.xp.asarray(scale, b.real.dtype)
        tolerance = tolerance * scale
        if left_out:
            for vector in (b, x):
                _columns(vector)[:, left_out] = 0
    for j in np.flatnonzero(sizes == 0):
        _columns(x)[:, j] = 0
    tolerance[left_out] = np.inf
    start = x.copy() if given.has_start else None
    with shown(f"solving for {b.shape[0]:,} unknowns"):
        outcome = engine().run(b, x, tolerance, limit, *([callback] if callback is not None else []))
    outcome = _finite(given, b, x, start, outcome)
    is_tiny = bool(((sizes > 0) & (sizes * scale < SQUARED)).any())  # beside a start, by which it was not scaled
    if left_out or is_tiny or (scale != 1).any():
        with np.errstate(all="ignore"):
            outcome = _unscaled(given, b, x, scale, None if is_tiny else x.copy(), tolerance, outcome)
        if left_out:
            _columns(x)[:, left_out] = kept
        outcome = outcome._replace(
            residual=outcome.residual / scale,
            reasons=[why or reason for why, reason in zip(bad, outcome.reasons, strict=True)],
            history=None if outcome.history is None else outcome.history / device.xp.asarray(scale),
        )
        outcome.residual[left_out] = np.nan
    return answer(given, outcome, sizes)


def _finite(given: Arguments, b: Any, x: Any, start: Any, outcome: Outcome) -> Outcome:
    """Set columns of x that are not finite back to the start, None for 0; what that makes of the outcome."""
    if all(reason == solution.CONVERGED for reason in outcome.reasons):
        return outcome
    device = given.device
    lost = ~np.isfinite(arguments.norms(x, device))
    if not lost.any():
        return outcome
    device.xp.copyto(x, 0 if start is None else start, where=device.xp.asarray(lost))
    with np.errstate(all="ignore"):
        residual = arguments.norms(b - operators.multiply(given.matrix, x, device.xp.empty_like(x)), device)
    return outcome._replace(residual=np.where(lost, residual, outcome.residual))


def _unscaled(
    given: Arguments, b: Any, x: Any, scale: np.ndarray, found: Any, tolerance: np.ndarray, outcome: Outcome
) -> Outcome:
    """Divide x, which solves the scaled system for b, by `scale`. What it then cannot hold, as it is too large or too small,
    may be what met the tolerance: the outcome says so. It is tested in any case where x is not known as it was `found`.
    """
    xp, factor = given.device.xp, given.device.xp.asarray(scale, b.real.dtype)
    x /= factor
    held = x * factor
    if found is not None and (held == found).all():
        return outcome
    sizes = arguments.norms(b - operators.multiply(given.matrix, held, xp.empty_like(b)), given.device)
    lost = (np.array(outcome.reasons) == solution.CONVERGED) & ~(sizes <= 1.01 * tolerance)  # rounded elsewhere
    reasons = [
        (solution.STAGNATION if np.isfinite(size) else solution.A_NOT_FINITE) if is_lost else reason
        for is_lost, size, reason in zip(lost, sizes, outcome.reasons, strict=True)
    ]
    return outcome._replace(residual=np.where(lost, sizes, outcome.residual), reasons=reasons)


def _columns(vector: Any) -> Any:
    return vector[:, None] if vector.ndim == 1 else vector


def scale_of(sizes: np.ndarray, starts: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A power of 2 for each column, 1 where squares of numbers of its size are normal ones."""
    largest = np.maximum(sizes, starts)
    limit = float(np.finfo(dtype).max) ** 0.3
    usual = ~np.isfinite(largest) | (largest == 0) | ((largest < limit) & (largest > 1 / limit))
    if usual.all():
        return np.ones(largest.shape)
    with np.errstate(all="ignore"):
        exponent = -np.floor(np.log2(np.where(usual, 1.0, largest)))
    scale: np.ndarray = np.exp2(np.clip(exponent, -1000, 1000))
    return scale


def answer(given: Arguments, outcome: Outcome, sizes: np.ndarray) -> Solution:
    """The solution that a user gets; numbers of a vector's one column are plain numbers."""
    unit = np.where((sizes > 0) & np.isfinite(sizes), sizes, 1.0)
    history = None if outcome.history is None else outcome.history / given.device.xp.asarray(unit)
    relative, reasons = outcome.residual / unit, outcome.reasons
    converged = np.array([reason == solution.CONVERGED for reason in reasons], bool)
    if given.b.ndim == 2:
        return Solution(given.x, outcome.iterations, relative, converged, reasons, history)
    flat = None if history is None else history[:, 0]
    return Solution(given.x, int(outcome.iterations[0]), float(relative[0]), bool(converged[0]), reasons[0], flat)
