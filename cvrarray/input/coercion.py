"""Every input becomes one canonical CSR: all coercion of matrices lives here.

:func:`as_csr` takes what users hold (SciPy, CuPy, pydata/sparse, dense, our own arrays), :func:`from_parts` the three
CSR arrays, :func:`from_triplets` coordinates, and :func:`from_csc`, :func:`from_bsr` and :func:`from_dia` the arrays of
these formats. All return a :class:`cvrarray.core.tables.CSR` on the device where the
input lived: native byte order, columns strictly increasing in every row, duplicates summed, explicit zeros kept.
A user's own arrays are never written to, and no library's conversion sees one that :mod:`.validation` has not checked.
"""

from __future__ import annotations

import itertools
import numbers
import operator
import os
import sys
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR, NOTHING, Wanted
from . import limits, validation

#: The most rows or columns.
LARGEST = 2**62 - 1

#: Other packages whose sparse arrays are taken; and all.
OTHERS = ("scipy", "cupyx", "sparse")
SPARSE_PACKAGES = (*OTHERS, "cvrarray")

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)

_STORABLE = "bool, an integer of up to 64 bits, float16, float32, float64, complex64 or complex128"


#: Of a shape and a number of nonzeros: what the caller will want to know of such a CSR.
Wants = Callable[[tuple[int, int], int], Wanted]


def as_csr(obj: Any, wants: Wants | None = None, target: devices.Device | None = None) -> CSR:
    """The matrix `obj` as canonical CSR, on the device where it lives, or on `target`.

    Of a dense array what is not 0 is stored: -0.0 is 0, so its sign is lost. Sparse inputs keep stored zeros of either
    sign.

    Parameters
    ----------
    obj : scipy.sparse matrix or array, cupyx.scipy.sparse matrix, sparse.COO/GCXS/DOK, array of ours, 2-D dense array
        or nested list.
    wants : function, optional
        What the caller will want to know of it. A CSR on a GPU is looked at there while it is checked.
    target : Device, optional
        A GPU to which a CSR, CSC or COO in host memory goes before it is checked, sorted and summed up.

    Raises
    ------
    TypeError
        `obj` is none of these, or its values have a dtype that cannot be stored.
    ValueError
        It is not 2-D, its fill value is not 0, or its indices break CSR's rules; or the environment sets
        CVRARRAY_MAX_BYTES, and its rows need more.
    MemoryError
        Its rows need more memory than there is; the message says how many there are.
    """
    if isinstance(obj, CSR):
        return obj
    if is_ours(obj):
        own: CSR = obj._canonical_csr()
        return own
    if not hasattr(obj, "shape") and not isinstance(obj, (list, tuple)):
        remedy = f" Use cvrarray.read({obj!r})" if isinstance(obj, (str, os.PathLike)) else _ELSEWHERE.get(_root(obj), "")
        raise TypeError(f"a matrix must be a sparse or dense 2-D array; got {type(obj).__name__}.{remedy}")
    if isinstance(obj, (list, tuple)):
        obj = np.asarray(obj)
    if len(obj.shape) != 2:
        raise ValueError(f"a matrix must have 2 dimensions; got shape {tuple(obj.shape)}")
    home = package(obj)
    if home in OTHERS:
        return _from_sparse(obj, wants, target)
    if isinstance(obj, np.ma.MaskedArray):
        raise TypeError("a matrix must hold all its values; got a masked array. Call .filled(0) first")
    if home in ("numpy", "cupy"):
        return _from_dense(np.asarray(obj) if home == "numpy" else obj)
    raise TypeError(
        f"a matrix must come from numpy, cupy, scipy.sparse, cupyx.scipy.sparse, sparse or cvrarray; got "
        f"{type(obj).__module__}.{type(obj).__name__}.{_ELSEWHERE.get(_root(obj), ' Convert it to one of these first')}"
    )


