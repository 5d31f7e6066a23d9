"""The state of LSMR's iteration, as the kernels of both devices have it: see :mod:`.lsmr`, which names the sources."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

#: Numbers of a column: words of 8 bytes, of which the last are whole numbers. ESTIMATES: those that the method has under
#: these names.
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
