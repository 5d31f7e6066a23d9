"""BiCGSTAB for systems that need not be symmetric.

Source: H. A. van der Vorst, "Bi-CGSTAB: A Fast and Smoothly Converging Variant of Bi-CG for the Solution of
Nonsymmetric Linear Systems", SIAM J. Sci. Stat. Comput. 13(2), 1992, with the preconditioner on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg

from . import solving
from .ends import BREAKDOWN, VERIFY
from .rounds import Look, Rounds
from .system import System


class BiCGSTAB(Rounds):
    """SciPy's loop."""

    def round(self, r: np.ndarray, enough: float, limit: int, look: Look) -> tuple[np.ndarray, int]:
        """See :class:`Rounds`."""
        d, info = scipy.sparse.linalg.bicgstab(self.A, r, rtol=0, atol=enough, maxiter=limit, M=self.M, callback=look)
        return d, BREAKDOWN if info < 0 else VERIFY


def _method(system: System) -> Any:
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
    A, b, x0, rtol, atol, maxiter, callback
        As of :func:`cg`, for any square A. On a CPU columns of b are solved for one after the other.
    M : like A, or a preconditioner of this module, or ``"jacobi"`` or ``"block_jacobi"``, optional
        An approximation of A's inverse, applied from the right.

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
    >>> A = cvrarray.CVRArray([[3.0, 2, 0], [1, -1, 0], [0, 5, 1]])
    >>> x, info = cvrarray.linalg.bicgstab(A, np.array([2.0, 4, -1]), rtol=1e-12)
    >>> x.round(9), info
    (array([ 2., -2.,  9.]), 0)
    """
    return solving.solved(_method, (A, b, x0, M), (rtol, atol, maxiter), callback)
