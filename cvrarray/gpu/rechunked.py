"""The tables of a CVR matrix again, in fewer and longer chunks, for ``A @ X``.

Chunks of a small matrix are short, so that a product with a vector has one for every warp of the device. A product with
a matrix has a thread block for each chunk and some columns of X. What a block waits for before its first sum and after
its last one is then a large part of its time, and long rows are cut often. So such a matrix gets longer chunks for it,
which arrays with other values share, and a copy of its values. ``asarray(A, columns=k)`` makes them at once, and no copy.

The order of sums is another one than in the array's own chunks. So it is the structure and the number of columns alone
that decide, before the first product; and where memory is short, an error says so.
Measured: ``docs/measurements/0010-gpu-matrix-and-transposed.md``.
"""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from ..core.remembered import Remembered
from ..core.tables import CSR, CVRTables
from .compiler import aside
from .words import as_words

Convert = Callable[[CSR, int, int, str], CVRTables]
Places = Callable[[], tuple[cupy.ndarray, cupy.ndarray]]

#: By the chunks of an array, which those with other values share: the longer ones, with slots' numbers for values.
_CHUNKS = Remembered()


class Rechunked:
    """The matrix of `own` in `n_chunks` chunks; ``tables`` are those.

    ``places()`` are row and column of every slot, and `convert` makes tables: those of :mod:`.cvr`.

    Raises
    ------
    MemoryError
        The device has none for the copy.
    """

    def __init__(self, own: CVRTables, n_chunks: int, places: Places, convert: Convert) -> None:
        self.own = own
        try:
            with aside():
                found = _CHUNKS.of(
                    own.step_ptr, n_chunks, lambda: convert(_slots(own, *places()), own.n_lanes, n_chunks, "even")
                )
                self.slot = found.val.view(np.uint32)
                size = self.slot.size if own.val.size else 0  # one value alone has no table
                self.tables = found._replace(val=cupy.empty(size, own.val.dtype), distinct=own.distinct)
                self.renew()
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(
                f"A @ X of {own.nnz:,} nonzeros needs a copy of them in longer chunks, for which the device has no memory:"
                " asarray(..., columns=k) makes an array that needs none"
            ) from error
        if cupy.cuda.get_current_stream().is_capturing():
            self.renew()  # the graph may write the values before

    def renew(self) -> None:
        """Copy the values again, after they were replaced."""
        if self.tables.val.size:
            as_words(self.own.val).take(self.slot, out=as_words(self.tables.val))


def _slots(t: CVRTables, row: cupy.ndarray, col: cupy.ndarray) -> CSR:
    """The canonical CSR with the number of each entry's slot for its value, as 32 bits of a float, for which there is a
    kernel. The row of a pad is -1.
    """
    offset = np.int32 if col.dtype == np.int32 else np.int64
    slot = cupy.lexsort(cupy.stack([col, row]))[row.size - t.nnz :]
    ptr = cupy.searchsorted(row[slot], cupy.arange(t.shape[0] + 1, dtype=row.dtype)).astype(offset)
    return CSR(ptr, col[slot], slot.astype(np.uint32).view(np.float32), t.shape)
