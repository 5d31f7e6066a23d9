"""Dense matrices in C order."""

from __future__ import annotations

import numpy as np


def c_order(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """A matrix in Fortran order, copied to C order: to `out`, or to a new array."""
    if out is None:
        return np.ascontiguousarray(x)
    out[...] = x
    return out
