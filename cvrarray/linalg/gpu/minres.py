"""MINRES on a GPU: ``kernels/minres.cu``. A step is a product and three kernels."""

from __future__ import annotations

from typing import Any

import cupy

from cvrarray.gpu.compiler import Kernel
from cvrarray.linalg.ends import M_NAN, M_NOT_DEFINITE, M_SINGULAR
from cvrarray.linalg.gpu.layout import VECTORS
from cvrarray.linalg.gpu.state import DIAGONAL, GIVEN, IDENTITY
from cvrarray.linalg.gpu.steps import Steps
from cvrarray.linalg.system import System

EACH_KIND = [(dtype, kind) for (dtype,) in VECTORS for kind in (IDENTITY, DIAGONAL, GIVEN)]
PROJECT = Kernel("minres", "minres_project", VECTORS)
EXTEND = Kernel("minres", "minres_extend", EACH_KIND)
WEIGH = Kernel("minres", "minres_weigh", VECTORS)
MOVE = Kernel("minres", "minres_move", EACH_KIND)

#: Scalars of the struct Lanczos: alpha, beta, beta_old, epsilon, delta_bar, phi_bar, c and s.
BETA, PHI_BAR, C = 1, 5, 6


class Launches(Steps):
    """The method of :mod:`cvrarray.linalg.minres` with its steps in kernels."""

    words = 20

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self.old, self.new, self.y, self.basis, self.w, self.w_old = (self.v.zeros() for _ in range(6))
        self.z = self.v.empty() if self.kind == GIVEN else self.y

    def start(self) -> None:
        """The first Lanczos vector is the residual; vectors are where the first step looks for them."""
        v = self.v
        self.new[...] = self.r
        for vector in (self.old, self.w, self.w_old):
            vector[...] = 0
        basis = self.precondition(self.r, self.y)
        square = v.real_dot(self.new, basis)
        self.stop(~cupy.isfinite(square), M_NAN)
        self.stop(square < 0, M_NOT_DEFINITE)
        self.stop(square == 0, M_SINGULAR)
        beta = cupy.sqrt(cupy.where(square > 0, square, 0.0))
        inverse = cupy.where(self.active, 1 / cupy.where(self.active, beta, 1.0), 0.0)
        v.combine(inverse, basis, v.constant(0), basis, self.basis)
        self._lanczos, self._directions = (self.old, self.new, self.y), (self.w_old, self.w)
        self.columns[...] = 0
        self.columns[:, BETA] = self.columns[:, PHI_BAR] = beta
        self.columns[:, C] = -1

    def launch(self, x: Any, number: int) -> None:
        """See :class:`Steps`."""
        dtype, layout, columns, basis = self.system.dtype, self.layout, self.columns, self.basis
        old, now, y = (self._lanczos[(number + k) % 3] for k in range(3))
        w_old, w = (self._directions[(number + k) % 2] for k in range(2))
        self.times(basis, y)
        layout.launch(PROJECT(dtype), (self.partials, columns, basis, old, y))
        layout.launch(EXTEND(dtype, self.kind), (self.partials, columns, self.inverse, now, y))
        if self.kind == GIVEN:
            self.precondition(y, self.z)
            layout.launch(WEIGH(dtype), (self.partials, columns, y, self.z))
        layout.launch(MOVE(dtype, self.kind), (self.partials, columns, self.inverse, y, self.z, w, w_old, basis, x, self.r))
