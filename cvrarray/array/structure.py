"""Functions of an array as a whole: zeros_like, tril, triu, nonzero, norms, equality of arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..input import coercion
from . import elementwise, encoding, reductions


def zeros_like(array: Any, dtype: Any = None, shape: Any = None) -> Any:
    """An array without entries, in `array`'s format and on its device; its dtype and shape unless others are given."""
    shape = array.shape if shape is None else coercion.check_shape(shape)
    dtype = coercion.check_dtype(array.dtype if dtype is None else dtype)
    with array._target.use():
        return array._like(coercion.without_entries(shape, dtype, array._target.xp))


def tril(m: Any, k: int = 0) -> Any:
    """The entries on and below diagonal `k`, explicit zeros too."""
    return _where(m, lambda diagonal: diagonal <= operator.index(k))


def triu(m: Any, k: int = 0) -> Any:
    """The entries on and above diagonal `k`, explicit zeros too."""
    return _where(m, lambda diagonal: diagonal >= operator.index(k))


def _where(array: Any, keep: Any) -> Any:
    """The entries for whose diagonals ``keep(diagonals)`` is true."""
    with array._target.use():
        csr = array._canonical_csr()
        return array._like(elementwise.entries(csr, keep(csr.indices.astype(np.int64) - coercion.rows(csr))))


def block_diagonal(array: Any, block_size: int) -> Any:
    """(n_blocks, block_size, block_size) the blocks on the diagonal, dense on the array's device; 0 beyond the matrix."""
    with array._target.use():
        row, col, val = array._coo()
        return _on_diagonal(array, block_size, row, col, val, 0)


def block_diagonal_slots(array: Any, block_size: int) -> Any:
    """Where each entry of the blocks on the diagonal lies in the table of an array's stored values; -1: nowhere.

    They hold for every array of the same structure, so that new values need no search.
    """
    with array._target.use():
        row, col, slot = encoding.slot_numbers(array)._coo()
        return _on_diagonal(array, block_size, row, col, slot, -1)


