"""MINRES for symmetric (Hermitian) systems that need not be definite.

Source: C. C. Paige, M. A. Saunders, "Solution of Sparse Indefinite Systems of Linear Equations", SIAM J. Numer. Anal.
12(4), 1975. The residual vector is updated beside the solution (S.-C. Choi, C. C. Paige, M. A. Saunders, "MINRES-QLP",
SIAM J. Sci. Comput. 33(4), 2011, section 2.2), so that the test for the end is in the norm of the residual with any
preconditioner.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import arguments, operators, solving
from .ends import BREAKDOWN, M_NOT_DEFINITE, M_SINGULAR, VERIFY
from .rounds import Ended, Look, Rounds
from .system import System


class MINRES(Rounds):
    """One product and one preconditioning an iteration, of which SciPy's loop ends by another test."""

    def round(self, r: np.ndarray, enough: float, limit: int, look: Look) -> tuple[np.ndarray, int]:
        """See :class:`Rounds`. Lanczos vectors of the last two steps and the next one are `old`, `new` and `y`, unscaled."""
        d, w, w_old, old, new = *(np.zeros_like(r) for _ in range(4)), r
        z = self._preconditioned(new)
        beta = phi_bar = self._length(new, z)
        if beta == 0:
            raise Ended(M_SINGULAR)
        beta_old, epsilon, delta_bar, c, s = 1.0, 0.0, 0.0, -1.0, 0.0
        for _ in range(limit):
            basis = z / beta
            y = self.A.matvec(basis) - (beta / beta_old) * old
            alpha = float(np.vdot(basis, y).real)
            y -= (alpha / beta) * new
            old, new, z = new, y, self._preconditioned(y)
            beta_old, beta = beta, self._length(new, z)
            epsilon_old, epsilon = epsilon, s * beta
            delta, gamma_bar = c * delta_bar + s * alpha, s * delta_bar - c * alpha
            delta_bar = -c * beta
            gamma = math.hypot(gamma_bar, beta)
            if gamma == 0:
                return d, BREAKDOWN
            c, s = gamma_bar / gamma, beta / gamma
            w_old *= -epsilon_old / gamma
            w_old += basis / gamma
            w_old -= (delta / gamma) * w
            w_old, w = w, w_old
            d += c * phi_bar * w
            r = s * s * r - (c * phi_bar / gamma) * new  # phi_bar s / beta is phi_bar / gamma
            phi_bar *= s
            look(d)
            if np.linalg.norm(r) <= enough or beta == 0:
                return d, VERIFY if beta else BREAKDOWN
        return d, VERIFY

    def _preconditioned(self, r: np.ndarray) -> np.ndarray:
        return r if self.M is None else self.M.matvec(r)

    def _length(self, r: np.ndarray, z: np.ndarray) -> float:
        """The root of ``r @ M @ r``."""
        square = float(np.vdot(r, z).real)
        if not math.isfinite(square):
            raise Ended(None)
        if square < 0:
            raise Ended(M_NOT_DEFINITE)
        return math.sqrt(square)


def _method(system: System) -> Any:
    """The method on the system's device."""
    if system.device.kind == "cuda":
        from .gpu.minres import Launches

        return Launches(system)
    return MINRES(system)


def minres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    shift: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], Any] | None = None,
    show: bool = False,
    check: bool = False,
) -> tuple[Any, int]:
    """Solve ``(A - shift I) @ x = b`` for a symmetric (Hermitian) A, which may be indefinite, by MINRES.

    Parameters
    ----------
    A, b, x0, M, callback
        As of :func:`cg`; A need not be definite, but M must. A name of M stands for that of A without the shift. On a CPU
        columns of b are solved for one after the other.
    rtol : float
        A column has converged where ``|b - A @ x| <= rtol * |b|``, computed from x itself. (SciPy's test counts the
        sizes of A and x in too, so it can end earlier.)
    shift : float
    maxiter : int, optional
        The most iterations. Default: ``5 * n``.
    show : bool
        Print a line at the end.
    check : bool
        Test first whether A and M are symmetric.

    Returns
    -------
    x, info
        As of :func:`cg`.

    Raises
    ------
    TypeError, ValueError
        As :func:`cg`.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 2, 0], [2, 1, 1], [0, 1, -3]])
    >>> x, info = cvrarray.linalg.minres(A, np.array([5.0, 7, -7]), rtol=1e-12)
    >>> x.round(9), info
    (array([1., 2., 3.]), 0)
    """
    shift = arguments.real(shift, "shift")
    device = operators.device_of(A, b)
    matrix = operators.operator(A, device)
    operators.check_square(matrix.shape)
    if check:
        _check_symmetric(matrix, device, "A")
        if M is not None:
            _check_symmetric(arguments.as_preconditioner(M, A, matrix, device), device, "M")
    if isinstance(M, str):  # made from A's entries, which a shifted operator does not show
        with device.use():
            M = arguments.as_preconditioner(M, A, matrix, device)
    given = _shifted(matrix, shift, device) if shift != 0 else matrix
    n = matrix.shape[0]
    limit = 5 * n if maxiter is None else maxiter
    x, info = solving.solved(_method, (given, b, x0, M), (rtol, 0.0, limit), callback)
    if show:
        print(f"minres: {n} unknowns, rtol {rtol:.1e}, shift {shift:.3g}: info {info}")
    return x, info


def _shifted(matrix: Any, shift: float, device: Any) -> operators.Operator:
    def multiply(x: Any, out: Any) -> None:
        operators.multiply(matrix, x, out)
        out -= out.dtype.type(shift) * x

    return operators.Operator(matrix.shape, operators.vector_dtype(matrix.dtype), multiply, multiply)


def _check_symmetric(matrix: Any, device: Any, name: str) -> None:
    """Raise ValueError unless ``y^H (A x) == (A y)^H x`` for two vectors, up to rounding."""
    from .system import apply

    n, xp = matrix.shape[0], device.xp
    dtype = operators.vector_dtype(matrix.dtype)
    x = xp.asarray(np.random.default_rng(0).standard_normal(n).astype(dtype))
    once, twice = xp.empty(n, dtype), xp.empty(n, dtype)
    apply(matrix, x, once)
    apply(matrix, once, twice)
    left, right = float(xp.vdot(once, once).real), complex(xp.vdot(x, twice))
    if abs(left - right) > (left + np.finfo(dtype).eps) * float(np.finfo(dtype).eps) ** (1 / 3):
        raise ValueError(
            f"{name} must be symmetric (Hermitian); |{name} x|^2 is {left:.6g} and x @ {name} @ {name} x {right:.6g}"
        )
