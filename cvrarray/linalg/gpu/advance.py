"""An iteration but for its product, in one cooperative launch: ``cg_advance`` of ``kernels/cg.cu``."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from cvrarray.gpu.compiler import Kernel, allowed, constant
from cvrarray.gpu.properties import attribute
from cvrarray.linalg.gpu.layout import MANY, VECTORS, Layout
from cvrarray.linalg.gpu.state import BLOCKS, DIAGONAL, GIVEN, IDENTITY, WORDS, State

ADVANCE = Kernel("cg", "cg_advance", [(dtype, kind) for (dtype,) in VECTORS for kind in (IDENTITY, DIAGONAL, BLOCKS)])

#: Columns, at most: each block adds up the sums of all blocks for all of them.
MOST_COLUMNS = constant("cg.cu", "MOST_COLUMNS")
N_SUMS = 3  # of a column in an iteration


class Advance:
    """Launches of the kernel, over the vectors of `state`."""

    def __init__(self, state: State, n: int, k: int, kind: int) -> None:
        size, itemsize = int(state.block_size), state.x.itemsize
        self._state, self._kernel = state, ADVANCE(state.x.dtype, kind)
        self._layout = layout = Layout.of_waiting_blocks(n, k, size)
        blocks = layout.grid[0]
        driver = cupy.cuda.driver
        own = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, self._kernel.ptr)
        most = attribute("MaxSharedMemoryPerBlockOptin") - own
        needed = 8 * WORDS * k + (MANY * itemsize if kind == BLOCKS else 0)
        self._kept = min(-(-n // (layout.rows * blocks)), (most - needed) // (MANY * itemsize))
        self._shared = needed + self._kept * MANY * itemsize
        allowed(self._kernel, most)
        self._words, self._marks = cupy.zeros(N_SUMS * blocks * k), cupy.zeros(blocks, np.uint32)

    def launch(self) -> None:
        """All that an iteration does after its product."""
        s = self._state
        self._kernel(
            self._layout.grid,
            (MANY,),
            (self._layout.shape, self._words, self._marks, s.columns, s.inverse, s.block_size, np.int32(self._kept),
             s.q, s.r, s.z, s.x, s.p, s.history),
            shared_mem=self._shared,
            enable_cooperative_groups=True,
        )  # fmt: skip


def advance(state: State, layout: Layout, kind: int) -> Any:
    """The launches for these vectors, or None where there are none."""
    fits = kind != GIVEN and 0 < layout.k <= min(MOST_COLUMNS, MANY // int(state.block_size)) and layout.n > 0
    return Advance(state, layout.n, layout.k, kind) if fits and attribute("CooperativeLaunch") else None
