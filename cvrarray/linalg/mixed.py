"""Mixed precision: iterations in single precision, x and true residuals in double precision.

Where single precision makes no progress any more, the engine of double precision takes over from the x that was
reached. How iterations are refined before is the device's: by corrections (:class:`Corrections`), and on a GPU by
residuals that are replaced while the iteration goes on (:mod:`.gpu.refined`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import arithmetic, solution
from .ends import PROGRESS
from .operators import multiply
from .solution import Outcome
from .system import System

#: What a correction reduces the residual to, and the least that it is asked for where it is the last one. Less than
#: single precision attains costs iterations and gains nothing.
INNER, LEAST = 1e-5, 2e-6

Callback = Callable[[Any], Any]
Make = Callable[[System], Any]


def pays(system: System) -> bool:
    """Whether iterations in single precision are faster for this system, which is in double precision."""
    if system.device.kind == "cpu":
        return True
    from .gpu import refined

    return refined.pays(system)


class Engine:
    """An engine as :mod:`cvrarray.linalg.system` describes it, around two others."""

    def __init__(self, system: System, make: Make) -> None:
        self.system, self.make, self.matrix = system, make, system.matrix
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
        self.inner = _refining(system, self.inner_system, make)
        self.double: Any = None

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

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callback | None = None) -> Outcome:
        """Solve; the iterations of both precisions count. A callback is called after each correction."""
        found: Outcome = self.inner.refine(self.matrix, b, x, tolerance, limit, callback)
        if {*found.reasons} <= {solution.CONVERGED, solution.MAXITER}:
            return found
        if self.double is None:
            self.double = self.make(replace(self.system, matrix=self.matrix))
        xp = self.system.device.xp
        worse = np.flatnonzero(~(found.residual <= self._norms(b)))  # than 0 would be
        if worse.size:
            x.reshape(len(x), -1)[:, worse] = 0
        rest = self.double.run(b, x, tolerance, max(0, limit - int(found.iterations.max())))
        history = xp.concatenate([found.history, rest.history[1:]]) if self.system.history else None
        return Outcome(found.iterations + rest.iterations, rest.residual, rest.reasons, history)

    def _norms(self, b: Any) -> np.ndarray:
        v = arithmetic.of(self.system.device, self.system.shape, self.system.dtype)
        return np.atleast_1d(v.host(v.norm(b)))


def _refining(system: System, single: System, make: Make) -> Any:
    """The device's engine for both precisions."""
    if system.device.kind == "cpu":
        return Corrections(system, make(single))
    from .gpu.refined import Engine as Replacing

    return Replacing(system, single)


class Corrections:
    """Iterative refinement (C. B. Moler, J. ACM 14(2), 1967) with conjugate gradients inside.

    The correction of x is solved for in single precision, for a right-hand side of length 1. It ends by the residual
    that its iterations update: what it has really attained is seen in double precision.
    """

    def __init__(self, system: System, inner: Any) -> None:
        self.system, self.inner = system, inner
        self.update = inner.update
        self.v = arithmetic.of(system.device, system.shape, system.dtype)
        self.r = self.v.empty()
        self.b_inner, self.x_inner = (system.device.xp.zeros(system.shape, inner.system.dtype) for _ in range(2))

    def refine(
        self, matrix: Any, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callback | None = None
    ) -> Outcome:
        """Solve with the matrix in double precision; columns that made no progress end as stagnation."""
        xp, columns = self.v.xp, self.v.columns
        count, stalled = np.zeros(columns, np.int64), np.zeros(columns, bool)
        true = self._true(matrix, b, x)
        history = [xp.asarray(true)]
        while not stalled.any():
            open_ = np.isfinite(true) & (true > tolerance) & (count < limit)
            if not open_.any():
                break
            found = self._correct(x, true, tolerance, open_, int(limit - count[open_].max()))
            count += np.where(open_, found.iterations, 0)
            before, true = true, self._true(matrix, b, x)
            history.append(xp.asarray(true))
            if callback is not None:
                callback(x)
            stalled = open_ & ~(true <= PROGRESS * before)
        reasons = [_end(norm, enough, has_stalled) for norm, enough, has_stalled in zip(true, tolerance, stalled, strict=True)]
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

    def _true(self, matrix: Any, b: Any, x: Any) -> np.ndarray:
        """``r = b - A @ x``, and its norms in host memory."""
        one = self.v.constant(1)
        multiply(matrix, x, self.r)
        self.v.combine(one, b, -one, self.r, self.r)
        return self.v.host(self.v.norm(self.r))


def _end(true: float, tolerance: float, has_stalled: bool) -> str:
    """Why corrections of a column ended."""
    if true <= tolerance:
        return solution.CONVERGED
    if has_stalled:
        return solution.STAGNATION
    return solution.MAXITER if np.isfinite(true) else solution.A_NOT_FINITE
