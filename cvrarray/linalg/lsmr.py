"""LSMR for least squares with any A, rectangular or singular.

Source: D. C.-L. Fong, M. A. Saunders, "LSMR: An Iterative Algorithm for Sparse Least-Squares Problems", SIAM J. Sci.
Comput. 33(5), 2011: algorithm in section 2.5 to 2.7, tests for the end in section 3.4. The names of numbers are the
paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..array import transposed
from ..array.base import SparseArray
from ..core import devices
from . import arguments, arithmetic, bidiagonal, operators, solving, vectors


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


def _rotation(a: Any, b: Any) -> tuple[Any, Any, Any]:
    """c, s, r of ``[[c, s], [-s, c]] @ [a, b] = [r, 0]``; of plain numbers too, as all functions here."""
    if not isinstance(a, np.ndarray):
        length = np.float64(math.hypot(a, b))
        return (a / length, b / length, length) if length > 0 else (np.float64(1), np.float64(0), length)
    r = np.hypot(a, b)
    safe = np.where(r > 0, r, 1.0)
    return np.where(r > 0, a / safe, 1.0), np.where(r > 0, b / safe, 0.0), r


class Adjoint:
    """Products with the conjugate transpose of A."""

    def __init__(self, matrix: Any, device: devices.Device, calls: int, columns: int = 1) -> None:
        self.matrix, self.device = matrix, device
        self.is_array = isinstance(matrix, SparseArray)
        self.transposed: Any = transposed.for_many(matrix.T, calls, columns) if self.is_array else None

    def __call__(self, x: Any, out: Any) -> Any:
        """``out = A^H @ x`` for a vector or a matrix."""
        if not self.is_array:
            return self._by_columns(x, out)
        if self.matrix.dtype.kind != "c":
            return operators.multiply(self.transposed, x, out)
        operators.multiply(self.transposed, x.conj(), out)
        return self.device.xp.conj(out, out=out)

    def _by_columns(self, x: Any, out: Any) -> Any:
        if x.ndim == 1:
            return self.matrix.rmatvec(x, out)
        for j in range(x.shape[1]):
            column = out[:, j].copy()
            self.matrix.rmatvec(x[:, j].copy(), column)
            out[:, j] = column
        return out


class Estimates:
    """Norms and the condition number, from the rotations: section 2.5 and 3 of the paper; all numbers are (k,)."""

    def __init__(self, alpha: np.ndarray, beta: np.ndarray) -> None:
        zero, one = 0.0 * beta, 0.0 * beta + 1
        self.beta_dd, self.beta_d, self.rho_d, self.tau, self.theta = beta.copy(), zero, one, zero, zero
        self.d = zero
        self.norm_a2, self.max_rho, self.min_rho = alpha**2, zero, 1e100 * one
        self.norm_a, self.cond = np.sqrt(self.norm_a2), one
        self.norm_r = beta.copy()

    def residual(self, first: Any, second: Any, bars: Any) -> None:
        """``|b - A x|``, from the rotations (chat, shat), (c, s) and the bidiagonal's numbers."""
        (c_hat, s_hat), (c, s) = first, second
        theta_bar, rho_bar, zeta, zeta_old = bars
        acute, check = c_hat * self.beta_dd, -s_hat * self.beta_dd
        hat = c * acute
        self.beta_dd = -s * acute
        theta_old = self.theta
        c_tilde, s_tilde, rho_tilde = _rotation(self.rho_d, theta_bar)
        self.theta, self.rho_d = s_tilde * rho_bar, c_tilde * rho_bar
        self.beta_d = -s_tilde * self.beta_d + c_tilde * hat
        self.tau = _over(zeta_old - theta_old * self.tau, rho_tilde)
        tau_d = _over(zeta - self.theta * self.tau, self.rho_d)
        self.d = self.d + check**2
        self.norm_r = np.sqrt(self.d + (self.beta_d - tau_d) ** 2 + self.beta_dd**2)

    def matrix(self, alpha: np.ndarray, beta: np.ndarray, rho_bar_old: np.ndarray, rho: np.ndarray, is_first: bool) -> None:
        """``|A|`` and ``cond(A)``."""
        self.norm_a2 = self.norm_a2 + beta**2
        self.norm_a = np.sqrt(self.norm_a2)
        self.norm_a2 = self.norm_a2 + alpha**2
        self.max_rho = np.maximum(self.max_rho, rho_bar_old)
        if not is_first:
            self.min_rho = np.minimum(self.min_rho, rho_bar_old)
        self.cond = _over(np.maximum(self.max_rho, rho), np.minimum(self.min_rho, rho))