def from_arguments(
    obj: Any, shape: Any = None, dtype: Any = None, wants: Wants | None = None, target: devices.Device | None = None
) -> CSR:
    """:func:`as_csr` of what constructors take: also a shape, or the parts of a matrix as SciPy's constructors take
    them.

    Parameters
    ----------
    obj : matrix, or a tuple
        ``(n_rows, n_cols)`` of a matrix without entries, ``(data, (row, col))`` or ``(data, indices, indptr)``.
    shape : (n_rows, n_cols), optional
        Default: the matrix's; of parts as large as they need.
    dtype : data type, optional
        To which values are cast. Default: theirs; without any float64.
    wants, target
        As for :func:`as_csr`.

    Raises
    ------
    TypeError, ValueError
        As :func:`as_csr` and :func:`from_parts`; or a matrix has another shape than `shape`.
    """
    csr = _from_tuple(obj, shape, dtype, wants, target) if isinstance(obj, tuple) else None
    if csr is None:
        csr = as_csr(obj, wants, target)
        if shape is not None and check_shape(shape) != csr.shape:
            raise ValueError(f"shape must be the matrix's, {csr.shape}, or left out; got {shape!r}")
    if dtype is None or csr.data.dtype == check_dtype(dtype):
        return csr
    with devices.of(csr.data).use():
        return csr._replace(data=csr.data.astype(check_dtype(dtype)))


def _from_tuple(obj: tuple[Any, ...], shape: Any, dtype: Any, wants: Wants | None, target: devices.Device | None) -> CSR | None:
    """The matrix that a tuple of SciPy's describes; None of any other tuple, such as one of rows."""
    if len(obj) == 2 and all(hasattr(n, "__index__") and not isinstance(n, bool) and np.ndim(n) == 0 for n in obj):
        n_rows, n_cols = check_shape(obj if shape is None else shape)
        limits.require_rows((n_rows, n_cols), 0)
        return without_entries((n_rows, n_cols), check_dtype(np.dtype(np.float64 if dtype is None else dtype)), np)
    if len(obj) == 2 and isinstance(obj[1], tuple | list) and len(obj[1]) == 2 and all(hasattr(c, "__len__") for c in obj[1]):
        data, (row, col) = (_as_array(obj[0], "data"), (_as_array(c, "row and col") for c in obj[1]))
        shape = check_shape((_most(row), _most(col)) if shape is None else shape)
        limits.require_rows(shape, data.nbytes)
        return from_triplets(row, col, data, shape, wants, target)
    if len(obj) == 3 and not all(isinstance(part, tuple) for part in obj):
        data, indices, indptr = (_as_array(part, "data, indices and indptr") for part in obj)
        indices, data = _without_room(indptr, indices, data)
        shape = (max(0, indptr.size - 1), _most(indices)) if shape is None else shape
        return from_parts(indptr, indices, data, shape, wants, target)
    return None


def _without_room(indptr: Any, indices: Any, data: Any) -> tuple[Any, Any]:
    """`indices` and `data` of a CSR or CSC without what lies behind the last row: other packages' may have room there."""
    is_triple = indptr.size and indptr.dtype.kind in "iu" and indices.size == data.size
    if is_triple and not devices.of(indptr).is_capturing():  # a capture may not look; what comes next refuses it
        n = int(indptr[-1])
        if 0 <= n < data.size:
            return indices[:n], data[:n]
    return indices, data


def _most(places: Any) -> int:
    """One more than the largest of `places`."""
    return int(places.max()) + 1 if places.size else 0


def without_entries(shape: tuple[int, int], dtype: np.dtype, xp: Any) -> CSR:
    """The canonical CSR of a matrix without entries; `xp` is the array module of its device, the current one."""
    return CSR(xp.zeros(shape[0] + 1, _INT64), xp.empty(0, index_dtype(shape)), xp.empty(0, dtype), shape)


def is_ours(obj: Any) -> bool:
    """Whether `obj` is an array of ours, or a class of them."""
    return hasattr(obj, "_canonical_csr")


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is PyTorch's, perhaps of a class of the user's own; without importing it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def package(obj: Any) -> str:
    """The package that `obj`'s class comes from, or the nearest of its bases that is not the user's own; else ``""``.

    ``"numpy"``, ``"cupy"`` or one of SPARSE_PACKAGES: found without importing any of them.
    """
    cls: Any = type(obj)
    return package_of(cls)


@lru_cache(1024)
def package_of(cls: Any) -> str:
    """:func:`package` for a class."""
    for base in cls.__mro__:
        name: str = base.__module__.partition(".")[0]
        if name in ("numpy", "cupy") or (name in SPARSE_PACKAGES and (hasattr(cls, "tocsr") or hasattr(cls, "asformat"))):
            return name
    return ""


