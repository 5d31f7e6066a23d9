"""The array class: attributes and methods that users of NumPy, SciPy and pydata/sparse know, each a line into a module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _csr, _device, _products, _protocol
from ._tables import CSR


class SparseArray:
    """A 2-D sparse array, immutable, on one device. Entries that are not stored are 0.

    It is CVR, BBCSR, or the transposed view of one of them (``A.T``). Whatever would have to make it dense raises, and
    names :meth:`todense`; nothing moves between devices unless :meth:`to_device` or the like is called.
    """

    __array_priority__ = 1000.0  # before numpy.ndarray, as dask and older scipy ask
    __hash__ = None  # == is elementwise

    format: str
    _target: _device.Device
    _dense_type: type  # of dense arrays on the device
    _ready: dict[np.dtype, _products.Ready]  # x's dtype -> the product with it, once prepared
    _ready_transposed: dict[np.dtype, _products.Ready]
    _plan: str | None

    # ------------------------------------------------------------------------------------- what each kind of array offers

    def _like(self, csr: CSR) -> SparseArray:
        """An array of this format, with these parameters, from a canonical CSR on any device: it stays there."""
        raise NotImplementedError

    def _map(self, function: Callable[[Any], Any]) -> SparseArray:
        """The array of the same structure whose stored values are ``function(values)``; 0 must become 0, for padding."""
        raise NotImplementedError

    def _coo(self) -> tuple[Any, Any, Any]:
        """Row, column and value of every stored entry, in any order; for use on the current device."""
        raise NotImplementedError

    def _kernel(self, kind: str, dtype: np.dtype) -> Callable[[Any, Any, Any, Any], None]:
        """The prepared product ``run(x, y, alpha, beta)`` of a `kind` that :mod:`cvrarray._products` names."""
        raise NotImplementedError

    def _layout(self) -> str:
        """The format's parameters in a few words, for the repr."""
        raise NotImplementedError

    def _slots(self) -> Any:
        """(nnz,) where each entry of the canonical CSR lies in the value table."""
        raise NotImplementedError

    def _with_slots(self, slots: Any, data: Any) -> SparseArray:
        """The same structure with the values `data` in those slots."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------------------------- what it is

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_cols)."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype:
        """dtype of the stored values."""
        raise NotImplementedError

    @property
    def nnz(self) -> int:
        """Stored entries, explicit zeros among them; padding is not counted."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of all tables on the device."""
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
        """What an entry that is not stored is: 0 of :attr:`dtype`."""
        return self.dtype.type(0)

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:N"``."""
        return str(self._target)

    @property
    def plan(self) -> str | None:
        """Why this format was chosen, in words, where :func:`cvrarray.asarray` chose it; else None."""
        return self._plan

    def __repr__(self) -> str:
        text = (
            f"<{type(self).__name__} {self.shape[0]} x {self.shape[1]}, {self.dtype}, nnz={self.nnz}, "
            f"device={self.device}, {self._layout()}, {self.nbytes / 1e6:.3g} MB>"
        )
        return text if self.plan is None else f"{text[:-1]}\n  plan: {self.plan}>"

    # ----------------------------------------------------------------------------------------- the same matrix, otherwise

    @property
    def T(self) -> SparseArray:
        """The transpose as a view, without converting; ``A.T.copy()`` converts."""
        raise NotImplementedError

    @property
    def mT(self) -> SparseArray:
        """:attr:`T`."""
        return self.T

    @property
    def H(self) -> SparseArray:
        """The conjugate transpose as a view; of a complex array, a view of :meth:`conj`, which copies the values."""
        return self.conj().T

    def conj(self) -> SparseArray:
        """The complex conjugate; the array itself where it is real."""
        return self._map(self._target.xp.conj) if self.dtype.kind == "c" else self

    conjugate = conj

    def copy(self) -> SparseArray:
        """An array with tables of its own."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------------------- the products

    def matvec(self, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
        """``alpha * (A @ x) + beta * out``, on the array's device and current stream, without synchronising.

        Parameters
        ----------
        x : (n_cols,) array on the array's device
            Any numeric dtype and stride; it is copied where it is not contiguous in the product's dtype,
            ``result_type(A.dtype, x.dtype)``. The matrix is never converted. A column, (n_cols, 1), is taken too.
        out : (n_rows,) array, optional
            Where the product goes; any stride, a dtype that the product's casts to. New where left out. May be `x`.
        alpha, beta : scalar
            Must be representable in the product's dtype. With ``beta=0`` `out` is not read. `alpha` multiplies sums, also
            that of a row without entries: with ``alpha=inf`` such a row gives nan.

        Returns
        -------
        (n_rows,) array
            `out` where given. The same bits in every call on the same device.

        Raises
        ------
        TypeError
            `x` or `out` is on another device, or has a dtype that is not numeric; `out` or a scalar cannot hold the type.
        ValueError
            A length does not fit, or ``beta`` is not 0 without `out`.
        """
        return _products.matvec(self, x, out, alpha, beta)

    def matmat(self, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
        """``alpha * (A @ X) + beta * out`` for a dense matrix X; as :meth:`matvec` otherwise.

        Parameters
        ----------
        x : (n_cols, k) array on the array's device
            In any order and strides; it is copied where it is not in C order in the product's dtype.
        out : (n_rows, k) array, optional
        alpha, beta : scalar

        Returns
        -------
        (n_rows, k) array
            `out` where given, else a new one in C order.

        Raises
        ------
        TypeError, ValueError
            As :meth:`matvec`.
        """
        return _products.matmat(self, x, out, alpha, beta)

    def rmatvec(self, x: Any) -> Any:
        """``A.H @ x`` for x (n_rows,), without converting the matrix: (n_cols,). Errors as :meth:`matvec`."""
        return _products.rmatvec(self, x)

    def rmatmat(self, x: Any) -> Any:
        """``A.H @ X`` for a dense X (n_rows, k): (n_cols, k). Errors as :meth:`matvec`."""
        return _products.rmatmat(self, x)

    def __matmul__(self, other: Any) -> Any:
        if type(other) is self._dense_type and other.ndim == 1:
            return _products.matvec(self, other)
        return _protocol.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _protocol.matmul(other, self)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return _protocol.apply_ufunc(self, ufunc, method, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return _protocol.apply_function(self, function, args, kwargs)

    def __array__(self, dtype=None, copy=None):
        raise TypeError(f"{type(self).__name__} does not become dense by itself; call todense() (and .get() on a GPU)")

    # -------------------------------------------------------------------------------------------------------- the way back

    def to_device(self, device: Any) -> SparseArray:
        """The same array on `device` (``"cpu"``, ``"cuda"``, ``"cuda:1"``); itself where it is there."""
        raise NotImplementedError

    def check(self) -> None:
        """Verify every invariant of the tables; ValueError names the first that does not hold."""
        raise NotImplementedError

    def _canonical_csr(self) -> CSR:
        """Canonical CSR on the array's device."""
        with self._target.use():
            row, col, val = self._coo()
            return self._target.backend("csr").canonical(row, col, val, self.shape)

    def tocsr(self) -> Any:
        """A ``scipy.sparse.csr_array``, or on a GPU a ``cupyx.scipy.sparse.csr_matrix``, with every stored entry.

        Raises
        ------
        TypeError, ValueError
            On a GPU: CuPy's sparse matrices hold no integers, and fewer than 2^31 nonzeros; see :meth:`to_scipy`.
        """
        if self._target.kind == "cpu":
            return self.to_scipy()
        if self.dtype.kind in "iu":
            raise TypeError(f"cupyx.scipy.sparse holds no {self.dtype} values. Use to_scipy(), or astype(float) first")
        if self.nnz >= 2**31 or max(self.shape) >= 2**31:
            raise ValueError(f"cupyx.scipy.sparse holds fewer than 2^31 nonzeros; this array has {self.nnz}. Use to_scipy()")
        from cupyx.scipy.sparse import csr_matrix

        with self._target.use():
            indptr, indices, data, shape = self._canonical_csr()
            return csr_matrix((data, indices, indptr.astype(indices.dtype, copy=False)), shape=shape)

    def to_scipy(self) -> Any:
        """A ``scipy.sparse.csr_array`` in host memory, with every stored entry."""
        from scipy.sparse import csr_array

        indptr, indices, data, shape = _csr.move(self._canonical_csr(), _device.CPU)
        return csr_array((data, indices, indptr), shape=shape)

    def tocoo(self) -> Any:
        """A pydata ``sparse.COO`` in host memory, with every stored entry."""
        import sparse

        coo = self.to_scipy().tocoo()
        return sparse.COO(np.stack(coo.coords), coo.data, shape=self.shape, has_duplicates=False, sorted=True)

    def todense(self) -> Any:
        """A dense (n_rows, n_cols) array on the array's device."""
        with self._target.use():
            row, col, val = self._coo()
            dense = self._target.xp.zeros(self.shape, self.dtype)
            dense[row, col] = val
            return dense
