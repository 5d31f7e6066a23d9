"""``A.T``: an array that is another array, transposed, without converting it.

Elementwise functions map the base's values, and everything else starts from the canonical CSR, which is the base's with
rows and columns exchanged. ``A.T.T`` is the base itself, and ``A.T.copy()`` converts: an array of the base's format
that holds the transposed matrix.

Products swap: ``A.T @ x`` is the base's transposed product. It scatters its sums, which is slower than collecting them. So
the base may keep *tables of its transpose*, and the product is theirs (docs/decisions/0018):

* On a CPU, and for ``A.T @ X`` on a GPU, the first product makes them, in the format that suits so many columns. Which of
  both ways is taken is decided then, for all products of the kind: so every call gives the same bits.
* On a GPU ``A.T @ x`` scatters until it was called so often that a conversion would have paid (:func:`pays_after`), and
  is theirs from then on. The number of calls alone decides, so the same calls give the same bits in every run.

The base's transposed product is taken where the tables would take too much memory (:data:`BUDGET`) or the device has
too little, of a vector in a CUDA graph, and in products that are made once (:meth:`TransposedArray.once`).
"""

from __future__ import annotations

import math
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
from . import encoding, products
from .base import SparseArray
from .budget import Budget
from .values import knows_transpose, renew_transpose

#: What the tables of transposes of all arrays on a device may take: ``CVRARRAY_TRANSPOSED_MEMORY``, by default a quarter of
#: the device's memory.
BUDGET = Budget("CVRARRAY_TRANSPOSED_MEMORY", 1 / 4)

#: On a GPU: microseconds that a conversion of the transpose takes, and that a product with a vector then saves, and for each
#: million nonzeros: measured, docs/measurements/0010.
CONVERSION, SAVED = (1100.0, 110.0), (15.0, 3.5)
ROOM = 10  # times the bytes of the array, that must be free for a conversion on a GPU
#: Products with a vector until tables that are there get the values that the array got meanwhile.
RENEWED_AFTER = 12


def pays_after(base: SparseArray) -> int:
    """Products with a vector that ``base.T`` makes by scattering on a GPU, before it has tables of its own: in them it loses
    as much time as the conversion takes.

    Examples
    --------
    >>> from cvrarray.array import transposed
    >>> transposed.pays_after(cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])) > 1
    True
    """
    takes, saves = (fixed + per_million * base.nnz / 1e6 for fixed, per_million in (CONVERSION, SAVED))
    return math.ceil(takes / saves)


