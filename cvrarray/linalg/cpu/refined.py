"""Conjugate gradients in single precision whose residuals are replaced by true ones, in double precision.

H. A. van der Vorst, Q. Ye, "Residual Replacement Strategies for Krylov Subspace Iterative Methods for the Convergence
of True Residuals", SIAM J. Sci. Comput. 22, 2000. Iterations add up a correction of x. Where the residual that they
update has become PART of the true one that they began from, x takes the correction, the residual becomes ``b - A x``,
and the direction ``z + beta p`` takes the z of the new residual: nothing is begun anew, so there are about as many
iterations as in double precision.

Of several columns all are replaced when one is to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cvrarray.linalg import arithmetic
from cvrarray.linalg.cpu import cg, vectors
from cvrarray.linalg.ends import Judge
from cvrarray.linalg.operators import multiply
from cvrarray.linalg.solution import Outcome
from cvrarray.linalg.system import System, apply

#: Rounding errors of single precision must stay small beside the residual, else the directions lose their meaning.
PART = 2e-3
#: Of the tolerance, so that a true residual a little above the one that iterations update is small enough.
AIM = 0.95


class Engine(cg.Engine):
    """An engine for `system`, in double precision, whose iterations are those of `single`, the same system in single
    precision.

    A column that single precision cannot solve ends as one that could not be solved.
    """

    def __init__(self, system: System, single: System) -> None:
        super().__init__(single)
        self._double = arithmetic.of(system.device, system.shape, system.dtype)
        self._product = self._double.empty()
        self._correction = vectors.empty(single.shape, single.dtype)
        self._history = system.history
        r, sums = vectors.reals(self.r), self.partial
        self._weigh = self._blocks.prepare("descend", self.state.factor, r, r, self.inverse, sums)
        self._aim = self._blocks.prepare("turn", self.state.factor, self.state.ratio, r, r, r, self.inverse)

    def refine(
        self, matrix: Any, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callable[[Any], Any] | None = None
    ) -> Outcome:
        """Solve with the matrix in double precision; x holds the start and receives the solution. `callback(x)` is
        called after each replacement.
        """
        state, correction = self.state, self._correction
        unit = _units(self._double.host(self._double.norm(b)))
        judge = Judge(len(state.end), tolerance / unit, limit, (state.end, state.iterations))
        state.tests[:] = True
        true = self._replace(matrix, b, x, unit)
        history, is_first = [true], True
        while judge.judge(true):
            state.verify_at[:] = np.maximum(PART * true, AIM * judge.tolerance)
            running = self._turn_to_residual() if is_first else self._turn_on()
            correction[...], is_first = 0, False
            if running:
                self._iterate(correction, limit, [], None)
            self._double.add(self._double.load(unit), correction.astype(x.dtype), x)
            true = self._replace(matrix, b, x, unit)
            history.append(true)
            if callback is not None:
                callback(x)
        kept = np.array(history) * unit if self._history else None
        return Outcome(state.iterations.copy(), true * unit, judge.reasons(), kept)

    def _replace(self, matrix: Any, b: Any, x: Any, unit: np.ndarray) -> np.ndarray:
        """``r = (b - A x) / unit``, and the norms of its columns."""
        v, product = self._double, self._product
        multiply(matrix, x, product)
        v.combine(v.load(1 / unit), b, v.load(-1 / unit), product, product)
        self.r[...] = product
        return v.host(v.norm(product))

    def _turn_on(self) -> int:
        """``p = z + beta p`` with ``z = M r`` of the new residual; the columns that go on."""
        state, partial = self.state, self.partial
        p, r, z = map(vectors.reals, (self.p, self.r, self.z))
        state.factor[:] = 0
        if self.is_separate:
            apply(self.system.preconditioner, self.r, self.z)
            self._dot(r, z, partial)
        else:
            self._weigh(state.factor, r, r, self.inverse, partial)
        at = len(state.factor) if self.is_diagonal else 0
        running = self._ratios(at)
        state.factor[:] = 1  # the kernel turns columns that move; the correction begins at 0 afterwards
        self._aim(state.factor, state.ratio, vectors.reals(self._correction), p, z, self.inverse)
        return running


def _units(norms: np.ndarray) -> np.ndarray:
    """Powers of 2 near the norms of columns: residuals in these units are normal numbers of single precision."""
    usable = np.isfinite(norms) & (norms > 0)
    units: np.ndarray = np.exp2(np.floor(np.log2(np.where(usable, norms, 1.0))))
    return units
