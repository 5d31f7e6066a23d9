"""All iterations of conjugate gradients in one cooperative kernel, for systems of BBCSR that fit the device: ``kernels/cg_bbcsr.cu``.

A block has neighbouring bins, and keeps its parts of vectors, and of tables where these fit, in shared memory.
"""

from __future__ import annotations

from math import lcm
from typing import Any, NamedTuple

import cupy
import numpy as np

from cvrarray.bbcsr import BBCSRArray
from cvrarray.core.tables import WARP, BBCSRTables, mask_dtype
from cvrarray.gpu import bbcsr
from cvrarray.gpu.compiler import PRODUCTS, Kernel, processors, struct
from cvrarray.linalg.gpu.layout import Layout
from cvrarray.linalg.gpu.state import BLOCKS, DIAGONAL, GIVEN, IDENTITY, State

#: Iterations of a launch, at most: the host can be interrupted between launches.
BATCH = 4096
MOST = 3  # sums at a time: MOST of the kernel
BIN = 40  # bytes of the kernel's struct Bin, at most
RESERVED = 4096  # bytes of shared memory for the kernel's own variables
THREADS = 512

BBCSR = Kernel(
    "cg_bbcsr",
    "cg_bbcsr",
    [
        (*dtypes, *how)
        for dtypes in [pair for pair in PRODUCTS if np.dtype(pair[1]).kind in "fc"]
        for how in (("int32", 1, False, 1, False, 512, 0), ("int32", 3, False, 2, False, 512, 1), ("int64", 6, False, 4, True, 512, 1))
    ],
    lambda value, product, index, size, far, sharers, holes, threads, read: (
        value, product, index, mask_dtype(size), size, *bbcsr.unroll(size, product.itemsize, far), holes, sharers, threads, read,
    ),
)  # fmt: skip


class Plan(NamedTuple):
    """How bins and vectors are laid out."""

    first_bin: cupy.ndarray  # (blocks + 1,) int32
    places: tuple[int, ...]  # in shared memory, of x, r, z, s, inverse; the tables; the end
    sharers: int
    tables_fit: bool


def loop(matrix: Any, state: State, layout: Layout, kind: int, **how: Any) -> Persistent | None:
    """The loop for this matrix, or None where it would not fit, or would be slower than a graph."""
    if not isinstance(matrix, BBCSRArray) or kind == GIVEN or layout.k != 1 or not layout.n:
        return None
    tables = matrix._tables
    plan = plan_for(tables, state.x.dtype, kind, int(state.block_size), **how)
    return None if plan is None else Persistent(tables, state, kind, plan, **how)


def plan_for(
    t: BBCSRTables, dtype: np.dtype, kind: int, block_size: int, threads: int = THREADS, on_chip: bool | None = None, **_: Any
) -> Plan | None:
    """Bins for each block, of about the same number of slots, and places for its parts of vectors."""
    device = cupy.cuda.runtime.getDevice()
    n_bins, warps = t.col_base.size, threads // WARP
    unit = lcm(WARP, block_size) // WARP  # bins that a block of the preconditioner may not be cut out of
    n_units = -(-n_bins // unit)
    blocks = min(processors(device), n_units)
    pointer = t.bin_rowptr.get()
    work = pointer + 8 * WARP * np.arange(n_bins + 1)
    units = work[np.minimum(np.arange(n_units + 1) * unit, n_bins)]
    cuts = np.searchsorted((units[:-1] + units[1:]) / 2, work[-1] * np.arange(1, blocks) / blocks)
    first_bin = np.concatenate([[0], np.minimum(cuts * unit, n_bins), [n_bins]]).astype(np.int32)
    bins = int(np.diff(first_bin).max())
    rows = bins * WARP
    mean_blocks = bbcsr._mean_blocks(t)
    sharers = 1
    while sharers < 16 and 2 * sharers * bins <= warps and 2 * sharers <= max(1, mean_blocks):
        sharers *= 2
    most = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"] - RESERVED
    at = -(-MOST * blocks * 8 // 16) * 16 + -(-bins * BIN // 16) * 16
    item = dtype.itemsize
    wanted = {
        "s": rows * sharers,
        "r": rows,
        "z": rows if kind == BLOCKS else 0,
        "inverse": rows if kind == DIAGONAL else 0,
        "x": rows,
    }
    places = dict.fromkeys(wanted, -1)
    for name, count in wanted.items():
        size = -(-count * item // 16) * 16
        if count and at + size <= most:
            places[name], at = at, at + size
        elif count and name not in ("x", "inverse"):
            return None
    bytes_of_tables = sum(a.nbytes for a in (t.data, t.col_narrow, t.col_wide) if a is not None)
    fits = bytes_of_tables * 2 <= (most - at) * blocks if on_chip is None else on_chip
    end = most if fits else at
    return Plan(cupy.asarray(first_bin), (*(places[name] for name in ("x", "r", "z", "s", "inverse")), at, end), sharers, fits)


class Persistent:
    """Launches of the kernel."""

    batch = BATCH

    def __init__(
        self, t: BBCSRTables, state: State, kind: int, plan: Plan, threads: int = THREADS, read: int | None = None, **_: Any
    ) -> None:
        self._state, self._plan, self._threads = state, plan, threads
        read = int(plan.tables_fit) if read is None else read
        self._bins = bbcsr._struct(t)
        self._kernel = BBCSR(
            t.data.dtype,
            state.x.dtype,
            t.col_wide.dtype,
            t.block_size,
            bbcsr.is_far(t),
            plan.sharers,
            t.present is not None,
            threads,
            read,
        )
        end = plan.places[-1]
        cupy.cuda.driver.funcSetAttribute(
            self._kernel.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, end
        )
        blocks = plan.first_bin.size - 1
        self._words = cupy.zeros(4 * MOST * blocks, np.uint64)
        self._size = {IDENTITY: 0, DIAGONAL: 1, BLOCKS: int(state.block_size)}[kind]

    def launch(self, count: int) -> None:
        """Run `count` iterations, or as many as there are to the end."""
        s, p = self._state, self._plan
        inverse = s.inverse if self._size else None
        history = s.history if isinstance(s.history, cupy.ndarray) else None
        places = (place & (1 << 64) - 1 for place in p.places)
        vectors = struct(s.x, s.r, s.z, s.p, s.q, inverse, history, self._size, *places)
        self._words.data.memset_async(0, self._words.nbytes)
        self._kernel(
            (p.first_bin.size - 1,),
            (self._threads,),
            (self._bins, p.first_bin, vectors, s.columns, self._words, np.int64(count)),
            shared_mem=p.places[-1],
            enable_cooperative_groups=True,
        )
