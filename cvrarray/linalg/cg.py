"""Conjugate gradients for symmetric (Hermitian) positive definite systems: ``cg``, and ``CG``, which is used again and again.

Sources: M. R. Hestenes, E. Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems", J. Res. NBS 49, 1952; Y. Saad,
"Iterative Methods for Sparse Linear Systems", 2nd ed., SIAM 2003, algorithm 9.1, for the preconditioned method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arguments, operators
from .solution import Outcome, Solution
from .system import System


def cg(
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
    """Solve ``A @ x = b``."""
    solver = CG(A, M=M, rtol=rtol, atol=atol, maxiter=maxiter)
    found = solver._solve(b, x0, None, callback)
    return found.x, found.info


class CG:
    """Conjugate gradients for one matrix and many right-hand sides."""

    def __init__(
        self,
        A: Any,
        *,
        M: Any = None,
        rtol: float = 1e-5,
        atol: float = 0.0,
        maxiter: int | None = None,
        iterations: int | None = None,
        check_every: int | None = None,
        history: bool = False,
    ) -> None:
        self._given, self._M = A, M
        self._rtol, self._atol = arguments.tolerance(rtol, "rtol"), arguments.tolerance(atol, "atol")
        self._maxiter = None if maxiter is None else arguments.count(maxiter, "maxiter", 0)
        self._iterations = None if iterations is None else arguments.count(iterations, "iterations", 0)
        self._check_every = None if check_every is None else arguments.count(check_every, "check_every", 1, 1)
        self._history = bool(history)
        self._engines: dict[tuple[int | None, np.dtype], Any] = {}

    def solve(self, b: Any, x0: Any = None, out: Any = None) -> Solution:
        """Solve ``A @ x = b``."""
        return self._solve(b, x0, out, None)

    def _solve(self, b: Any, x0: Any, out: Any, callback: Callable[[Any], Any] | None) -> Solution:
        given = arguments.system(self._given, b, x0, self._M)
        engine = self._engine(given)
        n = given.b.shape[0]
        limit = 10 * n if self._maxiter is None else self._maxiter
        sizes = arguments.norms(given.b, given.device)
        outcome = engine.run(given.b, given.x, np.maximum(self._rtol * sizes, self._atol), limit, callback)
        return _answer(given, outcome, sizes)

    def _engine(self, given: arguments.Arguments) -> Any:
        from .cpu.cg import Engine

        columns = None if given.b.ndim == 1 else given.b.shape[1]
        key = (columns, given.b.dtype)
        if key not in self._engines:
            self._engines[key] = Engine(
                System(
                    given.matrix,
                    given.preconditioner,
                    given.b.shape[0],
                    columns,
                    given.b.dtype,
                    given.device,
                    self._check_every,
                    self._iterations,
                    self._history,
                )
            )
        return self._engines[key]


def _answer(given: arguments.Arguments, outcome: Outcome, sizes: np.ndarray) -> Solution:
    relative = outcome.residual / np.where(sizes > 0, sizes, 1)
    converged = np.array([reason == "converged" for reason in outcome.reasons])
    if given.b.ndim == 1:
        return Solution(
            given.x, int(outcome.iterations[0]), float(relative[0]), bool(converged[0]), outcome.reasons[0], outcome.history
        )
    return Solution(given.x, outcome.iterations, relative, converged, outcome.reasons, outcome.history)
