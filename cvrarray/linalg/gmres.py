"""GMRES with restarts, for any square system, preconditioned from the left.

Source: Y. Saad, M. H. Schultz, "GMRES: A Generalized Minimal Residual Algorithm for Solving Nonsymmetric Linear
Systems", SIAM J. Sci. Stat. Comput. 7(3), 1986.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse.linalg

from . import arguments, solving
from .ends import VERIFY
from .rounds import Look, Rounds
from .solution import Outcome
from .system import System

RESTART = 20  #: SciPy's
CALLBACKS = ("x", "pr_norm", "legacy")


class GMRES(Rounds):
    """SciPy's loop: a round is a cycle from restart to restart."""

    def __init__(self, system: System, restart: int, callback_type: str) -> None:
        super().__init__(system)
        self.restart, self.callback_type = min(restart, system.n), callback_type
        self.progress = 1 - 100 * float(np.finfo(system.dtype).eps)  # else the next cycle would begin where this one did

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callable[[Any], Any] | None = None) -> Outcome:
        """See :class:`Rounds`; `limit` counts cycles, or iterations where the callback is of the type ``"legacy"``."""
        self.by_steps = callback is not None and self.callback_type == "legacy"
        self.tell = None if self.callback_type == "x" else callback
        return super().run(b, x, tolerance, limit, callback if self.tell is None else None)

    def round(self, r: np.ndarray, enough: float, limit: int, look: Look) -> tuple[np.ndarray, int]:
        """See :class:`Rounds`: the preconditioned residual is made smaller as far as the true one must be."""
        restart, size, steps = min(self.restart, limit) if self.by_steps else self.restart, float(np.linalg.norm(r)), 0

        def count(norm: float) -> None:
            nonlocal steps
            steps += 1
            if self.tell is not None:
                self.tell(norm * size * self.unit)

        how = {"rtol": 0, "atol": enough, "restart": restart, "maxiter": 1, "callback_type": "pr_norm"}
        d, _ = scipy.sparse.linalg.gmres(self.A, r, M=self.M, callback=count, **how)
        for _ in range(steps if self.by_steps else 1):
            look(d)
        return d, VERIFY


def _method(system: System, restart: int, callback_type: str) -> Any:
    """The method on the system's device."""
    if system.device.kind == "cuda":
        from .gpu.gmres import Cycles

        return Cycles(system, restart, callback_type)
    return GMRES(system, restart, callback_type)


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], Any] | None = None,
    callback_type: str | None = None,
) -> tuple[Any, int]:
    """Solve ``A @ x = b`` for any square A by GMRES, with restarts.

    Parameters
    ----------
    A, b, x0, rtol, atol
        As of :func:`cg`, for any square A. On a CPU columns of b are solved for one after the other.
    restart : int, optional
        Iterations between restarts: as many vectors are kept. Default: 20.
    maxiter : int, optional
        The most cycles from restart to restart. Default: ``10 * n``.
    M : like A, or a preconditioner of this module, or ``"jacobi"`` or ``"block_jacobi"``, optional
        An approximation of A's inverse, applied from the left.
    callback : function, optional
        See `callback_type`.
    callback_type : {"x", "pr_norm", "legacy"}, optional
        ``"x"``: called with x after each cycle. ``"pr_norm"``: with the norm of the preconditioned residual over that
        of b, after each iteration. ``"legacy"``, SciPy's default: the same, and `maxiter` counts iterations.

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
    >>> x, info = cvrarray.linalg.gmres(A, np.array([2.0, 4, -1]), rtol=1e-12)
    >>> x.round(9), info
    (array([ 2., -2.,  9.]), 0)
    """
    if callback is not None and callback_type is None:
        warnings.warn(
            "cvrarray.linalg.gmres called without specifying `callback_type`: as in SciPy it is 'legacy', which counts"
            " iterations in maxiter. Say callback_type='pr_norm', 'x' or 'legacy'",
            DeprecationWarning,
            stacklevel=2,
        )
    callback_type = callback_type or "legacy"
    if callback_type not in CALLBACKS:
        raise ValueError(f"callback_type must be one of {', '.join(CALLBACKS)}; got {callback_type!r}")
    length = arguments.count(restart, "restart", RESTART, 1)
    return solving.solved(
        partial(_method, restart=length, callback_type=callback_type), (A, b, x0, M), (rtol, atol, maxiter), callback
    )
