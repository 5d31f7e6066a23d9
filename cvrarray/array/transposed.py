"""``A.T``: an array that is another array, transposed, without converting it.

It holds nothing but its base. Products swap (``A.T @ x`` is the base's transposed product), elementwise functions map the
base's values, and everything else starts from the canonical CSR, which is the base's with rows and columns exchanged.
``A.T.T`` is the base itself, and ``A.T.copy()`` converts: an array of the base's format that holds the transposed matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.arrays import Run
from ..core.tables import CSR
from . import products
from .base import SparseArray


class TransposedArray(SparseArray):
    """The transposed view of an array; what ``A.T`` gives.

    Parameters
    ----------
    base : array of a format

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
    >>> A.T.shape, A.T.format, A.T.nbytes == A.nbytes
    ((3, 2), 'cvr', True)
    >>> (2 * A.T).todense()
    array([[2., 0.],
           [0., 6.],
           [4., 0.]])
    """

    base: SparseArray

    def __init__(self, base: SparseArray):
        self.base = base
        self._target = base._target
        self._dense_type = base._dense_type
        self._ready = base._ready_transposed
        self._plan = None

    @property
    def format(self) -> str:  # type: ignore[override]  # a class variable of formats
        """The base's format."""
        return self.base.format

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape[::-1]

    @property
    def dtype(self) -> np.dtype:
        return self.base.dtype

    @property
    def nnz(self) -> int:
        return self.base.nnz

    @property
    def nbytes(self) -> int:
        """Bytes of the base's tables."""
        return self.base.nbytes

    @property
    def T(self) -> SparseArray:
        """The base.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.T.T is A
        True
        """
        return self.base

    def copy(self) -> SparseArray:
        """The transposed matrix as an array of the base's format, on the same device: a conversion.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> type(A.T.copy()).__name__, A.T.copy().shape
        ('CVRArray', (3, 2))
        """
        return self.base._like(self._canonical_csr())

    def to_device(self, device: Any) -> TransposedArray:
        """The transposed view of the base on `device`; itself where it is there. Errors as of the base's.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> V = A.T
        >>> V.to_device("cpu") is V
        True
        """
        base = self.base.to_device(device)
        return self if base is self.base else TransposedArray(base)

    def check(self) -> None:
        self.base.check()

    def _layout(self) -> str:
        return f"a view of {type(self.base).__name__}, {self.base._layout()}"

    def _like(self, csr: CSR) -> SparseArray:
        return self.base._like(csr)

    def _map(self, function: Callable[[Any], Any]) -> TransposedArray:
        return TransposedArray(self.base._map(function))

    def _coo(self) -> tuple[Any, Any, Any]:
        col, row, val = self.base._coo()
        return row, col, val

    def _kernel(self, kind: str, dtype: np.dtype) -> Run:
        if kind == "product_matrix":
            return products.transposed_matrix(self.base, dtype)
        return self.base._kernel({"product": "product_transposed", "product_transposed": "product"}[kind], dtype)

    def __reduce__(self) -> tuple[type[TransposedArray], tuple[SparseArray]]:
        return TransposedArray, (self.base,)
