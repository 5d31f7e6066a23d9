"""Copies of a CVR matrix's nonzeros in another order than that of its slots, for products that go by that order.

Where each nonzero goes is the product's layout: it depends on the structure alone, so arrays that differ in their values
share it. Each array has a copy of its own values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import cupy

from ..core.remembered import Remembered
from ..core.tables import CVRTables, Sources
from . import assembly, distinct
from .compiler import aside


class Layout(Protocol):
    """An order of nonzeros."""

    #: (n,) int32: the slot of CVR's that each place of the copy has its value from, counted from 1; 0: none
    source: cupy.ndarray


L = TypeVar("L", bound=Layout)

#: By a matrix's steps, which arrays with other values share, and the kind of layout.
_LAYOUTS = Remembered()


class Values:
    """A copy of the values in the order of a layout, as the tables store them, or each in full."""

    def __init__(self, t: CVRTables, source: cupy.ndarray, in_full: bool):
        self._tables, self._sources = t, Sources(source, None, None, 1)
        self._is_looked_up = in_full and distinct.is_coded(t.distinct)
        size = source.size if t.val.size or in_full else 0  # one value alone has no table
        self.copy = cupy.empty(size, t.distinct.dtype if self._is_looked_up else t.val.dtype)

    def renew(self) -> None:
        """Copy them again, after they were replaced."""
        t = self._tables
        if not self._is_looked_up:
            if self.copy.size:
                assembly.place(self._sources, t.val, self.copy)
        elif distinct.is_one(t.distinct):
            self.copy[:] = t.distinct[0]
        else:
            numbers = cupy.empty(self.copy.size, t.val.dtype)
            assembly.place(self._sources, t.val, numbers)
            t.distinct.take(numbers, out=self.copy)


def prepared(t: CVRTables, key: Hashable, make: Callable[[], L], in_full: bool) -> tuple[L, Values]:
    """The layout that ``make()`` gives, once for all arrays that share it, and the values in its order."""
    with aside():
        layout: L = _LAYOUTS.of(t.step_ptr, key, make)
        values = Values(t, layout.source, in_full)
        values.renew()
    return layout, values
