"""What a solve ends with: the solution, the reason why it ended, and what SciPy calls that."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

CONVERGED = "converged"  #: the true residual, ``b - A @ x``, meets the tolerance
ITERATIONS = "iterations"  #: as many iterations as were asked for; nothing was tested
MAXITER = "maxiter"
STAGNATION = "stagnation"  #: more iterations do not make the true residual smaller in this precision
NOT_DEFINITE = "not positive definite"  #: ``p @ A @ p <= 0`` was met
M_NOT_DEFINITE = "M not positive definite"  #: ``r @ M @ r < 0`` was met
M_SINGULAR = "M singular"  #: M gives 0 for a residual that is not 0
BREAKDOWN = "breakdown"  #: a number that the method divides by is 0
A_NOT_FINITE = "A not finite"  #: a product with A is not finite: A holds nan or inf, or numbers overflow
M_NOT_FINITE = "M not finite"
B_NOT_FINITE = "b not finite"
X0_NOT_FINITE = "x0 not finite"

#: SciPy's ``info`` of each end; None stands for the number of iterations, which SciPy returns where a tolerance is not
#: met. The order is that of the numbers in :mod:`.ends`.
INFO: dict[str, int | None] = {
    CONVERGED: 0,
    MAXITER: None,
    STAGNATION: None,
    NOT_DEFINITE: -1,
    M_NOT_DEFINITE: -2,
    M_SINGULAR: -3,
    A_NOT_FINITE: -4,
    M_NOT_FINITE: -5,
    ITERATIONS: None,
    BREAKDOWN: -10,
    B_NOT_FINITE: -6,
    X0_NOT_FINITE: -7,
}


class Outcome(NamedTuple):
    """What an engine returns: everything by column; a vector is one column.

    After a number of iterations that was asked for, the numbers may be arrays on the device, or None: nothing waits for
    them.
    """

    iterations: Any  # (columns,) integers
    residual: Any  # (columns,) norms of the true residual; as the iteration updates it for ITERATIONS
    reasons: list[str]
    history: Any = None  # (steps + 1, columns) norms of the residual as the iteration updates it, the first one true


class Solution(NamedTuple):
    """The result of :meth:`CG.solve <cvrarray.linalg.CG.solve>` and of :func:`cvrarray.dask.cg`. For b (n, k) each field but
    x has one entry a column.

    Attributes
    ----------
    x : (n,) or (n, k) array
        Of b's shape, on its device.
    iterations : int, or (k,) integers
    residual : float, or (k,) floats
        ``|b - A @ x| / |b|``, computed from x.
    converged : bool, or (k,) bools
        Whether ``|b - A @ x| <= max(rtol * |b|, atol)``.
    reason : str, or list of k
        Why it ended, in words: see :mod:`cvrarray.linalg`.
    history : (iterations + 1,) or (iterations + 1, k) array on the device, or None
        Such residuals of every iteration, where ``history=True`` asked for them.
    traffic : cvrarray.dask.Traffic, or None
        What an iteration on several workers costs.

    Examples
    --------
    >>> A = cvrarray.asarray(np.diag([1.0, 2, 4]), device="cpu")
    >>> solution = cvrarray.linalg.CG(A).solve(np.ones(3))
    >>> solution.x.round(6), solution.iterations, solution.converged, solution.reason
    (array([1.  , 0.5 , 0.25]), 3, True, 'converged')
    >>> solution.residual < 1e-5, solution.info, solution.history is None
    (True, 0, True)
    """

    x: Any
    iterations: Any
    residual: Any
    converged: Any
    reason: Any
    history: Any = None
    traffic: Any = None

    @property
    def info(self) -> int:
        """SciPy's number for the end.

        0 says that it converged; above 0 are iterations that did not meet the tolerance; below 0 is a failure. Of
        several columns: the failure of the first that failed, else the most iterations of those that did not converge.
        """
        reasons = [self.reason] if isinstance(self.reason, str) else self.reason
        return info(reasons, np.atleast_1d(self.iterations))


def info(reasons: list[str], iterations: Any) -> int:
    """SciPy's number for these ends of columns."""
    failed = [number for number in (INFO[reason] for reason in reasons) if number]
    if failed:
        return failed[0]
    open_ = [int(n) for reason, n in zip(reasons, iterations, strict=True) if INFO[reason] is None]
    return max(1, *open_) if open_ else 0
