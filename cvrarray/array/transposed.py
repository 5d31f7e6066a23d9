"""``A.T``: an array that is another array, transposed, without converting it.

Elementwise functions map the base's values, and everything else starts from the canonical CSR, which is the base's with
rows and columns exchanged. ``A.T.T`` is the base itself, and ``A.T.copy()`` converts: an array of the base's format
that holds the transposed matrix.

A product collects the entries of a row, so the base keeps *tables of its transpose* (docs/architecture.md), on a CPU and on a
GPU. The first product makes them, in the format that suits so many columns; new values of the base are written to them
before the next product (:func:`_make_or_renew`).

Where they would take too much memory (:data:`BUDGET`), and in products that are made once (:meth:`TransposedArray.once`),
nothing is kept. Then a CPU's module may scatter the terms of a vector, if it has a ``product_transposed``; else panels of
rows are transposed in turn, and their products added (:func:`by_panels`). Which way is taken is decided at the first
product, by the array's size, the limit and what other arrays keep, so every call gives the same bits.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import extensions
from ..core.arrays import Run
from ..core.tables import CSR
from . import encoding
from .base import SparseArray
from .budget import Budget
from .kept import Products, State, Transpose
from .products import by_columns
from .values import renew_transpose

#: What the tables of transposes of all arrays on a device may take: ``CVRARRAY_TRANSPOSED_MEMORY``, by default a quarter of
#: the device's memory.
BUDGET = Budget("CVRARRAY_TRANSPOSED_MEMORY", 1 / 4)

ROOM = 10  # times the bytes of the array, that a GPU must have for a conversion, in use or not
#: Bytes of an array that are transposed at a time where no tables are kept.
PANEL = 1 << 28
#: Columns of X from which a CPU transposes panels for a product without tables: a conversion takes as long as 13 (BBCSR) to 26
#: (CVR) products of a vector that scatter, and the matrix kernel then takes many columns in the time of a few.
CONVERT_FROM = 24


def _converted(base: Any, columns: int) -> SparseArray | None:
    """The transpose of `base` as an array of its own, in the format that suits it and so many columns of X; None where it may
    not be kept. MemoryError where memory ends meanwhile.
    """
    target = base._target
    # CUDA graphs may go on with tables of any values, but not with those that other values would not fit
    values = "plain" if target.kind == "cuda" and encoding.table(base._tables) is None else "auto"
    with target.aside():
        if not BUDGET.has_room(base.nbytes, target):
            return None
        if target.kind == "cuda" and ROOM * base.nbytes > target.backend("memory").installed():
            return None
        csr = TransposedArray(base)._canonical_csr()
        array: SparseArray = extensions.load("construct").asarray(csr, columns=columns, device=target, values=values)
    BUDGET.hold(array, array.nbytes, target)
    return array


_lock = threading.RLock()  # who holds it adds to the tables of transposes


def keep(base: Any, columns: int | None = None) -> SparseArray | None:
    """The tables that `base` keeps of its transpose, made or renewed now if need be; None where it has none. What is made now
    is for a product with a matrix of so many columns, or with a vector if `columns` is None.

    Where memory ends meanwhile, this product is made without them, a warning says so, and the next one tries again: so later
    products have the bits that they have in every other run.
    """
    kept = base._transpose
    if kept.state is State.UNDECIDED or kept.is_old(base._version):
        try:
            with _lock, base._target.use():
                _make_or_renew(base, kept, columns or 1)
        except MemoryError:
            kept.products.drop()  # what this product is about to enter is not to be found
            warnings.warn(
                f"no memory for tables of the transpose of {base.shape}: this product with A.T is made without them, which is"
                " slower, and its last bits may differ from those of other runs",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
    tables: SparseArray | None = kept.tables
    if tables is not None and base._target.is_capturing():
        kept.is_in_graphs = True
        base._of_graphs.append(tables)
    return tables


def _make_or_renew(base: Any, kept: Transpose, columns: int) -> None:
    """Have the tables of the transpose hold the values of `base`; the caller has the lock."""
    version = base._version
    is_old = kept.is_old(version)
    if is_old and not _renewed(base, kept.tables):
        kept.state, kept.tables, is_old = State.UNDECIDED, None, False
    tables = kept.tables
    if kept.state is State.UNDECIDED:
        _refuse_capture(base)
        tables = _converted(base, columns)
    # a graph renews them in its replays, not now
    is_old = base._is_written_by_graphs or (is_old and base._target.is_capturing())
    if not is_old:
        base._target.wait()  # the next product may be another stream's
    kept.version, kept.tables = None if is_old else version, tables
    kept.state = State.REFUSED if tables is None else State.KEPT


def _renewed(base: Any, transpose: Any) -> bool:
    """Whether the values of `base` are in the tables of its transpose now; not where they must be made anew."""
    is_encoded = any(encoding.table(array._tables) is not None for array in (base, transpose))
    if is_encoded:
        return False
    renew_transpose(base, transpose)
    return True


def _refuse_capture(base: Any) -> None:
    if base._target.is_capturing():
        raise RuntimeError(
            "A.T @ x needs tables of the transpose, which cannot be made while a CUDA graph is captured; got an array of shape"
            f" {base.shape} without them. Call A.T @ x once before the capture, of an array that is made before it, with room"
            " for them in CVRARRAY_TRANSPOSED_MEMORY"
        )


def with_tables(array: Any, columns: int = 1) -> Any:
    """What multiplies as `array` does by tables of its own: of a transposed view those that are kept, made now if need be for
    so many columns. The array itself where it has none.
    """
    own = keep(array.base, columns) if isinstance(array, TransposedArray) else None
    return array if own is None else own


def with_values(array: Any, data: Any, transposed: bool, columns: int | None) -> Any:
    """What multiplies once as ``array.with_values(data)`` does, or its transpose, where values are replaced again and again:
    a matrix of so many columns, or a vector if `columns` is None.

    Nothing is converted for these values alone: the array keeps tables of the transpose, to which they are written, unless
    there is no room for them.
    """
    is_view = isinstance(array, TransposedArray)
    if is_view == transposed:  # the base's own product
        made = array.with_values(data)
        return made.T if transposed else made
    base = array.base if is_view else array
    own = keep(base, columns)
    if own is None:
        made = array.with_values(data)
        return TransposedArray.once(made.base if is_view else made)
    return own.with_values(data) if is_view else own.T.with_values(data).T


def _collected(base: Any, kind: str, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)`` with ``base.T``: by tables of the transpose, if there are any, with the values that the base
    has then. The base keeps it ready, so it does not keep the base.
    """
    alive = weakref.ref(base)

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        base: Any = alive()
        own = keep(base, *x.shape[1:])
        (_without_tables(base, kind, dtype) if own is None else own._kernel(kind, dtype))(x, y, alpha, beta)

    return run


