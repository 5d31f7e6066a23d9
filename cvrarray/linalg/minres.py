"""MINRES for symmetric (Hermitian) systems that need not be definite.

Source: C. C. Paige, M. A. Saunders, "Solution of Sparse Indefinite Systems of Linear Equations", SIAM J. Numer. Anal.
12(4), 1975. The residual vector is updated beside the solution (S.-C. Choi, C. C. Paige, M. A. Saunders, "MINRES-QLP",
SIAM J. Sci. Comput. 33(4), 2011, section 2.2), so that the test for the end is in the norm of the residual with any
preconditioner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arguments, operators, solving
from .ends import A_NAN, BREAKDOWN, M_SINGULAR
from .iteration import Method
from .system import System


class MINRES(Method):
    """The steps of the method: one product and one preconditioning each."""

    works_with = ("old", "new", "y", "basis", "w", "w_old", "w_new")

    old: Any  # the Lanczos vectors of the last two steps and the next one, before their scaling
    new: Any
    y: Any
    basis: Any  # the same, preconditioned
    w: Any
    w_old: Any
    w_new: Any

    def start(self) -> None:
        """The first Lanczos vector is the residual."""
        v = self.v
        self.new[...] = self.r
        self.old[...] = 0
        self.w[...] = 0
        self.w_old[...] = 0
        self.basis[...] = self.precondition(self.r, self.y)
        self.beta = self.length(v.real_dot(self.new, self.basis))
        self.stop(self.beta == 0, M_SINGULAR)
        zero = v.constant(0)
        self.beta_old, self.epsilon, self.delta_bar, self.phi_bar = zero, zero, zero, self.beta
        self.c, self.s = zero - 1, zero
        self.is_first = True

    def step(self, x: Any) -> Any:
        """See :class:`Method`."""
        v = self.v
        one, zero = v.constant(1), v.constant(0)
        v.combine(self.ratio(one, self.beta), self.basis, zero, self.basis, self.basis)
        self.times(self.basis, self.y)
        if not self.is_first:
            v.add(-self.ratio(self.beta, self.beta_old), self.old, self.y)
        self.is_first = False
        alpha = v.real_dot(self.basis, self.y)
        self.stop(~v.is_finite(alpha), A_NAN)
        v.add(-self.ratio(alpha, self.beta), self.new, self.y)
        self.old, self.new, self.y = self.new, self.y, self.old

        preconditioned = self.precondition(self.new, self.y)
        beta = self.length(v.real_dot(self.new, preconditioned))
        epsilon_old, self.epsilon = self.epsilon, self.s * beta
        delta = self.c * self.delta_bar + self.s * alpha
        gamma_bar = self.s * self.delta_bar - self.c * alpha
        self.delta_bar = -self.c * beta
        gamma = v.sqrt(gamma_bar**2 + beta**2)
        self.stop(gamma == 0, BREAKDOWN)
        self.c, self.s = self.ratio(gamma_bar, gamma), self.ratio(beta, gamma)
        phi, self.phi_bar = self.c * self.phi_bar, self.s * self.phi_bar

        inverse = self.ratio(one, gamma)
        v.combine(inverse, self.basis, -epsilon_old * inverse, self.w_old, self.w_new)
        v.combine(one, self.w_new, -delta * inverse, self.w, self.w_new)
        self.w_old, self.w, self.w_new = self.w, self.w_new, self.w_old
        v.add(self.where_active(phi), self.w, x)
        # s^2 r - phi_bar c / beta * (the next Lanczos vector); phi_bar / beta is phi_bar before this step over gamma
        factor = -self.c * self.ratio(self.phi_bar, beta)
        v.combine(self.s**2, self.r, factor, self.new, self.r)
        self.basis[...] = preconditioned
        self.beta_old, self.beta = self.beta, beta
        return v.norm(self.r)

    def settle(self) -> None:
        """See :class:`Method`: the Krylov space is exhausted, and the residual is not 0."""
        self.stop(self.beta == 0, BREAKDOWN)


def _method(system: System) -> Method:
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
    A : (n, n) array of ours, sparse or dense matrix, or operator
    b : (n,) or (n, k) array on A's device
        k columns are k systems, solved side by side; each stops by its own tolerance.
    x0 : array like b, optional
        Where to start; ``"Mb"`` for ``M @ b``. Default: 0.
    rtol : float
        A column has converged where ``|b - A @ x| <= rtol * |b|``, computed from x itself. (SciPy's test counts the
        sizes of A and x in too, so it can end earlier.)
    shift : float
    maxiter : int, optional
        The most iterations. Default: ``5 * n``.
    M : like A, or a preconditioner of this module, or ``"jacobi"`` or ``"block_jacobi"``, optional
        An approximation of A's inverse, symmetric (Hermitian) and positive definite, also where A is not. A name stands
        for that of A without the shift.
    callback : function, optional
        Called as ``callback(x)`` after each iteration.
    show : bool
        Print a line at the end.
    check : bool
        Test first whether A and M are symmetric.

    Returns
    -------
    x : array like b
    info : int
        0: converged. Above 0: iterations that did not meet the tolerance. Below 0: a failure, see :mod:`cvrarray.linalg`.

    Raises
    ------
    TypeError, ValueError
        Devices, shapes or dtypes do not fit, or an argument is out of range.

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
