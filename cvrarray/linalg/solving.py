"""From arguments to a solution: what surrounds the loop of any method.

Columns that cannot be solved at all (nan or inf in b or x0) are left out and keep their start. Columns of extreme size
are scaled by a power of 2, so that their squares neither overflow nor vanish; a start beside which b would vanish is left
out. A column that has not converged, and whose residual is larger than that of its start, ends as it began.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, prod
from typing import Any

import numpy as np

from ..array import transposed
from . import arguments, operators, solution
from .arguments import Arguments
from .solution import Outcome, Solution
from .system import System


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
    columns = 1 if checked.device.kind == "cpu" else prod(checked.b.shape[1:])
    checked = checked._replace(matrix=transposed.with_tables(checked.matrix, columns))
    with checked.device.use():
        found = run(lambda: method(described(checked)), checked, (rtol, atol), limit, callback)
    return found.x, found.info


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
    if not b.size:
        return answer(given, Outcome(np.zeros(len(sizes), int), sizes, [solution.CONVERGED] * len(sizes)), sizes)
    with np.errstate(all="ignore"):
        return _scaled(engine, given, (sizes, starts), np.maximum(tolerances[0] * sizes, tolerances[1]), limit, callback)


def _scaled(
    engine: Callable[[], Any],
    given: Arguments,
    norms: tuple[np.ndarray, np.ndarray],
    tolerance: np.ndarray,
    limit: int,
    callback: Callable[[Any], Any] | None,
) -> Solution:
    """:func:`run` for norms of b and of the start."""
    b, x, xp, (sizes, starts) = given.b, given.x, given.device.xp, norms
    left_out = np.flatnonzero(~(np.isfinite(sizes) & np.isfinite(starts))).tolist()
    ends = {j: solution.X0_NOT_FINITE if isfinite(sizes[j]) else solution.B_NOT_FINITE for j in left_out}
    start = x.copy() if given.has_start else None
    scale, is_far = scale_of(sizes, starts, b.dtype)
    dropped = np.flatnonzero(is_far | (sizes == 0))
    for j in [*left_out, *dropped]:
        _columns(x)[:, j] = 0
    if left_out or (scale != 1).any():
        b, x[...], tolerance = times(b, scale, xp), times(x, scale, xp), tolerance * scale
    for j in left_out:
        _columns(b)[:, j] = 0
    tolerance[left_out] = np.inf
    is_scaled = bool((scale != 1).any())
    if callback is not None and is_scaled:
        given_callback = callback

        def callback(value: Any) -> Any:  # GMRES may hand over relative norms instead of x
            return given_callback(times(value, 1 / scale, xp) if np.shape(value) == x.shape else value)

    outcome = engine().run(b, x, tolerance, limit, callback)
    if is_scaled:
        outcome = _unscaled(given, b, x, scale, tolerance, outcome)
    if start is None or dropped.size:
        outcome = _no_worse(given, b, x, None, scale, outcome)
    if start is not None:
        outcome = _no_worse(given, b, x, start, scale, outcome)
    if left_out and start is not None:
        _columns(x)[:, left_out] = _columns(start)[:, left_out]
    if left_out or is_scaled:
        outcome = outcome._replace(
            residual=outcome.residual / scale,
            reasons=[ends.get(j, reason) for j, reason in enumerate(outcome.reasons)],
            history=None if outcome.history is None else outcome.history / xp.asarray(scale),
        )
        outcome.residual[left_out] = np.nan
    return answer(given, outcome, sizes)


def times(vector: Any, scale: np.ndarray, xp: Any) -> Any:
    """``vector * scale`` for a power of 2 for each column, which single precision may not hold."""
    return (vector * xp.asarray(scale)).astype(vector.dtype)


def _no_worse(given: Arguments, b: Any, x: Any, start: Any, scale: np.ndarray, outcome: Outcome) -> Outcome:
    """Set columns of x that have not converged, and whose residuals exceed the start's, back to it; None for 0."""
    open_ = np.array(outcome.reasons) != solution.CONVERGED
    if not open_.any():
        return outcome
    device, first = given.device, b
    if start is not None:
        scaled = times(start, scale, device.xp)
        first = b - operators.multiply(given.matrix, scaled, device.xp.empty_like(b))
    norms = arguments.norms(first, device)
    worse = open_ & (~(outcome.residual <= norms) | ~np.isfinite(arguments.norms(x, device)))
    if worse.any():
        device.xp.copyto(x, 0 if start is None else start, where=device.xp.asarray(worse))
    return outcome._replace(residual=np.where(worse, norms, outcome.residual))


