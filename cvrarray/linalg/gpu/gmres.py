"""GMRES on a GPU: the basis and its Hessenberg matrix are made by ``kernels/gmres.cu``, a batch of vectors at a time.

A vector is a product and five kernels. While the host solves the small problems of a batch, the device makes the next
one. So it makes up to two batches more than are needed, which nobody looks at.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from cvrarray.gpu.compiler import Kernel, struct
from cvrarray.linalg.gpu.cg import captured
from cvrarray.linalg.gpu.layout import THREADS, VECTORS, Layout
from cvrarray.linalg.gpu.state import DIAGONAL, IDENTITY, Lookout, can_be_captured
from cvrarray.linalg.operators import multiply
from cvrarray.linalg.system import System, apply

SUMS = Kernel("gmres", "gmres_sums", VECTORS)
REMOVE = Kernel("gmres", "gmres_remove", [(dtype, last) for (dtype,) in VECTORS for last in (False, True)])
NEXT = Kernel("gmres", "gmres_next", VECTORS)

#: Vectors of a batch, and of the basis that a block of gmres_sums has.
BATCH = AT_ONCE = 4


class Basis:
    """An orthonormal basis (restart + 1, n, columns) of a Krylov space, in memory that the method gives."""

    def __init__(self, system: System, basis: cupy.ndarray, w: cupy.ndarray, z: cupy.ndarray) -> None:
        self._system, self._basis, self._w, self._z = system, basis, w, z
        self._most, columns = len(basis) - 1, basis.shape[2]
        self._layout = layout = Layout.of(system.n, columns)
        (blocks, tiles), most = layout.grid, self._most
        groups = -(-most // AT_ONCE)
        sums = cupy.empty(groups * tiles * blocks * 2 * AT_ONCE * layout.columns)
        self._partials = struct(sums, cupy.zeros(groups * tiles, np.uint32))
        self._hessenberg = cupy.zeros((most, most + 1, columns), np.complex128)
        self._h = cupy.zeros((most, columns), np.complex128)
        self._lookouts = [Lookout(self._hessenberg[start : start + BATCH]) for start in range(0, most, BATCH)]
        self._graphs: list[Any] = [None] * len(self._lookouts)
        self._is_graph = can_be_captured(system.matrix, system.preconditioner, (IDENTITY, DIAGONAL))
        self._n_cycles = self._n_launched = 0

    def extend(self, step: int) -> np.ndarray:
        """(step + 2, columns) of the Hessenberg matrix: the coefficients of ``M @ A @ (the basis's vector of this step)``.

        Step 0 begins anew, from the basis's first vector.
        """
        if step == 0:
            self._n_launched = 0
            self._n_cycles += 1
        batch = step // BATCH
        while self._n_launched < min(batch + 2, len(self._lookouts)):
            self._launch(self._n_launched)
            self._n_launched += 1
        h: np.ndarray = self._lookouts[batch].received(0)[step % BATCH, : step + 2]
        return h if self._system.dtype.kind == "c" else h.real

    def _launch(self, batch: int) -> None:
        """Make a batch of vectors, and send what the host needs of them."""
        if not self._is_graph or self._n_cycles == 1:  # the first cycle compiles and prepares what no capture can
            self._make(batch)
        else:
            if self._graphs[batch] is None:
                self._graphs[batch] = captured(lambda: self._make(batch))
            self._graphs[batch].launch(cupy.cuda.get_current_stream())
        self._lookouts[batch].send(0)

    def _make(self, batch: int) -> None:
        for step in range(batch * BATCH, min((batch + 1) * BATCH, self._most)):
            self._make_vector(step)

    def _make_vector(self, step: int) -> None:
        """The next vector, of ``M @ A @ (the last one)``, and a column of the Hessenberg matrix."""
        system, layout, basis, partials = self._system, self._layout, self._basis, self._partials
        count, dtype, H = step + 1, system.dtype, self._hessenberg[step]
        w = multiply(system.matrix, basis[step].reshape(self._w.shape), self._w)
        if system.preconditioner is not None:
            w = apply(system.preconditioner, w, self._z)
        for number in range(2):
            SUMS(dtype)(
                (*layout.grid, -(-count // AT_ONCE)),
                (THREADS,),
                (layout.shape, partials, np.int64(count), basis, w, self._h, H, np.bool_(number == 0)),
            )
            layout.launch(REMOVE(dtype, number == 1), (partials, np.int64(count), basis, self._h, w, H))
        layout.launch(NEXT(dtype), (H[count], w, basis[count]))
