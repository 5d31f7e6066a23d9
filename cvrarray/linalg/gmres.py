"""GMRES with restarts, for any square system.

Source: Y. Saad, M. H. Schultz, "GMRES: A Generalized Minimal Residual Algorithm for Solving Nonsymmetric Linear
Systems", SIAM J. Sci. Stat. Comput. 7(3), 1986, preconditioned from the left as in SciPy. A new basis vector is made
orthogonal to the others by two passes of classical Gram-Schmidt (L. Giraud et al., "Rounding error analysis of the
classical Gram-Schmidt orthogonalization process", Numer. Math. 101, 2005), which are products of matrices. A GPU
leaves the second out where it would remove rounding errors alone. The small least-squares problems are solved on the host.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import devices
from . import arguments, solving
from .ends import A_NAN, CONVERGED, ENDS, M_NAN, M_SINGULAR, MAXITER, RUNNING, STAGNATION
from .operators import multiply
from .solution import Outcome
from .system import System, apply

RESTART = 20  #: SciPy's
CALLBACKS = ("x", "pr_norm", "legacy")


class GMRES:
    """The cycles of the method for k columns side by side; everything small is (k, ...) in host memory.

    A column whose residual is small enough within a cycle takes no part in what the others still add to theirs.
    """

    def __init__(self, system: System, restart: int | None, callback_type: str | None) -> None:
        self.system, self.callback_type = system, callback_type
        self.v = system.arithmetic()
        self.restart = max(1, min(RESTART if restart is None else restart, system.n))
        xp = self.v.xp
        self.basis = xp.zeros((self.restart + 1, system.n, self.v.columns), system.dtype)
        self.r, self.w, self.z = self.v.empty(), self.v.empty(), self.v.empty()
        self._product = None if system.device.kind == "cuda" else self.v.empty()
        self.one, self.minus_one, self.is_zero = self.v.constant(1), self.v.constant(-1), False
        self._on_gpu: Any = None
        if system.device.kind == "cuda":
            from .gpu.gmres import Basis

            self._on_gpu = Basis(system, self.basis, self.w, self.z)

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

    def _columns(self, vector: Any) -> Any:
        return vector.reshape(self.system.n, self.v.columns)

    def _cycle(self, x: Any, true: np.ndarray) -> np.ndarray:
        """One cycle from the residual, of norms `true`, which updates x; the norms of the preconditioned residuals."""
        xp, columns, basis = self.v.xp, self.v.columns, self.basis
        z = self._precondition(self.r)
        start = true if z is self.r else self.v.host(self.v.norm(z))
        self._stop(~np.isfinite(start), M_NAN)
        self._stop(start == 0, M_SINGULAR)
        going = self.end == RUNNING
        problems = [Problem(self.restart, start[j], self.v.scalar) for j in range(columns)]
        presid = np.where(going, start, 0.0)
        inverse = xp.asarray(np.where(going, 1 / np.where(start > 0, start, 1.0), 0.0), self.v.real)
        xp.multiply(self._columns(z), inverse, out=basis[0])
        self.cycles += going
        extending = going & (self.end == RUNNING)
        for step in range(self.restart):
            h = self._extend(step, extending)
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
        if self._on_gpu is not None:
            self._on_gpu.add(y, x)
        else:
            change = self._combined(basis[:most], xp.asarray(y).astype(self.system.dtype))
            x += xp.where(xp.isfinite(change), change, 0).reshape(x.shape)
        return presid

    def _stop(self, condition: np.ndarray, end: int) -> None:
        self.end[(self.end == RUNNING) & condition] = end

    def _extend(self, step: int, extending: np.ndarray) -> np.ndarray:
        """The next basis vector; (step + 2, columns) the coefficients of ``M @ A @ (the last one)``."""
        if self._on_gpu is not None:
            on_gpu: np.ndarray = self._on_gpu.extend(step).astype(self.v.scalar)
            return on_gpu
        xp, basis = self.v.xp, self.basis
        self.w[...] = basis[step].reshape(self.w.shape)
        product = multiply(self.system.matrix, self.w, self._product)
        w = self._columns(self._precondition(product))
        known = basis[: step + 1]
        h = xp.zeros((step + 2, self.v.columns), self.v.scalar)
        for _ in range(2):
            part = self._sums(known.conj() if self.v.scalar.kind == "c" else known, w)
            w = w - self._combined(known, part)
            h[:-1] += part
        w = xp.ascontiguousarray(w)
        length = self.v.host(self.v.norm(w.reshape(self.w.shape)))
        usable = extending & (length > 0) & np.isfinite(length)
        scale = np.where(usable, 1 / np.where(usable, length, 1.0), 0.0)
        basis[step + 1] = (
            w * xp.asarray(scale, self.v.real) if usable.all() else xp.where(xp.asarray(usable), w * xp.asarray(scale), 0)
        )
        found = np.empty((step + 2, self.v.columns), self.v.scalar)
        found[:-1], found[-1] = devices.move(h[:-1], devices.CPU), length
        return found

    def _sums(self, known: Any, w: Any) -> Any:
        """(s, k) products of s basis vectors with the columns of w: a product of matrices where there is one column."""
        if self.v.columns == 1:
            return self.v.xp.matmul(known[:, :, 0], w)
        return self.v.xp.einsum("snk,nk->sk", known, w)

    def _combined(self, known: Any, y: Any) -> Any:
        """(n, k) sums of basis vectors with the factors y (s, k)."""
        if self.v.columns == 1:
            return self.v.xp.matmul(known[:, :, 0].T, y)
        return self.v.xp.einsum("snk,sk->nk", known, y)


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
    A : (n, n) array of ours, sparse or dense matrix, or operator
    b : (n,) or (n, k) array on A's device
        k columns are k systems, solved side by side; each stops by its own tolerance.
    x0 : array like b, optional
        Where to start; ``"Mb"`` for ``M @ b``. Default: 0.
    rtol, atol : float
        A column has converged where ``|b - A @ x| <= max(rtol * |b|, atol)``, computed from x itself.
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
    x : array like b
    info : int
        0: converged. Above 0: iterations that did not meet the tolerance. Below 0: a failure, see :mod:`cvrarray.linalg`.

    Raises
    ------
    TypeError, ValueError
        Devices, shapes or dtypes do not fit, or an argument is out of range.

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
    if restart is not None:
        restart = arguments.count(restart, "restart", RESTART, 1)

    def method(system: System) -> GMRES:
        return GMRES(system, restart, callback_type)

    return solving.solved(method, (A, b, x0, M), (rtol, atol, maxiter), callback)
