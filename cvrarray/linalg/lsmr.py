"""LSMR for least squares with any A, rectangular or singular.

Source: D. C.-L. Fong, M. A. Saunders, "LSMR: An Iterative Algorithm for Sparse Least-Squares Problems", SIAM J. Sci.
Comput. 33(5), 2011. On a CPU it is SciPy's loop around our products, on a GPU that of :mod:`.gpu.lsmr`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg

from ..array import transposed
from ..array.base import SparseArray
from ..core import devices
from . import arguments, operators, solving


class Result(NamedTuple):
    """What :func:`lsmr` returns, SciPy's eight values; for b (n_rows, k) each but x has one entry a column.

    Attributes
    ----------
    x : (n_cols,) or (n_cols, k) array
        The solution, on the device of `b`.
    istop : int
        Why it ended, SciPy's number: 1 a solution of ``A x = b``, 2 one of the least squares, 3 `conda` reached `conlim`;
        4 to 6 the same as far as the dtype's rounding allows; 7 `maxiter`; 0 that x = 0 is the solution.
    itn : int
        Iterations.
    normr, normar : float
        Estimates of ``|b - A x|``, with the damping's part, and of ``|A^H (b - A x)|``.
    norma, conda : float
        Estimates of A's Frobenius norm and of its condition number.
    normx : float
        ``|x|``.

    Examples
    --------
    >>> result = cvrarray.linalg.lsmr(np.array([[1.0, 0], [1, 1], [0, 1]]), np.array([1.0, 0, -1]))
    >>> result.x.round(6), result.istop, result.itn
    (array([ 1., -1.]), 1, 1)
    >>> result.normr < 1e-12, result.normar < 1e-12, round(result.norma, 6), round(result.conda, 6), round(result.normx, 6)
    (True, True, 1.0, 1.0, 1.414214)
    """

    x: Any
    istop: Any
    itn: Any
    normr: Any
    normar: Any
    norma: Any
    conda: Any
    normx: Any


class Limits(NamedTuple):
    """What ends an iteration, as SciPy names it, and the damping."""

    damp: float
    atol: float
    btol: float
    conlim: float
    maxiter: int


def _adjoint(matrix: Any, device: devices.Device, columns: int) -> Any:
    """The conjugate transpose of A, for products with vectors and matrices."""
    if not isinstance(matrix, SparseArray):
        return operators.Operator(matrix.shape[::-1], matrix.dtype, matrix.rmatvec)
    turned = transposed.with_tables(matrix.T, columns)
    if matrix.dtype.kind != "c":
        return turned

    def multiply(x: Any, out: Any) -> None:
        operators.multiply(turned, x.conj(), out)
        device.xp.conj(out, out=out)

    return operators.Operator(matrix.shape[::-1], matrix.dtype, multiply, multiply)


def lsmr(
    A: Any,
    b: Any,
    damp: float = 0.0,
    atol: float | None = 1e-6,
    btol: float | None = 1e-6,
    conlim: float | None = 1e8,
    maxiter: int | None = None,
    show: bool = False,
    x0: Any = None,
) -> Result:
    """Minimise ``|b - A @ x|^2 + damp^2 |x|^2`` for any A, by LSMR.

    Parameters
    ----------
    A : (n_rows, n_cols) array of ours, sparse or dense matrix, or operator with ``rmatvec`` too
    b : (n_rows,) or (n_rows, k) array on A's device
        k columns are k problems.
    damp : float
        Of ridge regression: the penalty is its square.
    atol, btol : float
        Relative errors of A and b: it ends where the residual, or its product with ``A^H``, is as small as these
        explain. 0 stands for the rounding of double precision.
    conlim : float
        It ends where A's condition number seems to exceed this; 0 for no limit.
    maxiter : int, optional
        Default: ``min(A.shape)``.
    show : bool
        Print a line at the end.
    x0 : (n_cols,) or (n_cols, k) array, optional
        Where to start. Default: 0.

    Returns
    -------
    Result
        SciPy's eight values: x, istop, itn, normr, normar, norma, conda, normx. ``istop`` is 1 or 4 where ``A @ x =
        b`` is solved, 2 or 5 where the least-squares problem is, 3 or 6 at the limit of the condition number, 7 at
        `maxiter`, where a number is nan or inf, or where x itself does not meet the test that estimates met, 0 where
        x0 was the solution. x is in double precision unless A and b are in single; one that overflows ends as it
        began.

    Raises
    ------
    TypeError, ValueError
        Devices, shapes or dtypes do not fit, an argument is out of range, or A has no product with its transpose.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0], [1, 1], [0, 1]])
    >>> result = cvrarray.linalg.lsmr(A, np.array([1.0, 0.01, -1.0]))
    >>> result.x.round(6), result.istop
    (array([ 1.003333, -0.996667]), 2)
    """
    device = operators.device_of(A, b)
    matrix = operators.operator(A, device)
    with device.use():
        xp = device.xp
        b = arguments.right_side(b if devices.of(b).kind == "cuda" else np.atleast_1d(b), matrix.shape[0], device)
        starts = [] if x0 is None else [operators.dense_vector(x0, "x0", device)]
        dtype = operators.vector_dtype(matrix.dtype, b.dtype, *(start.dtype for start in starts))
        b = xp.ascontiguousarray(b, dtype)
        x = xp.zeros((matrix.shape[1], *b.shape[1:]), dtype)
        if starts:
            if starts[0].shape != x.shape and not starts[0].size == len(x) == x.size:
                raise ValueError(f"x0 must have shape {x.shape}; got {starts[0].shape}")
            x[...] = starts[0].reshape(x.shape)
        limits = Limits(
            arguments.real(damp or 0, "damp"),
            arguments.tolerance(1e-6 if atol is None else atol, "atol"),
            arguments.tolerance(1e-6 if btol is None else btol, "btol"),
            arguments.tolerance(1e8 if conlim is None else conlim, "conlim"),
            arguments.count(maxiter, "maxiter", min(matrix.shape)),
        )
        with np.errstate(all="ignore"):
            found, is_worse = _solved(matrix, b, x, limits, device)
            if starts and is_worse.any():  # the sizes of numbers that the start brought in hide b: without it
                again = _solved(matrix, b, xp.zeros_like(x), limits, device)[0]
                again = again._replace(itn=found.itn + again.itn)
                xp.copyto(found.x, again.x, where=xp.asarray(is_worse))
                found = Result(found.x, *(np.where(is_worse, *two) for two in zip(again[1:], found[1:], strict=True)))
            lost = ~np.isfinite(arguments.norms(found.x, device))
            if lost.any():
                xp.copyto(found.x, starts[0].reshape(x.shape) if starts else 0, where=xp.asarray(lost))
                found = found._replace(istop=np.where(lost, 7, found.istop))
    return _result(found, b, show)


def _solved(matrix: Any, b: Any, x: Any, limits: Limits, device: devices.Device) -> tuple[Result, np.ndarray]:
    """The result of each column, from the start x; and for which columns 0 is a better solution."""
    xp, has_start, norm_b, damp = device.xp, bool(x.any()), arguments.norms(b, device), limits.damp
    # squares of very small and large numbers vanish
    scale, is_far = solving.scale_of(norm_b, arguments.norms(x, device), b.dtype)
    (x if x.ndim == 2 else x[:, None])[:, np.flatnonzero(is_far & (damp == 0))] = 0
    if (scale != 1).any():
        b, x, norm_b = solving.times(b, scale, xp), solving.times(x, scale, xp), norm_b * scale
    start = x.copy() if damp and has_start else None
    columns = math.prod(b.shape[1:]) if device.kind == "cuda" else 1
    adjoint = _adjoint(matrix, device, columns)
    matrix = transposed.with_tables(matrix, columns)
    solve: Any = _by_columns
    if device.kind == "cuda":
        from .gpu.lsmr import run as solve
    found = Result(*solve(matrix, adjoint, b, x, norm_b, limits))
    found, is_worse = _verified((matrix, adjoint), (b, start, norm_b), found, limits, device)
    if (scale != 1).any():
        norms = {name: getattr(found, name) / scale for name in ("normr", "normar", "normx")}
        found = found._replace(x=solving.times(found.x, 1 / scale, xp), **norms)
    return found, is_worse


def _by_columns(matrix: Any, adjoint: Any, b: Any, x: Any, norm_b: np.ndarray, limits: Limits) -> tuple[Any, ...]:
    """x, from the start x, and what SciPy returns beside it, for one column after the other."""
    dtype = b.dtype

    def product(of: Any) -> Any:
        return lambda vector: of.matvec(np.ascontiguousarray(vector, dtype).reshape(-1), np.empty(of.shape[0], dtype))

    times = product(matrix), product(adjoint)
    operator = scipy.sparse.linalg.LinearOperator(matrix.shape, *times, dtype=dtype)
    sides, starts = (vector[:, None] if vector.ndim == 1 else vector for vector in (b, x))
    ends = np.zeros((7, sides.shape[1]))
    for j, is_usable in enumerate(np.isfinite(norm_b) & np.isfinite(arguments.norms(x, devices.CPU))):
        ends[0, j] = 7
        if is_usable:
            start = starts[:, j].copy() if starts[:, j].any() else None
            found, *ends[:, j] = scipy.sparse.linalg.lsmr(operator, sides[:, j].copy(), *limits, False, start)
            starts[:, j] = found
    return x, ends[0].astype(int), ends[1].astype(int), *ends[2:]


def _verified(
    products: tuple[Any, Any], given: tuple[Any, Any, np.ndarray], found: Result, limits: Limits, device: devices.Device
) -> tuple[Result, np.ndarray]:
    """With 7, and the true norms, where a solution was said to be found by estimates that x itself does not meet; and for
    which columns it was said though 0 has a smaller residual, as the tolerance counts in how large x is.
    """
    (b, start, norm_b), (x, stop, _, norm_r, norm_ar, norm_a, _, norm_x) = given, found
    is_found = np.isin(stop, (1, 2, 4, 5))
    if not is_found.any():
        return found, is_found
    damp, eps, (matrix, adjoint) = limits.damp, 10 * float(np.finfo(b.dtype).eps), products
    r = b - operators.multiply(matrix, x, device.xp.empty_like(b))
    back, rounding = operators.multiply(adjoint, r, device.xp.empty_like(x)), eps * (norm_a * norm_x + norm_b)
    size = arguments.norms(r, device)
    is_worse = is_found & (damp == 0) & (size > 1.01 * norm_b)
    if damp:  # the penalty is on the way from the start
        away = x if start is None else x - start
        back -= x.dtype.type(damp * damp) * away
        size = np.hypot(size, damp * arguments.norms(away, device))
    steep = arguments.norms(back, device)
    solved = size <= 1.01 * (limits.btol * norm_b + limits.atol * norm_a * norm_x) + rounding
    least = steep <= 1.01 * limits.atol * norm_a * size + np.hypot(norm_a, damp) * rounding
    lied = np.isin(stop, (1, 4)) & ~solved | np.isin(stop, (2, 5)) & ~least | is_worse
    norm_r, norm_ar = np.where(lied, size, norm_r), np.where(lied, steep, norm_ar)
    return found._replace(istop=np.where(lied, 7, stop), normr=norm_r, normar=norm_ar), is_worse


def _result(found: Result, b: Any, show: bool) -> Result:
    x, stop, count, *numbers = found
    stop = np.where(np.isfinite(numbers[-1]), stop, 7)  # x may be larger than its dtype holds, though its residual was small
    if b.ndim == 2:
        return Result(x, stop, count, *numbers)
    result = Result(x, int(stop[0]), int(count[0]), *(float(number[0]) for number in numbers))
    if show:
        print(f"lsmr: istop {result.istop} after {result.itn} iterations, |r| {result.normr:.3e}, |A^H r| {result.normar:.3e}")
    return result
