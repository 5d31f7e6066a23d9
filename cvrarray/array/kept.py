"""The canonical CSR that an array on the CPU keeps of itself beside its tables.

An operation that makes a new structure starts from CSR, and reading the tables back takes as long as the operation. So
what is read for the second time, in one piece or in several, is kept while the array lives: then ``A + B``, ``A @ B``,
slices and stacks of arrays that are used again take as long as they take from CSR. An array that is read back once
keeps nothing. All that is kept in a process stays within :data:`BUDGET`.
"""

from __future__ import annotations

from typing import Any

from ..core.tables import CSR
from ..input import coercion
from .budget import Budget

#: What the CSRs of all arrays may take: ``CVRARRAY_CSR_MEMORY``, by default an eighth of the machine's memory.
BUDGET = Budget("CVRARRAY_CSR_MEMORY", 1 / 8)

#: Slices of less than this part of the rows are read from the tables, and do not count.
PART = 1 / 16


class Kept:
    """What an array keeps: its CSR, or nothing and how much of it was read back so far."""

    _held: tuple[CSR, int] | None = None  # the CSR, and the version of the array's values in it
    _n_rows: int = 0

    @property
    def csr(self) -> CSR | None:
        """What is kept, whether or not the array has the same values still."""
        held = self._held
        return None if held is None else held[0]

    def current(self, array: Any) -> CSR | None:
        """The CSR of `array`, where it is kept and has the values that the array has now."""
        held = self._held
        return held[0] if held is not None and held[1] == array._version else None

    def is_wanted(self, array: Any, n_rows: int) -> bool:
        """Whether `array`, of which so many rows are to be read back now, shall keep its CSR: as many rows as it has were
        read before, and there is room.
        """
        before, self._n_rows = self._n_rows, self._n_rows + n_rows
        if not n_rows or before < array.shape[0] or array._target.kind != "cpu":
            return False
        index = coercion.index_dtype(array.shape).itemsize
        size = (array.shape[0] + 1) * index + array.nnz * (index + array.dtype.itemsize)
        return BUDGET.has_room(int(size))

    def keep(self, array: Any, csr: CSR, version: int | None) -> None:
        """Keep `csr`, which `array` had when its values had this version, while the array lives; nothing of values that were
        being replaced (None).
        """
        if version is None:
            return
        BUDGET.hold(array, sum(part.nbytes for part in csr[:3]))
        self._held = csr, version

    def drop(self, array: Any) -> None:
        """Forget the CSR of `array`, whose values are others now."""
        if self._held is not None:
            self._held = None
            BUDGET.hold(array, 0)
