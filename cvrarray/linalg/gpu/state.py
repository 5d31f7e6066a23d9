"""Memory of an engine: its vectors, and what the kernels know of each column."""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy
import numpy as np

from cvrarray.array.base import SparseArray
from cvrarray.array.transposed import TransposedArray
from cvrarray.gpu.launches import NULL
from cvrarray.linalg.ends import RUNNING
from cvrarray.linalg.gpu.layout import THREADS, Layout

ALIGNED = 64  # numbers from one vector to the next are a multiple of this: kernels load several at a time
WORDS = 10  # 64-bit words of the kernels' struct Column

#: What a preconditioner is: the enum of ``kernels/cg.cuh``.
IDENTITY, DIAGONAL, BLOCKS, GIVEN = KINDS = range(4)


def preconditioner_kind(preconditioner: Any) -> int:
    """Which of KINDS it is: one that has ``inverse`` (n,) or (n_blocks, size, size) is applied inside the kernels."""
    if preconditioner is None:
        return IDENTITY
    inverse = getattr(preconditioner, "inverse", None)
    if isinstance(inverse, cupy.ndarray):
        if inverse.ndim == 1:
            return DIAGONAL
        if inverse.ndim == 3 and inverse.shape[1] <= THREADS:
            return BLOCKS
    return GIVEN


def can_be_captured(matrix: Any, preconditioner: Any, applied: tuple[int, ...] = (IDENTITY, DIAGONAL, BLOCKS)) -> bool:
    """Whether products with both are kernels of ours: nobody knows whether a graph could hold those of others. A transposed
    view needs tables that are kept.

    Preconditioners of the kinds `applied` are applied by the method's own kernels. Others apply themselves, and say
    whether a graph can hold that.
    """
    is_applied = preconditioner_kind(preconditioner) in applied
    if isinstance(matrix, TransposedArray) and matrix._own is None:
        return False
    return isinstance(matrix, SparseArray) and (
        is_applied or isinstance(preconditioner, SparseArray) or getattr(preconditioner, "capturable", False)
    )


class Words(NamedTuple):
    """What the host reads of each column."""

    norm: np.ndarray
    iterations: np.ndarray
    reason: np.ndarray


class Lookout:
    """Looks of the host at numbers of columns: some may be sent while the last ones are waited for."""

    def __init__(self, columns: cupy.ndarray) -> None:
        self._columns = columns
        self._pinned = [(cupy.cuda.alloc_pinned_memory(columns.nbytes), cupy.cuda.Event()) for _ in range(2)]

    def send(self, slot: int) -> None:
        """Begin to copy the columns' states to host memory."""
        memory, event = self._pinned[slot]
        stream = cupy.cuda.get_current_stream()
        self._columns.data.copy_to_host_async(memory.ptr, self._columns.nbytes, stream)
        event.record(stream)

    def received(self, slot: int) -> np.ndarray:
        """What was sent, when it is there; the next one of the slot is written over it."""
        memory, event = self._pinned[slot]
        event.synchronize()
        return np.frombuffer(memory, self._columns.dtype, self._columns.size).reshape(self._columns.shape)


class State:
    """Vectors, columns' states, sums, and the preconditioner's numbers where kernels apply it."""

    def __init__(self, layout: Layout, dtype: np.dtype, kind: int, block_size: int) -> None:
        self._layout, self._dtype = layout, np.dtype(dtype)
        size = layout.n * layout.k
        apart = -(-size // ALIGNED) * ALIGNED
        memory = cupy.zeros((5 if kind in (BLOCKS, GIVEN) else 4) * apart, dtype)
        self.x, self.r, self.p, self.q = (memory[k * apart : k * apart + size] for k in range(4))
        self.z = memory[4 * apart : 4 * apart + size]  # without entries where the kernels need none
        self.inverse: Any = NULL
        self.block_size = np.int32(block_size)
        self.shared_mem = THREADS * self._dtype.itemsize if kind == BLOCKS else 0
        self.columns = cupy.zeros((layout.k, WORDS), np.float64)
        self.tolerance = self._none = cupy.full(layout.k, -1.0)
        self._tolerance = cupy.empty(layout.k)
        self.sums = layout.partials()
        self.limit = 0
        self.history: Any = NULL
        self._kept: cupy.ndarray | None = None
        self._lookout: Any = None

    def set_inverse(self, inverse: cupy.ndarray) -> None:
        """Copy the preconditioner's numbers, in the vectors' dtype."""
        if self.inverse is NULL:
            self.inverse = cupy.empty(inverse.shape, self._dtype)
        self.inverse[...] = inverse

    def begin(self, tolerance: np.ndarray | None, limit: int, history: bool) -> None:
        """Before a solve: thresholds for norms of residuals, or None where a number of iterations is asked for."""
        self.limit = limit
        if tolerance is None:
            self.tolerance = self._none
        else:
            self._tolerance.set(np.ascontiguousarray(np.broadcast_to(tolerance, self._layout.k), np.float64))
            self.tolerance = self._tolerance
        if history and (self._kept is None or len(self._kept) <= limit):
            self._kept = cupy.zeros((limit + 1, self._layout.k))
        self.history = self._kept if history else NULL

    def key(self) -> Any:
        """What graphs hold of the state that may change."""
        return None if self.history is NULL else self._kept.data.ptr

    def norms(self) -> cupy.ndarray:
        """(k,) of the residuals, on the device: a copy, but in a capture the place that replays write to."""
        found = self.columns[:, 3]
        return found if cupy.cuda.get_current_stream().is_capturing() else found.copy()

    def history_until(self, last: int) -> cupy.ndarray | None:
        """(last + 1, k) of the norms so far, if they are kept."""
        if self.history is NULL:
            return None
        found = self._kept[: last + 1]
        return found if cupy.cuda.get_current_stream().is_capturing() else found.copy()

    def send(self, slot: int) -> None:
        """Begin to copy the columns' states to host memory."""
        if self._lookout is None:
            self._lookout = Lookout(self.columns)
        self._lookout.send(slot)

    def received(self, slot: int) -> Words:
        """What was sent, when it is there."""
        words = self._lookout.received(slot)
        whole = words.view(np.int64)
        return Words(words[:, 3].copy(), whole[:, 6].copy(), whole[:, 8].copy())

    def assumed(self) -> Words:
        """What the states are as a rule when columns begin: nothing is looked at."""
        k = self._layout.k
        return Words(np.zeros(k), np.zeros(k, np.int64), np.full(k, RUNNING))

    def read(self) -> Words:
        """The columns' states now: waits for the stream."""
        self.send(0)
        return self.received(0)
