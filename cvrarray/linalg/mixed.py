"""Mixed precision: iterations in single precision, refined in double precision until the tolerance holds.

Iterative refinement (C. B. Moler, J. ACM 14(2), 1967) with conjugate gradients inside: the correction of x is solved
for in single precision, for a right-hand side of length 1; x and the true residual are in double precision. A
correction ends by the residual that its iterations update: what it has really attained is seen in double precision.
Where single precision makes no progress any more, the engine of double precision takes over from the x that was
reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import arithmetic, solution
from .operators import multiply
from .solution import Outcome
from .system import System

#: What a correction reduces the residual to, and the least that it is asked for where it is the last one. Less than
#: single precision attains costs iterations and gains nothing.
INNER, LEAST = 1e-5, 2e-6
#: A correction must leave less than this part of the true residual, else double precision takes over.
PROGRESS = 0.5


class Engine:
    """An engine as :mod:`cvrarray.linalg.system` describes it, around two others."""

    def __init__(self, system: System, make: Callable[[System], Any]) -> None:
        self.system, self.make = system, make
        self.single = np.dtype(np.complex64 if system.dtype.kind == "c" else np.float32)
        preconditioner = system.preconditioner
        narrow = preconditioner.astype(self.single) if hasattr(preconditioner, "astype") else preconditioner
        self.inner_system = replace(
            system,
            matrix=self._narrow(system.matrix),
            preconditioner=narrow,
            dtype=self.single,
            history=False,
            is_verified=False,
        )
        self.inner = make(self.inner_system)
        self.double: Any = None
        self.v = arithmetic.of(system.device, system.shape, system.dtype)
        xp = system.device.xp
        self.r = self.v.empty()
        self.b_inner, self.x_inner = (xp.zeros(system.shape, self.single) for _ in range(2))
        self.matrix = system.matrix

    def _narrow(self, matrix: Any) -> Any:
        return matrix.astype(self.single if matrix.dtype.kind == "c" else np.float32)

    def update(self, matrix: Any) -> None:
        """Take new values."""
        self.matrix = matrix
        preconditioner = self.system.preconditioner
        if hasattr(preconditioner, "astype"):
            preconditioner.astype(self.single, into=self.inner_system.preconditioner)
        self.inner.update(self._narrow(matrix))
        if self.double is not None:
            self.double.update(matrix)

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callable[[Any], Any] | None = None) -> Outcome:
        """Solve; the iterations of both precisions count. A callback is called after each correction."""
        xp, columns = self.v.xp, self.v.columns
        count, reasons = np.zeros(columns, np.int64), [""] * columns
        true = self._true(b, x)
        history = [xp.asarray(true)]
        while True:
            open_ = np.isfinite(true) & (true > tolerance) & (count < limit)
            if not open_.any():
                break
            found = self._correct(x, true, tolerance, open_, int(limit - count[open_].max()))
            count += np.where(open_, found.iterations, 0)
            before, true = true, self._true(b, x)
            history.append(xp.asarray(true))
            if callback is not None:
                callback(x)
            if (open_ & ~(true <= PROGRESS * before)).any():
                return self._finish(b, x, tolerance, limit, count, history)
        for j in range(columns):
            is_met = true[j] <= tolerance[j]
            reasons[j] = solution.CONVERGED if is_met else solution.MAXITER if np.isfinite(true[j]) else solution.A_NOT_FINITE
        return Outcome(count, true, reasons, xp.stack(history) if self.system.history else None)

    def _correct(self, x: Any, true: np.ndarray, tolerance: np.ndarray, open_: np.ndarray, limit: int) -> Outcome:
        """``x += d``, with ``A @ d = r`` solved in single precision for the columns that are open."""
        xp = self.v.xp
        inverse = xp.asarray(np.where(open_, 1 / np.where(open_, true, 1.0), 0.0))
        self.b_inner[...] = self.r * inverse
        self.x_inner[...] = 0
        needed = 0.5 * tolerance / np.where(open_, true, 1.0)
        wanted = np.where(open_, np.where(needed >= LEAST, needed, INNER), np.inf)
        found: Outcome = self.inner.run(self.b_inner, self.x_inner, wanted, limit)
        self.v.add(self.v.load(np.where(open_, true, 0.0)), self.x_inner.astype(self.system.dtype), x)
        return found

    def _finish(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, count: np.ndarray, history: list[Any]) -> Outcome:
        """The rest in double precision."""
        if self.double is None:
            self.double = self.make(replace(self.system, matrix=self.matrix))
        if not bool(self.v.xp.isfinite(x).all()):
            x[...] = 0
        rest = self.double.run(b, x, tolerance, max(0, limit - int(count.max())))
        kept = None
        if self.system.history:
            kept = self.v.xp.concatenate([self.v.xp.stack(history), rest.history[1:]])
        return Outcome(count + rest.iterations, rest.residual, rest.reasons, kept)

    def _true(self, b: Any, x: Any) -> np.ndarray:
        """``r = b - A @ x``, and its norms in host memory."""
        one = self.v.constant(1)
        multiply(self.matrix, x, self.r)
        self.v.combine(one, b, -one, self.r, self.r)
        return self.v.host(self.v.norm(self.r))
