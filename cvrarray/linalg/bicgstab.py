"""BiCGSTAB for systems that need not be symmetric.

Source: H. A. van der Vorst, "Bi-CGSTAB: A Fast and Smoothly Converging Variant of Bi-CG for the Solution of
Nonsymmetric Linear Systems", SIAM J. Sci. Stat. Comput. 13(2), 1992, with the preconditioner on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import solving
from .ends import BREAKDOWN, M_NAN
from .iteration import Method
from .system import System


class BiCGSTAB(Method):
    """The steps of the method: two products and two preconditionings each."""

    works_with = ("p", "v_", "shadow", "t", "p_hat", "s_hat")

    p: Any
    v_: Any
    shadow: Any
    t: Any
    p_hat: Any
    s_hat: Any

    def start(self) -> None:
        """The shadow residual is the residual."""
        self.shadow[...] = self.r
        self.p[...] = self.r
        self.shadow_norm = self.v.norm(self.r)
        self.rho = self.v.dot(self.shadow, self.r)

    def step(self, x: Any) -> Any:
        """See :class:`Method`."""
        v, one = self.v, self.v.constant(1)
        p_hat = self.precondition(self.p, self.p_hat)
        self.times(p_hat, self.v_)
        bend = v.dot(self.shadow, self.v_)
        self.stop(~v.is_finite(v.norm(p_hat)), M_NAN)
        self.stop(bend == 0, BREAKDOWN)
        alpha = self.ratio(self.rho, bend)
        v.add(alpha, p_hat, x)
        v.add(-alpha, self.v_, self.r)

        s_hat = self.precondition(self.r, self.s_hat)
        self.times(s_hat, self.t)
        omega = self.ratio(v.dot(self.t, self.r), v.real_dot(self.t, self.t))
        v.add(omega, s_hat, x)
        v.add(-omega, self.t, self.r)
        norm = v.norm(self.r)

        rho = v.dot(self.shadow, self.r)
        small = abs(rho) <= float(np.finfo(self.system.dtype).eps) ** 2 * self.shadow_norm * norm
        beta = self.ratio(rho, self.rho) * self.ratio(alpha, omega)
        self._lost = (norm > 0) & (small | (omega == 0))
        v.combine(one, self.p, -omega, self.v_, self.p)
        v.combine(beta, self.p, one, self.r, self.p)
        self.rho = rho
        return norm

    def settle(self) -> None:
        """See :class:`Method`: what breaks the next step down, unless this one was the last."""
        self.stop(self._lost, BREAKDOWN)


def _method(system: System) -> Method:
    """The method on the system's device."""
    if system.device.kind == "cuda":
        from .gpu.bicgstab import Launches

        return Launches(system)
    return BiCGSTAB(system)


def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], Any] | None = None,
) -> tuple[Any, int]:
    """Solve ``A @ x = b`` for any square A by BiCGSTAB: two products an iteration, and memory for nine vectors.

    Parameters
    ----------
    A : (n, n) array of ours, sparse or dense matrix, or operator
    b : (n,) or (n, k) array on A's device
        k columns are k systems, solved side by side; each stops by its own tolerance.
    x0 : array like b, optional
        Where to start; ``"Mb"`` for ``M @ b``. Default: 0.
    rtol, atol : float
        A column has converged where ``|b - A @ x| <= max(rtol * |b|, atol)``, computed from x itself.
    maxiter : int, optional
        The most iterations. Default: ``10 * n``.
    M : like A, or a preconditioner of this module, or ``"jacobi"`` or ``"block_jacobi"``, optional
        An approximation of A's inverse.
    callback : function, optional
        Called as ``callback(x)`` after each iteration.

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
    >>> A = cvrarray.CVRArray([[3.0, 2, 0], [1, -1, 0], [0, 5, 1]])
    >>> x, info = cvrarray.linalg.bicgstab(A, np.array([2.0, 4, -1]), rtol=1e-12)
    >>> x.round(9), info
    (array([ 2., -2.,  9.]), 0)
    """
    return solving.solved(_method, (A, b, x0, M), (rtol, atol, maxiter), callback)
