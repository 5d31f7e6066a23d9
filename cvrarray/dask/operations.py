"""``matmul``, ``vdot``, ``var``, ``std`` of our chunks, where Dask's own rules want a third dimension or dense chunks."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np

from ..array import statistics
from ..array.base import SparseArray
from ..input import coercion
from . import registry


def matmul(left: Any, right: Any) -> da.Array:
    """``left @ right`` of dask arrays of which one or both have our chunks.

    Two arrays of our chunks are multiplied block by block. So does ``left @ right`` where one of them comes from
    ``to_dask`` or ``open_store``, or is such an array's transpose; else it raises, for Dask gives each product of two
    chunks a third dimension. With dense chunks on the left the sparse ones come first, ``(right.T @ left.T).T``: Dask
    would call ``cupy.matmul`` for CuPy's chunks, which knows no arrays but CuPy's.

    Parameters
    ----------
    left, right : dask array, or array of ours
        At most one of them may have one dimension.

    Returns
    -------
    dask array
        Of our chunks where both have them, else of dense ones.

    Raises
    ------
    ValueError
        The shapes do not fit.
    TypeError
        An operand is another package's sparse array, or a stack of matrices.

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([1.0, 2, 4]), chunks=2, format="cvr", device="cpu")
    >>> import dask.array as da
    >>> cvrarray.dask.matmul(da.ones(3), A).compute()
    array([1., 2., 4.])
    >>> cvrarray.dask.matmul(A, A.T).compute().data
    array([ 1.,  4., 16.])
    """
    registry.register()
    for operand in (left, right):
        check_operand(operand)
    left, right = (da.from_array(m, m.shape, asarray=False) if isinstance(m, SparseArray) else m for m in (left, right))
    if not is_ours(right):
        return left @ right
    if not is_ours(left):
        return (right.T @ left.T).T
    if left.shape[1] != right.shape[0]:
        raise ValueError(f"a product needs shapes (m, k) and (k, n); got {left.shape} and {right.shape}")
    return da.blockwise(
        _sum_of_products, "ij", left, "ik", right, "kj", dtype=np.result_type(left, right), meta=left._meta, concatenate=False
    )


def check_operand(value: Any) -> None:
    """TypeError for what Dask would index by a third dimension: another package's sparse array, and a stack of matrices."""
    if coercion.package(value) in coercion.SPARSE_PACKAGES and not isinstance(value, SparseArray):
        raise TypeError(
            f"the operands of a product of dask arrays of ours must be such arrays or dense; got {type(value).__name__}. Use"
            " cvrarray.to_dask on it"
        )
    if getattr(value, "ndim", 0) > 2:
        raise TypeError(
            f"the operands of a product of dask arrays of ours must have 1 or 2 dimensions; got {value.ndim}. Multiply by"
            " each matrix of the stack, and use dask.array.stack"
        )


def is_ours(array: Any) -> bool:
    """Whether it is a dask array of our chunks.

    Examples
    --------
    >>> from cvrarray.dask.operations import is_ours
    >>> is_ours(cvrarray.to_dask(np.eye(3), device="cpu")), is_ours(np.eye(3))
    (True, False)
    """
    return isinstance(getattr(array, "_meta", None), SparseArray)


def _sum_of_products(left: list[Any], right: list[Any]) -> Any:
    """A block of the product from a row of blocks and a column of them, added in their order."""
    products = [a @ b for a, b in zip(left, right, strict=True)]
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total


def vdot(a: Any, b: Any) -> da.Array:
    """The sum of ``conj(a) * b`` over all entries, of two dask arrays of one shape, as a lazy scalar.

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([1.0, 2, 4]), chunks=2, format="cvr", device="cpu")
    >>> float(cvrarray.dask.vdot(A, A).compute())
    21.0
    """
    registry.register()
    return (np.conj(a) * b).sum(dtype=np.result_type(a, b))


def var(array: Any, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> da.Array:
    """Variances of a dask array of our chunks, as ``numpy.var``: dense and lazy. Means are computed first.

    Parameters
    ----------
    array : dask array of our chunks
    axis : {None, 0, 1, -1, -2}
    ddof : number
        Is subtracted from the count.
    keepdims : bool
        Whether a reduced axis stays, of length 1.

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([2.0, 2.0]), chunks=1, format="cvr", device="cpu")
    >>> cvrarray.dask.var(A, axis=0).compute()
    array([1., 1.])
    """
    registry.register()
    axes = (0, 1) if axis is None else (int(axis) % 2,)
    dtype = np.zeros(1, array.dtype).var().dtype
    means = array.mean(axis=axes, keepdims=True)
    chunks = tuple((1,) * len(sizes) if k in axes else sizes for k, sizes in enumerate(array.chunks))
    squares = da.map_blocks(
        _squares, array, means, axis=axis, dtype=dtype, chunks=chunks, meta=np.empty((0, 0), dtype)
    )  # a row, a column or a number for each chunk
    count = math.prod(array.shape[k] for k in axes)
    return squares.sum(axis=axes, keepdims=keepdims) / np.maximum(count - ddof, 0)


def std(array: Any, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> da.Array:
    """Standard deviations: the roots of :func:`var`.

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([2.0, 2.0]), chunks=1, format="cvr", device="cpu")
    >>> float(cvrarray.dask.std(A).compute())
    1.0
    """
    return da.sqrt(var(array, axis, ddof, keepdims))


def _squares(block: SparseArray, means: Any, axis: int | None = None) -> Any:
    """The sums of ``abs(entry - mean) ** 2`` over an axis of a chunk, with the axis kept."""
    axis = None if axis is None else int(axis) % 2
    with block._target.use():
        sums = statistics.squares(block, means.ravel(), axis)
        return sums.reshape(tuple(1 if axis in (None, k) else n for k, n in enumerate(block.shape)))
