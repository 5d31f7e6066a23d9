"""What an array keeps beside its tables: prepared products, its transpose, its CSR, what it knows of its structure.

Each is an object with an invalidation of its own. What is computed from values is kept with the version of the values,
and used only while the array has that version.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from ..core.arrays import Run
from ..core.tables import CSR
from ..input import coercion
from . import encoding
from .budget import Budget
from .products import Few

#: What the CSRs of all arrays may take: ``CVRARRAY_CSR_MEMORY``, by default an eighth of the machine's memory.
BUDGET = Budget("CVRARRAY_CSR_MEMORY", 1 / 8)

#: Slices of less than this part of the rows are read from the tables, and do not count.
PART = 1 / 16


class Pending(NamedTuple):
    """What an operation leaves of its result: an array whose tables have not been asked for yet."""

    csr: CSR  # nobody writes to its arrays, which others may have too
    keywords: dict[str, Any]  # of the constructor, which makes the tables


class Origin:
    """The CSR of one array: what the tables are to be made of, what was kept when it was read back, or none.

    An operation that makes a new structure starts from CSR, and reading the tables back takes as long as the operation. So
    on a CPU what is read for the second time, in one piece or in several, is kept while the array lives. All that is kept in
    a process stays within :data:`BUDGET`.
    """

    pending: Pending | None = None
    _kept: tuple[CSR, int] | None = None  # the CSR, and the version of the array's values in it
    _n_rows: int = 0  # that were read back so far

    def csr(self, version: int | None) -> CSR | None:
        """The CSR of the array with values of this version, where it is there; nobody writes to its arrays."""
        pending, kept = self.pending, self._kept
        if pending is not None:
            return pending.csr
        return kept[0] if kept is not None and kept[1] == version else None

    def read(self, array: Any, n_rows: int) -> CSR | None:
        """:meth:`csr`, of which so many rows are wanted now: kept from now on where as many as the array has were read
        before, and there is room.
        """
        version = array._version
        csr = self.csr(version)
        if csr is not None:
            return csr
        before, self._n_rows = self._n_rows, self._n_rows + n_rows
        if not n_rows or before < array.shape[0] or array._target.kind != "cpu":
            return None
        index = coercion.index_dtype(array.shape).itemsize
        if not BUDGET.has_room(int((array.shape[0] + 1) * index + array.nnz * (index + array.dtype.itemsize))):
            return None
        csr = encoding.decoded(array)
        if version is not None:  # else values are being replaced
            BUDGET.hold(array, sum(part.nbytes for part in csr[:3]))
            self._kept = csr, version
        return csr

    def drop(self, array: Any) -> None:
        """Forget what was kept of `array`, whose values are others now."""
        if self._kept is not None:
            self._kept = None
            BUDGET.hold(array, 0)


class Products:
    """The prepared products of one array. None of them keeps the array alive.

    Whoever prepares one takes the dictionary before: where products were dropped meanwhile, what is entered is not found.
    """

    __slots__ = ("kernels", "ready")
    kernels: dict[tuple[str, np.dtype], Run]  # kind and the product's dtype -> what the device's module prepared
    ready: Few  # dtype and shape of x -> all that a call needs

    def __init__(self) -> None:
        self.kernels, self.ready = {}, Few()

    def drop(self) -> None:
        """Forget them."""
        self.kernels, self.ready = {}, Few()

    def renew(self) -> None:
        """Have those that copied values copy the new ones."""
        for run in list(self.kernels.values()):
            if hasattr(run, "renew"):
                run.renew()


class State(Enum):
    """Whether an array keeps tables of its transpose."""

    UNDECIDED = "no product has needed them yet"
    REFUSED = "there shall be none"
    KEPT = "there are some"


class Transpose:
    """What an array keeps of its transpose: tables, with the version of the values in them, and products with it."""

    state = State.UNDECIDED
    tables: Any = None  # an array that is the transpose
    version: int | None = None  # None where it must get the values before its next product
    is_in_graphs = False  # whether CUDA graphs multiply by the tables

    def __init__(self) -> None:
        self.products = Products()

    def is_old(self, version: int | None) -> bool:
        """Whether there are tables that have not got the array's values, of this version, yet."""
        return self.state is State.KEPT and (version is None or self.version != version)


class Orders(Few):
    """Orders of values that a structure remembers."""

    __slots__ = ()
    most = 4


class Structure:
    """What arrays that differ in their values alone know together."""

    __slots__ = ("__weakref__", "order", "places", "slots", "sources")

    def __init__(self) -> None:
        self.slots: Any = None  # (nnz,) where each entry of the canonical CSR lies in the value table
        self.places: dict[bool, tuple[Any, Any]] = {}  # rows and columns of these entries, and (True) of the transpose's
        self.order: Any = None  # the same as the format has it, once asked for
        self.sources = Orders()  # by the order of values: Sources, or None for that of the canonical CSR


def forget(array: Any, version: int | None) -> None:
    """Drop what was computed from the values of `array`: they are being replaced (None), or have this version now."""
    array._version = version
    array._origin.drop(array)
    array._transpose.products.ready = Few()  # it has no kernels
