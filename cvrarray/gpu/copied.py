"""Copies of a matrix's nonzeros in another order than that of its slots, for products that go by that order.

Where each nonzero goes is the product's layout: it depends on the structure alone, so arrays that differ in their values
share it. Each array has a copy of its own values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import cupy

from ..core.remembered import Remembered
from ..core.tables import BBCSRTables, CVRTables, Sources
from . import assembly, distinct
from .captures import aside


class Layout(Protocol):
    """An order of nonzeros."""

    #: (n,) int32: the slot of the format's that each place of the copy has its value from, counted from 1; 0: none
    source: cupy.ndarray


L = TypeVar("L", bound=Layout)

#: By a table that arrays with other values share, and the kind of layout.
_LAYOUTS = Remembered()


def structure(t: BBCSRTables | CVRTables) -> cupy.ndarray:
    """The table that tells the matrix's structure from others."""
    return t.bin_rowptr if isinstance(t, BBCSRTables) else t.step_ptr


def values(t: BBCSRTables | CVRTables) -> cupy.ndarray:
    """The value table."""
    return t.data if isinstance(t, BBCSRTables) else t.val


class Values:
    """A copy of the values in the order of a layout, as the tables store them, or each in full."""

    def __init__(self, t: BBCSRTables | CVRTables, source: cupy.ndarray, in_full: bool):
        self._tables, self._sources = t, Sources(source, None, None, 1)
        self._is_looked_up = in_full and distinct.is_coded(t.distinct)
        size = source.size if values(t).size or in_full else 0  # one value alone has no table
        self.copy = cupy.empty(size, t.distinct.dtype if self._is_looked_up else values(t).dtype)

    def renew(self) -> None:
        """Copy them again, after they were replaced."""
        t = self._tables
        if not self._is_looked_up:
            if self.copy.size:
                assembly.place(self._sources, values(t), self.copy)
        elif distinct.is_one(t.distinct):
            self.copy[:] = t.distinct[0]
        else:
            numbers = cupy.empty(self.copy.size, values(t).dtype)
            assembly.place(self._sources, values(t), numbers)
            t.distinct.take(numbers, out=self.copy)


def prepared(t: BBCSRTables | CVRTables, key: Hashable, make: Callable[[], L], in_full: bool) -> tuple[L, Values]:
    """The layout that ``make()`` gives, once for all arrays that share it, and the values in its order."""
    with aside():
        layout: L = _LAYOUTS.of(structure(t), key, make)
        copy = Values(t, layout.source, in_full)
        copy.renew()
    return layout, copy
