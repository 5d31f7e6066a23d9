"""BiCGSTAB on a GPU: ``kernels/bicgstab.cu``. A step is two products and five kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from cvrarray.gpu.compiler import Kernel
from cvrarray.linalg.gpu.layout import VECTORS
from cvrarray.linalg.gpu.state import DIAGONAL, GIVEN, IDENTITY
from cvrarray.linalg.gpu.steps import Steps
from cvrarray.linalg.system import System

EACH_KIND = [(dtype, kind) for (dtype,) in VECTORS for kind in (IDENTITY, DIAGONAL)]
PROJECT = Kernel("bicgstab", "bicgstab_project", VECTORS)
HALF = Kernel("bicgstab", "bicgstab_half", EACH_KIND)
WEIGH = Kernel("bicgstab", "bicgstab_weigh", VECTORS)
WHOLE = Kernel("bicgstab", "bicgstab_whole", VECTORS)
TURN = Kernel("bicgstab", "bicgstab_turn", EACH_KIND)

#: Words of the struct Stabilised: rho, alpha, omega and beta are complex.
SHADOW_NORM, LEAST, BEST = 8, 9, 10


class Launches(Steps):
    """The method of :mod:`cvrarray.linalg.bicgstab` with its steps in kernels."""

    words = 18

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self.p, self.v_, self.shadow, self.t = (self.v.zeros() for _ in range(4))
        self.p_hat, self.s_hat = (self.p, self.r) if self.M is None else (self.v.zeros(), self.v.zeros())

    def start(self) -> None:
        """The shadow residual is the residual."""
        self.shadow[...] = self.r
        self.p[...] = self.r
        self.precondition(self.p, self.p_hat)
        self.columns[...] = 0
        self.columns.view(np.complex128)[:, 0] = self.v.dot(self.r, self.r)
        self.columns[:, SHADOW_NORM] = self.v.norm(self.r)
        self.columns[:, LEAST] = float(np.finfo(self.system.dtype).eps) ** 2
        self.columns[:, BEST] = self.best

    def _cycle(self, *args: Any) -> None:
        """See :class:`Steps`. The device keeps iterates by itself."""
        super()._cycle(*args)
        self.best = self.columns[:, BEST].copy()

    def launch(self, x: Any, number: int) -> None:
        """See :class:`Steps`."""
        dtype, layout, columns, p_hat, s_hat = self.system.dtype, self.layout, self.columns, self.p_hat, self.s_hat
        kind = DIAGONAL if self.kind == DIAGONAL else IDENTITY  # what the kernels apply
        self.times(p_hat, self.v_)
        layout.launch(PROJECT(dtype), (self.partials, columns, self.shadow, self.v_, p_hat))
        layout.launch(HALF(dtype, kind), (columns, self.inverse, p_hat, self.v_, x, self.r, s_hat))
        if self.kind == GIVEN:
            self.precondition(self.r, s_hat)
        self.times(s_hat, self.t)
        layout.launch(WEIGH(dtype), (self.partials, columns, self.t, self.r))
        layout.launch(WHOLE(dtype), (self.partials, columns, self.shadow, s_hat, self.t, x, self.r))
        layout.launch(TURN(dtype, kind), (columns, self.inverse, self.r, self.v_, self.p, p_hat, x, self.kept))
        if self.kind == GIVEN:
            self.precondition(self.p, p_hat)
