"""Mixed precision on a GPU: iterations in single precision, x and true residuals in double precision.

Residuals are replaced by true ones while the iteration goes on (:mod:`.gpu.refined`). Where single
precision makes no progress any more, the engine of double precision takes over from the x that was reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import solution
from .solution import Outcome
from .system import System

Callback = Callable[[Any], Any]
Make = Callable[[System], Any]


class Engine:
    """An engine as :mod:`cvrarray.linalg.system` describes it, around two others."""

    def __init__(self, system: System, make: Make) -> None:
        self.system, self.make = system, make
        self.single = np.dtype(np.complex64 if system.dtype.kind == "c" else np.float32)
        inner_system = replace(
            system,
            matrix=self._narrow(system.matrix),
            preconditioner=self._narrow_preconditioner(system.preconditioner),
            dtype=self.single,
            history=False,
            is_verified=False,
        )
        from .gpu import refined

        self.inner = refined.Engine(system, inner_system)
        self.double: Any = None

    def _narrow(self, matrix: Any) -> Any:
        with np.errstate(over="ignore"):  # double precision takes over from what is inf
            return matrix.astype(self.single if matrix.dtype.kind == "c" else np.float32)

    def _narrow_preconditioner(self, preconditioner: Any) -> Any:
        return preconditioner.astype(self.single) if hasattr(preconditioner, "astype") else preconditioner

    def update(self, matrix: Any, preconditioner: Any) -> None:
        """Take new values."""
        self.system = replace(self.system, matrix=matrix, preconditioner=preconditioner)
        self.inner.update(self._narrow(matrix), self._narrow_preconditioner(preconditioner))
        if self.double is not None:
            self.double.update(matrix, preconditioner)

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callback | None = None) -> Outcome:
        """Solve; the iterations of both precisions count. A callback is called after each replacement."""
        found: Outcome = self.inner.refine(self.system.matrix, b, x, tolerance, limit, callback)
        if {*found.reasons} <= {solution.CONVERGED, solution.MAXITER}:
            return found
        if self.double is None:
            self.double = self.make(self.system)
        xp = self.system.device.xp
        worse = np.flatnonzero(~(found.residual <= self._norms(b)))  # than 0 would be
        if worse.size:
            x.reshape(len(x), -1)[:, worse] = 0
        rest = self.double.run(b, x, tolerance, max(0, limit - int(found.iterations.max())))
        history = xp.concatenate([found.history, rest.history[1:]]) if self.system.history else None
        return Outcome(found.iterations + rest.iterations, rest.residual, rest.reasons, history)

    def _norms(self, b: Any) -> np.ndarray:
        v = self.system.arithmetic()
        return np.atleast_1d(v.host(v.norm(b)))
