"""LSMR on a GPU: ``kernels/lsmr.cu``. A step is two products and three kernels. Its struct Bidiagonal is STATE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from cvrarray.gpu.compiler import Kernel
from cvrarray.linalg.bidiagonal import STATE, Vectors
from cvrarray.linalg.gpu.layout import VECTORS, Layout
from cvrarray.linalg.gpu.state import Lookout, can_be_captured
from cvrarray.linalg.gpu.steps import in_batches

LEFT = Kernel("lsmr", "lsmr_left", VECTORS)
RIGHT = Kernel("lsmr", "lsmr_right", VECTORS)
MOVE = Kernel("lsmr", "lsmr_move", VECTORS)


def run(matrix: Any, adjoint: Any, times: Callable[..., Any], vectors: Vectors, begin: np.ndarray) -> Any:
    """Iterate from the columns' states `begin` (k,) until every column has ended; the states then."""
    u, product, v, back, h, h_bar, x = vectors
    k, dtype = begin.size, u.dtype
    rows, cols = (Layout.of(len(vector), k) for vector in (u, v))
    of_rows, of_cols = rows.partials(), cols.partials()
    columns = cupy.asarray(begin.view(np.float64).reshape(k, -1))

    def step() -> None:
        times(matrix, v, product)
        rows.launch(LEFT(dtype), (of_rows, columns, product, u))
        adjoint(u, back)
        cols.launch(RIGHT(dtype), (of_cols, columns, back, v))
        cols.launch(MOVE(dtype), (of_cols, columns, v, h_bar, h, x))

    lookout = Lookout(columns)
    is_graph = can_be_captured(matrix, None) and can_be_captured(adjoint.transposed, None)
    is_graph = is_graph and dtype.kind != "c" and matrix.dtype.kind != "c"  # conj() takes memory
    in_batches(step, int(begin["limit"].max()), is_graph, lookout, lambda words: bool(words.view(STATE)["going"].any()))
    return columns.get().view(STATE)[:, 0]
