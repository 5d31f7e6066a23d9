"""LSMR on a GPU: ``kernels/lsmr.cu``. A step is two products and three kernels. Its struct Bidiagonal is STATE."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from cvrarray.core import devices
from cvrarray.gpu.compiler import Kernel
from cvrarray.linalg.gpu.layout import VECTORS, Layout
from cvrarray.linalg.gpu.state import Lookout, can_be_captured
from cvrarray.linalg.gpu.steps import in_batches
from cvrarray.linalg.gpu.vectors import DeviceVectors
from cvrarray.linalg.operators import multiply

LEFT = Kernel("lsmr", "lsmr_left", VECTORS)
RIGHT = Kernel("lsmr", "lsmr_right", VECTORS)
MOVE = Kernel("lsmr", "lsmr_move", VECTORS)

#: Numbers of a column, the paper's: words of 8 bytes, of which the last are whole numbers.
FIELDS = (
    "alpha beta length_u damp norm_b atol btol ctol alpha_bar zeta_bar zeta rho rho_bar c_bar s_bar"
    " beta_dd beta_d rho_d tau theta d norm_a2 norm_a max_rho min_rho cond norm_r norm_x back step turn"
).split()
WHOLE = "iterations limit stop going moves".split()
STATE = np.dtype([(name, np.float64) for name in FIELDS] + [(name, np.int64) for name in WHOLE])


def run(matrix: Any, adjoint: Any, b: Any, x: Any, norm_b: np.ndarray, limits: Any) -> tuple[Any, ...]:
    """x, from the start x, and what SciPy returns beside it, of each column."""
    rows, cols = (DeviceVectors(devices.of(b), vector.shape, b.dtype) for vector in (b, x))
    u, product, v = b.copy(), rows.empty(), cols.zeros()
    if x.any():
        multiply(matrix, x, product)
        rows.combine(rows.constant(1), u, rows.constant(-1), product, u)
    beta = _normalised(rows, u)
    multiply(adjoint, u, v)
    alpha = np.where(beta > 0, _normalised(cols, v), 0.0)
    zeta_bar = alpha * beta
    going = (zeta_bar != 0) & (norm_b != 0)
    is_finite = np.isfinite(zeta_bar) & np.isfinite(norm_b)
    state = np.zeros(beta.size, STATE)
    values = {"alpha": alpha, "beta": beta, "norm_b": norm_b, "alpha_bar": alpha, "zeta_bar": zeta_bar}
    values |= {"beta_dd": beta, "norm_r": beta, "norm_a2": alpha**2, "norm_a": alpha, "min_rho": 1e100}
    values |= dict.fromkeys(("length_u", "rho", "rho_bar", "c_bar", "rho_d", "cond"), 1.0)
    values |= {"damp": limits.damp, "atol": limits.atol, "btol": limits.btol, "limit": limits.maxiter}
    values |= {"ctol": 1 / limits.conlim if limits.conlim > 0 else 0.0}
    values |= {"stop": np.where(going & ~is_finite, 7, 0), "going": going & is_finite & (limits.maxiter > 0)}
    for name, value in values.items():
        state[name] = value
    x.reshape(len(x), beta.size)[:, (norm_b == 0) & (zeta_bar != 0)] = 0
    if state["going"].any():
        state = _iterated(matrix, adjoint, (u, product, v, cols.zeros(), v.copy(), cols.zeros(), x), state)
    numbers = state["norm_r"], abs(state["zeta_bar"]), state["norm_a"], state["cond"], state["norm_x"]
    return x, state["stop"], state["iterations"], *numbers


def _normalised(of: Any, vector: Any) -> np.ndarray:
    """Norms of columns, in host memory; each column but those of zeros is divided by its own."""
    found: np.ndarray = of.host(of.norm(vector))
    inverse = np.where(found != 0, 1 / np.where(found != 0, found, 1.0), 0.0)
    of.combine(cupy.asarray(inverse), vector, of.constant(0), vector, vector)
    return found


def _iterated(matrix: Any, adjoint: Any, given: tuple[Any, ...], begin: np.ndarray) -> np.ndarray:
    """Iterate from the columns' states `begin` (k,) until every column has ended; the states then."""
    u, product, v, back, h, h_bar, x = given
    k, dtype = begin.size, u.dtype
    rows, cols = (Layout.of(len(vector), k) for vector in (u, v))
    of_rows, of_cols = rows.partials(), cols.partials()
    columns = cupy.asarray(begin.view(np.float64).reshape(k, -1))

    def step() -> None:
        multiply(matrix, v, product)
        rows.launch(LEFT(dtype), (of_rows, columns, product, u))
        multiply(adjoint, u, back)
        cols.launch(RIGHT(dtype), (of_cols, columns, back, v))
        cols.launch(MOVE(dtype), (of_cols, columns, v, h_bar, h, x))

    lookout = Lookout(columns)
    is_graph = can_be_captured(matrix, None) and can_be_captured(adjoint, None) and dtype.kind != "c"
    in_batches(step, int(begin["limit"].max()), is_graph, lookout, lambda words: bool(words.view(STATE)["going"].any()))
    ends: np.ndarray = columns.get().view(STATE)[:, 0]
    return ends
