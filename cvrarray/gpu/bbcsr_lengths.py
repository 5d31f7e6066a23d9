"""How long the bins and rows of a BBCSR on the GPU are: read from the device once for all arrays of a structure."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from ..core.remembered import Remembered
from ..core.tables import WARP, BBCSRTables
from . import bbcsr_rows
from .bbcsr_tables import mean_blocks
from .captures import aside

#: By the table of a structure, which arrays with other values share.
_READ = Remembered()


class Lengths:
    """In blocks, padding counted where nothing else is said; what is asked for is found out once."""

    def __init__(self, tables: BBCSRTables) -> None:
        self._tables = tables
        self.mean = mean_blocks(tables)
        self.n_block_rows = -(-tables.shape[0] // tables.block_size)

    @property
    def slots(self) -> np.ndarray:
        """(n_bins + 1,) int64: ``bin_rowptr`` in host memory."""
        t = self._tables
        return _read(t, "slots", lambda: t.bin_rowptr.get())

    @cached_property
    def bins(self) -> np.ndarray:
        """(n_bins,) int64."""
        lengths: np.ndarray = np.diff(self.slots) // (WARP * self._tables.block_size)
        return lengths

    @cached_property
    def most(self) -> int:
        return int(self.bins.max(initial=0))

    @property
    def rows(self) -> np.ndarray:
        """(n_bins * 32,) int64, padding left out."""
        t = self._tables
        return _read(t, "rows", lambda: bbcsr_rows.blocks_of_rows(t).get().ravel().astype(np.int64))

    @property
    def block_rows(self) -> np.ndarray:
        """(n_block_rows,) int64, padding left out."""
        return self.rows[: self._tables.shape[0] : self._tables.block_size]


def _read(t: BBCSRTables, what: str, read: Callable[[], np.ndarray]) -> np.ndarray:
    def find() -> np.ndarray:
        with aside():
            return read()

    found: np.ndarray = _READ.of(t.bin_rowptr, what, find)
    return found
