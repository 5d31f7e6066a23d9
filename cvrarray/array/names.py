"""Names that users of SciPy, CuPy, pydata/sparse and NumPy know beside those of the array class.

:class:`Names` has the methods that are functions of other modules under another library's name or as a method.
:data:`WAYS` has the names that those libraries have and an array of ours cannot have: asking for one raises an
AttributeError that names the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import borrowed, rearranging, statistics

_IMMUTABLE = "Arrays of ours are immutable"
_DENSE = "Use A.todense()"

#: Name -> the way, of what SciPy's, CuPy's, pydata's or NumPy's arrays have and ours cannot have.
WAYS = {
    "indices": "Use A.tocsr().indices",
    "indptr": "Use A.tocsr().indptr",
    "coords": "Use A.nonzero(), or A.tocoo().coords",
    "row": "Use A.nonzero(), or A.tocoo().coords",
    "col": "Use A.nonzero(), or A.tocoo().coords",
    "offsets": "Use A.asformat('dia').offsets",
    "blocksize": "Use A.block_size of a BBCSRArray, or A.tobsr().blocksize",
    "sort_indices": "A.tocsr() is always sorted",
    "has_sorted_indices": "A.tocsr() is always sorted",
    "sum_duplicates": "An array has no duplicates: they are summed when it is made",
    "setdiag": f"{_IMMUTABLE}. Use setdiag on A.tocsr(), and convert it",
    "resize": f"{_IMMUTABLE}. Use A[:m, :n] or numpy.pad, or resize on A.tocsr()",
    "check_format": "Use A.check()",
    "getrow": "Use A[[i]], or A[i] for a dense vector",
    "getcol": "Use A[:, [j]], or A[:, j] for a dense vector",
    "getnnz": "Use A.nnz, or A.count_nonzero(axis)",
    "getformat": "Use A.format",
    "getH": "Use A.H",
    **{name: f"Use numpy.{name}(A, axis)" for name in ("nansum", "nanmean")},
    "take": "Use numpy.take(A, indices, axis)",
    "tensordot": "Use numpy.tensordot(A, x, axes)",
    "tocupy": "Use A.to_device('cuda')",
    "get": "Use A.to_device('cpu')",
    "set": f"{_IMMUTABLE}. Use A.with_values(data)",
    "ravel": "An array of ours has 2 dimensions. Use A.flatten(), which is dense, or give SciPy's functions A.tocsr()",
    "A": _DENSE,
    "amax": "Use A.max(axis)",
    "amin": "Use A.min(axis)",
    "reduce": "Use A.sum(axis), A.max(axis), A.any(axis), ..., or numpy.add.reduce(A, axis)",
    "rows": "Use A.tolil().rows",
    "flat": "Use A.data, or A.flatten(), which is dense",
    "tolist": "Use A.todense().tolist()",
    "item": "Use A[i, j].item()",
    "fill": f"{_IMMUTABLE}. Use A.with_values(data)",
    "itemsize": "Use A.dtype.itemsize",
    "view": "Use A.astype(dtype), or A.with_values(A.data.view(dtype))",
    "cumsum": f"The result would be dense. {_DENSE}",
    "cumprod": f"The result would be dense. {_DENSE}",
    "sort": f"{_IMMUTABLE}. {_DENSE}",
    "argsort": _DENSE,
    "ptp": "Use A.max(axis) - A.min(axis)",
    "repeat": "Use numpy.repeat(A, repeats, axis)",
    "compress": "Use A[mask], or numpy.compress(mask, A, axis)",
    "broadcast_to": "Use numpy.broadcast_to(A, shape)",
    **dict.fromkeys(
        ("items", "keys", "values", "update", "pop", "popitem", "setdefault", "clear", "fromkeys"), "Use A.todok()"
    ),
    **dict.fromkeys(("from_numpy", "from_scipy_sparse", "from_coo", "from_iter"), "Use cvrarray.asarray, or the class"),
}


class Names:
    """Methods by the names that other libraries gave them; a base of the array class.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 4], [0, 9, 0]])
    >>> A.argmax(axis=1), A.reshape(3, 2).shape
    (array([2, 1]), (3, 2))
    """

    if not TYPE_CHECKING:  # a type checker should notice any name that is not there

        def __getattr__(self, name: str) -> Any:
            way = f". {WAYS[name]}" if name in WAYS else ""
            if isinstance(getattr(np, name, None), np.ufunc):
                way = f". Use numpy.{name}(A)"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{way}", name=name, obj=self)

    # ----------------------------------------------------------------------------------------------- rearranged entries

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
        return self.todense().ravel(order=order)  # type: ignore[attr-defined]  # the array class's

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

    # ------------------------------------------------------------------------------------------------------- reductions

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

    # ---------------------------------------------------------------------------------------------------- other formats

    def tocsc(self, copy: bool = False) -> Any:
        """A ``scipy.sparse.csc_array``, or on a GPU a ``cupyx.scipy.sparse.csc_matrix``: what SciPy's direct solvers
        take.

        Raises
        ------
        TypeError, ValueError
            As :meth:`tocsr`.

        Examples
        --------
        >>> from scipy.sparse.linalg import spsolve
        >>> A = cvrarray.CVRArray([[2.0, 0], [0, 4]])
        >>> spsolve(A.tocsc(), np.array([2.0, 8.0]))
        array([1., 2.])
        """
        return self.asformat("csc")  # type: ignore[attr-defined]

    def tobsr(self, blocksize: tuple[int, int] | None = None, copy: bool = False) -> Any:
        """A ``scipy.sparse.bsr_array`` in host memory; blocks of `blocksize`, or of a size that SciPy chooses.

        Examples
        --------
        >>> cvrarray.CVRArray(np.eye(4)).tobsr((2, 2)).blocksize
        (2, 2)
        """
        return self.to_scipy().tobsr(blocksize)  # type: ignore[attr-defined]

    def tolil(self, copy: bool = False) -> Any:
        """A ``scipy.sparse.lil_array`` in host memory, to be changed and converted again.

        Examples
        --------
        >>> S = cvrarray.CVRArray(np.eye(2)).tolil()
        >>> S[0, 1] = 5
        >>> cvrarray.CVRArray(S).nnz
        3
        """
        return self.to_scipy().tolil()  # type: ignore[attr-defined]

    def todok(self, copy: bool = False) -> Any:
        """A ``scipy.sparse.dok_array`` in host memory, to be changed and converted again.

        Examples
        --------
        >>> sorted(map(tuple, cvrarray.CVRArray(np.eye(2)).todok().keys())) == [(0, 0), (1, 1)]
        True
        """
        return self.to_scipy().todok()  # type: ignore[attr-defined]

    def todia(self, copy: bool = False) -> Any:
        """A ``scipy.sparse.dia_array`` in host memory.

        Examples
        --------
        >>> cvrarray.CVRArray(np.eye(3)).todia().offsets
        array([0], dtype=int32)
        """
        return self.to_scipy().todia()  # type: ignore[attr-defined]

    def to_scipy_sparse(self) -> Any:
        """:meth:`to_scipy`, by pydata's name.

        Examples
        --------
        >>> cvrarray.CVRArray(np.eye(3)).to_scipy_sparse().format
        'csr'
        """
        return self.to_scipy()  # type: ignore[attr-defined]

    def toarray(self, order: str | None = None, out: Any = None) -> Any:
        """:meth:`todense`, by SciPy's name.

        Examples
        --------
        >>> cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]]).toarray()
        array([[1., 0., 2.],
               [0., 3., 0.]])
        """
        return self.todense(order, out)  # type: ignore[attr-defined]
