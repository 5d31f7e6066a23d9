"""Who goes on, and why a column ended: decided from true residuals."""

from __future__ import annotations

import numpy as np

from . import solution

#: Whether a column goes on: its number is a place in ENDS, and the first three are no ends yet. The kernels' Reason
#: (``kernels/cg.cuh``) begins in the same order.
(
    RUNNING,
    START,
    VERIFY,
    CONVERGED,
    MAXITER,
    STAGNATION,
    NOT_DEFINITE,
    M_NOT_DEFINITE,
    M_SINGULAR,
    A_NAN,
    M_NAN,
    COUNTED,
    BREAKDOWN,
) = range(13)
ENDS = ("running", "to be started", "to be verified", *solution.INFO)
#: A restart must have reduced the true residual to this part of what it was, else it was the last one.
PROGRESS = 0.5


class Judge:
    """Who goes on, by true residuals, in host memory: everything is (columns,)."""

    def __init__(
        self,
        columns: int,
        tolerance: np.ndarray | None,
        limit: int,
        shared: tuple[np.ndarray, np.ndarray] | None = None,
        progress: float = PROGRESS,
    ) -> None:
        self.end, self.iterations = shared or (np.empty(columns, np.int64), np.empty(columns, np.int64))
        self.end[:], self.iterations[:] = RUNNING, 0
        self.best = np.full(columns, np.inf)
        self.tolerance, self.limit, self.progress = tolerance, limit, progress

    def judge(self, true: np.ndarray) -> bool:
        """Decide for each column whether it has ended or starts again from its true residual; whether any does."""
        if self.tolerance is None:
            return bool((self.end == RUNNING).any())
        for j, norm in enumerate(true):
            if norm <= self.tolerance[j]:
                self.end[j] = CONVERGED
            elif self.end[j] in (RUNNING, VERIFY, BREAKDOWN):
                self.end[j] = self._next(j, norm)
        return bool((self.end == RUNNING).any())

    def _next(self, j: int, norm: float) -> int:
        end, before = int(self.end[j]), self.best[j]
        if not np.isfinite(norm):
            return A_NAN
        if self.iterations[j] >= self.limit:
            return MAXITER
        if end != RUNNING or np.isinf(before):
            self.best[j] = norm
        if end != RUNNING and norm > self.progress * before:
            return BREAKDOWN if end == BREAKDOWN else STAGNATION
        return RUNNING

    def reasons(self) -> list[str]:
        """The ends in words."""
        return [ENDS[end] for end in self.end]