def from_parts(
    indptr: Any,
    indices: Any,
    data: Any,
    shape: tuple[int, int],
    wants: Wants | None = None,
    target: devices.Device | None = None,
) -> CSR:
    """Canonical CSR from the three arrays of any CSR: rows may be unsorted and hold duplicates, which are summed.

    Parameters
    ----------
    indptr : (n_rows + 1,) integers, 0 to nnz, never decreasing
    indices : (nnz,) integers in [0, n_cols); as `data` it may be longer, and what lies behind is no part of the matrix
    data : (nnz,) values
    shape : (n_rows, n_cols)
    wants, target
        As for :func:`as_csr`.

    Raises
    ------
    TypeError
        A dtype is not of the right kind, or the arrays live on different devices.
    ValueError
        An array breaks its rule; the message names the array and the first place.
    """
    shape = check_shape(shape)
    indptr, indices, data = _as_array(indptr, "indptr"), _as_array(indices, "indices"), _as_array(data, "data")
    device = same_device(indptr=indptr, indices=indices, data=data)
    with device.use():
        indices, data = _without_room(indptr, indices, data)
        data = _as_values(data)
        indptr, indices = as_integers(indptr, "indptr"), as_integers(indices, "indices")
    device, (indptr, indices, data) = _on(target, device, indptr, indices, data)
    with device.use():
        wanted = wants(shape, data.size) if wants else NOTHING
        canonical, seen = validation.check_compressed(indptr, indices, data.size, *shape, data=data, wanted=wanted)
        csr = _with_index_dtype(CSR(indptr, indices, data, shape, seen))
        if canonical:
            return csr
        sorted_rows: CSR = device.backend("csr").canonical_rows(csr)
        return sorted_rows


def _with_index_dtype(csr: CSR) -> CSR:
    """`csr` with columns of the dtype that its shape asks for."""
    dtype = index_dtype(csr.shape)
    if csr.indices.dtype == dtype:
        return csr
    indices = csr.indices.astype(dtype)
    return csr._replace(indices=indices, seen=csr.seen.of(indices))


def _on(target: devices.Device | None, device: devices.Device, *arrays: Any) -> tuple[devices.Device, tuple[Any, ...]]:
    """`arrays`, which are on `device`, on a GPU `target` if they are in host memory."""
    if device.kind != "cpu" or target is None or target.kind == "cpu":
        return device, arrays
    return target, tuple(devices.move(array, target) for array in arrays)


def from_triplets(
    row: Any,
    col: Any,
    val: Any,
    shape: tuple[int, int],
    wants: Wants | None = None,
    target: devices.Device | None = None,
) -> CSR:
    """Canonical CSR from coordinates, in any order; duplicates are summed. Same rules and errors as :func:`from_parts`."""
    shape = check_shape(shape)
    row, col, val = _as_array(row, "row"), _as_array(col, "col"), _as_array(val, "val")
    device = same_device(row=row, col=col, val=val)
    with device.use():
        val = _as_values(val)
        row, col = as_integers(row, "row"), as_integers(col, "col")
    device, (row, col, val) = _on(target, device, row, col, val)
    with device.use():
        wanted, dtype = wants(shape, val.size) if wants else NOTHING, index_dtype(shape)
        ascends, csr = validation.check_coordinates(row, col, val.size, shape, val, wanted)
        if csr is not None:
            return _with_index_dtype(csr)
        row, col = row.astype(dtype, copy=False), col.astype(dtype, copy=False)
        canonical: CSR = device.backend("csr").canonical(row, col, val, shape, ascends)
        return canonical


def from_csc(
    indptr: Any, indices: Any, data: Any, shape: tuple[int, int], wants: Any = None, target: devices.Device | None = None
) -> CSR:
    """Canonical CSR from the three arrays of any CSC; they are those of the transpose's CSR, with the same rules and
    errors as in :func:`from_parts`.
    """
    shape = check_shape(shape)
    transpose = from_parts(indptr, indices, data, shape[::-1], None, target)
    with devices.of(transpose.data).use():
        matrix: CSR = devices.of(transpose.data).backend("csr").transpose(transpose)
        return matrix


def from_bsr(indptr: Any, indices: Any, data: Any, shape: tuple[int, int]) -> CSR:
    """Canonical CSR from the three arrays of any BSR, on the CPU.

    Parameters
    ----------
    indptr, indices
        As for :func:`from_parts`, of rows and columns of blocks.
    data : (n_blocks, block rows, block columns) values
    shape : (n_rows, n_cols), multiples of the blocks'

    Raises
    ------
    TypeError, ValueError
        As :func:`from_parts` does; also where blocks of this size do not tile the shape.
    """
    shape = check_shape(shape)
    data = _as_values(np.asarray(data))
    # SciPy has no float16: it moves the bits
    bits = data.view(np.uint16) if data.dtype == np.float16 else data
    csr = _trusted_bsr(as_integers(indptr, "indptr"), as_integers(indices, "indices"), bits, shape).tocsr()
    return from_parts(csr.indptr, csr.indices, csr.data.view(data.dtype), shape)