def _over(a: Any, b: Any) -> Any:
    if not isinstance(b, np.ndarray):
        return a / b if b != 0 else np.float64(0)
    return np.where(b != 0, a / np.where(b != 0, b, 1.0), 0.0)


class Tests:
    """The tests for the end: section 3.4 of the paper, and SciPy's numbers of them."""

    def __init__(self, atol: float, btol: float, conlim: float, maxiter: int) -> None:
        self.atol, self.btol, self.maxiter = atol, btol, maxiter
        self.ctol = 1 / conlim if conlim > 0 else 0.0

    def stop(self, itn: int, of: Estimates, norm_ar: np.ndarray, norm_x: np.ndarray, norm_b: np.ndarray) -> np.ndarray:
        """SciPy's ``istop`` of each column; 0 goes on. A number that is not finite ends a column as 7 does."""
        where = _where(norm_b)
        test1 = _over(of.norm_r, norm_b)
        below = of.norm_a * of.norm_r
        test2 = where(below != 0, norm_ar / where(below != 0, below, 1.0), np.inf)
        test3 = 1 / of.cond
        size = of.norm_a * norm_x / norm_b
        stop: Any = 7 if itn >= self.maxiter else 0
        for found, number in (
            (of.norm_r + norm_ar + norm_x >= np.inf, 7),
            (of.norm_r + norm_ar + norm_x != of.norm_r + norm_ar + norm_x, 7),
            (1 + test3 <= 1, 6),
            (1 + test2 <= 1, 5),
            (1 + test1 / (1 + size) <= 1, 4),
            (test3 <= self.ctol, 3),
            (test2 <= self.atol, 2),
            (test1 <= self.btol + self.atol * size, 1),
        ):
            stop = where(found, number, stop)
        return np.asarray(stop)


def _where(like: Any) -> Callable[[Any, Any, Any], Any]:
    """``where(condition, a, b)`` for arrays, or for plain numbers."""
    return np.where if isinstance(like, np.ndarray) else lambda condition, a, b: a if condition else b


