"""The array class: attributes and methods that users of NumPy, SciPy and pydata/sparse know, each one line long."""

from __future__ import annotations

import html
import importlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, overload

import numpy as np

from ..core import devices, extensions
from ..core.arrays import Casting, Dense, DenseArray, NumpyArray, Run
from ..core.tables import CSR
from ..input import coercion
from . import elementwise, indexing, products, protocol, reductions, structure, values
from .kept import Origin, Products
from .names import Names


class SparseArray(Names):
    """A 2-D sparse array, immutable, on one device. Entries that are not stored are 0.

    It is CVR, BBCSR, or the transposed view of one of them (``A.T``). Whatever would have to make it dense raises, and
    names :meth:`todense`; nothing moves between devices unless :meth:`to_device` or the like is called.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
    >>> A.shape, A.ndim, A.size, A.dtype.name, A.device
    ((2, 3), 2, 6, 'float64', 'cpu')
    >>> A.nnz, A.density, float(A.fill_value), A.nbytes > 8 * A.nnz
    (3, 0.5, 0.0, True)
    >>> cvrarray.asarray(A, format="auto", device="cpu").plan.split(":")[0]
    'cvr'
    >>> (2 * A @ np.ones(3)).tolist(), A[1].tolist(), (A > 1).sum(axis=1).tolist()
    ([6.0, 6.0], [0.0, 3.0, 0.0], [1, 1])
    """

    __array_priority__ = 1000.0  # before numpy.ndarray, as dask and older scipy ask
    __hash__ = None  # type: ignore[assignment]  # == is elementwise

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

    # ----------------------------------------------------------------------------------- what each kind of array offers

    def _like(self, csr: CSR) -> SparseArray:
        """An array of this format, with these parameters, from a canonical CSR on any device: it stays there."""
        raise NotImplementedError

    def _map(self, function: Callable[[Any], Any]) -> SparseArray:
        """The array of the same structure whose stored values are ``function(values)``; 0 must become 0, for padding."""
        raise NotImplementedError

    def _coo(self) -> tuple[Any, Any, Any]:
        """Row, column and value of every stored entry, in any order; for use on the current device."""
        csr = self._own_csr()
        return coercion.rows(csr), csr.indices, csr.data

    def _kernel(self, kind: str, dtype: np.dtype) -> Run:
        """The prepared product ``run(x, y, alpha, beta)`` of a `kind` that :mod:`cvrarray.array.products` names."""
        raise NotImplementedError

    def _layout(self) -> str:
        """The format's parameters in a few words, for the repr."""
        raise NotImplementedError

    def _described(self) -> str:
        """What the array holds, in a few words, for the repr."""
        return self._layout() if self._origin.pending is None else "still CSR, to be converted by the first product"

    # ------------------------------------------------------------------------------------------------------- what it is

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

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = {
            "Format": self.format,
            "Shape": f"{self.shape[0]} x {self.shape[1]}",
            "Data type": self.dtype,
            "Stored entries": self.nnz,
            "Density": f"{self.density:.3g}",
            "Fill value": self.fill_value,
            "Values stored": self._stored_as or "plain",
            "Device": self.device,
            "Layout": self._described(),
            "Size": f"{self.nbytes / 1e6:.3g} MB",
            "Bytes an entry": f"{self.nbytes / self.nnz:.3g}" if self.nnz else "-",
        }
        if self.plan is not None:
            rows["Plan"] = self.plan
        left = ' style="text-align: left"'
        cells = "".join(f"<tr><th{left}>{name}</th><td{left}>{html.escape(str(rows[name]))}</td></tr>" for name in rows)
        return f'<table class="cvrarray"><caption>{type(self).__name__}</caption><tbody>{cells}</tbody></table>'

    # --------------------------------------------------------------------------------------- the same matrix, otherwise

    @property
    def T(self) -> SparseArray:
        """The transpose as a view; ``A.T.copy()`` converts.

        Notes
        -----
        Products with the view are faster by tables of the transpose: the first one makes them, and A keeps them. Every
        call gives the same bits. ``repr`` and ``nbytes`` of the view tell of the tables, and
        ``CVRARRAY_TRANSPOSED_MEMORY`` limits them, 0 for none: see ``docs/architecture.md``. Products without them are
        slower: on a GPU each call converts panels of rows in turn. The tables cannot be made while a CUDA graph is captured:
        call ``A.T @ x`` once before the capture.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.T.shape, A.T @ np.ones(2)
        ((3, 2), array([1., 3., 2.]))
        """
        raise NotImplementedError

    @property
    def mT(self) -> SparseArray:
        """:attr:`T`."""
        return self.T

    @property
    def H(self) -> SparseArray:
        """The conjugate transpose as a view; of a complex array, a view of :meth:`conj`, which copies the values.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1 + 2j, 0], [0, 3]])
        >>> A.H @ np.ones(2)
        array([1.-2.j, 3.+0.j])
        """
        return self.conj().T

    def conj(self) -> SparseArray:
        """The complex conjugate; the array itself where it is real.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1 + 2j, 0], [0, 3]])
        >>> A.conj()[0, 0]
        np.complex128(1-2j)
        """
        return self._map(self._target.xp.conj) if self.dtype.kind == "c" else self

    def copy(self) -> SparseArray:
        """An array with tables of its own, on the same device.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> np.shares_memory(A.copy().tocsr().data, A.tocsr().data)
        False
        """
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------- the products

    def matvec(self, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
        """``alpha * (A @ x) + beta * out``, on the array's device and current stream, without synchronising.

        On a GPU an array's first product in a dtype compiles and prepares what later ones use, on any stream, and waits
        for that; so may its 16th, which tries another kernel.

        Parameters
        ----------
        x : (n_cols,) array on the array's device
            Any numeric dtype and stride; it is copied where it is not contiguous in the product's dtype,
            ``result_type(A.dtype, x.dtype)``. The matrix is never converted. A column, (n_cols, 1), is taken too.
        out : (n_rows,) array, optional
            Where the product goes; any stride, a dtype that the product's casts to. New where left out. May be `x`.
        alpha, beta : scalar
            Must be representable in the product's dtype. With ``beta=0`` `out` is not read. `alpha` multiplies sums,
            also that of a row without entries: with ``alpha=inf`` such a row gives nan.

        Returns
        -------
        (n_rows,) array
            `out` where given. The same bits in every call on the same device.

        Raises
        ------
        TypeError
            `x` or `out` is on another device, or has a dtype that is not numeric; `out` or a scalar cannot hold the
            type.
        ValueError
            A length does not fit, or ``beta`` is not 0 without `out`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> y = np.array([10.0, 20.0])
        >>> A.matvec(np.ones(3), out=y, alpha=2, beta=1)
        array([16., 26.])
        """
        return products.matvec(self, x, out, alpha, beta)

    def matmat(self, x: Any, out: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
        """``alpha * (A @ X) + beta * out`` for a dense matrix X; as :meth:`matvec` otherwise.

        Parameters
        ----------
        x : (n_cols, k) array on the array's device
            In any order and strides; it is copied where it is not in C order in the product's dtype. BBCSR on a GPU may read
            columns as they are, and add them up in another order than those of X in C order.
        out : (n_rows, k) array, optional
        alpha, beta : scalar

        Returns
        -------
        (n_rows, k) array
            `out` where given, else a new one in C order. On a GPU last bits may differ between an X, or `out`, that begins at
            a multiple of 16 bytes, as new arrays do, and one that does not.

        Raises
        ------
        TypeError, ValueError
            As :meth:`matvec`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.matmat(np.array([[1.0, 0], [0, 1], [1, 1]]))
        array([[3., 2.],
               [0., 3.]])
        """
        return products.matmat(self, x, out, alpha, beta)

    def rmatvec(self, x: Any) -> Any:
        """``A.H @ x``.

        Parameters
        ----------
        x : (n_rows,) array on the array's device

        Returns
        -------
        (n_cols,) array
            Of dtype ``result_type(A.dtype, x.dtype)``. The same calls give the same bits in every run: see :attr:`T`.

        Raises
        ------
        TypeError, ValueError
            As :meth:`matvec`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.rmatvec(np.array([1.0, 10.0]))
        array([ 1., 30.,  2.])
        """
        return products.rmatvec(self, x)

    def rmatmat(self, x: Any) -> Any:
        """``A.H @ X`` for a dense matrix X (n_rows, k): (n_cols, k); as :meth:`rmatvec` otherwise.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.rmatmat(np.array([[1.0, 0], [0, 10]]))
        array([[ 1.,  0.],
               [ 0., 30.],
               [ 2.,  0.]])
        """
        return products.rmatmat(self, x)

    def dot(self, other: Any, out: Any = None, *, format: str | None = None) -> Any:
        """``A @ other``, or ``A * other`` for a scalar.

        Parameters
        ----------
        other : dense or sparse array on the array's device, or a scalar
            A dense array may have more than two dimensions: ``other[..., n_cols, k]`` gives a result
            (n_rows, ..., k), as that of ``np.dot``; ``A @ other`` has (..., n_rows, k).
        out : dense array, optional
            For a dense `other`.
        format : {None, "csr"}
            Of the product with a sparse `other`: None for this array's format, "csr" for what :meth:`tocsr` gives,
            without the conversion.

        Returns
        -------
        dense array, or sparse where `other` is sparse or a scalar

        Raises
        ------
        TypeError
            As :meth:`matvec`; `out` is given with `format`.
        ValueError
            Shapes do not fit, or there is no such `format`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.dot(A.T, format="csr").toarray()
        array([[5., 0.],
               [0., 9.]])
        """
        if format is None and type(other) is self._dense_type and 0 < other.ndim < 3:
            return products.multiply(self, other, out)
        if format is not None:
            if out is not None:
                raise TypeError("out and format exclude each other: a product with a format is sparse")
            return products.multiply_sparse(self, other, format)
        return protocol.FUNCTIONS[np.dot](self, other, out)

    def aslinearoperator(self) -> Any:
        """A ``scipy.sparse.linalg.LinearOperator``, or on a GPU cupyx's, with products of vectors and matrices.

        Examples
        --------
        >>> from scipy.sparse.linalg import lsqr
        >>> A = cvrarray.CVRArray([[1.0, 0], [0, 2], [0, 0]])
        >>> lsqr(A.aslinearoperator(), np.array([1.0, 4.0, 0.0]))[0].round(6)
        array([1., 2.])
        """
        linalg = importlib.import_module(f"{'scipy' if self._target.kind == 'cpu' else 'cupyx.scipy'}.sparse.linalg")
        return linalg.LinearOperator(
            self.shape, matvec=self.matvec, rmatvec=self.rmatvec, matmat=self.matmat, rmatmat=self.rmatmat, dtype=self.dtype
        )

    @overload
    def __matmul__(self, other: SparseArray) -> SparseArray: ...
    @overload
    def __matmul__(self, other: NumpyArray) -> NumpyArray: ...
    @overload
    def __matmul__(self, other: Dense) -> Dense: ...
    def __matmul__(self, other: Any) -> Any:
        if type(other) is self._dense_type and other.ndim:
            return products.multiply(self, other)
        return protocol.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return protocol.matmul(other, self)

    # --------------------------------------------------------------------------------------------------- entry by entry

    def astype(
        self, dtype: Any, order: str = "K", casting: Casting = "unsafe", subok: bool = True, copy: bool = True
    ) -> SparseArray:
        """The array with its values cast.

        Parameters
        ----------
        dtype : bool, an integer, float16, float32, float64, complex64 or complex128
        order, subok : ignored; NumPy has them
        casting : what ``numpy.can_cast`` must allow
        copy : bool
            False: the array itself where it has that dtype.

        Raises
        ------
        TypeError
            The cast is not allowed, or the dtype cannot be stored.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.astype("float32").dtype
        dtype('float32')
        """
        dtype = coercion.check_dtype(dtype)
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"cannot cast from {self.dtype} to {dtype} by the rule {casting!r}. Use casting='unsafe'")
        if dtype == self.dtype:
            return self.copy() if copy else self
        return self._map(lambda values: values.astype(dtype))

    @property
    def real(self) -> SparseArray:
        """The real parts; the array itself where it is real.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1 + 2j, 0], [0, 3]])
        >>> A.real.todense()
        array([[1., 0.],
               [0., 3.]])
        """
        return self._map(lambda values: values.real) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> SparseArray:
        """The imaginary parts; all 0 where it is real.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1 + 2j, 0], [0, 3]])
        >>> A.imag.todense()
        array([[2., 0.],
               [0., 0.]])
        """
        xp = self._target.xp
        return self._map((lambda values: values.imag) if self.dtype.kind == "c" else xp.zeros_like)

    def multiply(self, other: Any) -> SparseArray:
        """``A * other``, entry by entry; rows and columns broadcast.

        Parameters
        ----------
        other : scalar, dense array or sparse array, on the array's device
            Shapes broadcast as NumPy's. What is not stored stays 0, also where `other` is inf or nan.

        Returns
        -------
        array of this format
            Of NumPy's result dtype.

        Raises
        ------
        TypeError
            The operands live on two devices, or the dtype cannot be stored.
        ValueError
            The shapes do not broadcast.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.multiply(np.array([[10.0], [100.0]])).todense()
        array([[ 10.,   0.,  20.],
               [  0., 300.,   0.]])
        """
        product: SparseArray = elementwise.binary(np.multiply, self, other)
        return product

    def maximum(self, other: Any) -> SparseArray:
        """The larger of both, entry by entry; as :meth:`multiply` otherwise.

        Raises
        ------
        TypeError
            The result would not be 0 wherever nothing is stored: `other` must be at most 0 there.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.maximum(cvrarray.CVRArray([[0, 0, 5.0], [0, 1, 0]])).todense()
        array([[1., 0., 5.],
               [0., 3., 0.]])
        """
        larger: SparseArray = elementwise.binary(np.maximum, self, other)
        return larger

    def minimum(self, other: Any) -> SparseArray:
        """The smaller of both, entry by entry; as :meth:`multiply` otherwise.

        Raises
        ------
        TypeError
            The result would not be 0 wherever nothing is stored: `other` must be at least 0 there.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.minimum(2.0).todense()
        array([[1., 0., 2.],
               [0., 2., 0.]])
        """
        smaller: SparseArray = elementwise.binary(np.minimum, self, other)
        return smaller

    def power(self, n: Any, dtype: Any = None) -> SparseArray:
        """``A ** n``, entry by entry.

        Parameters
        ----------
        n : scalar above 0, or an array that broadcasts
        dtype : data type, optional
            In which it is computed. Default: NumPy's result dtype.

        Returns
        -------
        array of this format

        Raises
        ------
        TypeError
            ``0 ** n`` is not 0, or the dtype cannot be stored.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.power(2).todense()
        array([[1., 0., 4.],
               [0., 9., 0.]])
        """
        powers: SparseArray = elementwise.power(self, n, dtype)
        return powers

    def round(self, decimals: int = 0, out: None = None) -> SparseArray:
        """The values rounded to `decimals` places, as ``numpy.round`` does.

        Raises
        ------
        TypeError
            `out` is given: an array is immutable.

        Examples
        --------
        >>> cvrarray.CVRArray([[1.26, 0], [0, 0.5]]).round(1).todense()
        array([[1.3, 0. ],
               [0. , 0.5]])
        """
        rounded: SparseArray = elementwise.round_(self, decimals, out)
        return rounded

    def clip(self, min: Any = None, max: Any = None, out: None = None) -> SparseArray:
        """The values moved into [min, max], which must hold 0.

        Parameters
        ----------
        min, max : scalar or array, optional
            None is no bound.

        Returns
        -------
        array of this format

        Raises
        ------
        TypeError
            0 lies outside the bounds, so that the result would be dense; or `out` is given: an array is immutable.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.clip(0, 2).todense()
        array([[1., 0., 2.],
               [0., 2., 0.]])
        """
        clipped: SparseArray = elementwise.clip(self, min, max, out)
        return clipped

    def with_values(self, data: Any, out: SparseArray | None = None) -> SparseArray:
        """The same structure with new values, without a new conversion.

        Parameters
        ----------
        data : (nnz,) array on the array's device, or a sparse matrix of the same structure there
            An array has the order of ``A.tocsr().data``: row by row, columns ascending, stored zeros among them. A CSR,
            CSC, COO or BSR of SciPy, CuPy or pydata/sparse may have its entries in any order; duplicates are summed in
            that order. It may have another dtype.
        out : array, optional
            An array of the same structure, which gets the new values in place and keeps its dtype: what
            :meth:`with_values` made before, or `A` itself. Whoever holds it, or a view of it, sees the new values.

        Returns
        -------
        array of this format and structure, of data's dtype
            `out` where given.

        Raises
        ------
        TypeError
            `data` or `out` is on another device, or `data` has a dtype that cannot be stored, or not in `out`.
        ValueError
            `data` has another length or structure (the message names the first place that differs); `out` has another
            structure.

        Notes
        -----
        The first call finds where values go, which costs as much as :meth:`tocsr`. All arrays of the structure share
        it: some 8 bytes a row; for a matrix in another order than that of ``A.tocsr()`` 4 bytes a slot, and with
        duplicates 16 bytes an entry of the matrix more. Up to four orders are remembered. A matrix's order is known
        again by its index arrays, which every call reads. With `out` nothing more is allocated, but for an array that lies
        in a file, a pickle's bytes or few values: the first call gives that one a table of its own, in memory.

        Products of other threads with `out` may see old and new values side by side while it is written. A call that is
        interrupted (Ctrl-C) may leave both in `out`, whose products, transpose and copies then agree with one another.

        On a GPU a call with an array and `out` can be captured in a CUDA graph, after a first one outside.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> B = A.with_values(np.array([10.0, 20.0, 30.0]))
        >>> B.todense()
        array([[10.,  0., 20.],
               [ 0., 30.,  0.]])
        >>> A.with_values(-B.tocsr().tocsc(), out=B) is B
        True
        >>> B.todense()
        array([[-10.,   0., -20.],
               [  0., -30.,   0.]])
        """
        renewed: SparseArray = values.with_values(self, data, out)
        return renewed

    def eliminate_zeros(self) -> SparseArray:
        """An array without the stored zeros; this one is immutable and stays as it is.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> B = A.with_values(np.array([1.0, 0.0, 3.0]))
        >>> B.nnz, B.eliminate_zeros().nnz
        (3, 2)
        """
        without: SparseArray = structure.eliminate_zeros(self)
        return without

    def nonzero(self) -> tuple[Any, Any]:
        """Rows and columns of the entries that are not 0, in row-major order: two int64 arrays on the array's device.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> row, col = A.nonzero()
        >>> row.tolist(), col.tolist()
        ([0, 0, 1], [0, 2, 1])
        """
        return structure.nonzero(self)

    # ------------------------------------------------------------------------------------------------------- reductions

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The sum of all entries, or along an axis: dense, as ``numpy.sum``.

        Parameters
        ----------
        axis : int or tuple of ints, optional
            0 reduces the rows, 1 the columns; None or both everything.
        dtype : data type, optional
            In which values are added. Default: NumPy's, which is int64 or uint64 for narrower integers.
        out : dense array, optional
            On the array's device, of the result's shape and a dtype that the result casts to.
        keepdims : bool
            Whether a reduced axis stays, of length 1.

        Returns
        -------
        scalar, or (n_cols,), (n_rows,) dense array
            Of `dtype`; the same bits in every call on the same device. On a GPU a scalar is a 0-d array.

        Raises
        ------
        AxisError, TypeError, ValueError
            There is no such axis, or it is named twice; `out` does not fit.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> float(A.sum()), A.sum(axis=0), A.sum(axis=1)
        (6.0, array([1., 3., 2.]), array([3., 3.]))
        """
        return reductions.sum_(self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The mean over all entries, stored or not, or along an axis: dense, as ``numpy.mean``.

        Parameters, shapes and errors as :meth:`sum`; integers are added in float64. Of no entries at all it is nan,
        with NumPy's RuntimeWarning.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> float(A.mean()), A.mean(axis=0)
        (1.0, array([0.5, 1.5, 1. ]))
        """
        return reductions.mean(self, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False, *, explicit: bool = False) -> Any:
        """The largest entry, also where it is one that is not stored: dense, as ``numpy.max``; nan where there is one.

        Parameters and shapes as :meth:`sum`; the dtype is the array's. With `explicit` entries that are not stored are
        left out, as in SciPy; the result is 0 where nothing is stored.

        Raises
        ------
        AxisError, TypeError, ValueError
            As :meth:`sum`; or there are no entries along the axis.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> float(A.max()), A.max(axis=1), (-A).max(axis=1)
        (3.0, array([2., 3.]), array([0., 0.]))
        """
        return reductions.max_(self, axis=axis, out=out, keepdims=keepdims, explicit=explicit)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False, *, explicit: bool = False) -> Any:
        """The smallest entry, also where it is one that is not stored: dense, as ``numpy.min``. As :meth:`max`
        otherwise.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> float(A.min()), A.min(axis=0)
        (0.0, array([0., 0., 0.]))
        """
        return reductions.min_(self, axis=axis, out=out, keepdims=keepdims, explicit=explicit)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Whether any entry is not 0: bool, dense, as ``numpy.any``. Parameters, shapes and errors as :meth:`sum`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> bool(A.any()), (A > 2).any(axis=1)
        (True, array([False,  True]))
        """
        return reductions.any_(self, axis=axis, out=out, keepdims=keepdims)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Whether no entry is 0: bool, dense, as ``numpy.all``. Parameters, shapes and errors as :meth:`sum`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> bool(A.all()), (A[:, :1] > 0).all(axis=1)
        (False, array([ True, False]))
        """
        return reductions.all_(self, axis=axis, out=out, keepdims=keepdims)

    def count_nonzero(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """How many entries are not 0, as int64: stored zeros do not count, as they do in :attr:`nnz`.

        Parameters, shapes and errors as :meth:`sum`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> int(A.count_nonzero()), A.count_nonzero(axis=1)
        (3, array([2, 1]))
        """
        return reductions.count_nonzero(self, axis=axis, keepdims=keepdims)

    def diagonal(self, offset: int = 0, *, k: int | None = None) -> Any:
        """A diagonal as a dense vector on the array's device.

        Parameters
        ----------
        offset : int, which SciPy calls `k`
            The entries ``A[i, i + offset]``: above the main diagonal where it is positive, below where negative.

        Returns
        -------
        (n,) array of the array's dtype
            Of length 0 where the diagonal lies outside the matrix.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.diagonal(), A.diagonal(1)
        (array([1., 3.]), array([0., 0.]))
        """
        return reductions.diagonal(self, offset if k is None else k)

    def block_diagonal(self, block_size: int | None = None) -> Any:
        """The square blocks on the diagonal as one dense array on the array's device.

        Parameters
        ----------
        block_size : int, optional
            Rows and columns of a block. Default: the array's own, where its format has blocks.

        Returns
        -------
        (n_blocks, block_size, block_size) array of the array's dtype
            Of ``min(A.shape)`` rows and columns, rounded up to whole blocks: what lies beyond the matrix is 0.

        Raises
        ------
        ValueError
            `block_size` is no whole number from 1, or is left out for an array that has no blocks.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 2, 9, 0], [3, 4, 0, 0], [0, 9, 5, 0], [0, 0, 6, 7]])
        >>> A.block_diagonal(2).tolist()
        [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 0.0], [6.0, 7.0]]]
        """
        size = getattr(self, "block_size", None) if block_size is None else block_size
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(
                f"block_size must be a whole number from 1; got {size!r}. Name it: an array of this format has none"
            )
        return structure.block_diagonal(self, int(size))

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
        """The sum of a diagonal.

        Parameters
        ----------
        offset, axis1, axis2
            Which diagonal: ``A[i, i + offset]``, or below the main one with the axes 1 and 0.
        dtype, out
            As of :meth:`sum`.

        Returns
        -------
        scalar
            On a GPU a 0-d array.

        Raises
        ------
        AxisError, ValueError
            There is no such axis, or both are the same.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> float(A.trace()), float(A.trace(offset=2))
        (4.0, 2.0)
        """
        return reductions.trace(self, offset, axis1, axis2, dtype=dtype, out=out)

    def transpose(self, *axes: Any, copy: bool = False, **keywords: Any) -> SparseArray:
        """:attr:`T`, or with the axes (0, 1) the array itself.

        Parameters
        ----------
        *axes : ints, or one tuple, which may be named `axes`
        copy : bool
            Whether the result has tables of its own: of the transpose a conversion.

        Raises
        ------
        ValueError
            `axes` are no permutation of the two axes.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.transpose().shape, A.transpose(0, 1) is A
        ((3, 2), True)
        """
        axes = (keywords.pop("axes"),) if "axes" in keywords and not axes else axes
        if keywords:
            raise TypeError(f"transpose takes axes and copy; got {', '.join(keywords)}")
        transposed: SparseArray = protocol.FUNCTIONS[np.transpose](self, axes[0] if len(axes) == 1 else axes or None)
        return transposed.copy() if copy else transposed

    # ------------------------------------------------------------------------------------------ operators and protocols

    def __getitem__(self, key: Any) -> Any:
        return indexing.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            f"{type(self).__name__} is immutable. Use A.with_values(data) for other values in the same places, or change a "
            f"matrix of scipy.sparse (A.tocsr().tolil()) and convert it"
        )

    def __delitem__(self, key: Any) -> None:
        raise TypeError(f"{type(self).__name__} is immutable. Index what should stay")

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """The rows, as dense vectors."""
        return (self[row] for row in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        raise TypeError(f"'in' would have to compare every entry of {type(self).__name__}. Use (A == value).any()")

    def __bool__(self) -> bool:
        if self.size == 1:
            return bool(self[0, 0])
        raise ValueError(f"the truth of {type(self).__name__} is that of many entries. Use A.any() or A.all()")

    def __sizeof__(self) -> int:
        """Bytes of the object and its tables, wherever these are."""
        return object.__sizeof__(self) + self.nbytes

    def __copy__(self) -> SparseArray:
        """:meth:`copy`, for ``with_values(out=)`` may write other values to the array."""
        return self.copy()

    def __deepcopy__(self, memo: Any) -> SparseArray:
        return self.copy()

    if TYPE_CHECKING:  # the loop at the end of this module makes these

        def __add__(self, other: Any, /) -> SparseArray: ...
        def __radd__(self, other: Any, /) -> SparseArray: ...
        def __sub__(self, other: Any, /) -> SparseArray: ...
        def __rsub__(self, other: Any, /) -> SparseArray: ...
        @overload
        def __mul__(self, other: complex | np.number[Any], /) -> Self: ...
        @overload
        def __mul__(self, other: SparseArray | DenseArray, /) -> SparseArray: ...
        def __mul__(self, other: Any, /) -> Any: ...
        @overload
        def __rmul__(self, other: complex | np.number[Any], /) -> Self: ...
        @overload
        def __rmul__(self, other: DenseArray, /) -> SparseArray: ...
        def __rmul__(self, other: Any, /) -> Any: ...
        def __truediv__(self, other: complex | np.number[Any], /) -> Self: ...
        def __floordiv__(self, other: float | np.number[Any], /) -> Self: ...
        def __mod__(self, other: float | np.number[Any], /) -> Self: ...
        def __pow__(self, other: float | np.number[Any], /) -> Self: ...
        def __and__(self, other: Any, /) -> SparseArray: ...
        def __or__(self, other: Any, /) -> SparseArray: ...
        def __xor__(self, other: Any, /) -> SparseArray: ...
        def __eq__(self, other: Any, /) -> SparseArray: ...  # type: ignore[override]
        def __ne__(self, other: Any, /) -> SparseArray: ...  # type: ignore[override]
        def __lt__(self, other: Any, /) -> SparseArray: ...
        def __le__(self, other: Any, /) -> SparseArray: ...
        def __gt__(self, other: Any, /) -> SparseArray: ...
        def __ge__(self, other: Any, /) -> SparseArray: ...

    def __round__(self, ndigits: int = 0) -> SparseArray:
        return self.round(ndigits)

    def __neg__(self) -> Self:
        result: Self = elementwise.unary(self, np.negative)
        return result

    def __pos__(self) -> Self:
        result: Self = elementwise.unary(self, np.positive)
        return result

    def __abs__(self) -> Self:
        result: Self = elementwise.unary(self, np.absolute)
        return result

    def __invert__(self) -> Any:
        return protocol.apply_ufunc(self, np.invert, "__call__", (self,), {})

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return protocol.apply_ufunc(self, ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return protocol.apply_function(self, function, types, args, kwargs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} does not become dense by itself. Call todense() (and .get() on a GPU), or give SciPy's "
            f"functions, and a matrix of SciPy's to the left of it, A.tocsr() or A.tocsc()"
        )

    def __dask_tokenize__(self) -> Any:
        return extensions.load("dask").token(self)

    # ----------------------------------------------------------------------------------------------------- the way back

    def to_device(self, device: Any) -> SparseArray:
        """The same array on another device, table by table.

        Parameters
        ----------
        device : str
            ``"cpu"``, ``"cuda"`` (the current GPU) or ``"cuda:N"``.

        Returns
        -------
        array of this format
            Itself where it is there.

        Raises
        ------
        ValueError
            `device` is none of these, or the machine has no such GPU.
        ModuleNotFoundError
            It is a GPU, and CuPy is not installed.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.to_device("cpu") is A
        True
        """
        raise NotImplementedError

    def check(self) -> None:
        """Verify every invariant of the tables.

        Raises
        ------
        ValueError
            Names the first invariant that does not hold, as the format's page numbers them.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.check()
        """
        for invariant, holds in self.to_device("cpu")._invariants():
            if not holds:
                raise ValueError(f"{type(self).__name__} breaks invariant {invariant}")

    def _invariants(self) -> Iterator[tuple[str, Any]]:
        """(invariant in words, whether it holds) of an array on the CPU; each may rely on those before it, that held."""
        raise NotImplementedError

    def _canonical_csr(self) -> CSR:
        """Canonical CSR on the array's device. Its arrays may be others' too: nobody writes to them, or hands them out."""
        raise NotImplementedError

    def _row_sums(self, dtype: np.dtype) -> Any:
        """The sums of rows in `dtype`, to which the array's promotes; None where a product with ones is to make them."""
        return None

    def _own_csr(self) -> CSR:
        """Canonical CSR on the array's device, of new arrays."""
        return self._canonical_csr()

    def _diagonal(self, offset: int) -> Any:
        """``self[i, i + offset]`` for every i for which there is such an entry; for use on the current device."""
        return indexing.diagonal(self._canonical_csr(), offset)

    def _canonical_rows(self, first: int, last: int) -> CSR:
        """Canonical CSR of the rows [first, last), on the array's device; for use on the current device."""
        return indexing._rows(self._canonical_csr(), range(first, last))

    def tocsr(self, copy: bool = False) -> Any:
        """A ``scipy.sparse.csr_array``, or on a GPU a ``cupyx.scipy.sparse.csr_matrix``, with every stored entry.

        Parameters
        ----------
        copy : ignored; SciPy has it. The arrays are new ones always.

        Raises
        ------
        TypeError, ValueError
            The array holds float16: see :meth:`to_scipy`. On a GPU: CuPy's sparse matrices hold no integers, and fewer
            than 2^31 rows, columns and nonzeros; see :meth:`to_scipy`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> S = A.tocsr()
        >>> S.indptr.tolist(), S.indices.tolist(), S.data.tolist()
        ([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0])
        """
        if self._target.kind == "cpu":
            return self.to_scipy()
        if self.dtype == np.float16:
            raise TypeError("cupyx.scipy.sparse holds no float16 values. Use astype('float32') first, or tocoo()")
        if self.dtype.kind in "iu":
            raise TypeError(f"cupyx.scipy.sparse holds no {self.dtype} values. Use to_scipy(), or astype(float) first")
        if self.nnz >= 2**31 or max(self.shape) >= 2**31:
            raise ValueError(
                "cupyx.scipy.sparse holds fewer than 2^31 rows, columns and nonzeros; "
                f"this array is {self.shape[0]} x {self.shape[1]} and has {self.nnz}. Use to_scipy()"
            )
        from cupyx.scipy.sparse import csr_matrix

        with self._target.use():
            indptr, indices, data, shape, *_ = self._own_csr()
            return csr_matrix((data, indices, indptr.astype(indices.dtype, copy=False)), shape=shape)

    def to_scipy(self) -> Any:
        """A ``scipy.sparse.csr_array`` in host memory, with every stored entry.

        Raises
        ------
        TypeError
            The array holds float16, which SciPy does not: ``A.astype("float32").to_scipy()``, or :meth:`tocoo`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> type(A.to_scipy()).__name__, A.to_scipy().nnz
        ('csr_array', 3)
        """
        if self.dtype == np.float16:
            raise TypeError("scipy.sparse holds no float16 values. Use astype('float32') first, or tocoo()")
        from scipy.sparse import csr_array

        indptr, indices, data, shape, *_ = coercion.move(self._own_csr(), devices.CPU)
        # one dtype, as SciPy wants it
        index = np.int64 if indices.dtype == np.int64 or data.size >= 2**31 else np.int32
        return csr_array((data, indices.astype(index, copy=False), indptr.astype(index, copy=False)), shape=shape)

    def asformat(self, format: str, **parameters: Any) -> Any:
        """The matrix in another format.

        Parameters
        ----------
        format : str
            "cvr" or "bbcsr": an array of ours on the same device, itself where it has this format and no parameters are
            given. "csr", "csc", "bsr", "dia", "lil": of scipy.sparse (on a GPU cupyx, which has the first two and
            "dia"). "coo", "gcxs", "dok": of pydata/sparse, in host memory.
        **parameters
            Of the class's constructor, as ``block_size=3``.

        Raises
        ------
        ValueError
            There is no such format.
        TypeError
            It does not hold this dtype: float16 goes into ours, "coo" and "dok" only.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.asformat("bbcsr", block_size=3).block_size, A.asformat("csc").indptr.tolist()
        (3, [0, 1, 2, 3])
        """
        ours = extensions.load("formats").FORMATS
        if format in ours:
            return self if type(self) is ours[format] and not parameters else ours[format](self, **parameters)
        if parameters:
            raise TypeError(f"format {format!r} takes no parameters; got {', '.join(parameters)}")
        if format == "gcxs" and self.dtype == np.float16:
            raise TypeError("sparse.GCXS holds no float16 values. Use astype('float32') first, or asformat('coo')")
        if format in ("coo", "gcxs", "dok"):
            return self.tocoo().asformat(format)
        if format == "csc" and self._target.kind == "cuda":  # CuPy would have cuSPARSE transpose: see gpu/csr.py
            return self.T.tocsr().T
        if format in ("csr", "csc", "bsr", "dia", "lil"):
            return self.tocsr().asformat(format)
        raise ValueError(f"format must be {', '.join(ours)}, csr, csc, bsr, dia, lil, coo, gcxs or dok; got {format!r}")

    def tocoo(self) -> Any:
        """A pydata ``sparse.COO`` in host memory, with every stored entry, of any dtype.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.tocoo().coords.tolist(), A.tocoo().data
        ([[0, 0, 1], [0, 2, 1]], array([1., 2., 3.]))
        """
        import sparse

        csr = coercion.move(self._own_csr(), devices.CPU)
        places = np.stack([coercion.rows(csr), csr.indices])
        return sparse.COO(places, csr.data, shape=self.shape, has_duplicates=False, sorted=True)

    def todense(self, order: Any = None, out: Any = None) -> Any:
        """A dense (n_rows, n_cols) array on the array's device, of its dtype.

        Parameters
        ----------
        order : {"C", "F"}, optional
            Row-major, the default, or column-major.
        out : (n_rows, n_cols) array on the array's device, optional
            Where it goes, of a dtype that the array's casts to; `order` is its own then.

        Raises
        ------
        MemoryError
            It does not fit in memory.
        TypeError, ValueError
            `out` is no dense array on the device, has another shape, or cannot hold the dtype; `order` is unknown.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.todense()
        array([[1., 0., 2.],
               [0., 3., 0.]])
        """
        if order not in (None, "C", "F") or (order and out is not None):
            raise ValueError(f"order must be 'C' or 'F', and left out beside out; got {order!r}")
        with self._target.use():
            if out is None:
                dense = self._target.xp.zeros(self.shape, self.dtype, order=order or "C")
            else:
                dense = reductions._checked_out(self, out, self.shape, self.dtype)
                dense.fill(0)
            row, col, val = self._coo()
            dense[row, col] = val
            return dense


def _operator(ufunc: np.ufunc, name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``A op other`` and ``other op A``."""

    def forward(self: SparseArray, other: Any) -> Any:
        return protocol.operate(ufunc, self, other)

    def reflected(self: SparseArray, other: Any) -> Any:
        return protocol.operate(ufunc, other, self)

    forward.__name__, reflected.__name__ = f"__{name}__", f"__r{name}__"
    return forward, reflected


for _name, _ufunc in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift, "divmod": np.divmod,
}.items():  # fmt: skip
    for _method in _operator(_ufunc, _name):
        setattr(SparseArray, _method.__name__, _method)
for _name, _ufunc in {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}.items():  # fmt: skip
    setattr(SparseArray, f"__{_name}__", _operator(_ufunc, _name)[0])
