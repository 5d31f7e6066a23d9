"""Conjugate gradients in single precision whose residuals are replaced by true ones, in double precision.

H. A. van der Vorst, Q. Ye, "Residual Replacement Strategies for Krylov Subspace Iterative Methods for the Convergence
of True Residuals", SIAM J. Sci. Comput. 22, 2000; M. A. Clark et al., "Solving Lattice QCD systems of equations using
mixed precision solvers on GPUs", Comput. Phys. Commun. 181, 2010, call it reliable updates. Iterations add up a
correction of x. Where the residual that they update has become PART of the true one that it began from, x takes the
correction, the residual becomes ``b - A x``, and the direction ``z + beta p`` takes the z of the new residual: so
nothing is begun anew, and there are about as many iterations as in double precision. (With the old z ill-conditioned
systems diverge.)
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log
from typing import Any

import cupy
import numpy as np

from cvrarray.array.format import FormatArray
from cvrarray.gpu.compiler import Kernel
from cvrarray.gpu.properties import attribute, processors
from cvrarray.linalg import solution
from cvrarray.linalg.arguments import norms
from cvrarray.linalg.gpu import cg
from cvrarray.linalg.gpu.state import GIVEN, preconditioner_kind
from cvrarray.linalg.operators import multiply
from cvrarray.linalg.solution import Outcome
from cvrarray.linalg.system import System

COLLECT = Kernel("cg", "cg_collect", [("float64", "float32"), ("complex128", "complex64")])

#: Rounding errors of single precision must stay small beside the residual, else the directions lose their meaning.
PART = 1e-2
#: Of the tolerance, so that a true residual a little above the one that iterations update is small enough.
AIM = 0.95
#: Where one kernel's shared memory holds the matrix and vectors in double precision, waiting is most of an iteration, and
#: single precision saves nothing. So much of the shared memory, to be sure.
SMALL = 0.5


def pays(system: System) -> bool:
    """Whether an iteration for this system, in double precision, takes less time in single precision."""
    is_one_kernel = isinstance(system.matrix, FormatArray) and system.columns is None
    if not is_one_kernel or preconditioner_kind(system.preconditioner) == GIVEN:
        return True
    with system.device.use():
        room = processors() * attribute("MaxSharedMemoryPerBlockOptin")
    return bool(system.matrix.nbytes + 4 * system.n * system.dtype.itemsize > SMALL * room)


class Engine:
    """An engine as :mod:`cvrarray.linalg.system` describes it: iterations in single precision, and where that makes no
    progress any more the engine of double precision, from the x that was reached.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self._single = np.dtype(np.complex64 if system.dtype.kind == "c" else np.float32)
        self._inner = Refined(system, replace(self._narrowed(system), dtype=self._single, history=False))
        self._double: Any = None

    def _narrowed(self, system: System) -> System:
        """With the matrix and the preconditioner in single precision."""
        M, matrix = system.preconditioner, system.matrix
        with np.errstate(over="ignore"):  # double precision takes over from what is inf
            narrow = matrix.astype(self._single if matrix.dtype.kind == "c" else np.float32)
        return replace(system, matrix=narrow, preconditioner=M.astype(self._single) if hasattr(M, "astype") else M)

    def update(self, matrix: Any, preconditioner: Any) -> None:
        """Take new values."""
        self.system = replace(self.system, matrix=matrix, preconditioner=preconditioner)
        narrow = self._narrowed(self.system)
        self._inner.update(narrow.matrix, narrow.preconditioner)
        if self._double is not None:
            self._double.update(matrix, preconditioner)

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: cg.Callback | None = None) -> Outcome:
        """Solve; the iterations of both precisions count. A callback is called after each replacement."""
        found = self._inner.refine(self.system.matrix, b, x, tolerance, limit, callback)
        if {*found.reasons} <= {solution.CONVERGED, solution.MAXITER}:
            return found
        if self._double is None:
            self._double = cg.Engine(self.system)
        worse = np.flatnonzero(~(found.residual <= norms(b, self.system.device)))  # than 0 would be
        if worse.size:
            x.reshape(len(x), -1)[:, worse] = 0
        rest = self._double.run(b, x, tolerance, max(0, limit - int(found.iterations.max())))
        history = cupy.concatenate([found.history, rest.history[1:]]) if self.system.history else None
        return Outcome(found.iterations + rest.iterations, rest.residual, rest.reasons, history)


class Refined(cg.Engine):
    """An engine for `system`, in double precision, whose iterations are those of `single`, the same system in single
    precision.

    A column that single precision cannot solve ends as one that could not be solved.
    """

    turns = True

    def __init__(self, system: System, single: System) -> None:
        self._double = system
        self._refined: Any = None  # of a solve: the matrix and x in double precision, and what is called with x
        self._x: Any = None
        self._callback: cg.Callback | None = None
        with system.device.use():
            self._scale = cupy.ones(system.columns or 1)
            self._q = cupy.zeros(system.shape, system.dtype)
        super().__init__(single)

    def update(self, matrix: Any, preconditioner: Any) -> None:
        """See :class:`cg.Engine`; the matrix is in single precision. That in double precision goes to :meth:`refine`."""
        self._wide, self._part = self._double.dtype, PART
        super().update(matrix, preconditioner)
        with self.system.device.use():
            COLLECT(self._wide, self.system.dtype)

    def refine(self, matrix: Any, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: cg.Callback | None) -> Outcome:
        """Solve with the matrix in double precision; x holds the start and receives the solution. `callback(x)` is
        called after each correction.
        """
        state = self._state
        with self.system.device.use():
            cg.refuse_capture()
            scale = self._units(b)
            self._scale.set(scale)
            state.begin(AIM * tolerance / scale, limit, self._double.history)
            self._refined, self._x, self._callback = matrix, x, callback
            try:
                words, reasons = self._until_all_end(b, limit, None, self._rounds(tolerance, scale), callback is not None)
            finally:
                self._refined = self._x = self._callback = None
            norms = words.norm * scale
            reasons = [
                solution.CONVERGED if norm <= enough else reason
                for norm, enough, reason in zip(norms, tolerance, reasons, strict=True)
            ]
            history = state.history_until(int(words.iterations.max(initial=0)))
            return Outcome(words.iterations, norms, reasons, None if history is None else history * self._scale)

    def _rounds(self, tolerance: np.ndarray, scale: np.ndarray) -> int:
        """How often residuals will be replaced, as a rule: all of that is launched before the host looks."""
        if self._callback is not None:
            return 1
        with np.errstate(all="ignore"):
            least = float(np.nanmin(np.clip(tolerance / scale, 1e-16, 1.0), initial=1.0))
        return max(1, ceil(log(least) / log(PART)))

    def _units(self, b: Any) -> np.ndarray:
        """Powers of 2 near the norms of columns: residuals in these units are normal numbers of single precision."""
        sizes = norms(b, self.system.device)
        usable = np.isfinite(sizes) & (sizes > 0)
        units: np.ndarray = np.exp2(np.floor(np.log2(np.where(usable, sizes, 1.0))))
        return units

    def _begin(self, b: Any, first: bool) -> None:
        if first:
            self._state.x.fill(0)
        else:
            self._layout.launch(COLLECT(self._wide, self.system.dtype), (self._scale, self._state.x, self._x))
            if self._callback is not None:
                self._callback(self._x)
        multiply(self._refined, self._x, self._q)
        self._judge(b, self._q, first, self._scale)
