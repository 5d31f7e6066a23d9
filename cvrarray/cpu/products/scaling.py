"""alpha and beta, applied around kernels that know neither: two tests a record would double the cost of a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cvrarray.core.arrays import Run


def scaled(multiply: Callable[[np.ndarray, np.ndarray], None]) -> Run:
    """``run(x, y, alpha, beta)``, which does ``y = alpha * P + beta * y``, from ``multiply(x, y)``: ``y = P``.

    Where beta is 0, y is written and never read.
    """

    def run(x: np.ndarray, y: np.ndarray, alpha: Any, beta: Any) -> None:
        if alpha == 1 and beta == 0:
            multiply(x, y)
            return
        product = np.empty_like(y)
        multiply(x, product)
        y[:] = alpha * product if beta == 0 else alpha * product + beta * y

    return run
