"""LSMR on a GPU: ``kernels/lsmr.cu``. A step is two products and three kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np

from cvrarray.array.base import SparseArray
from cvrarray.gpu.compiler import Kernel
from cvrarray.linalg.gpu.layout import VECTORS, Layout
from cvrarray.linalg.gpu.state import Lookout
from cvrarray.linalg.gpu.steps import in_batches

LEFT = Kernel("lsmr", "lsmr_left", VECTORS)
RIGHT = Kernel("lsmr", "lsmr_right", VECTORS)
MOVE = Kernel("lsmr", "lsmr_move", VECTORS)

#: The struct Bidiagonal of a column: words of 8 bytes, of which the last are whole numbers. ESTIMATES: those that the
#: method has under these names.
FIELDS = (
    "alpha beta length_u damp norm_b atol btol ctol alpha_bar zeta_bar zeta rho rho_bar c_bar s_bar"
    " beta_dd beta_d rho_d tau theta d norm_a2 norm_a max_rho min_rho cond norm_r norm_x back step turn"
).split()
ESTIMATES = "beta_dd beta_d rho_d tau theta d norm_a2 norm_a max_rho min_rho cond norm_r".split()
WHOLE = "iterations limit stop going moves".split()
STATE = np.dtype([(name, np.float64) for name in FIELDS] + [(name, np.int64) for name in WHOLE])


class Vectors(NamedTuple):
    """The method's, (n_rows,) or (n_rows, k): u and a product; (n_cols,) or (n_cols, k): the others."""

    u: Any
    product: Any
    v: Any
    back: Any
    h: Any
    h_bar: Any
    x: Any


def run(matrix: Any, adjoint: Callable[[Any, Any], Any], times: Callable[..., Any], vectors: Vectors, begin: np.ndarray) -> Any:
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
    is_graph = isinstance(matrix, SparseArray) and dtype.kind != "c" and matrix.dtype.kind != "c"  # conj() takes memory
    in_batches(step, int(begin["limit"].max()), is_graph, lookout, lambda words: bool(words.view(STATE)["going"].any()))
    return columns.get().view(STATE)[:, 0]