def _unscaled(given: Arguments, b: Any, x: Any, scale: np.ndarray, tolerance: np.ndarray, outcome: Outcome) -> Outcome:
    """Divide x, which solves the scaled system for b, by `scale`. What it then cannot hold, as it is too large or too small,
    may be what met the tolerance: the outcome says so.
    """
    xp, found = given.device.xp, x.copy()
    x[...] = times(x, 1 / scale, xp)
    held = times(x, scale, xp)
    if (held == found).all():
        return outcome
    sizes = arguments.norms(b - operators.multiply(given.matrix, held, xp.empty_like(b)), given.device)
    lost = (np.array(outcome.reasons) == solution.CONVERGED) & ~(sizes <= 1.01 * tolerance)  # rounded elsewhere
    reasons = [
        (solution.STAGNATION if np.isfinite(size) else solution.A_NOT_FINITE) if is_lost else reason
        for is_lost, size, reason in zip(lost, sizes, outcome.reasons, strict=True)
    ]
    changed = lost | (np.array(outcome.reasons) != solution.CONVERGED)
    return outcome._replace(residual=np.where(changed, sizes, outcome.residual), reasons=reasons)


def _columns(vector: Any) -> Any:
    return vector[:, None] if vector.ndim == 1 else vector


def scale_of(sizes: np.ndarray, starts: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """A power of 2 for each column, 1 where squares of numbers of its size are normal ones; and which starts are so much
    larger than b that it would vanish beside them: such a column is scaled by b, and begins at 0.
    """
    limit = float(np.finfo(dtype).max) ** 0.3
    is_far = (sizes > 0) & (starts > sizes) & ((starts / limit > sizes) | (sizes < 1 / limit) & (starts > 1 / limit))
    largest = np.where(is_far, sizes, np.maximum(sizes, starts))
    usual = ~np.isfinite(largest) | (largest == 0) | ((largest < limit) & (largest > 1 / limit))
    if usual.all():
        return np.ones(largest.shape), is_far
    exponent = -np.floor(np.log2(np.where(usual, 1.0, largest)))
    return np.exp2(np.clip(exponent, -1000, 1000)), is_far


def answer(given: Arguments, outcome: Outcome, sizes: Any) -> Solution:
    """The solution that a user gets, for norms of b where the residual's are; a vector's one column has plain numbers, or one
    on the device where nothing waits for it. Without a residual there are no sizes.
    """
    residual, history, reasons, xp = outcome.residual, outcome.history, outcome.reasons, given.device.xp
    if residual is not None:
        of = np if isinstance(residual, np.ndarray) else xp
        unit = of.where((sizes > 0) & of.isfinite(sizes), sizes, 1.0)
        residual, history = residual / unit, None if history is None else history / xp.asarray(unit)
    converged = np.array([reason == solution.CONVERGED for reason in reasons], bool)
    if given.b.ndim == 2:
        return Solution(given.x, outcome.iterations, residual, converged, reasons, history)
    if residual is not None:
        residual = float(residual[0]) if isinstance(residual, np.ndarray) else residual[0]
    history = None if history is None else history[:, 0]
    return Solution(given.x, int(outcome.iterations[0]), residual, bool(converged[0]), reasons[0], history)
