"""GMRES on a GPU: the basis and its Hessenberg matrix are made by ``kernels/gmres.cu``, a batch of vectors at a time.

A vector is a product and four kernels, of a basis of more than MOST vectors more. While the host solves the small
problems of a batch, the device makes the next one. So it makes up to two batches more than are needed, which nobody
looks at.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from cvrarray.gpu.compiler import Kernel
from cvrarray.gpu.launches import NULL, struct
from cvrarray.gpu.properties import processors
from cvrarray.linalg.gpu.cg import captured
from cvrarray.linalg.gpu.layout import THREADS, VECTORS, Layout
from cvrarray.linalg.gpu.state import DIAGONAL, IDENTITY, Lookout, can_be_captured
from cvrarray.linalg.operators import multiply
from cvrarray.linalg.system import System, apply

#: Vectors of which a thread of gmres_project keeps its entries: fewer registers, where there are few. And the blocks of
#: threads that a multiprocessor has room for then.
MOST = {"f": (8, 20), "c": (8, 16)}
BLOCKS_A_PROCESSOR = {8: 3, 16: 1, 20: 2}

PROJECT = Kernel(
    "gmres",
    "gmres_project",
    [(dtype, most, removes) for (dtype,) in VECTORS for most in MOST[dtype[0]] for removes in (False, True)],
)
REMOVE = Kernel("gmres", "gmres_remove", [(dtype, last) for (dtype,) in VECTORS for last in (False, True)])
NEXT = Kernel("gmres", "gmres_next", VECTORS)
ADD = Kernel("gmres", "gmres_add", VECTORS)

BATCH = 4  #: vectors


class Basis:
    """An orthonormal basis (restart + 1, n, columns) of a Krylov space, in memory that the method gives."""

    def __init__(self, system: System, basis: cupy.ndarray, w: cupy.ndarray, z: cupy.ndarray) -> None:
        self._system, self._basis, self._w, self._z = system, basis, w, z
        self._most, columns = len(basis) - 1, basis.shape[2]
        self._layout = layout = Layout.of(system.n, columns)
        (blocks, tiles), most = layout.grid, self._most
        sums = cupy.empty((2 * max(MOST["f"]) + 2) * tiles * blocks * layout.columns)
        self._partials = struct(sums, cupy.zeros(tiles, np.uint32))
        self._hessenberg = cupy.zeros((most, most + 1, columns), np.complex128)
        self._h = cupy.zeros((most, columns), np.complex128)
        self._again = cupy.zeros(columns, np.int64)
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
        system, layout, basis = self._system, self._layout, self._basis
        count, dtype, H = step + 1, system.dtype, self._hessenberg[step]
        w = multiply(system.matrix, basis[step].reshape(self._w.shape), self._w)
        if system.preconditioner is not None:
            w = apply(system.preconditioner, w, self._z)
        most = next((most for most in MOST[dtype.kind] if count <= most), None)
        if most is None:
            self._orthogonalise_by_halves(w, H, count)
        else:
            self._project(w, H, count, most, removes=False, first=True)
            self._project(w, H, count, most, removes=True, first=False)
            layout.launch(REMOVE(dtype, True), (self._partials, np.int64(count), basis, self._h, w, H, self._again))
        layout.launch(NEXT(dtype), (H[count], w, basis[count]))

    def _orthogonalise_by_halves(self, w: cupy.ndarray, H: cupy.ndarray, count: int) -> None:
        """Remove the first `count` vectors from w, any number."""
        dtype, layout, most = self._system.dtype, self._layout, MOST[self._system.dtype.kind][-1]
        for number in range(2):
            for begin in range(0, count, most):
                self._project(w, H, min(most, count - begin), most, removes=False, first=number == 0, begin=begin)
            layout.launch(REMOVE(dtype, number == 1), (self._partials, np.int64(count), self._basis, self._h, w, H, NULL))

    def _project(
        self, w: cupy.ndarray, H: cupy.ndarray, count: int, most: int, *, removes: bool, first: bool, begin: int = 0
    ) -> None:
        """What w has of `count` vectors from `begin` on, by a kernel for up to `most`."""
        blocks, tiles = self._layout.grid
        grid = min(blocks, BLOCKS_A_PROCESSOR[most] * processors()), tiles
        basis, h, H = (array[begin:] for array in (self._basis, self._h, H))
        PROJECT(self._system.dtype, most, removes)(
            grid,
            (THREADS,),
            (self._layout.shape, self._partials, np.int64(count), basis, w, h, H, self._again, np.bool_(first)),
        )

    def add(self, y: np.ndarray, x: cupy.ndarray) -> None:
        """``x += V @ y`` for y (size, columns), but where that is no number."""
        factors = cupy.asarray(y, np.complex128)
        self._layout.launch(ADD(self._system.dtype), (np.int64(len(y)), self._basis, factors, x))