def _converted(base: Any, columns: int) -> SparseArray | None:
    """The transpose of `base` as an array of its own, in the format that suits it and so many columns of X; None where it may
    not be kept. MemoryError where memory ends meanwhile.
    """
    target = base._target
    values = "plain" if base._is_written_by_graphs else "auto"  # those that are there say nothing of those to come
    with target.aside():
        if not BUDGET.has_room(base.nbytes, target):
            return None
        if target.kind == "cuda" and target.backend("memory").free(target.index) < ROOM * base.nbytes:
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
    if base._transpose is None or base._transpose_is_old:
        try:
            with _lock:
                _make_or_renew(base, columns or 1)
        except MemoryError:
            base._ready_transposed = {}  # what this product is about to enter is not to be found
            warnings.warn(
                f"no memory for tables of the transpose of {base.shape}: this product with A.T is made without them, which is"
                " slower, and its last bits may differ from those of other runs",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
    if base._transpose is False:
        return None
    if base._target.is_capturing():
        base._has_graphs_of_transpose = True
        base._of_graphs.append(base._transpose)
    own: SparseArray = base._transpose
    return own


def _make_or_renew(base: Any, columns: int) -> None:
    """Have the tables of the transpose hold the values of `base`; the caller has the lock."""
    was_old, version = base._transpose_is_old, base._version
    if was_old and not _renewed(base, base._transpose):
        base._transpose, was_old = None, False
    made = base._transpose
    if made is None:
        made = _converted(base, columns)
        if made is not None and base._is_written_by_graphs:
            renew_transpose(base, made)
    # a graph renews them in its replays, not now
    is_old = base._is_written_by_graphs or (was_old and base._target.is_capturing())
    base._transpose_version = None if is_old else version
    base._transpose = False if made is None else made


def _renewed(base: Any, transpose: Any) -> bool:
    """Whether the values of `base` are in the tables of its transpose now; not where they must be made anew."""
    is_encoded = any(encoding.table(array._tables) is not None for array in (base, transpose))
    if is_encoded:
        return False
    renew_transpose(base, transpose)
    return True


def for_many(array: Any, calls: int, columns: int = 1) -> Any:
    """What multiplies as `array` does, for so many products that a solver may make, with so many columns and all with the same
    bits.

    Of a transposed view on a GPU these are tables of its own, made now, if they pay for so many and may be kept; else the
    array itself.
    """
    if not isinstance(array, TransposedArray) or array._target.kind == "cpu" or array._target.is_capturing():
        return array
    own = keep(array.base, columns) if calls > pays_after(array.base) else None
    return array if own is None else own


def with_values(array: Any, data: Any, transposed: bool, columns: int | None) -> Any:
    """What multiplies once as ``array.with_values(data)`` does, or its transpose, where values are replaced again and again:
    a matrix of so many columns, or a vector if `columns` is None.

    Nothing is converted for these values alone: the array keeps tables of the transpose, to which they are written, or
    their sums are scattered. On a GPU a vector does not make an array keep tables; a view that is given does.
    """
    is_view = isinstance(array, TransposedArray)
    if is_view == transposed:  # the base's own product
        made = array.with_values(data)
        return made.T if transposed else made
    base = array.base if is_view else array
    keeps = is_view or columns is not None or base._target.kind == "cpu"
    own = keep(base, columns) if keeps else None
    if own is None:
        made = array.with_values(data)
        return TransposedArray.once(made.base if is_view else made)
    return own.with_values(data) if is_view else own.T.with_values(data).T


def _scattered_at_first(base: Any, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)`` with ``base.T`` on a GPU: scattering, and by tables of the transpose once they are there,
    which :func:`pays_after` or RENEWED_AFTER calls bring about.

    A graph that is captured always scatters: its replays see values that are written to the base later. The base keeps it
    ready, so it does not keep the base.
    """
    scatter, collect, alive = base._kernel("product_transposed", dtype), None, weakref.ref(base)
    stream = base._target.xp.cuda.get_current_stream

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        nonlocal collect
        base: Any = alive()
        if collect is None and _is_due(base):
            own = keep(base)
            collect = None if own is None else own._kernel("product", dtype)
        (scatter if collect is None or stream().is_capturing() else collect)(x, y, alpha, beta)

    return run


def _of_matrix(base: Any, dtype: np.dtype) -> Run:
    """``run(x, y, alpha, beta)`` with ``base.T`` and a matrix: by tables of the transpose, if there are any. It does not keep
    the base either.
    """
    alive = weakref.ref(base)

    def run(x: Any, y: Any, alpha: Any, beta: Any) -> None:
        base: Any = alive()
        own = keep(base, x.shape[1])
        multiply = products.transposed_matrix(base, dtype) if own is None else own._kernel("product_matrix", dtype)
        multiply(x, y, alpha, beta)

    return run


def _is_due(base: Any) -> bool:
    """Whether `base` shall have tables of its transpose in this product; counts it otherwise, but in a capture."""
    if base._transpose is False or base._is_written_by_graphs:
        return False
    is_there = base._transpose is not None
    if is_there and not base._transpose_is_old:
        return True
    wanted = RENEWED_AFTER if is_there and knows_transpose(base._transpose) else pays_after(base)
    base._n_scattered += 1
    if base._n_scattered <= wanted:
        return False
    return not base._target.is_capturing()


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
    _is_kept: bool  # whether its products may make the base keep tables of its transpose

    def __init__(self, base: SparseArray):
        self.base = base
        self._target = base._target
        self._dense_type = base._dense_type
        self._is_kept = True
        self._plan = None

    @classmethod
    def once(cls, base: SparseArray) -> TransposedArray:
        """A view for a product that is not made again: it converts nothing, and keeps nothing.

        Examples
        --------
        >>> from cvrarray.array.transposed import TransposedArray
        >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
        >>> TransposedArray.once(A) @ np.ones(2)
        array([1., 3., 2.])
        """
        view = cls(base)
        view._is_kept = False
        return view

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
    def _stored_as(self) -> str:
        return self.base._stored_as

    @property
    def nnz(self) -> int:
        return self.base.nnz

    @property
    def nbytes(self) -> int:
        """Bytes of the base's tables, and of those that it keeps of its transpose."""
        return self.base.nbytes + (self._own.nbytes if self._own is not None else 0)

    @property
    def _own(self) -> SparseArray | None:
        """The base's tables of its transpose, if it has some."""
        own = getattr(self.base, "_transpose", None)
        return None if own is False else own

    @property
    def _version(self) -> int | None:  # type: ignore[override]  # an attribute of formats
        return self.base._version

    @property
    def _ready(self) -> dict[Any, Any]:  # type: ignore[override]  # an attribute of formats
        return self.base._ready_transposed if self._is_kept else {}

    @property
    def _of_graphs(self) -> list[Any]:  # type: ignore[override]  # an attribute of formats
        return self.base._of_graphs

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
        view = f"a view of {type(self.base).__name__}, {self.base._described()}"
        if self._own is None:
            return view
        return f"{view}; products by {type(self._own).__name__}, {self._own._described()}, {self._own.nbytes / 1e6:.3g} MB"

    def _like(self, csr: CSR) -> SparseArray:
        return self.base._like(csr)

    def _map(self, function: Callable[[Any], Any]) -> TransposedArray:
        return TransposedArray(self.base._map(function))

    def _coo(self) -> tuple[Any, Any, Any]:
        col, row, val = self.base._coo()
        return row, col, val

    def _canonical_csr(self) -> CSR:
        base: Any = self.base
        if self._target.kind == "cuda" and not hasattr(base._module(self._target), "to_csr"):
            return super()._canonical_csr()  # one sort instead of two
        csr = base._canonical_csr()
        with self._target.use():
            transpose: CSR = self._target.backend("csr").transpose(csr)
            return transpose

    def _places(self) -> tuple[Any, Any]:
        return super()._places() if self._own is None else self._own._places()  # which remembers them

    def _row_sums(self, dtype: np.dtype) -> Any:
        return self.base._column_sums(dtype)

    def _column_sums(self, dtype: np.dtype) -> Any:
        return self.base._row_sums(dtype)

    def _diagonal(self, offset: int) -> Any:
        return self.base._diagonal(-offset)

    def _kernel(self, kind: str, dtype: np.dtype) -> Run:
        if kind == "product_transposed":
            return self.base._kernel("product", dtype)
        if kind == "product_matrix":
            return _of_matrix(self.base, dtype) if self._is_kept else products.transposed_matrix(self.base, dtype)
        if self._is_kept and self._target.kind == "cuda":
            return _scattered_at_first(self.base, dtype)
        own = keep(self.base) if self._is_kept else None
        return self.base._kernel("product_transposed", dtype) if own is None else own._kernel(kind, dtype)

    def _product_by_columns(self, dtype: np.dtype, k: int) -> Run | None:
        own = keep(self.base, k) if self._is_kept else None
        if own is not None:
            return own._product_by_columns(dtype, k)
        return products.transposed_matrix(self.base, dtype) if k < products.CONVERT_FROM else None

    def __reduce__(self) -> tuple[type[TransposedArray], tuple[SparseArray]]:
        return TransposedArray, (self.base,)
