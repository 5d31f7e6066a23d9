"""``A[...]``: rows, columns and single entries, taken from the canonical CSR on the array's own device.

A key becomes one selection for each axis: an index (an int), a range (a slice) or an array of indices (an index array
or a mask). Two ints give a scalar, one int a dense vector, and no int an array of the same format. The memory needed
does not grow with the number of columns, except for a dense row that was asked for.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR
from ..input import coercion

_AXES = ("row", "column")


def axis_number(axis: Any, ndim: int = 2) -> int:
    """An axis as NumPy counts it, from 0; ``numpy.exceptions.AxisError`` where there is none such."""
    number = operator.index(axis)
    if not -ndim <= number < ndim:
        raise np.exceptions.AxisError(number, ndim)
    return number % ndim


def getitem(array: Any, key: Any) -> Any:
    """``array[key]``, as NumPy indexes a 2-D array, where the result has at most two dimensions.

    Index arrays and masks live on the array's device; for an array on a GPU they may also be NumPy arrays or lists. Of
    two ints the result is a scalar (on a GPU, as in CuPy, a 0-d array). It is a dense vector for an int and anything
    else, for two 1-D index arrays, and for a 2-D mask, which may be sparse. Otherwise it has the array's format.

    Raises
    ------
    IndexError
        An index lies outside the shape, a mask does not fit it, or the result would have more than two dimensions.
    TypeError
        An index array lives on another device.
    """
    target = array._target
    with target.use():
        mask = _mask_2d(key)
        if mask is not None:
            return _masked(array, mask)
        rows, cols = (_selection(k, axis, array) for axis, k in enumerate(_pair(key)))
        if _is_all(rows, array.shape[0]) and _is_all(cols, array.shape[1]):
            return array
        paired, mesh = _pairing(rows, cols)
        csr, rows = _decoded(array, rows)
        if isinstance(rows, int) and isinstance(cols, int) and target.kind == "cpu":
            place = int(csr.indices.searchsorted(cols))
            return csr.data[place] if place < csr.nnz and csr.indices[place] == cols else csr.data.dtype.type(0)
        if paired:
            row, col = target.xp.broadcast_arrays(*(target.xp.asarray(s, dtype=np.int64) for s in (rows, cols)))
            value = _values_at(csr, row.flatten(), col.flatten()).reshape(row.shape)
            return array._like(coercion.as_csr(value)) if value.ndim == 2 else value[()]
        if mesh:
            rows, cols = rows.ravel(), cols.ravel()
        selected = _columns(_rows(csr, rows), cols)
        return _vector(selected, rows, cols) if isinstance(rows, int) or isinstance(cols, int) else array._like(selected)


# --------------------------------------------------------------------------------------------------- keys -> selections


def _pair(key: Any) -> tuple[Any, Any]:
    """`key` as one key for each axis, without an Ellipsis."""
    keys = key if isinstance(key, tuple) else (key,)
    if any(k is None for k in keys):
        raise IndexError(
            "an array of ours has 2 dimensions, and np.newaxis would add one. Index todense() instead; for the product of two "
            "dask arrays, in which Dask does so, make them by cvrarray.to_dask, or use cvrarray.dask.matmul"
        )
    ellipses = [place for place, k in enumerate(keys) if k is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("a key must have at most one Ellipsis; got several")
    n_keys = len(keys) - len(ellipses)
    if n_keys > 2:
        raise IndexError(f"an array of ours has 2 dimensions; got {n_keys} indices")
    place = ellipses[0] if ellipses else len(keys)
    return (*keys[:place], *[slice(None)] * (2 - n_keys), *keys[place + 1 :])


def _selection(key: Any, axis: int, array: Any) -> Any:
    """A key of one axis as an int in [0, n), a range, or an int64 array of indices in [0, n) on the array's device."""
    n = array.shape[axis]
    if isinstance(key, slice):
        return range(*key.indices(n))
    if isinstance(key, (bool, np.bool_)):
        raise IndexError(f"a {_AXES[axis]} must be named by a number; got {key}. A mask has one entry a {_AXES[axis]}")
    if getattr(key, "shape", None) == () and key.dtype.kind in "iu":
        key = key.item()  # a 0-d array is a number, CuPy's too
    try:
        place = operator.index(key)
    except TypeError:
        pass
    else:
        _check_bounds(place, place, axis, n)
        return place % n
    key = _key_array(key, axis, array._target)
    xp = devices.of(key).xp  # a host key is checked on the host, without waiting for the GPU
    if key.dtype == np.bool_:
        if key.shape != (n,):
            raise IndexError(f"a mask must have one entry a {_AXES[axis]}, {n}; got shape {key.shape}")
        key = xp.flatnonzero(key)
    elif key.size:
        _check_bounds(int(key.min()), int(key.max()), axis, n)
        key = key.astype(np.int64, copy=False)
        key = xp.where(key < 0, key + n, key)
    return array._target.xp.asarray(key, dtype=np.int64)