class LSMR:
    """The iteration for k right-hand sides side by side; vectors on the device, numbers (k,) in host memory.

    For vectors (n,) the numbers are plain ones, which is ten times as fast.
    """

    def __init__(
        self, matrix: Any, device: devices.Device, shape: tuple[int, ...], dtype: np.dtype, damp: float, limit: int
    ) -> None:
        (n_rows, n_cols), columns = matrix.shape, math.prod(shape[1:])
        self.matrix, self.damp = transposed.for_many(matrix, limit, columns), damp
        self.rows = arithmetic.of(device, (n_rows, *shape[1:]), dtype)
        self.cols = arithmetic.of(device, (n_cols, *shape[1:]), dtype)
        self.adjoint = Adjoint(matrix, device, limit, columns)
        self.xp = device.xp
        self.u, self.product = self.rows.empty(), self.rows.empty()
        self.v, self.h, self.h_bar, self.back = (self.cols.zeros() for _ in range(4))

    def norm(self, of: vectors.Vectors, vector: Any) -> np.ndarray:
        """Norms, in host memory."""
        found = of.host(of.norm(vector))
        return found if vector.ndim == 2 else found[0]

    def put(self, of: vectors.Vectors, a: Any) -> Any:
        """Numbers as a scalar of the device."""
        return of.load(a) if isinstance(a, np.ndarray) else of.constant(a)

    def scale(self, of: vectors.Vectors, vector: Any, length: np.ndarray) -> None:
        """Divide by a length, unless that is 0."""
        of.combine(self.put(of, _over(1.0, length)), vector, of.constant(0), vector, vector)

    def bidiagonalise(self, alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next u and v of Golub and Kahan, and their lengths."""
        operators.multiply(self.matrix, self.v, self.product)
        self.rows.combine(self.put(self.rows, -alpha), self.u, self.rows.constant(1), self.product, self.u)
        beta = self.norm(self.rows, self.u)
        self.scale(self.rows, self.u, beta)
        self.adjoint(self.u, self.back)
        self.cols.combine(self.put(self.cols, -beta), self.v, self.cols.constant(1), self.back, self.v)
        alpha = _where(beta)(beta > 0, self.norm(self.cols, self.v), 0.0 * beta)
        self.scale(self.cols, self.v, alpha)
        return alpha, beta

    def run(self, b: Any, x: Any, norm_b: np.ndarray, tests: Tests, has_start: bool) -> tuple[Any, ...]:
        """Solve; what SciPy returns, of each column."""
        columns, one = self.rows.columns, self.rows.constant(1)
        self.u[...] = b
        if has_start:
            operators.multiply(self.matrix, x, self.product)
            self.rows.combine(one, self.u, -one, self.product, self.u)
        beta = self.norm(self.rows, self.u)
        self.scale(self.rows, self.u, beta)
        self.adjoint(self.u, self.v)
        where = _where(beta)
        norm_b = norm_b if b.ndim == 2 else norm_b[0]
        alpha = where(beta > 0, self.norm(self.cols, self.v), 0.0 * beta)
        self.scale(self.cols, self.v, alpha)
        of = Estimates(alpha, beta)
        zeta_bar, alpha_bar, unit = alpha * beta, alpha.copy(), np.ones_like(alpha)[()]
        rho, rho_bar, c_bar, s_bar, zeta = unit, unit, unit, 0 * unit, 0 * unit
        self.h[...] = self.v
        self.h_bar[...] = 0
        stop, count = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
        going = (zeta_bar != 0) & (norm_b != 0)
        ends = np.array([beta, zeta_bar, of.norm_a, of.cond, 0 * unit]).reshape(5, columns)
        damp, itn = self.damp * unit, 0
        going = np.atleast_1d(going)
        zetas = np.atleast_1d(zeta_bar)
        is_finite = np.isfinite(zetas) & np.isfinite(norm_b)
        stop[going & ~is_finite] = 7
        going &= is_finite & (tests.maxiter > 0)
        x.reshape(len(x), columns)[:, (np.atleast_1d(norm_b) == 0) & (zetas != 0)] = 0
        if going.any() and (self.adjoint.device.kind == "cuda" or x.ndim == 1):
            return self._in_kernels(x, of, (alpha, beta, norm_b), tests, going, stop)
        while going.any():
            itn += 1
            alpha, beta = self.bidiagonalise(alpha, beta)
            c_hat, s_hat, alpha_hat = _rotation(alpha_bar, damp)
            rho_old, rho_bar_old, zeta_old = rho, rho_bar, zeta
            c, s, rho = _rotation(alpha_hat, beta)
            theta, alpha_bar = s * alpha, c * alpha
            theta_bar, rho_temp = s_bar * rho, c_bar * rho
            c_bar, s_bar, rho_bar = _rotation(rho_temp, theta)
            zeta, zeta_bar = c_bar * zeta_bar, -s_bar * zeta_bar
            self._move(x, going, _over(theta_bar * rho, rho_old * rho_bar_old), _over(zeta, rho * rho_bar), _over(theta, rho))
            of.residual((c_hat, s_hat), (c, s), (theta_bar, rho_bar, zeta, zeta_old))
            of.matrix(alpha, beta, rho_bar_old, rho_temp, itn == 1)
            norm_x = self.norm(self.cols, x)
            found = tests.stop(itn, of, abs(zeta_bar), norm_x, norm_b)
            if found.any():
                now = going & (np.atleast_1d(found) != 0)
                numbers = [of.norm_r, abs(zeta_bar), of.norm_a, of.cond, norm_x]
                ends = np.where(now, np.array(numbers).reshape(5, columns), ends)
                count, stop = np.where(now, itn, count), np.where(now, found, stop)
                going &= ~now
        return x, stop, count, *ends

    def _in_kernels(
        self, x: Any, of: Estimates, numbers: tuple[Any, Any, Any], tests: Tests, going: np.ndarray, stop: np.ndarray
    ) -> tuple[Any, ...]:
        """The steps of columns that go on, and what SciPy returns; the others are as they began."""
        kernels: Any
        if self.adjoint.device.kind == "cuda":
            from .gpu import lsmr as kernels
        else:
            from .cpu import lsmr as kernels
        alpha, beta, norm_b = numbers
        state = np.zeros(going.size, bidiagonal.STATE)
        values = {"alpha": alpha, "beta": beta, "norm_b": norm_b, "alpha_bar": alpha, "zeta_bar": alpha * beta}
        values |= {"damp": self.damp, "atol": tests.atol, "btol": tests.btol, "ctol": tests.ctol, "limit": tests.maxiter}
        values |= dict.fromkeys(("length_u", "rho", "rho_bar", "c_bar"), 1.0) | {"stop": stop, "going": going}
        values |= {name: getattr(of, name) for name in bidiagonal.ESTIMATES}
        for name, value in values.items():
            state[name] = value
        vectors = bidiagonal.Vectors(self.u, self.product, self.v, self.back, self.h, self.h_bar, x)
        end = kernels.run(self.matrix, self.adjoint, operators.multiply, vectors, state)
        ends = end["norm_r"], abs(end["zeta_bar"]), end["norm_a"], end["cond"], end["norm_x"]
        return x, end["stop"], end["iterations"], *ends

    def _move(self, x: Any, going: np.ndarray, back: np.ndarray, step: np.ndarray, turn: np.ndarray) -> None:
        """``h_bar = h - back h_bar; x += step h_bar; h = v - turn h``."""
        of = self.cols
        of.combine(of.constant(1), self.h, self.put(of, -back), self.h_bar, self.h_bar)
        of.add(self.put(of, step * going if x.ndim == 2 else step), self.h_bar, x)
        of.combine(of.constant(1), self.v, self.put(of, -turn), self.h, self.h)


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
        k columns are k problems, solved side by side.
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
        b = operators.dense_vector(b if devices.of(b).kind == "cuda" else np.atleast_1d(b), "b", device)
        if b.ndim not in (1, 2) or b.shape[0] != matrix.shape[0]:
            raise ValueError(f"b must have shape ({matrix.shape[0]},) or ({matrix.shape[0]}, k) for this A; got {b.shape}")
        starts = [] if x0 is None else [operators.dense_vector(x0, "x0", device)]
        dtype = operators.vector_dtype(matrix.dtype, b.dtype, *(start.dtype for start in starts))
        b = xp.ascontiguousarray(b, dtype)
        x = xp.zeros((matrix.shape[1], *b.shape[1:]), dtype)
        if starts:
            if starts[0].shape != x.shape and not starts[0].size == len(x) == x.size:
                raise ValueError(f"x0 must have shape {x.shape}; got {starts[0].shape}")
            x[...] = starts[0].reshape(x.shape)
        limit, damp = arguments.count(maxiter, "maxiter", min(matrix.shape)), arguments.real(damp or 0, "damp")
        tolerances = [
            arguments.tolerance(default if value is None else value, name)
            for value, default, name in ((atol, 1e-6, "atol"), (btol, 1e-6, "btol"), (conlim, 1e8, "conlim"))
        ]
        norm_b = arguments.norms(b, device)
        with np.errstate(all="ignore"):  # squares of very small and large numbers vanish
            scale, is_far = solving.scale_of(norm_b, arguments.norms(x, device), dtype)
            (x if x.ndim == 2 else x[:, None])[:, np.flatnonzero(is_far & (damp == 0))] = 0
            if (scale != 1).any():
                b, x, norm_b = solving.times(b, scale, xp), solving.times(x, scale, xp), norm_b * scale
        tests = Tests(tolerances[0], tolerances[1], tolerances[2], limit)
        with np.errstate(all="ignore"):
            if solving.is_one_by_one(matrix, b, device) and b.shape[1]:
                loop = LSMR(matrix, device, b.shape[:1], dtype, damp, limit)
                found = _one_by_one(loop, b, x, norm_b, tests, x0 is not None)
            else:
                loop = LSMR(matrix, device, b.shape, dtype, damp, limit)
                found = loop.run(b, x, norm_b, tests, x0 is not None)
            found = _verified(loop, matrix, b, found, tests, norm_b)
            if (scale != 1).any():
                x, stop, count, norm_r, norm_ar, norm_a, cond, norm_x = found
                found = (
                    solving.times(x, 1 / scale, xp),
                    stop,
                    count,
                    norm_r / scale,
                    norm_ar / scale,
                    norm_a,
                    cond,
                    norm_x / scale,
                )
            lost = ~np.isfinite(arguments.norms(found[0], device))
            if lost.any():
                xp.copyto(found[0], starts[0].reshape(x.shape) if starts else 0, where=xp.asarray(lost))
                found = found[0], np.where(lost, 7, found[1]), *found[2:]
    return _result(found, b, show)


def _verified(loop: LSMR, matrix: Any, b: Any, found: tuple[Any, ...], tests: Tests, norm_b: np.ndarray) -> tuple[Any, ...]:
    """With 7, and the true norms, where a solution was said to be found by estimates that x itself does not meet."""
    x, stop, count, norm_r, norm_ar, norm_a, cond, norm_x = found
    device, eps = loop.adjoint.device, 10 * float(np.finfo(b.dtype).eps)
    r = b - operators.multiply(matrix, x, device.xp.empty_like(b))
    size, rounding = arguments.norms(r, device), eps * (norm_a * norm_x + norm_b)
    solved = size <= 1.01 * (tests.btol * norm_b + tests.atol * norm_a * norm_x) + rounding
    back = arguments.norms(loop.adjoint(r, device.xp.empty_like(x)), device)
    least = (loop.damp != 0) | (back <= 1.01 * tests.atol * norm_a * size + norm_a * rounding)
    lied = np.isin(stop, (1, 4)) & ~solved | np.isin(stop, (2, 5)) & ~least
    norm_r, norm_ar = np.where(lied, size, norm_r), np.where(lied & (loop.damp == 0), back, norm_ar)
    return x, np.where(lied, 7, stop), count, norm_r, norm_ar, norm_a, cond, norm_x


def _one_by_one(loop: LSMR, b: Any, x: Any, norm_b: np.ndarray, tests: Tests, has_start: bool) -> tuple[Any, ...]:
    """What :meth:`LSMR.run` returns, of each column by itself."""
    ends = []
    for j in range(b.shape[1]):
        found, *numbers = loop.run(b[:, j].copy(), x[:, j].copy(), norm_b[j : j + 1], tests, has_start)
        x[:, j] = found
        ends.append(numbers)
    return x, *(np.concatenate([np.atleast_1d(number) for number in numbers]) for numbers in zip(*ends, strict=True))


def _result(found: tuple[Any, ...], b: Any, show: bool) -> Result:
    x, stop, count, *numbers = found
    stop = np.where(np.isfinite(numbers[-1]), stop, 7)  # x may be larger than its dtype holds, though its residual was small
    if b.ndim == 2:
        return Result(x, stop, count, *numbers)
    result = Result(x, int(stop[0]), int(count[0]), *(float(number[0]) for number in numbers))
    if show:
        print(f"lsmr: istop {result.istop} after {result.itn} iterations, |r| {result.normr:.3e}, |A^H r| {result.normar:.3e}")
    return result
