"""GMRES on a GPU: the basis and its Hessenberg matrix are made by ``kernels/gmres.cu``, a batch of vectors at a time.

A new basis vector is made orthogonal to the others by two passes of classical Gram-Schmidt (L. Giraud et al., "Rounding
error analysis of the classical Gram-Schmidt orthogonalization process", Numer. Math. 101, 2005); the second is left out
where it would remove rounding errors alone.
A vector is a product and four kernels, of a basis of more than MOST vectors more. While the host solves the small
problems of a batch, the device makes the next one. So it makes up to two batches more than are needed, which nobody
looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from cvrarray.gpu.compiler import Kernel
from cvrarray.gpu.launches import NULL, struct
from cvrarray.gpu.properties import processors
from cvrarray.linalg.ends import A_NAN, CONVERGED, ENDS, M_NAN, M_SINGULAR, MAXITER, RUNNING, STAGNATION
from cvrarray.linalg.gpu.cg import captured
from cvrarray.linalg.gpu.layout import THREADS, VECTORS, Layout
from cvrarray.linalg.gpu.state import DIAGONAL, IDENTITY, Lookout, can_be_captured
from cvrarray.linalg.gpu.vectors import DeviceVectors
from cvrarray.linalg.operators import multiply
from cvrarray.linalg.solution import Outcome
from cvrarray.linalg.system import System, apply

#: Vectors of which a thread of gmres_project keeps its entries: fewer registers, where there are few. And the blocks of
#: threads that a multiprocessor has room for then.
MOST = {"f": (8, 20), "c": (8, 16)}
BLOCKS_A_PROCESSOR = {8: 3, 16: 1, 20: 2}

PROJECT = Kernel(
    "gmres",
    "gmres_project",
    [(dtype, most, removes) for (dtype,) in VECTORS for most in MOST[dtype[0]] for removes in (False, True)],
)
REMOVE = Kernel("gmres", "gmres_remove", [(dtype, last) for (dtype,) in VECTORS for last in (False, True)])
NEXT = Kernel("gmres", "gmres_next", VECTORS)
ADD = Kernel("gmres", "gmres_add", VECTORS)

BATCH = 4  #: vectors


class Basis:
    """An orthonormal basis (restart + 1, n, columns) of a Krylov space, in memory that the method gives."""

    def __init__(self, system: System, basis: cupy.ndarray, w: cupy.ndarray, z: cupy.ndarray) -> None:
        self._system, self._basis, self._w, self._z = system, basis, w, z
        self._most, columns = len(basis) - 1, basis.shape[2]
        self._layout = layout = Layout.of(system.n, columns)
        (blocks, tiles), most = layout.grid, self._most
        sums = cupy.empty((2 * max(MOST["f"]) + 2) * tiles * blocks * layout.columns)
        self._partials = struct(sums, cupy.zeros(tiles, np.uint32))
        self._hessenberg = cupy.zeros((most, most + 1, columns), np.complex128)
        self._h = cupy.zeros((most, columns), np.complex128)
        self._again = cupy.zeros(columns, np.int64)
        self._lookouts = [Lookout(self._hessenberg[start : start + BATCH]) for start in range(0, most, BATCH)]
        self._graphs: list[Any] = [None] * len(self._lookouts)
        self._is_graph = can_be_captured(system.matrix, system.preconditioner, (IDENTITY, DIAGONAL))
        self._n_cycles = self._n_launched = 0

    def extend(self, step: int) -> np.ndarray:
        """(step + 2, columns) of the Hessenberg matrix: the coefficients of ``M @ A @ (the basis's vector of this step)``.

        Step 0 begins anew, from the basis's first vector.
        """
        if step == 0:
            self._n_launched = 0
            self._n_cycles += 1
        batch = step // BATCH
        while self._n_launched < min(batch + 2, len(self._lookouts)):
            self._launch(self._n_launched)
            self._n_launched += 1
        h: np.ndarray = self._lookouts[batch].received(0)[step % BATCH, : step + 2]
        return h if self._system.dtype.kind == "c" else h.real

    def _launch(self, batch: int) -> None:
        """Make a batch of vectors, and send what the host needs of them."""
        if not self._is_graph or self._n_cycles == 1:  # the first cycle compiles and prepares what no capture can
            self._make(batch)
        else:
            if self._graphs[batch] is None:
                self._graphs[batch] = captured(lambda: self._make(batch))
            self._graphs[batch].launch(cupy.cuda.get_current_stream())
        self._lookouts[batch].send(0)

    def _make(self, batch: int) -> None:
        for step in range(batch * BATCH, min((batch + 1) * BATCH, self._most)):
            self._make_vector(step)

    def _make_vector(self, step: int) -> None:
        """The next vector, of ``M @ A @ (the last one)``, and a column of the Hessenberg matrix."""
        system, layout, basis = self._system, self._layout, self._basis
        count, dtype, H = step + 1, system.dtype, self._hessenberg[step]
        w = multiply(system.matrix, basis[step].reshape(self._w.shape), self._w)
        if system.preconditioner is not None:
            w = apply(system.preconditioner, w, self._z)
        most = next((most for most in MOST[dtype.kind] if count <= most), None)
        if most is None:
            self._orthogonalise_by_halves(w, H, count)
        else:
            self._project(w, H, count, most, removes=False, first=True)
            self._project(w, H, count, most, removes=True, first=False)
            layout.launch(REMOVE(dtype, True), (self._partials, np.int64(count), basis, self._h, w, H, self._again))
        layout.launch(NEXT(dtype), (H[count], w, basis[count]))

    def _orthogonalise_by_halves(self, w: cupy.ndarray, H: cupy.ndarray, count: int) -> None:
        """Remove the first `count` vectors from w, any number."""
        dtype, layout, most = self._system.dtype, self._layout, MOST[self._system.dtype.kind][-1]
        for number in range(2):
            for begin in range(0, count, most):
                self._project(w, H, min(most, count - begin), most, removes=False, first=number == 0, begin=begin)
            layout.launch(REMOVE(dtype, number == 1), (self._partials, np.int64(count), self._basis, self._h, w, H, NULL))

    def _project(
        self, w: cupy.ndarray, H: cupy.ndarray, count: int, most: int, *, removes: bool, first: bool, begin: int = 0
    ) -> None:
        """What w has of `count` vectors from `begin` on, by a kernel for up to `most`."""
        blocks, tiles = self._layout.grid
        grid = min(blocks, BLOCKS_A_PROCESSOR[most] * processors()), tiles
        basis, h, H = (array[begin:] for array in (self._basis, self._h, H))
        PROJECT(self._system.dtype, most, removes)(
            grid,
            (THREADS,),
            (self._layout.shape, self._partials, np.int64(count), basis, w, h, H, self._again, np.bool_(first)),
        )

    def add(self, y: np.ndarray, x: cupy.ndarray) -> None:
        """``x += V @ y`` for y (size, columns), but where that is no number."""
        factors = cupy.asarray(y, np.complex128)
        self._layout.launch(ADD(self._system.dtype), (np.int64(len(y)), self._basis, factors, x))


class Cycles:
    """The cycles of the method for k columns side by side; everything small is (k, ...) in host memory.

    A column whose residual is small enough within a cycle takes no part in what the others still add to theirs.
    """

    def __init__(self, system: System, restart: int, callback_type: str) -> None:
        self.system, self.callback_type = system, callback_type
        self.v = DeviceVectors(system.device, system.shape, system.dtype)
        self.restart = min(restart, system.n)
        self.vectors = cupy.zeros((self.restart + 1, system.n, self.v.columns), system.dtype)
        self.r, self.w, self.z = self.v.empty(), self.v.empty(), self.v.empty()
        self.one, self.minus_one, self.is_zero = self.v.constant(1), self.v.constant(-1), False
        self.basis = Basis(system, self.vectors, self.w, self.z)

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callable[[Any], Any] | None = None) -> Outcome:
        """Solve; `limit` counts cycles, or iterations where the callback is of the type ``"legacy"``."""
        self.callback, self.limit = callback, limit
        self.by_steps = callback is not None and self.callback_type == "legacy"
        columns = self.v.columns
        self.end, self.steps, self.cycles = (np.zeros(columns, np.int64) for _ in range(3))
        self.sizes = self.v.host(self.v.norm(b))
        self.weight = np.ones(columns)
        with np.errstate(all="ignore"):
            self.inner = self.v.host(self.v.norm(self._precondition(b))) * np.minimum(
                1.0, np.nan_to_num(tolerance / np.where(self.sizes > 0, self.sizes, 1.0), nan=1.0, posinf=1.0)
            )
            self.is_zero = not bool(x.any())
            true = self._true(b, x)
            self.is_zero = False  # after the first cycle
            self._judge(true, np.full(columns, np.inf), tolerance)
            while (self.end == RUNNING).any():
                presid = self._cycle(x, true)
                before, true = true, self._true(b, x)
                if callback is not None and self.callback_type == "x":
                    callback(x)
                self._judge(true, before, tolerance)
                self._aim(presid, true, tolerance)
        return Outcome(self.steps if self.by_steps else self.cycles, true, [ENDS[end] for end in self.end])

    def _aim(self, presid: np.ndarray, true: np.ndarray, tolerance: np.ndarray) -> None:
        """How small the next cycle makes the preconditioned residual: SciPy's rule (its issue 8400)."""
        eps = float(np.finfo(self.system.dtype).eps)
        passed = presid <= self.inner
        self.weight = np.where(passed, np.maximum(eps, 0.25 * self.weight), np.minimum(1.0, 1.5 * self.weight))
        self.inner = presid * np.minimum(self.weight, tolerance / np.where(true > 0, true, 1.0))

    def _judge(self, true: np.ndarray, before: np.ndarray, tolerance: np.ndarray) -> None:
        eps = float(np.finfo(self.system.dtype).eps)
        for j, norm in enumerate(true):
            if norm <= tolerance[j]:
                self.end[j] = CONVERGED
            elif self.end[j] != RUNNING:
                continue
            elif not np.isfinite(norm):
                self.end[j] = A_NAN
            elif (self.steps if self.by_steps else self.cycles)[j] >= self.limit:
                self.end[j] = MAXITER
            elif norm >= before[j] * (1 - 100 * eps):  # the next cycle would begin where this one did
                self.end[j] = STAGNATION

    def _true(self, b: Any, x: Any) -> np.ndarray:
        """``self.r = b - A @ x``, and its norms."""
        if self.is_zero:
            self.r[...] = b
        else:
            multiply(self.system.matrix, x, self.r)
            self.v.combine(self.one, b, self.minus_one, self.r, self.r)
        return self.v.host(self.v.norm(self.r))

    def _precondition(self, r: Any) -> Any:
        return r if self.system.preconditioner is None else apply(self.system.preconditioner, r, self.z)

    def _cycle(self, x: Any, true: np.ndarray) -> np.ndarray:
        """One cycle from the residual, of norms `true`, which updates x; the norms of the preconditioned residuals."""
        columns = self.v.columns
        z = self._precondition(self.r)
        start = true if z is self.r else self.v.host(self.v.norm(z))
        self._stop(~np.isfinite(start), M_NAN)
        self._stop(start == 0, M_SINGULAR)
        going = self.end == RUNNING
        problems = [Problem(self.restart, start[j], self.v.scalar) for j in range(columns)]
        presid = np.where(going, start, 0.0)
        inverse = cupy.asarray(np.where(going, 1 / np.where(start > 0, start, 1.0), 0.0), self.v.real)
        cupy.multiply(z.reshape(self.system.n, columns), inverse, out=self.vectors[0])
        self.cycles += going
        extending = going & (self.end == RUNNING)
        for step in range(self.restart):
            h = self.basis.extend(step).astype(self.v.scalar)
            for j in np.flatnonzero(extending):
                presid[j] = problems[j].add(h[:, j], float(np.finfo(self.system.dtype).eps))
                if not np.isfinite(presid[j]):
                    self.end[j] = A_NAN
                    problems[j].size -= 1
            self.steps += extending
            if self.callback is not None and self.callback_type in ("legacy", "pr_norm"):
                relative = presid / np.where(self.sizes > 0, self.sizes, 1.0)
                self.callback(relative[0] if self.r.ndim == 1 else relative)
            done = np.array([problem.is_exhausted for problem in problems])
            extending = extending & ~done & ~(presid <= self.inner) & (self.end == RUNNING)
            if not extending.any() or (self.by_steps and self.steps.max() >= self.limit):
                break
        most = max((problem.size for problem in problems), default=0)
        y = np.zeros((most, columns), self.v.scalar)
        for column, problem in enumerate(problems):
            y[: problem.size, column] = problem.solution()
        self.basis.add(y, x)
        return presid

    def _stop(self, condition: np.ndarray, end: int) -> None:
        self.end[(self.end == RUNNING) & condition] = end


class Problem:
    """The least-squares problem of one column's cycle, by Givens rotations: ``min |S - H y|``."""

    def __init__(self, restart: int, start: float, dtype: np.dtype) -> None:
        self.R = np.zeros((restart, restart), dtype)
        self.S = np.zeros(restart + 1, dtype)
        self.S[0] = start
        self.rotations: list[tuple[float, Any]] = []
        self.size = 0
        self.is_exhausted = False

    def add(self, h: np.ndarray, eps: float) -> float:
        """Another column of H; the norm of the residual. In plain numbers: they are ten times as fast as an array's."""
        column = h.tolist()
        if not np.isfinite(h).all():
            self.size += 1
            return math.nan
        length = math.hypot(*map(abs, column))
        if abs(column[-1]) <= eps * length:
            column[-1], self.is_exhausted = 0.0, True
        for k, (c, s) in enumerate(self.rotations):
            below = column[k + 1]
            column[k], column[k + 1] = c * column[k] + s * below, -s.conjugate() * column[k] + c * below
        at = self.size
        diagonal, below = column[at], column[at + 1]
        length = math.hypot(abs(diagonal), abs(below))
        if diagonal == 0:
            c, s, turned = 0.0, below.conjugate() / length if length else 1.0, length
        else:
            phase = diagonal / abs(diagonal)
            c, s, turned = abs(diagonal) / length, phase * below.conjugate() / length, phase * length
        self.rotations.append((c, s))
        self.R[:at, at], self.R[at, at] = column[:at], turned
        self.S[at], self.S[at + 1] = c * self.S[at], -s.conjugate() * self.S[at]
        self.size += 1
        return float(abs(self.S[at + 1]))

    def solution(self) -> np.ndarray:
        """y; where H is singular, without the directions that lead nowhere."""
        size = self.size
        y = self.S[:size].copy()
        smallest = abs(np.diagonal(self.R)[:size]).max(initial=0.0) * 1e-300
        for k in range(size - 1, -1, -1):
            y[k] = y[k] / self.R[k, k] if abs(self.R[k, k]) > smallest else 0
            y[:k] -= y[k] * self.R[:k, k]
        return y
