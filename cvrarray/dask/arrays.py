"""Dask's array with what its own lacks for our chunks: ``@`` of two of them, ``var``, ``std``, stored bytes in its repr."""

from __future__ import annotations

from html import escape
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import format_bytes

from ..array.base import SparseArray
from . import operations


class PanelArray(da.Array):  # type: ignore[misc]
    """What ``to_dask`` and ``open_store`` give: a dask array of our chunks.

    Its transpose, its products with others of its kind, and what ``persist`` makes of it, are such arrays again. What
    Dask makes in other ways, such as ``A + A``, is Dask's own array of our chunks.

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([1.0, 2, 4]), chunks=2, format="cvr", device="cpu")
    >>> (A @ A.T).compute().diagonal()
    array([ 1.,  4., 16.])
    """

    __slots__ = ()

    @classmethod
    def of(cls, array: da.Array, stored: tuple[int, int] | None = None) -> PanelArray:
        """A dask array of our chunks as one; `stored` are the bytes that all chunks and the largest one take, where
        known.

        Examples
        --------
        >>> from cvrarray.dask.arrays import PanelArray
        >>> A = cvrarray.to_dask(np.eye(3), format="cvr", device="cpu")
        >>> PanelArray.of(A + A) @ A
        dask.array<sum_of_products, shape=(3, 3), dtype=float64, chunksize=(3, 3), chunktype=cvrarray.CVRArray>
        """
        self: PanelArray = cls(array.dask, array.name, array.chunks, meta=array._meta)
        self._stored = stored
        return self

    def __matmul__(self, other: Any) -> Any:
        operations.check_operand(other)
        return _product(self, other) if _is_sparse(other) else super().__matmul__(other)

    def __rmatmul__(self, other: Any) -> Any:
        operations.check_operand(other)
        return _product(other, self) if isinstance(other, (da.Array, SparseArray)) else super().__rmatmul__(other)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if ufunc is np.matmul and method == "__call__" and not keywords:
            return self @ inputs[1] if inputs[0] is self else self.__rmatmul__(inputs[0])
        return super().__array_ufunc__(ufunc, method, *inputs, **keywords)

    def var(self, axis: int | None = None, *, keepdims: bool = False, ddof: float = 0) -> da.Array:
        """As :func:`cvrarray.dask.var`; Dask's own would make chunks dense."""
        return operations.var(self, axis, ddof, keepdims)

    def std(self, axis: int | None = None, *, keepdims: bool = False, ddof: float = 0) -> da.Array:
        """As :func:`cvrarray.dask.std`."""
        return operations.std(self, axis, ddof, keepdims)

    def transpose(self, *axes: Any) -> PanelArray:
        """As ``dask.array.transpose``."""
        return self.of(super().transpose(*axes), self._stored)

    def __repr__(self) -> str:
        stored = f", stored={format_bytes(self._stored[0])}>" if self._stored else ">"
        text: str = super().__repr__()
        return text[:-1] + stored

    def _repr_html_(self) -> str:
        """The text of the repr, the bytes of the largest chunk, and Dask's picture of the chunks."""
        lines = [escape(repr(self))]
        if self._stored:
            lines.append(f"largest chunk: {format_bytes(self._stored[1])} stored")
        try:
            picture = self.to_svg(size=120)
        except NotImplementedError:  # rows of some chunks are not known
            picture = ""
        return f"<table><tr><td>{'<br>'.join(lines)}</td><td>{picture}</td></tr></table>"

    def _rebuild(self, *args: Any, **keywords: Any) -> PanelArray:
        return self.of(super()._rebuild(*args, **keywords), self._stored)

    def __reduce__(self) -> Any:
        return _restored, (*super().__reduce__(), self._stored)


def _product(left: Any, right: Any) -> da.Array:
    product = operations.matmul(left, right)
    return PanelArray.of(product) if operations.is_ours(product) else product


def _is_sparse(value: Any) -> bool:
    return isinstance(value, SparseArray) or operations.is_ours(value)


def _restored(make: Any, arguments: Any, stored: tuple[int, int] | None) -> PanelArray:
    return PanelArray.of(make(*arguments), stored)