def _key_array(key: Any, axis: int, target: devices.Device) -> Any:
    """An index array or a mask as a NumPy or CuPy array; TypeError or IndexError where it is neither."""
    if type(key).__module__.partition(".")[0] != "cupy":
        try:
            key = np.asarray(key)
        except (TypeError, ValueError):  # a sparse array, a ragged list
            raise IndexError(f"{_AXES[axis]}s must be an int, a slice, an index array or a mask; got {key!r}") from None
    elif target.kind == "cpu" or devices.of(key) != target:
        raise TypeError(f"an index array must be on the array's device, {target}; got one on {devices.of(key)}. Move it there")
    if key.size == 0 and key.dtype.kind == "f":  # an empty list
        key = key.astype(np.int64)
    if key.dtype.kind not in "biu":
        raise IndexError(f"{_AXES[axis]}s must be integers, a slice or a mask; got dtype {key.dtype}")
    if key.dtype == np.uint64 and key.size and int(key.max()) > coercion.LARGEST:
        raise IndexError(f"{_AXES[axis]} {int(key.max())} is out of bounds")
    if key.ndim not in (1, 2):
        raise IndexError(f"an index array must have 1 dimension; got {key.ndim}. Index todense() instead")
    return key


def _check_bounds(low: int, high: int, axis: int, n: int) -> None:
    for place in (low, high):
        if not -n <= place < n:
            raise IndexError(f"{_AXES[axis]} {place} is out of bounds for axis {axis} with size {n}")


def _is_all(selection: Any, n: int) -> bool:
    return isinstance(selection, range) and selection == range(n)


def _pairing(rows: Any, cols: Any) -> tuple[bool, bool]:
    """Whether two selections are paired index by index, and whether they are an open mesh (``np.ix_``)."""
    if isinstance(rows, range) or isinstance(cols, range):
        if any(getattr(s, "ndim", 1) != 1 for s in (rows, cols)):
            raise IndexError("an index array must have 1 dimension beside a slice. Index todense() instead")
        return False, False
    shapes: list[tuple[int, ...]] = [getattr(s, "shape", ()) for s in (rows, cols)]
    if len(shapes[0]) == 2 and shapes[0][1] == 1 and hasattr(cols, "shape") and shapes[1][:-1] in ((), (1,)):
        return False, True
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        raise IndexError(
            f"two index arrays must have one shape, or shapes that broadcast; got {shapes[0]} and {shapes[1]}. "
            "Use np.ix_(rows, cols), or A[rows][:, cols], for a submatrix"
        ) from None
    return True, False


def _mask_2d(key: Any) -> Any:
    """`key` if it is a 2-D boolean mask, dense or sparse; else None."""
    # an Ellipsis beside a 2-D mask is empty
    if isinstance(key, tuple) and len(key) - sum(k is Ellipsis for k in key) == 1:
        key = next((k for k in key if getattr(k, "ndim", 0) == 2 or isinstance(k, list)), key)
    if isinstance(key, list) and key and isinstance(key[0], (list, np.ndarray)):
        try:
            key = np.asarray(key)
        except ValueError:  # ragged: not a mask, and refused as an index array
            return None
    return key if getattr(key, "ndim", 0) == 2 and getattr(key, "dtype", None) == np.bool_ else None