def _trusted_bsr(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: tuple[int, int]) -> Any:
    """A ``scipy.sparse.bsr_array`` whose arrays SciPy may trust."""
    from scipy.sparse import bsr_array

    validation.check_blocks(indptr, indices, data, shape)
    matrix = bsr_array((data, indices, indptr), shape=shape)
    if data.size > np.iinfo(_INT32).max:  # SciPy counts nonzeros in the dtype of indptr
        matrix.indptr = indptr.astype(_INT64)
    return matrix


def from_dia(offsets: Any, data: Any, shape: tuple[int, int]) -> CSR:
    """Canonical CSR from the arrays of any DIA; its zeros are not stored.

    Parameters
    ----------
    offsets : (n_diagonals,) integers, no two the same: column less row. A diagonal outside the matrix holds nothing.
    data : (n_diagonals, any) values; ``data[k, j]`` stands in column j
    shape : (n_rows, n_cols)

    Raises
    ------
    TypeError, ValueError
        As :func:`from_parts` does; also where offsets and data do not fit.
    """
    shape = check_shape(shape)
    offsets = devices.move(as_integers(offsets, "offsets"), devices.CPU).astype(_INT64, copy=False)
    data = data.astype(check_dtype(data.dtype), copy=False)
    inside = validation.diagonals_inside(offsets, data, shape)
    if inside.size < offsets.size:
        offsets, data = offsets[inside], data[inside]
    data = data[:, : shape[1]]
    device = devices.of(data)
    if device != devices.CPU or data.dtype == np.float16:  # SciPy converts no float16
        return _from_diagonals(offsets, data, shape)
    from scipy.sparse import dia_array

    matrix = dia_array((data, offsets), shape=shape)
    matrix.offsets = offsets  # 64 bits: SciPy adds the number of rows to them
    csr = matrix.tocsr()
    return from_parts(csr.indptr, csr.indices, csr.data, shape)


def _from_diagonals(offsets: np.ndarray, data: Any, shape: tuple[int, int]) -> CSR:
    """:func:`from_dia` in array code, for any device and dtype."""
    xp = devices.of(data).xp
    with devices.of(data).use():
        offset = xp.asarray(offsets)
        row = xp.arange(data.shape[1]) - offset[:, None]
        k, col = xp.nonzero((row >= 0) & (row < shape[0]) & (data != 0))
        return from_triplets(row[k, col], col, data[k, col], shape)


def move(csr: CSR, device: devices.Device) -> CSR:
    """`csr` on `device`."""
    if devices.of(csr.data) == device:
        return csr
    indptr, indices, data = (devices.move(a, device) for a in csr[:3])
    return CSR(indptr, indices, data, csr.shape)


def looked_at(csr: CSR, wants: Wants | None) -> CSR:
    """`csr`, of which a GPU has seen what is wanted."""
    device = devices.of(csr.data)
    if wants is None or device.kind == "cpu":
        return csr
    with device.use():
        seen: CSR = device.backend("csr").looked_at(csr, wants(csr.shape, csr.nnz))
        return seen


def rows(csr: CSR) -> Any:
    """(nnz,) the row of every nonzero of `csr`."""
    return devices.of(csr.data).backend("csr").row_of_nonzero(csr.indptr, csr.indices)


def index_dtype(shape: tuple[int, int]) -> np.dtype:
    """int32 while every row and column number fits, else int64."""
    return _INT32 if max(shape) < 2**31 else _INT64


def check_shape(shape: Any) -> tuple[int, int]:
    """`shape` as two Python ints, none negative."""
    try:
        n_rows, n_cols = shape
        if isinstance(n_rows, bool) or isinstance(n_cols, bool):
            raise TypeError
        n_rows, n_cols = operator.index(n_rows), operator.index(n_cols)
    except (TypeError, ValueError):
        raise ValueError(f"shape must be two integers, (n_rows, n_cols); got {shape!r}") from None
    if n_rows < 0 or n_cols < 0:
        raise ValueError(f"shape must not be negative; got {shape!r}")
    if max(n_rows, n_cols) > LARGEST:
        raise ValueError(f"shape must stay below 2^62, so that offsets fit 64 bits; got {shape!r}")
    return n_rows, n_cols


