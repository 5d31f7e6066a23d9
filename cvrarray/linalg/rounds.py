"""Methods on a CPU: a loop such as SciPy's around our products, for one column after the other.

A round solves ``A @ d = r`` from 0, where r is the true residual of x in a unit near its length, and x takes d. What the
loop says of its end is not believed: the true residual decides. A round that makes it larger is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg

from .arguments import norms
from .ends import A_NAN, BREAKDOWN, M_NAN, M_SINGULAR, PROGRESS, Judge
from .operators import multiply
from .solution import Outcome
from .system import System, apply

Look = Callable[[Any], None]


class Ended(Exception):
    """Raised in a round that cannot go on; its argument is the end, None where that is to be found out."""


class Rounds:
    """A method, of which a subclass defines :meth:`round`."""

    progress = PROGRESS

    def __init__(self, system: System) -> None:
        self.system = system
        self.A = self._operator(lambda x, out: multiply(system.matrix, x, out))
        M = system.preconditioner
        self.M = None if M is None else self._operator(lambda x, out: apply(M, x, out))

    def _operator(self, times: Callable[[Any, Any], Any]) -> scipy.sparse.linalg.LinearOperator:
        n, dtype = self.system.n, self.system.dtype
        return scipy.sparse.linalg.LinearOperator((n, n), lambda x: times(x, np.empty(n, dtype)), dtype=dtype)

    def round(self, r: np.ndarray, enough: float, limit: int, look: Look) -> tuple[np.ndarray, int]:
        """d with ``|r - A @ d| <= enough`` as far as the loop knows, or after `limit` iterations; and VERIFY or BREAKDOWN.

        ``look(d)`` is called after each iteration.
        """
        raise NotImplementedError

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callable[[Any], Any] | None = None) -> Outcome:
        """Solve, as :mod:`cvrarray.linalg.system` says; `callback(x)` is called after each iteration."""
        sides, found = (vector.reshape(self.system.n, -1) for vector in (b, x))
        ends = []
        with np.errstate(all="ignore"):
            for j in range(sides.shape[1]):
                column, shown = found[:, j].copy(), None
                if callback is not None:

                    def shown(now: Any, j: int = j) -> None:
                        if x.ndim == 2:
                            found[:, j] = now
                        callback(now if x.ndim == 1 else x.copy())

                ends.append(self._column(sides[:, j].copy(), column, tolerance[j : j + 1], limit, shown))
                found[:, j] = column
        iterations, residuals, reasons = zip(*ends, strict=True)
        return Outcome(np.array(iterations), np.array(residuals), list(reasons))

    def _column(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Look | None) -> tuple[int, float, str]:
        """Iterations, norm of the residual and reason of one column, whose start x becomes the solution."""
        judge = Judge(1, tolerance, limit, progress=self.progress)
        whole = self._norm(b)
        enough = max(float(tolerance[0]), whole * float(np.finfo(b.dtype).eps) / 4)
        r, size = self._residual(b, x)
        while judge.judge(np.array([size])):
            unit = float(2.0 ** np.floor(np.log2(size)))
            self.unit, shown = unit / whole if whole > 0 else 1.0, x.copy()

            def look(d: np.ndarray, unit: float = unit) -> None:
                nonlocal shown
                judge.iterations += 1
                if not np.isfinite(d[0]):  # a factor that is not finite reaches every number
                    raise Ended(None)
                if callback is not None:
                    shown = x + d * unit
                    callback(shown)

            try:
                d, judge.end[0] = self.round(r / unit, enough / unit, limit - int(judge.iterations[0]), look)
                moved = x + d * unit
                left, length = self._residual(b, moved)
                if not (np.isfinite(length) and np.isfinite(moved).all()):
                    raise Ended(None)
                if length <= size:
                    x[...], r, size = moved, left, length
                    if callback is not None and (shown != x).any():  # SciPy's BiCGSTAB may end in mid-step
                        callback(x.copy())
            except Ended as ended:
                judge.end[0] = self._why(r / unit) if ended.args[0] is None else ended.args[0]
        return int(judge.iterations[0]), size, judge.reasons()[0]

    def _norm(self, vector: np.ndarray) -> float:
        return float(norms(vector, self.system.device)[0])

    def _residual(self, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, float]:
        r = b - self.A.matvec(x) if x.any() else b
        return r, self._norm(r)

    def _why(self, r: np.ndarray) -> int:
        """Why numbers are not finite, or 0 was divided by."""
        z = r if self.M is None else self.M.matvec(r)
        if not np.isfinite(z).all():
            return M_NAN
        if not z.any():
            return M_SINGULAR
        return BREAKDOWN if np.isfinite(self.A.matvec(z)).all() else A_NAN
