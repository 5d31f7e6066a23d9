"""What an array is: its attributes, and the hooks that each kind of array has for the functions of this folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import numpy as np

from ..core import devices
from ..core.arrays import Run
from ..core.tables import CSR
from ..input import coercion
from . import indexing, values
from .kept import Origin, Products


class Attributes:
    """Attributes and hooks; a base of the array class.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
    >>> A.shape, A.nnz, A.dtype.name
    ((2, 3), 3, 'float64')
    """

    format: ClassVar[str]
    _target: devices.Device
    _dense_type: type[Any]  # of dense arrays on the device
    _origin: Origin
    _products: Products
    _transpose: Any  # of formats: tables of the transpose, and products with it
    _of_graphs: list[Any]  # what CUDA graphs use that were captured of its products
    _plan: str | None
    _shape: tuple[int, int]
    _dtype: np.dtype
    _nnz: int
    _version: int | None  # of the values: see FormatArray

    def _like(self, csr: CSR) -> Any:
        """An array of this format, with these parameters, from a canonical CSR on any device: it stays there."""
        raise NotImplementedError

    def _map(self, function: Callable[[Any], Any]) -> Self:
        """The array of the same structure whose stored values are ``function(values)``; 0 must become 0, for padding."""
        raise NotImplementedError

    def _kernel(self, kind: str, dtype: np.dtype) -> Run:
        """The prepared product ``run(x, y, alpha, beta)`` of a `kind` that :mod:`cvrarray.array.products` names."""
        raise NotImplementedError

    def _layout(self) -> str:
        """The format's parameters in a few words, for the repr."""
        raise NotImplementedError

    def _described(self) -> str:
        """What the array holds, in a few words, for the repr."""
        return self._layout() if self._origin.pending is None else "still CSR, to be converted by the first product"

    def _invariants(self) -> Iterator[tuple[str, Any]]:
        """(invariant in words, whether it holds) of an array on the CPU; each may rely on those before it, that held."""
        raise NotImplementedError

    def _canonical_csr(self) -> CSR:
        """Canonical CSR on the array's device. Its arrays may be others' too: nobody writes to them, or hands them out."""
        raise NotImplementedError

    def _own_csr(self) -> CSR:
        """Canonical CSR on the array's device, of new arrays."""
        return self._canonical_csr()

    def _canonical_rows(self, first: int, last: int) -> CSR:
        """Canonical CSR of the rows [first, last), on the array's device; for use on the current device."""
        return indexing._rows(self._canonical_csr(), range(first, last))

    def _coo(self) -> tuple[Any, Any, Any]:
        """Row, column and value of every stored entry, in any order; for use on the current device."""
        csr = self._own_csr()
        return coercion.rows(csr), csr.indices, csr.data

    def _row_sums(self, dtype: np.dtype) -> Any:
        """The sums of rows in `dtype`, to which the array's promotes; None where a product with ones is to make them."""
        return None

    def _diagonal(self, offset: int) -> Any:
        """``self[i, i + offset]`` for every i for which there is such an entry; for use on the current device."""
        return indexing.diagonal(self._canonical_csr(), offset)

    # --------------------------------------------------------------------------------------------------------- what it is

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """dtype of the stored values."""
        return self._dtype

    @property
    def nnz(self) -> int:
        """Stored entries, explicit zeros among them; padding is not counted."""
        return self._nnz

    @property
    def data(self) -> Any:
        """(nnz,) array: the stored values in the order of ``A.tocsr().data``, row by row, zeros that are stored among them.

        A new array at every access, and on a CPU a read-only one, for nothing that is written to it could reach the
        array: :meth:`with_values` makes one with other values. It costs as much as :meth:`tocsr`, and after
        :meth:`with_values` was called, which keeps where the values lie, little more than a copy.

        Examples
        --------
        >>> A = cvrarray.BBCSRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.data, A.with_values(2 * A.data).data
        (array([1., 2., 3.]), array([2., 4., 6.]))
        """
        found = values.entries_of(self)
        if isinstance(found, np.ndarray):
            found.setflags(write=False)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all tables on the device; of the CSR where an operation left one, until the first product."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def size(self) -> int:
        """n_rows * n_cols, as NumPy counts."""
        return math.prod(self.shape)

    @property
    def density(self) -> float:
        """Stored entries over all; nan where there are none at all."""
        return self.nnz / self.size if self.size else math.nan

    @property
    def fill_value(self) -> Any:
        """What an entry that is not stored stands for, 0 of :attr:`dtype`."""
        return self.dtype.type(0)

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:N"``."""
        return str(self._target)

    @property
    def plan(self) -> str | None:
        """Why this format was chosen, in words, where :func:`cvrarray.asarray` chose it; else None."""
        return self._plan

    @property
    def _stored_as(self) -> str:
        """What values are stored as, in a few words; empty where they are stored as they are."""
        return ""

    def __repr__(self) -> str:
        values = f"{self.dtype} ({self._stored_as})" if self._stored_as else self.dtype
        text = (
            f"<{type(self).__name__} {self.shape[0]} x {self.shape[1]}, {values}, nnz={self.nnz}, "
            f"device={self.device}, {self._described()}, {self.nbytes / 1e6:.3g} MB>"
        )
        return text if self.plan is None else f"{text[:-1]}\n  plan: {self.plan}>"