def _without_tables(base: Any, kind: str, dtype: np.dtype) -> Run:
    """The same where nothing is kept. X may be in any order where the base scatters and it has few columns."""
    if kind == "product":
        return base._kernel("product_transposed", dtype)  # type: ignore[no-any-return]

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        scatters = hasattr(base._module(base._target), "product_transposed")  # from its own tables: on a CPU ours do
        if x.shape[1] >= CONVERT_FROM or not scatters:
            by_panels(base, kind, dtype)(x, y, alpha, beta)
            return
        by_columns(base._kernel("product_transposed", dtype))(x, y, alpha, beta)

    return run


def by_panels(base: Any, kind: str, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)`` with ``base.T`` where nothing is kept, x a vector or, in C order, a matrix, as `kind` says.

    Panels of rows are transposed in turn, and their products added in this order. Each has about PANEL bytes of the array's.
    The base may keep this too.
    """
    alive = weakref.ref(base)

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        base: Any = alive()
        _refuse_capture(base)
        n_rows, transpose = base.shape[0], base._target.backend("csr").transpose
        height = -(-n_rows // max(1, -(-base.nbytes // PANEL)))
        height = max(32, height + -height % 32)  # so that parts of x lie as kernels want x
        for first in range(0, max(1, n_rows), height):
            last = min(first + height, n_rows)
            csr = base._canonical_csr() if last - first == n_rows else base._canonical_rows(first, last)
            base._like(transpose(csr))._kernel(kind, dtype)(x[first:last], y, alpha, beta)
            beta = dtype.type(1)

    return run


def _free_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread that held it is not in a forked child
    os.register_at_fork(after_in_child=_free_lock)


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
    _is_kept = True  # whether its products may make the base keep tables of its transpose
    _plan = None

    def __init__(self, base: SparseArray):
        self.base = base
        self._target = base._target
        self._dense_type = base._dense_type
        self._products = base._transpose.products
        self._of_graphs = base._of_graphs

    @classmethod
    def once(cls, base: SparseArray) -> TransposedArray:
        """A view for a product that is not made again: it keeps nothing.

        Examples
        --------
        >>> from cvrarray.array.transposed import TransposedArray
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> TransposedArray.once(A) @ np.ones(2)
        array([1., 3., 2.])
        """
        view = cls(base)
        view._is_kept, view._products = False, Products()
        return view

    @property
    def format(self) -> str:  # type: ignore[override]  # a class variable of formats
        """The base's format."""
        return self.base.format

    @property
    def _shape(self) -> tuple[int, int]:  # type: ignore[override]  # an attribute of formats
        return self.base._shape[::-1]

    @property
    def _dtype(self) -> np.dtype:  # type: ignore[override]  # an attribute of formats
        return self.base._dtype

    @property
    def _stored_as(self) -> str:
        return self.base._stored_as

    @property
    def _nnz(self) -> int:  # type: ignore[override]  # an attribute of formats
        return self.base._nnz

    @property
    def nbytes(self) -> int:
        """Bytes of the base's tables, and of those that it keeps of its transpose."""
        return self.base.nbytes + (self._own.nbytes if self._own is not None else 0)

    @property
    def _own(self) -> SparseArray | None:
        """The base's tables of its transpose, if it has some."""
        own: SparseArray | None = self.base._transpose.tables
        return own

    def _made(self) -> SparseArray | None:
        """The same, made now if need be, for products with vectors."""
        return keep(self.base)

    @property
    def _version(self) -> int | None:  # type: ignore[override]  # an attribute of formats
        return self.base._version

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

    def copy(self) -> SparseArray:  # type: ignore[override]  # which is no view
        """The transposed matrix as an array of the base's format, on the same device: a conversion.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> type(A.T.copy()).__name__, A.T.copy().shape
        ('CVRArray', (3, 2))
        """
        array: SparseArray = self.base._like(self._canonical_csr())
        return array

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

    def _described(self) -> str:
        view = f"a view of {type(self.base).__name__}, {self.base._described()}"
        if self._own is None:
            return view
        return f"{view}; products by {type(self._own).__name__}, {self._own._described()}, {self._own.nbytes / 1e6:.3g} MB"

    def _like(self, csr: CSR) -> Any:
        return self.base._like(csr)

    def _map(self, function: Callable[[Any], Any]) -> TransposedArray:
        return TransposedArray(self.base._map(function))

    def _coo(self) -> tuple[Any, Any, Any]:
        col, row, val = self.base._coo()
        return row, col, val

    def _canonical_csr(self) -> CSR:
        csr = self.base._canonical_csr()
        with self._target.use():
            transpose: CSR = self._target.backend("csr").transpose(csr)
            return transpose

    def _diagonal(self, offset: int) -> Any:
        return self.base._diagonal(-offset)

    def _kernel(self, kind: str, dtype: np.dtype) -> Run:
        if kind == "product_transposed":
            return self.base._kernel("product", dtype)
        if not self._is_kept:
            return _without_tables(self.base, kind, dtype)
        if kind == "product_matrix" or self._target.kind == "cuda":
            return _collected(self.base, kind, dtype)
        own = keep(self.base)  # once: on a CPU new values end what is ready
        return _without_tables(self.base, kind, dtype) if own is None else own._kernel(kind, dtype)

    def __reduce__(self) -> tuple[type[TransposedArray], tuple[SparseArray]]:
        return TransposedArray, (self.base,)
