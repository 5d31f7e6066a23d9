"""Matrices with many rows, as sweeps over panels of rows see them: arrays of ours, stores on disk, Dask's arrays of our chunks.

A sweep adds up what each panel contributes, in the order of rows. :func:`gathered` does so with sums that go on from one row
to the next, so that they have the same bits however the rows are cut into panels; Dask's tasks make them for groups of rows
that the shape alone decides, and add those pairwise. Products with vectors (:class:`Centred`) are each panel's own, whose last
bits may depend on its format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np

from ..array.base import SparseArray
from ..array.transposed import TransposedArray
from ..choice.construct import asarray
from ..core import devices, extensions
from ..input import coercion, partition
from . import operators


def matrix(A: Any) -> Any:
    """`A` as an array of ours, a store, or a dask array of our chunks; any other matrix is converted, where it lies.

    Raises
    ------
    TypeError
        It is no matrix, or its dtype is not numeric.
    """
    if not is_ours(A):
        if hasattr(A, "__dask_graph__"):
            raise TypeError("a dask array must have chunks of ours; got others. Use cvrarray.to_dask on it first")
        kind = "cuda" if coercion.package(A) in ("cupy", "cupyx") else "cpu"
        A = asarray(A, device=kind)
    operators.numeric(A.dtype, "A")
    return A


def is_ours(A: Any) -> bool:
    """Whether it is an array of ours, a store, or a dask array of our chunks."""
    return isinstance(A, SparseArray) or hasattr(A, "_panels") or is_dask(A)


def is_dask(A: Any) -> bool:
    """Whether it is a dask array of our chunks."""
    return isinstance(getattr(A, "_meta", None), SparseArray)


def device(A: Any) -> devices.Device:
    """Where results lie: with a matrix's tables; in host memory for Dask's, whose tasks may run anywhere."""
    return devices.CPU if is_dask(A) else A._target


def panels(A: Any) -> Iterator[tuple[int, int, SparseArray]]:
    """(first row, row after the last, array) of the panels of an array or store in turn."""
    if isinstance(A, SparseArray):
        yield 0, A.shape[0], A
        return
    with closing(A._panels()) as arriving:
        yield from arriving


def gathered(A: Any, start: Callable[..., Any], take: Callable[..., None], add: Callable[[Any, Any], Any]) -> Any:
    """What ``take(csr, sums, row)`` gathers over all rows in ``sums = start(xp, n_rows)``.

    Each `csr` has rows that follow those before, from number `row` on, and about as many entries as the device's module
    ``gram`` wants at a time. ``add(left, right)`` gives the sums of two neighbouring groups of rows.
    """
    if is_dask(A):
        return extensions.load("dask_tall").gathered(A, start, take, add)
    target = device(A)
    with target.use():
        sums = start(target.xp, A.shape[0])
        for first, _, panel in panels(A):
            gather(panel, 0, panel.shape[0], sums, take, first)
    return sums


def gather(panel: SparseArray, first: int, last: int, sums: Any, take: Callable[..., None], row: int) -> None:
    """``take(csr, sums, row)`` of the rows [first, last) of a panel, the first of which has number `row`."""
    most = panel._target.backend("gram").PANEL
    height = max(1, panel.shape[0] * most // max(1, panel.nnz))
    # a transposed view reads all of its base for any of its rows
    whole = panel._canonical_csr() if height >= panel.shape[0] or isinstance(panel, TransposedArray) else None
    for begin in range(first, last, height):
        end = min(begin + height, last)
        csr = panel._canonical_rows(begin, end) if whole is None else partition.rows(whole, begin, end)
        take(csr, sums, row + begin - first)


def refuse_not_finite(A: Any) -> None:
    """ValueError that names the first entry which is nan or inf; nothing happens where there is none."""
    if is_dask(A):
        extensions.load("dask_tall").refuse_not_finite(A)
        return
    with device(A).use():
        for first, _, panel in panels(A):
            place = first_not_finite(panel)
            if place is not None:
                raise not_finite(first + place[0], *place[1:])


def not_finite(row: int, column: int, value: Any) -> ValueError:
    """The error that says where `value` is."""
    return ValueError(f"A must be finite; A[{row}, {column}] is {value}. Replace it, or use check_finite=False")


def first_not_finite(panel: SparseArray) -> tuple[int, int, Any] | None:
    """Row, column and value of the panel's first entry that is nan or inf."""
    if panel.dtype.kind not in "fc":
        return None
    with panel._target.use():
        csr, xp = panel._canonical_csr(), panel._target.xp
        wrong = xp.flatnonzero(~xp.isfinite(csr.data))
        if not wrong.size:
            return None
        at = int(wrong[0])
        row = int(xp.searchsorted(csr.indptr, wrong[:1], side="right")[0]) - 1
        return row, int(csr.indices[at]), csr.data[at].item()


