"""Which rows of X ``A @ X`` reads, where these are few: no others need be copied to C order."""

from __future__ import annotations

from collections.abc import Callable

import cupy

from ..core.remembered import Remembered
from ..core.tables import CSR, BBCSRTables, CVRTables
from .captures import aside
from .copied import structure

#: They are few where they are at most so many of X's, and of short rows of X so many over FULL bytes: a sector is read for each
#: number of a row that is read alone. They are looked for where A has at most so many nonzeros a column, and X so many bytes:
#: less is copied in the time of a launch.
FEW, FULL, MOST_NONZEROS, LARGE = 0.4, 128, 2, 4 << 20

#: By a table that arrays with other values share.
_FOUND = Remembered()


def rows_read(
    t: BBCSRTables | CVRTables, row_bytes: int, to_csr: Callable[[BBCSRTables | CVRTables, int, int], CSR]
) -> cupy.ndarray | None:
    """(n,) int64: the columns of A that are not empty; None where rows of X, of `row_bytes`, are better copied all, and for a
    CUDA graph.
    """
    n_rows, n_cols = t.shape
    if t.nnz > MOST_NONZEROS * n_cols or n_cols * row_bytes < LARGE or cupy.cuda.get_current_stream().is_capturing():
        return None

    def find() -> cupy.ndarray | None:
        with aside():
            is_read = cupy.zeros(n_cols, bool)
            is_read[to_csr(t, 0, n_rows).indices] = True
            found = cupy.flatnonzero(is_read)
            return found if found.size <= FEW * n_cols else None

    few: cupy.ndarray | None = _FOUND.of(structure(t), "rows read", find)
    return None if few is None or few.size * FULL > n_cols * row_bytes else few
