"""The canonical CSR that an array on the CPU keeps of itself beside its tables.

An operation that makes a new structure starts from CSR, and reading the tables back takes as long as the operation. So
what is read for the second time, in one piece or in several, is kept while the array lives: then ``A + B``, ``A @ B``,
slices and stacks of arrays that are used again take as long as they take from CSR. An array that is read back once
keeps nothing. All that is kept in a process takes no more than :func:`most_bytes`.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from ..core import devices
from ..core.tables import CSR
from ..input import coercion, partition

#: Of the machine's memory, the share that all of them may take where nothing else is said.
SHARE = 1 / 8

#: Slices of less than this part of the rows are read from the tables, and do not count.
PART = 1 / 16

_sizes: dict[int, int] = {}  # bytes, by the arrays' identity, while they live


def most_bytes() -> int:
    """Bytes that the CSRs that all arrays keep together may take: ``CVRARRAY_CSR_MEMORY``, 0 for none.

    Raises
    ------
    ValueError
        The variable is set, and is no number of bytes.

    Examples
    --------
    >>> from cvrarray.array import kept
    >>> kept.most_bytes() > 0
    True
    """
    wanted = os.environ.get("CVRARRAY_CSR_MEMORY", "").strip()
    if wanted == "0":
        return 0
    if wanted:
        return partition.n_bytes(wanted, "CVRARRAY_CSR_MEMORY")
    return int(SHARE * devices.CPU.backend("runtime.memory").installed())


def n_bytes() -> int:
    """Bytes that they take now.

    Examples
    --------
    >>> from cvrarray.array import kept
    >>> kept.n_bytes() >= 0
    True
    """
    return sum(list(_sizes.values()))


class Kept:
    """What an array keeps: its CSR, or nothing and how much of it was read back so far."""

    csr: CSR | None = None
    _n_rows: int = 0

    def is_wanted(self, array: Any, n_rows: int) -> bool:
        """Whether `array`, of which so many rows are to be read back now, shall keep its CSR: as many rows as it has were
        read before, and there is room.

        Examples
        --------
        >>> from cvrarray.array import kept
        >>> A = cvrarray.CVRArray([[1.0, 2.0]])
        >>> [kept.Kept().is_wanted(A, 1), (one := kept.Kept()).is_wanted(A, 1), one.is_wanted(A, 1)]
        [False, False, True]
        """
        before, self._n_rows = self._n_rows, self._n_rows + n_rows
        if not n_rows or before < array.shape[0] or array._target.kind != "cpu":
            return False
        index = coercion.index_dtype(array.shape).itemsize
        size = (array.shape[0] + 1) * index + array.nnz * (index + array.dtype.itemsize)
        return bool(n_bytes() + size <= most_bytes())

    def keep(self, array: Any, csr: CSR) -> None:
        """Keep `csr`, which is `array`'s, while the array lives.

        Examples
        --------
        >>> from cvrarray.array import kept
        >>> A = cvrarray.CVRArray([[1.0, 2.0]])
        >>> one = kept.Kept()
        >>> one.keep(A, A._canonical_csr())
        >>> one.csr.nnz
        2
        """
        if id(array) not in _sizes:
            weakref.finalize(array, _sizes.pop, id(array), None).atexit = False
        _sizes[id(array)] = sum(part.nbytes for part in csr[:3])
        self.csr = csr

    def drop(self, array: Any) -> None:
        """Forget the CSR of `array`, whose values are others now.

        Examples
        --------
        >>> from cvrarray.array import kept
        >>> one = kept.Kept()
        >>> one.drop(cvrarray.CVRArray([[1.0, 2.0]]))
        >>> one.csr is None
        True
        """
        if self.csr is not None:
            self.csr = None
            _sizes[id(array)] = 0