def _on_diagonal(array: Any, block_size: int, row: Any, col: Any, val: Any, empty: int) -> Any:
    """(n_blocks, block_size, block_size) what `val` has in the blocks on the diagonal, `empty` where it has nothing."""
    xp = array._target.xp
    block = row // block_size
    kept = xp.flatnonzero(block == col // block_size)
    block, row, col, val = block[kept], row[kept], col[kept], val[kept]
    blocks = xp.full((-(-min(array.shape) // block_size), block_size, block_size), empty, val.dtype)
    blocks[block, row - block * block_size, col - block * block_size] = val
    return blocks


def eliminate_zeros(array: Any) -> Any:
    """The array without stored zeros. Rows stay in order, so nothing is sorted."""
    with array._target.use():
        csr = array._canonical_csr()
        return array._like(elementwise.entries(csr, csr.data != 0))


def nonzero(a: Any) -> tuple[Any, Any]:
    """Rows and columns of the entries that are not 0, in row-major order, as int64; stored zeros are left out."""
    csr = a._canonical_csr()
    with a._target.use():
        kept = csr.data != 0
        row = coercion.rows(csr)
        return row[kept].astype(np.int64), csr.indices[kept].astype(np.int64)


def nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    """nan and infinities replaced by numbers; a stored 0 stays."""
    return x._map(lambda values: x._target.xp.nan_to_num(values, nan=nan, posinf=posinf, neginf=neginf))


def norm(x: Any, ord: Any = None, keepdims: bool = False) -> Any:
    """The Frobenius norm (None, "fro"), or the largest (smallest) absolute sum of a column (1, -1) or row (inf, -inf).

    Raises
    ------
    TypeError
        Another norm is asked for.
    """
    if ord in (None, "fro"):
        with x._target.use():
            val = x._canonical_csr().data  # in an order that does not depend on the format
            wide = coercion.wide(val.dtype) if val.dtype.kind in "fc" else np.dtype(np.float64)
            total = x._target.xp.linalg.norm(val.astype(wide, copy=False))
            total = coercion.narrowed(total, val.dtype) if val.dtype == np.float16 else total
    elif ord in (1, -1, np.inf, -np.inf):
        sums = vector_norm(x, 1, axis=0 if abs(ord) == 1 else 1)
        total = sums.min() if ord < 0 else sums.max() if sums.size else sums.sum()  # 0 of no sums, as in NumPy
    else:
        raise TypeError(f"norm of a sparse array must be 'fro', 1, -1, inf or -inf; got {ord!r}. Call todense(), or use svds")
    return total.reshape(1, 1) if keepdims else total


def vector_norm(x: Any, ord: Any = None, axis: int = -1, keepdims: bool = False) -> Any:
    """The norms of rows (``axis=1``) or columns as vectors: `ord` is 2 (None), 1, inf, -inf or 0, which counts.

    Raises
    ------
    TypeError
        Another norm is asked for.
    """
    wide = x if x.dtype.kind in "fc" else x.astype(np.float64)  # before abs, which the smallest integer does not have
    if ord in (None, 2):
        squares = abs(wide)._map(lambda values: values * values)
        with x._target.use():
            return x._target.xp.sqrt(reductions.sum_(squares, axis=axis, keepdims=keepdims))
    if ord == 1 or (ord == np.inf and not x.shape[axis]):
        return reductions.sum_(abs(wide), axis=axis, keepdims=keepdims)
    if ord in (np.inf, -np.inf):
        return (reductions.max_ if ord > 0 else reductions.min_)(abs(wide), axis=axis, keepdims=keepdims)
    if ord == 0:
        return reductions.count_nonzero(x, axis=axis, keepdims=keepdims).astype(reductions._real(wide.dtype))
    raise TypeError(f"the norm of rows or columns of a sparse array must be 2, 1, inf, -inf or 0; got {ord!r}. Call todense()")


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    """Whether two sparse arrays have the same shape and entries; a stored 0 equals an entry that is not stored."""
    if _sparse(a1).shape != _sparse(a2).shape:
        return False

    def equal(xp: Any, a: Any, b: Any) -> Any:
        same = a == b
        return same | (xp.isnan(a) & xp.isnan(b)) if equal_nan else same

    return _compare(a1, a2, equal)


def allclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether ``abs(a - b) <= atol + rtol * abs(b)`` holds for all entries of two sparse arrays of the same shape."""
    if _sparse(a).shape != _sparse(b).shape:
        raise ValueError(f"allclose of sparse arrays needs one shape; got {a.shape} and {b.shape}")

    def close(xp: Any, a: Any, b: Any) -> Any:
        same = a == b
        return same if bool(same.all()) else xp.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)

    return _compare(a, b, close)


def _compare(a: Any, b: Any, holds: Any) -> bool:
    """Whether ``holds(xp, a, b)`` for the values of both at every entry that either stores, or for those of equal tables."""
    device = None
    if elementwise._is_one_structure(a, b):
        if a._target.kind == "cuda" or type(a)._n_slots(a._tables) <= 2 * a.nnz:
            device = a._target
        else:  # padded tables are larger than CSRs: this counts as a read, so that what is decoded below is kept
            for array in (a, b):
                array._origin.read(array, array.shape[0])
    if device is not None:
        values = encoding.plain(a).reshape(-1), encoding.plain(b).reshape(-1)
    else:
        left, right = coercion.as_csr(a), coercion.as_csr(b)
        device = coercion.same_device(left=left.data, right=right.data)
        with device.use():
            same = left.nnz == right.nnz and all(
                bool((m == n).all()) for m, n in ((left.indptr, right.indptr), (left.indices, right.indices))
            )
            values = (left.data, right.data) if same else device.backend("csr").union(left, right, False)[2:]
    with device.use():
        size = values[0].size
        step = 1 << 16 if device.kind == "cpu" else max(size, 1)  # so that what is compared stays in cache
        parts = ([part[k : k + step] for part in values] for k in range(0, size, step))
        return all(bool(holds(device.xp, *pair).all()) for pair in parts)


def _sparse(value: Any) -> Any:
    if coercion.package(value) in coercion.SPARSE_PACKAGES:
        return value
    raise TypeError(f"a sparse array is compared with another; got {type(value).__name__}. Call todense(), or asarray on it")