def _masked(array: Any, mask: Any) -> Any:
    """The values where a 2-D mask is true, in row-major order."""
    target = array._target
    if tuple(mask.shape) != array.shape:
        raise IndexError(f"a 2-D mask must have the array's shape, {array.shape}; got {tuple(mask.shape)}")
    if isinstance(mask, np.ndarray) and target.kind == "cuda":
        mask = target.xp.asarray(mask)
    places = coercion.as_csr(mask)
    if devices.of(places.data) != target:
        raise TypeError(f"a mask must be on the array's device, {target}; got one on {devices.of(places.data)}. Move it first")
    values, is_true = target.backend("csr").union(array._canonical_csr(), places, False)[2:]
    return values[is_true]


# -------------------------------------------------------------------------------------------------- selections of a CSR


def _decoded(array: Any, rows: Any) -> tuple[CSR, Any]:
    """A CSR that has the selected rows of `array`, and their positions in it; as few other rows as possible."""
    if isinstance(rows, int):
        return array._canonical_rows(rows, rows + 1), 0
    if not isinstance(rows, range) or _is_all(rows, array.shape[0]):
        return array._canonical_csr(), rows
    first, last = (min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1) if rows else (0, 0)
    return array._canonical_rows(first, last), range(rows.start - first, rows.stop - first, rows.step)


def _rows(csr: CSR, rows: Any) -> CSR:
    """The rows of `csr` that an int, a range or an index array selects, in its order."""
    target = devices.of(csr.data)
    xp = target.xp
    if _is_all(rows, csr.shape[0]):
        return csr
    if isinstance(rows, int):
        rows = range(rows, rows + 1)
    if isinstance(rows, range) and rows.step == 1:
        indptr = csr.indptr[rows.start : max(rows.stop, rows.start) + 1]
        first, last = int(indptr[0]), int(indptr[-1])
        return _csr_of(indptr - indptr[0], csr.indices[first:last], csr.data[first:last], (len(rows), csr.shape[1]))
    if target.kind == "cpu" and (taken := target.backend("taking").rows(csr, _places(rows))) is not None:
        return _csr_of(*taken[:4])
    if isinstance(rows, range):
        rows = xp.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
    start = csr.indptr[rows].astype(np.int64)
    source, indptr = _runs(xp, start, csr.indptr[rows + 1] - start)
    return _csr_of(indptr, csr.indices[source], csr.data[source], (rows.size, csr.shape[1]))


def _columns(csr: CSR, cols: Any) -> CSR:
    """The columns of `csr` that an int, a range or an index array selects, in its order."""
    target = devices.of(csr.data)
    if _is_all(cols, csr.shape[1]):
        return csr
    if isinstance(cols, int):
        cols = range(cols, cols + 1)
    if target.kind == "cpu" and (taken := target.backend("taking").columns(csr, _places(cols))) is not None:
        return _csr_of(*taken[:4])
    return _column_range(csr, cols, target) if isinstance(cols, range) else _column_places(csr, cols, target)


def _places(selection: Any) -> Any:
    """A range as a slice, an index array as it is."""
    if not isinstance(selection, range):
        return selection
    if not selection:
        return slice(0, 0, 1)
    return slice(selection.start, selection.stop if selection.stop >= 0 else None, selection.step)


def _column_range(csr: CSR, cols: range, target: devices.Device) -> CSR:
    xp = target.xp
    ascending = cols if cols.step > 0 else cols[::-1]
    shape = (csr.shape[0], len(cols))
    if not cols:
        return _csr_of(xp.zeros_like(csr.indptr), csr.indices[:0], csr.data[:0], shape)
    offset = csr.indices - csr.indices.dtype.type(ascending[0])
    step = csr.indices.dtype.type(ascending.step) if len(cols) > 1 else 1  # a larger step may not fit the dtype
    kept = xp.flatnonzero((csr.indices >= ascending[0]) & (csr.indices <= ascending[-1]) & (offset % step == 0))
    indptr = xp.searchsorted(kept, csr.indptr.astype(np.int64))  # entries kept before each row
    indices = offset[kept] // step
    if cols.step < 0:  # reverse every row: position i of a row that spans [a, b) comes from a + b - 1 - i
        row = target.backend("csr").row_of_nonzero(indptr, kept)
        backwards = indptr[row] + indptr[row + 1] - 1 - xp.arange(kept.size)
        kept, indices = kept[backwards], len(cols) - 1 - indices[backwards]
    return _csr_of(indptr, indices, csr.data[kept], shape)


