"""Methods by the names that NumPy, SciPy and pydata/sparse gave them: entry by entry, rearranged entries, reductions."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ..core.arrays import Casting
from ..input import coercion
from . import borrowed, elementwise, rearranging, reductions, statistics, structure, values
from .leaving import Leaving
from .stack import Stack, stack


class Methods(Leaving):
    """Methods that are functions of other modules; a base of the array class.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 4], [0, 9, 0]])
    >>> A.argmax(axis=1), A.reshape(3, 2).shape
    (array([2, 1]), (3, 2))
    """

    def astype(self, dtype: Any, order: str = "K", casting: Casting = "unsafe", subok: bool = True, copy: bool = True) -> Self:
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

    def conj(self) -> Self:
        """The complex conjugate; the array itself where it is real.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1 + 2j, 0], [0, 3]])
        >>> A.conj()[0, 0]
        np.complex128(1-2j)
        """
        return self._map(self._target.xp.conj) if self.dtype.kind == "c" else self

    @property
    def real(self) -> Self:
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
    def imag(self) -> Self:
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

    def multiply(self, other: Any) -> Self:
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
        product: Self = elementwise.binary(np.multiply, self, other)
        return product

    def maximum(self, other: Any) -> Self:
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
        larger: Self = elementwise.binary(np.maximum, self, other)
        return larger

    def minimum(self, other: Any) -> Self:
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
        smaller: Self = elementwise.binary(np.minimum, self, other)
        return smaller

    def power(self, n: Any, dtype: Any = None) -> Self:
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
        powers: Self = elementwise.power(self, n, dtype)
        return powers

    def round(self, decimals: int = 0, out: None = None) -> Self:
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
        rounded: Self = elementwise.round_(self, decimals, out)
        return rounded

    def clip(self, min: Any = None, max: Any = None, out: None = None) -> Self:
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
        clipped: Self = elementwise.clip(self, min, max, out)
        return clipped

    def with_values(self, data: Any, out: Self | None = None) -> Self:
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
        renewed: Self = values.with_values(self, data, out)
        return renewed

    def stack(self, V: Any) -> Stack:
        """The arrays ``A.with_values(V[i])`` as one: the structure once, and a value table for each.

        Parameters
        ----------
        V : (batch, nnz) array on the array's device, or tensor
            Values in the order of ``A.data``: row by row, columns ascending, stored zeros among them. Of any numeric dtype and
            strides; `batch` is at least 1. It is copied.

        Returns
        -------
        :class:`cvrarray.array.stack.Stack`, of V's dtype
            It multiplies, and :func:`cvrarray.linalg.cg` solves with it.

        Raises
        ------
        TypeError
            V is on another device, or of a dtype that cannot be stored.
        ValueError
            V has another shape, or no element.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.stack(np.array([[1.0, 2, 3], [10.0, 20, 30]])) @ np.ones(3)
        array([[ 3.,  3.],
               [30., 30.]])
        """
        return stack(self, V)

    def eliminate_zeros(self) -> Self:
        """An array without the stored zeros; this one is immutable and stays as it is.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> B = A.with_values(np.array([1.0, 0.0, 3.0]))
        >>> B.nnz, B.eliminate_zeros().nnz
        (3, 2)
        """
        without: Self = structure.eliminate_zeros(self)
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

    # ------------------------------------------------------------------------------------------------- rearranged entries

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        """The entries in a matrix of another shape, in the same order.

        Parameters
        ----------
        *shape : (n_rows, n_cols), or all as arguments
            One of them may be -1.
        order : {"C", "F"}
            Row-major or column-major.
        copy : bool, optional
            False: an error unless the shape is the array's.

        Returns
        -------
        array of this format, or a ``sparse.COO`` where the shape has not two dimensions

        Raises
        ------
        ValueError
            The sizes differ.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.reshape(3, -1).todense()
        array([[1., 0.],
               [2., 0.],
               [3., 0.]])
        """
        return rearranging.reshape(self, shape[0] if len(shape) == 1 else shape, order, copy=copy)

    def flatten(self, order: str = "C") -> Any:
        """All entries, row by row, as a dense vector: what has one dimension is dense.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.flatten()
        array([1., 0., 2., 0., 3., 0.])
        """
        return self.todense().ravel(order=order)

    def squeeze(self, axis: Any = None) -> Any:
        """The array, or where an axis has length 1 a dense vector (both: a scalar), as indexing gives it.

        Raises
        ------
        ValueError
            `axis` is longer than 1.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2]])
        >>> A.squeeze()
        array([1., 0., 2.])
        """
        return rearranging.squeeze(self, axis)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """The transpose as a view, or with the same axis twice the array itself.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> A.swapaxes(0, 1).shape
        (3, 2)
        """
        return np.swapaxes(self, axis1, axis2)  # type: ignore[call-overload]

    # --------------------------------------------------------------------------------------------------------- reductions

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

    def prod(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The product of all entries, or along an axis: dense, as ``numpy.prod``. Parameters and errors as :meth:`sum`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[2.0, 3.0], [0, 5.0]])
        >>> float(A.prod()), A.prod(axis=1)
        (0.0, array([6., 0.]))
        """
        return borrowed.call(self, np.prod, self, axis, dtype, out, keepdims)

    def var(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
        """The variance of all entries, stored or not, or along an axis: dense, as ``numpy.var``.

        Parameters and errors as :meth:`mean`; the sum of squares is divided by the count less `ddof`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[2.0, 0], [0, 2.0]])
        >>> float(A.var()), A.var(axis=0, ddof=1)
        (1.0, array([2., 2.]))
        """
        return statistics.var(self, axis, dtype, out, ddof, keepdims)

    def std(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
        """The standard deviation, the root of :meth:`var`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[2.0, 0], [0, 2.0]])
        >>> float(A.std()), A.std(axis=1)
        (1.0, array([1., 1.]))
        """
        return statistics.std(self, axis, dtype, out, ddof, keepdims)

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

    def nanmax(self, axis: Any = None, out: Any = None, keepdims: bool = False, *, explicit: bool = False) -> Any:
        """:meth:`max` of the entries that are not nan; nan where there are none, with NumPy's RuntimeWarning.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, np.nan], [0, -3]])
        >>> float(A.nanmax()), A.nanmax(axis=1)
        (1.0, array([1., 0.]))
        """
        return statistics.nan_extreme(self, np.nanmax, axis, out, keepdims, explicit)

    def nanmin(self, axis: Any = None, out: Any = None, keepdims: bool = False, *, explicit: bool = False) -> Any:
        """:meth:`min` of the entries that are not nan: see :meth:`nanmax`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, np.nan], [0, -3]])
        >>> float(A.nanmin()), A.nanmin(axis=1)
        (-3.0, array([ 1., -3.]))
        """
        return statistics.nan_extreme(self, np.nanmin, axis, out, keepdims, explicit)

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: bool = False, explicit: bool = False) -> Any:
        """Where the largest entry is, the first of several: int64, dense, as ``numpy.argmax``.

        Parameters
        ----------
        axis : int, optional
            None: the position in the flattened array, ``row * n_cols + column``.
        out, keepdims
            As of :meth:`max`.
        explicit : bool
            Whether entries that are not stored are left out, as in SciPy.

        Raises
        ------
        ValueError
            There are no entries along the axis.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, -3, 0]])
        >>> int(A.argmax()), A.argmax(axis=1), A.argmax(axis=1, explicit=True)
        (2, array([2, 0]), array([2, 1]))
        """
        return statistics.argmax(self, axis, out, keepdims=keepdims, explicit=explicit)

    def argmin(self, axis: Any = None, out: Any = None, *, keepdims: bool = False, explicit: bool = False) -> Any:
        """Where the smallest entry is: see :meth:`argmax`.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, -3, 0]])
        >>> int(A.argmin()), A.argmin(axis=0)
        (4, array([1, 1, 1]))
        """
        return statistics.argmin(self, axis, out, keepdims=keepdims, explicit=explicit)

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
