"""The array class: its products and operators. Its other methods are in ``attributes``, ``leaving`` and ``methods``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload

import numpy as np

from ..core import extensions
from ..core.arrays import Dense, DenseArray, NumpyArray
from . import elementwise, indexing, names, products, protocol
from .methods import Methods


class SparseArray(Methods):
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

    #: What rows and columns are called, arrays of texts, where the array was read from a file that says so; else None.
    row_names: np.ndarray | None = None
    column_names: np.ndarray | None = None

    if not TYPE_CHECKING:  # a type checker should notice any name that is not there

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(names.missing(type(self).__name__, name), name=name, obj=self)

    # ------------------------------------------------------------------------------------------------------- the matrix

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
        return products.adjoint(products.matvec, self, x)

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
        return products.adjoint(products.matmat, self, x)

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