def check_dtype(dtype: np.dtype) -> np.dtype:
    """`dtype` in native byte order, where it can be stored; else TypeError."""
    return _check_dtype(np.dtype(dtype))


@lru_cache(64)
def _check_dtype(dtype: np.dtype) -> np.dtype:
    dtype = dtype.newbyteorder("=")
    if dtype.kind in "biu" or dtype in (np.float16, np.float32, np.float64, np.complex64, np.complex128):
        return dtype
    raise TypeError(f"values must be {_STORABLE}; got {dtype}. Use .astype('float64') or the like first.")


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype to add values of `dtype` up in: float32 for float16, else itself."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def narrowed(values: Any, dtype: np.dtype) -> Any:
    """What was computed in ``wide(dtype)``, in `dtype`: too large is inf, without a warning, as in products."""
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def _from_sparse(matrix: Any, wants: Wants | None, target: devices.Device | None) -> CSR:
    """A sparse matrix of another package, whose rows may need more memory than the matrix and the machine have."""
    shape, (format, indices, data) = check_shape(matrix.shape), stored(matrix)
    if format not in ("csr", "bsr", "lil"):  # else it holds something for each of its rows
        limits.require_rows(shape, int(getattr(data, "nbytes", 0)))
    try:
        if format == "lil":
            return _from_lil(matrix.rows, data, shape, check_dtype(matrix.dtype))
        if format == "dok":
            return _from_dok(indices[0], data, shape, check_dtype(matrix.dtype))
        build, of_gpu = _BUILD[format]
        return build(*indices, data, shape, *([wants, target] if of_gpu else ()))
    except MemoryError as error:
        raise limits.named(error, shape) from error


#: How CSRs are made from the arrays of each format; and whether a GPU looks at them meanwhile.
_BUILD: dict[str, tuple[Callable[..., CSR], bool]] = {
    "csr": (from_parts, True), "coo": (from_triplets, True), "csc": (from_csc, True), "bsr": (from_bsr, False),
    "dia": (from_dia, False),
}  # fmt: skip


def stored(matrix: Any) -> tuple[str, tuple[Any, ...], Any]:
    """The format of a sparse matrix of another package, in SciPy's terms; its index arrays; and its values. Of a DOK its keys
    and its values.
    """
    format = getattr(matrix, "format", "")
    if package(matrix) == "sparse":
        if matrix.fill_value != 0:
            raise ValueError(
                f"a matrix needs fill value 0; got {matrix.fill_value}. Subtract it first, or call todense() on the input"
            )
        format = "dok" if isinstance(matrix.data, dict) else "coo"
        if hasattr(matrix, "compressed_axes"):  # GCXS, and its CSR and CSC
            axes = tuple(matrix.compressed_axes or ())
            if axes not in ((0,), (1,)):
                raise ValueError(f"compressed_axes of a matrix must be (0,) or (1,); got {axes}")
            format = ("csr", "csc")[axes[0]]
    if format == "dok":
        of = getattr(matrix, "data", matrix)
        return format, (of.keys(),), of.values()
    if format == "coo":  # not its own tocsr(), which sums duplicates in an order of its own
        coords = matrix.coords if hasattr(matrix, "coords") else (matrix.row, matrix.col)
        if len(coords) != 2:
            raise ValueError(f"coords of a matrix must hold rows and columns; got {len(coords)} arrays")
        return format, tuple(coords), matrix.data
    names = {"dia": ["offsets"], "lil": ["rows"]}.get(format, ["indptr", "indices"])
    return format, tuple(getattr(matrix, name) for name in names), matrix.data


#: What to call first on objects of other packages.
_ELSEWHERE = {
    "pandas": " Use its to_numpy(), or sparse.to_coo() of a frame of sparse columns",
    "networkx": " Use networkx.to_scipy_sparse_array(G)",
}


def _root(obj: Any) -> str:
    """The package that an object's class is in."""
    name: str = type(obj).__module__
    return name.partition(".")[0]


