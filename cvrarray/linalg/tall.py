"""Matrices with many rows, as sweeps over panels of rows see them: arrays of ours, stores on disk, Dask's arrays of our chunks.

A sweep adds up what each panel contributes, in the order of rows. :func:`gathered` does so with sums that go on from one row
to the next, so that they have the same bits however the rows are cut into panels; Dask's tasks make them for groups of rows
that the shape alone decides, and add those pairwise. :func:`products` needs a panel's own products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np

from ..array.base import SparseArray
from ..choice.construct import asarray
from ..core import devices, extensions
from ..core.tables import CSR
from ..input import coercion
from . import operators


def matrix(A: Any) -> Any:
    """`A` as an array of ours, a store, or a dask array of our chunks; any other matrix is converted, where it lies.

    Raises
    ------
    TypeError
        It is no matrix, or its dtype is not numeric.
    """
    if not isinstance(A, SparseArray) and not hasattr(A, "_panels") and not is_dask(A):
        if coercion.package(A) == "dask":
            raise TypeError("a dask array must have chunks of ours; got others. Use cvrarray.to_dask on it first")
        kind = "cuda" if coercion.package(A) in ("cupy", "cupyx") else "cpu"
        A = asarray(A, device=kind)
    operators.numeric(A.dtype, "A")
    return A


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
        return extensions.load("dask").gathered(A, start, take, add)
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
    for begin in range(first, last, height):
        end = min(begin + height, last)
        csr = panel._canonical_csr() if end - begin == panel.shape[0] else panel._canonical_rows(begin, end)
        take(csr, sums, row + begin - first)


def refuse_not_finite(A: Any) -> None:
    """ValueError that names the first entry which is nan or inf; nothing happens where there is none."""
    if is_dask(A):
        extensions.load("dask").refuse_not_finite(A)
        return
    with device(A).use():
        for first, _, panel in panels(A):
            place = first_not_finite(panel._canonical_csr(), device(A).xp)
            if place is not None:
                raise not_finite(first + place[0], *place[1:])


def not_finite(row: int, column: int, value: Any) -> ValueError:
    """The error that says where `value` is."""
    return ValueError(f"A must be finite; A[{row}, {column}] is {value}. Replace it, or use check_finite=False")


def first_not_finite(csr: CSR, xp: Any) -> tuple[int, int, Any] | None:
    """Row, column and value of the first entry that is nan or inf."""
    if csr.data.dtype.kind not in "fc":
        return None
    wrong = xp.flatnonzero(~xp.isfinite(csr.data))
    if not wrong.size:
        return None
    at = int(wrong[0])
    row = int(xp.searchsorted(csr.indptr, at, side="right")) - 1
    return row, int(csr.indices[at]), csr.data[at].item()
