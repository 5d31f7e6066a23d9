"""``numpy.where`` with three arguments: entries of one array where a condition holds, of another one elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR
from ..input import coercion
from . import elementwise, indexing


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where `condition` is not 0, else `y`: sparse, in the format of the first of them that is ours.

    Parameters
    ----------
    condition, x, y : array of ours, any other sparse matrix, dense array or scalar
        On one device; shapes broadcast. `y` must be sparse or 0 where a sparse `condition` chooses it; `x` must be
        sparse or 0 where the condition is dense.

    Raises
    ------
    TypeError
        The result would be dense, or the operands live on two devices.
    ValueError
        The shapes do not broadcast to two dimensions.
    """
    ours = next(value for value in (condition, x, y) if coercion.is_ours(value))
    target = ours._target
    dtype = coercion.check_dtype(np.result_type(*[getattr(value, "dtype", value) for value in (x, y)]))
    with target.use():
        condition, x, y = (_operand(value, target) for value in (condition, x, y))
        shape = elementwise._broadcast_shape(elementwise._broadcast_shape(condition.shape, x.shape), y.shape)
        condition, x, y = (_broadcast(value, shape) for value in (condition, x, y))
        parts = (_chosen(x, condition, True, dtype), _chosen(y, condition, False, dtype))
        row, col, val = map(target.xp.concatenate, zip(*parts, strict=True))
        return ours._like(coercion.from_triplets(row, col, val, shape))


def _operand(value: Any, target: devices.Device) -> Any:
    """A canonical CSR, or a dense array of at most two dimensions; a dense 0 is a CSR without entries."""
    value = elementwise._operand(value, target)
    if coercion.is_ours(value):
        return value._canonical_csr()
    return value if isinstance(value, CSR) else target.xp.asarray(value)


def _broadcast(value: Any, shape: tuple[int, int]) -> Any:
    if isinstance(value, CSR):
        return elementwise._broadcast(value, shape)
    xp = devices.of(value).xp
    if value.ndim < 2 and not bool(value.any()):
        return coercion.without_entries(shape, value.dtype, xp)
    return xp.broadcast_to(value, shape)


def _chosen(value: Any, condition: Any, wanted: bool, dtype: np.dtype) -> tuple[Any, Any, Any]:
    """Rows, columns and values of the entries of `value` where the condition is `wanted`."""
    if isinstance(value, CSR):
        row, col = coercion.rows(value), value.indices
        places = row.astype(np.int64), col.astype(np.int64)
        holds = indexing._values_at(condition, *places) if isinstance(condition, CSR) else condition[places]
        kept = (holds != 0) == wanted
        return row[kept], col[kept], value.data[kept].astype(dtype, copy=False)
    if not wanted or not isinstance(condition, CSR):
        which = "y must be sparse or 0 where condition is sparse" if not wanted else "x and y must be sparse or 0"
        raise TypeError(f"where: {which}, or the result is dense. Call todense() first")
    kept = condition.data != 0
    row, col = coercion.rows(condition)[kept], condition.indices[kept]
    return row, col, value[row, col].astype(dtype, copy=False)