def _from_lil(rows: Any, values: Any, shape: tuple[int, int], dtype: np.dtype) -> CSR:
    """Canonical CSR of a LIL's lists of columns and of values, one for each row."""
    kinds = {type(part) for lists in (rows, values) for part in lists}
    if kinds - {list}:
        raise ValueError(f"a LIL must hold lists of columns and of numbers; got {(kinds - {list}).pop().__name__}")
    try:
        lengths, others = (np.fromiter(map(len, lists), _INT64) for lists in (rows, values))
        if lengths.shape != others.shape or (lengths != others).any():
            raise ValueError(f"rows and data of a LIL must have lists of one length; got lengths {lengths} and {others}")
        columns = np.fromiter(map(operator.index, itertools.chain.from_iterable(rows)), _INT64)
        data = _numbers(itertools.chain.from_iterable(values), dtype)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"a LIL must hold lists of columns of at most 64 bits, and of numbers; {error}") from None
    return from_parts(np.append(0, lengths.cumsum()), columns, data, shape)


def _from_dok(keys: Collection[Any], values: Iterable[Any], shape: tuple[int, int], dtype: np.dtype) -> CSR:
    """Canonical CSR of a DOK."""
    if not all(type(key) is tuple and len(key) == 2 for key in keys):
        raise ValueError("keys of a DOK must be pairs, (row, column)")
    try:
        places = np.fromiter(map(operator.index, itertools.chain.from_iterable(keys)), _INT64, 2 * len(keys))
    except (OverflowError, TypeError) as error:
        raise ValueError(f"keys of a DOK must be integers of at most 64 bits; {error}") from None
    try:
        data = _numbers(values, dtype)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"values of a DOK must be numbers of its dtype, {dtype}; {error}") from None
    return from_triplets(places[::2], places[1::2], data, shape)


def _numbers(values: Iterable[Any], dtype: np.dtype) -> np.ndarray:
    """`values` as an array; TypeError where one is no number that `dtype` can hold the kind of."""
    found = list(values)
    if not all(isinstance(value, (numbers.Number, np.generic)) for value in found):
        raise TypeError("got a value that is no number")
    if dtype.kind == "b" and not all(value in (0, 1) for value in found):
        raise TypeError("got a value that is no bool")
    return np.fromiter(found, dtype, len(found))


def _from_dense(array: Any) -> CSR:
    xp = devices.of(array).xp
    values = check_dtype(array.dtype)
    devices.check_aligned(array, "a matrix")
    with devices.of(array).use():
        row, col = xp.nonzero(array)
        return from_triplets(row, col, array[row, col].astype(values, copy=False), array.shape)


def _as_array(values: Any, name: str) -> Any:
    """A 1-D NumPy or CuPy array; a sequence becomes a NumPy array."""
    if not (isinstance(values, np.ndarray) or type(values).__module__.partition(".")[0] == "cupy"):
        values = np.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"{name} must have 1 dimension; got shape {values.shape}")
    devices.check_aligned(values, name)
    return values


def _as_values(data: Any) -> Any:
    """Values in native byte order, contiguous."""
    dtype = check_dtype(data.dtype)
    return _contiguous(data if data.dtype == dtype else data.astype(dtype))


def as_integers(index: Any, name: str) -> Any:
    """A 1-D array of integers as int32 or int64, contiguous; an empty array may have any dtype."""
    index = _as_array(index, name)
    if index.dtype not in (_INT32, _INT64):
        if index.dtype.kind not in "iu" and index.size:
            raise TypeError(f"{name} must hold integers; got {index.dtype}")
        if index.dtype.kind == "u" and index.dtype.itemsize == 8 and index.size and int(index.max()) > np.iinfo(_INT64).max:
            raise ValueError(f"{name} must fit 64-bit signed integers; got {int(index.max())}")
        index = index.astype(_INT64)
    return _contiguous(index)


def _contiguous(array: Any) -> Any:
    """A contiguous NumPy or CuPy array, `array` itself where it is one."""
    # most are: asking is quicker than a call that does nothing
    if (type(array) is np.ndarray or not isinstance(array, np.ndarray)) and array.flags.c_contiguous:
        return array
    return devices.of(array).xp.ascontiguousarray(array)


def same_device(**arrays: Any) -> devices.Device:
    """The device on which all `arrays` live, or a TypeError that says where each does."""
    homes = [devices.of(array) for array in arrays.values()]
    if homes.count(homes[0]) < len(homes):
        found = ", ".join(f"{name} on {device}" for name, device in zip(arrays, homes, strict=True))
        raise TypeError(f"arrays of one matrix must live on one device; got {found}. Move them with cupy.asarray or .get()")
    return homes[0]
