"""Where an array goes: another device, other formats, other libraries' arrays, dense ones."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ..core import devices, extensions
from ..input import coercion
from . import reductions
from .attributes import Attributes


class Leaving(Attributes):
    """Methods that make something else of an array; a base of the array class.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
    >>> type(A.tocsr()).__name__, type(A.todense()).__name__
    ('csr_array', 'ndarray')
    """

    def copy(self) -> Self:
        """An array with tables of its own, on the same device.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> np.shares_memory(A.copy().tocsr().data, A.tocsr().data)
        False
        """
        raise NotImplementedError

    def to_device(self, device: Any) -> Self:
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
            array: Any = self
            return array.T.tocsr().T
        if format in ("csr", "csc", "bsr", "dia", "lil"):
            return self.tocsr().asformat(format)
        raise ValueError(f"format must be {', '.join(ours)}, csr, csc, bsr, dia, lil, coo, gcxs or dok; got {format!r}")

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

    def to_scipy_sparse(self) -> Any:
        """:meth:`to_scipy`, by pydata's name.

        Examples
        --------
        >>> cvrarray.CVRArray(np.eye(3)).to_scipy_sparse().format
        'csr'
        """
        return self.to_scipy()

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
        return self.asformat("csc")

    def tobsr(self, blocksize: tuple[int, int] | None = None, copy: bool = False) -> Any:
        """A ``scipy.sparse.bsr_array`` in host memory; blocks of `blocksize`, or of a size that SciPy chooses.

        Examples
        --------
        >>> cvrarray.CVRArray(np.eye(4)).tobsr((2, 2)).blocksize
        (2, 2)
        """
        return self.to_scipy().tobsr(blocksize)

    def tolil(self, copy: bool = False) -> Any:
        """A ``scipy.sparse.lil_array`` in host memory, to be changed and converted again.

        Examples
        --------
        >>> S = cvrarray.CVRArray(np.eye(2)).tolil()
        >>> S[0, 1] = 5
        >>> cvrarray.CVRArray(S).nnz
        3
        """
        return self.to_scipy().tolil()

    def todok(self, copy: bool = False) -> Any:
        """A ``scipy.sparse.dok_array`` in host memory, to be changed and converted again.

        Examples
        --------
        >>> sorted(map(tuple, cvrarray.CVRArray(np.eye(2)).todok().keys())) == [(0, 0), (1, 1)]
        True
        """
        return self.to_scipy().todok()

    def todia(self, copy: bool = False) -> Any:
        """A ``scipy.sparse.dia_array`` in host memory.

        Examples
        --------
        >>> cvrarray.CVRArray(np.eye(3)).todia().offsets
        array([0], dtype=int32)
        """
        return self.to_scipy().todia()

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

    def toarray(self, order: str | None = None, out: Any = None) -> Any:
        """:meth:`todense`, by SciPy's name.

        Examples
        --------
        >>> cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]]).toarray()
        array([[1., 0., 2.],
               [0., 3., 0.]])
        """
        return self.todense(order, out)
