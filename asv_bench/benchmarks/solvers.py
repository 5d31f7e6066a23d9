"""Iterations of conjugate gradients, by our solver and by SciPy's or CuPy's."""

from __future__ import annotations

from typing import Any

from asv_bench.record import solve
from cvrarray.core import devices

from . import common

#: Between the shorter and the longer solve of a sample; both begin alike.
ITERATIONS = 20


class Iteration:
    """One iteration with a diagonal preconditioner: the difference of two solves."""

    params = (("poisson7", "elast3", "shell6", "rmat"), common.DTYPES, ("cpu", "cuda"), ("ours", "scipy", "cupy"))
    param_names = ("matrix", "dtype", "device", "by")
    timeout = 300

    def setup(self, name: str, dtype: str, device: str, by: str) -> None:
        """Build; the first solves compile."""
        if by != "ours" and (by == "scipy") != (device == "cpu"):
            raise NotImplementedError("lives on the other device")
        self.where = common.device(device)
        csr: Any = solve.definite(common.matrix(name, dtype, devices.CPU)).astype(dtype)
        import cvrarray

        A = cvrarray.asarray(csr, device=str(self.where))
        b = devices.move(csr @ common.dense((csr.shape[1],), dtype, devices.CPU), self.where)
        with self.where.use():
            peers = (
                {} if by == "ours" else solve.scipy_peers(csr, A, b) if by == "scipy" else solve.gpu_peers(csr, b, self.where)
            )
            self.solve = (solve.ours(A, b) | peers)[by]
            for count in (1, 1 + ITERATIONS):
                self.solve(count)

    def track_seconds(self, name: str, dtype: str, device: str, by: str) -> float:
        """The least of several differences."""
        with self.where.use():
            return (
                min(
                    solve.seconds(self.solve, 1 + ITERATIONS, self.where) - solve.seconds(self.solve, 1, self.where)
                    for _ in range(5)
                )
                / ITERATIONS
            )

    track_seconds.unit = "seconds"  # type: ignore[attr-defined]