class Centred:
    """``(A - 1 m') / d`` in products with vectors: `columns` has the means m and the divisors d.

    The matrix is never made; its products take one sweep each, with panels in their order.
    """

    def __init__(self, A: Any, columns: Any) -> None:
        self.A, self.columns, self.mean, self.divisor = A, columns, columns.mean, columns.divisor
        self.device, self.shape = device(A), A.shape
        self.dtype = np.result_type(A.dtype, np.float64)

    def _in(self, x: Any) -> tuple[Any, Any]:
        """What A multiplies instead of `x`, and what is subtracted from each row of that product."""
        x = x if self.divisor is None else x / self.divisor[:, None]
        x = self.device.xp.ascontiguousarray(x, self.dtype)
        return x, None if self.mean is None else self.mean @ x

    def _out(self, back: Any, sums: Any) -> Any:
        """The adjoint's product from that of A and the sums over rows of what was multiplied."""
        if self.mean is not None:
            back -= self.mean.conj()[:, None] * sums
        return back if self.divisor is None else back / self.divisor[:, None]

    def times(self, x: Any) -> Any:
        """(n_rows, k) product with `x` (n_cols, k)."""
        x, shift = self._in(x)
        if is_dask(self.A):
            return extensions.load("dask_tall").times(self.A, x, shift)
        y = self.device.xp.empty((self.shape[0], x.shape[1]), self.dtype)
        for first, last, panel in panels(self.A):
            forward(panel, x, shift, y[first:last])
        return y

    def adjoint(self, y: Any) -> Any:
        """(n_cols, k) product of the conjugate transpose with `y` (n_rows, k)."""
        if is_dask(self.A):
            return self._out(*extensions.load("dask_tall").adjoint(self.A, y))
        back = 0
        for first, last, panel in panels(self.A):
            back = back + backward(panel, y[first:last], isinstance(self.A, SparseArray))
        return self._out(back, y.sum(axis=0))

    def normal(self, x: Any) -> Any:
        """``adjoint(times(x))`` in one sweep."""
        x, shift = self._in(x)
        if is_dask(self.A):
            return self._out(*extensions.load("dask_tall").normal(self.A, x, shift))
        back, sums = 0, 0
        for _, _, panel in panels(self.A):
            part, of_rows = normal(panel, x, shift, isinstance(self.A, SparseArray))
            back, sums = back + part, sums + of_rows
        return self._out(back, sums)


def forward(panel: SparseArray, x: Any, shift: Any, y: Any = None) -> Any:
    """A panel's product with `x`, less `shift` in each row; in `y` if given."""
    y = panel.matmat(x, out=y)
    if shift is not None:
        y -= shift
    return y


def backward(panel: SparseArray, y: Any, keeps: bool) -> Any:
    """The product of a panel's conjugate transpose with `y`; whether the panel `keeps` tables for it."""
    view = panel.T if keeps else TransposedArray.once(panel)
    back = view.matmat(y.conj() if panel.dtype.kind == "c" else y)
    return back.conj() if panel.dtype.kind == "c" else back


def normal(panel: SparseArray, x: Any, shift: Any, keeps: bool) -> tuple[Any, Any]:
    """A panel's part of :meth:`Centred.normal`: the product, and the sums over rows of what was multiplied last."""
    y = forward(panel, x, shift)
    return backward(panel, y, keeps), y.sum(axis=0)
