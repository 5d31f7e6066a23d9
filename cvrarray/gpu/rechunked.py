"""The tables of a CVR matrix again, in fewer and longer chunks, for ``A @ X``.

Chunks of a small matrix are short, so that a product with a vector has one for every warp of the device. A product with
a matrix has a thread block for each chunk and some columns of X. What a block waits for before its first sum and after
its last one is then a large part of its time, and long rows are cut often. So such a matrix gets longer chunks for it,
which arrays with other values share, and a copy of its values. ``asarray(A, columns=k)`` makes them at once, and no copy.

The order of sums is another one than in the array's own chunks. So it is the structure and the number of columns alone
that decide, before the first product; and where memory is short, an error says so.
Measured: ``docs/measurements/matrix-products.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import cupy
import numpy as np

from ..core.tables import CVRTables
from . import copied


class Layout:
    """Tables of the same matrix, whose values are the numbers of slots."""

    def __init__(self, tables: CVRTables) -> None:
        self.tables, self.source = tables, tables.val.view(np.int32)


class Rearranged:
    """The matrix of `own` in the tables of a layout, which arrays of its structure share under a key; ``tables`` are those,
    with a copy of its values, and ``renew()`` copies these again, after they were replaced.

    Raises
    ------
    MemoryError
        The device has none for the copy: with this message.
    """

    def __init__(self, own: CVRTables, key: Hashable, make: Callable[[], Layout], too_little: str) -> None:
        try:
            self.layout, values = copied.prepared(own, key, make, in_full=False)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(too_little) from error
        self.tables = self.layout.tables._replace(val=values.copy, distinct=own.distinct)
        self.renew = values.renew


class Rechunked(Rearranged):
    """The matrix of `own` in `n_chunks` chunks."""

    def __init__(self, own: CVRTables, n_chunks: int, rechunk: Callable[[], CVRTables]) -> None:
        """``rechunk()`` are the tables in these, with slots' numbers for values."""
        too_little = (
            f"A @ X of {own.nnz:,} nonzeros needs a copy of them in longer chunks, for which the device has no memory:"
            " asarray(..., columns=k) makes an array that needs none"
        )
        super().__init__(own, ("chunks", n_chunks), lambda: Layout(rechunk()), too_little)
