"""The seam between a method and a device: what an engine is made for.

An engine is the inner loop of conjugate gradients on one device, ``cvrarray.linalg.cpu.cg`` or
``cvrarray.linalg.gpu.cg``:

    class Engine:
        def __init__(self, system: System): ...                 # takes all memory
        def update(self, matrix, preconditioner) -> None: ...   # new values in the same structure
        def run(self, b, x, tolerance, limit) -> Outcome: ...

``b`` and ``x`` are contiguous (n,) or (n, columns) of the system's dtype on its device; x holds the start and receives
the result. ``tolerance`` are one float64 threshold a column, in host memory, for the norm of the true residual; None
where ``iterations`` is given. ``limit`` is the most iterations.

One thread has an engine, on one stream: it updates it before a solve. An update that was interrupted is done again.

The engine computes the true residual before it says that a column converged. Where the updated one lied it goes on from
the true one, and ends with STAGNATION where that does not get smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import devices


@dataclass(frozen=True)
class System:
    """A matrix, a preconditioner, and how they are to be solved with."""

    matrix: Any  # our array, or an Operator: matvec(x, out), matmat(X, out)
    preconditioner: Any  # None; what has apply(r, out): Jacobi, BlockJacobi, Chebyshev, Multigrid; or as matrix
    n: int
    columns: int | None  # None for vectors (n,), else k of (n, k)
    dtype: np.dtype  # of the vectors
    device: devices.Device
    check_every: int | None = None  # iterations between looks at the device; None: the engine's choice
    iterations: int | None = None  # run exactly so many, and test nothing
    history: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a vector."""
        return (self.n,) if self.columns is None else (self.n, self.columns)


def apply(preconditioner: Any, r: Any, out: Any) -> Any:
    """``out = M @ r``."""
    if preconditioner is None:
        out[...] = r
    elif hasattr(preconditioner, "apply"):
        preconditioner.apply(r, out)
    elif r.ndim == 1:
        preconditioner.matvec(r, out)
    else:
        preconditioner.matmat(r, out)
    return out