def _column_places(csr: CSR, cols: Any, target: devices.Device) -> CSR:
    """Columns in any order, also repeated. `order` sorts them; an entry is copied to each position of its column."""
    xp = target.xp
    shape = (csr.shape[0], cols.size)
    order = xp.argsort(cols, kind="stable")
    ascending = cols[order]
    if csr.shape[1] <= csr.nnz:  # a table of all columns takes less than a search
        first = xp.searchsorted(ascending, xp.arange(csr.shape[1] + 1))
        start, end = first[csr.indices], first[csr.indices + 1]
    else:
        column = csr.indices.astype(np.int64)
        start, end = (xp.searchsorted(ascending, column, side=side) for side in ("left", "right"))
    place, copies = _runs(xp, start, end - start)
    source = xp.searchsorted(copies[1:], xp.arange(place.size), side="right")
    indptr, indices, data = copies[csr.indptr], order[place], csr.data[source]
    if bool((cols[1:] >= cols[:-1]).all()):
        return _csr_of(indptr, indices, data, shape)
    dtype = coercion.index_dtype(shape)
    row = target.backend("csr").row_of_nonzero(indptr, indices).astype(dtype)
    canonical: CSR = target.backend("csr").canonical(row, indices.astype(dtype), data, shape)
    return canonical


def _runs(xp: Any, start: Any, length: Any) -> tuple[Any, Any]:
    """The concatenated ranges start[i], start[i] + 1, ... of length[i], and (n + 1,) the offset of each."""
    ptr = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(length, dtype=np.int64)])
    position = xp.arange(int(ptr[-1]))
    run = xp.searchsorted(ptr[1:], position, side="right")
    return position + (start - ptr[:-1])[run], ptr


def _csr_of(indptr: Any, indices: Any, data: Any, shape: tuple[int, int]) -> CSR:
    """A canonical CSR from its parts, with the index dtype that its shape needs."""
    xp = devices.of(data).xp
    indices = xp.ascontiguousarray(indices.astype(coercion.index_dtype(shape), copy=False))
    return CSR(indptr, indices, xp.ascontiguousarray(data), shape)


def _vector(csr: CSR, rows: Any, cols: Any) -> Any:
    """A CSR of one row or one column as a dense vector."""
    target = devices.of(csr.data)
    dense = target.xp.zeros(csr.shape[1] if isinstance(rows, int) else csr.shape[0], csr.data.dtype)
    dense[csr.indices if isinstance(rows, int) else coercion.rows(csr)] = csr.data
    return dense


def diagonal(csr: CSR, offset: int) -> Any:
    """``csr[i, i + offset]`` for every i for which there is such an entry."""
    (n_rows, n_cols), down, xp = csr.shape, max(-offset, 0), devices.of(csr.data).xp
    out = xp.zeros(max(0, min(n_rows - down, n_cols - max(offset, 0))), csr.data.dtype)
    if out.size:
        row = coercion.rows(csr)
        found = xp.flatnonzero(csr.indices - row == offset)
        out[row[found] - down] = csr.data[found]
    return out


def _values_at(csr: CSR, row: Any, col: Any) -> Any:
    """(n,) the values at n entries, 0 where nothing is stored."""
    target = devices.of(csr.data)
    xp = target.xp
    if not csr.nnz or not row.size:
        return xp.zeros(row.size, csr.data.dtype)
    if target.kind == "cuda":
        place = target.backend("csr").places(csr, *(xp.ascontiguousarray(number, dtype=np.int64) for number in (row, col)))
        return xp.where(place >= 0, csr.data[place], csr.data.dtype.type(0))
    found: np.ndarray = target.backend("taking").values(csr, row, col)
    return found
