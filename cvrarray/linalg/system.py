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

from collections.abc import Callable
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
    iterations: int | None = None  # run exactly so many, and test nothing
    history: bool = False
    is_stack: bool = False  # each column has a matrix of its own: vectors are in Fortran order

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a vector."""
        return (self.n,) if self.columns is None else (self.n, self.columns)


#: Threads and streams that have memory of their own in a solver or preconditioner.
MOST_LANES = 64


class Lanes:
    """What each thread and stream has for itself, by a key that ends with the device's lane: the last MOST_LANES that were
    made, and all that CUDA graphs hold. Copies have none.
    """

    def __init__(self) -> None:
        self._recent: dict[tuple[Any, ...], Any] = {}
        self._captured: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_recent": {}, "_captured": {}}

    def get(self, key: tuple[Any, ...]) -> Any:
        """What was put there, or None."""
        return self._recent.get(key)

    def put(self, key: tuple[Any, ...], one: Any) -> Any:
        """The same `one`; the first of too many is given back."""
        self._recent[key] = one
        if len(self._recent) > MOST_LANES:
            self._recent.pop(next(iter(self._recent.copy())), None)
        return one

    def others(self, key: tuple[Any, ...]) -> list[Any]:
        """What other threads and streams have for the same, without the lane."""
        return [one for other, one in self._recent.copy().items() if other[: len(key)] == key]

    def captured(self, key: Any, make: Callable[[], Any]) -> Any:
        """What a graph that is being captured holds: it is kept, as replays write to it."""
        if key not in self._captured:
            self._captured[key] = make()
        return self._captured[key]


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
