"""``A @ X`` with few columns as ``A @ x``: a row of X, in C order, is an entry of x.

The kernels for a vector wait less often than those for a matrix, and have ways of their own for small matrices and for
popular columns. They load 16 bytes of x in the time of 4. So a few columns take little longer than one.
:mod:`cvrarray.core.few_columns` says where.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import cupy
import numpy as np

from ..core.arrays import Run
from ..core.few_columns import row_bytes
from .streams import Scratch


def product(dtype: np.dtype, of_vector: Callable[[np.dtype], Run | None], of_matrix: Run) -> Run:
    """``run(x, y, alpha, beta)``, which does ``Y = alpha * A @ X + beta * Y``; X (n_cols, k) and Y (n_rows, k) in C order.

    ``of_vector(entry)`` is the product with a vector of rows of X, whose dtype is `entry`; or None: then `of_matrix`, which
    takes any X, is taken.
    """
    made: list[Run] = []

    @cache
    def of_columns(k: int) -> Run:
        n_bytes = row_bytes(dtype, k)
        run = of_vector(np.dtype((dtype, (k,)))) if n_bytes else None
        if run is None:
            return of_matrix
        made.append(run)
        return _aligned(run, min(n_bytes, 16))

    def run(x, y, alpha, beta):
        of_columns(x.shape[1])(x, y, alpha, beta)

    def renew():
        for one in (of_matrix, *made):
            if hasattr(one, "renew"):
                one.renew()

    run.renew = renew
    return run


def _aligned(multiply: Run, n_bytes: int) -> Run:
    """``multiply``, by way of copies where X or Y begins between multiples of `n_bytes`."""
    scratch = Scratch()

    def run(x: cupy.ndarray, y: cupy.ndarray, alpha: np.generic, beta: np.generic) -> None:
        if (x.data.ptr | y.data.ptr) % n_bytes == 0:
            multiply(x, y, alpha, beta)
            return
        own_x, own_y = scratch.empty(x.shape, x.dtype), scratch.empty(y.shape, y.dtype)
        own_x[...], own_y[...] = x, y
        multiply(own_x, own_y, alpha, beta)
        y[...] = own_y

    return run
