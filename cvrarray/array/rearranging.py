"""Arrays whose entries stand elsewhere: reshape, squeeze, rot90, powers, and panels. pydata/sparse does others."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..core import devices
from ..input import coercion
from . import borrowed, indexing
from .indexing import axis_number


def reshape(a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """``A.reshape``: by SciPy, or where the shape has not two dimensions a ``sparse.COO`` by pydata/sparse."""
    shape = tuple(operator.index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,)))
    if shape == a.shape:
        return a.copy() if copy else a
    if copy is False:
        raise ValueError("an array of ours cannot be reshaped without a copy. Leave out copy=False")
    if a.size >= 2**63:
        raise ValueError(f"reshape numbers the places in 64 bits; shape {a.shape} has more. Use A.tocoo()")
    if len(shape) != 2:
        return borrowed.call(a, np.reshape, a, shape, **({} if order == "C" else {"order": order}))
    csr = coercion.move(a._canonical_csr(), devices.CPU)
    reshaped = coercion._with_index_dtype(devices.CPU.backend("taking").reshaped(csr, shape, order))
    return a._like(coercion.move(reshaped, a._target))


def squeeze(a: Any, axis: Any = None) -> Any:
    """The array itself, or without axes of length 1 what is left: a dense vector, or a scalar."""
    ones = [k for k, n in enumerate(a.shape) if n == 1]
    axes = ones if axis is None else [axis_number(k) for k in np.atleast_1d(axis).tolist()]
    for k in axes:
        if a.shape[k] != 1:
            raise ValueError(f"cannot select an axis to squeeze out which has size not equal to one; got axis {k} of {a.shape}")
    return indexing.getitem(a, tuple(0 if k in axes else slice(None) for k in (0, 1)))


def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """The array rotated by `k` times 90 degrees, from the first of `axes` towards the second."""
    first, second = (axis_number(axis) for axis in axes)
    if first == second:
        raise ValueError(f"axes must differ; got {axes}")
    k = operator.index(k) % 4 if first == 0 else -operator.index(k) % 4
    backwards = slice(None, None, -1)
    if k == 2:
        return m[::-1, ::-1]
    return m if k == 0 else indexing.getitem(m.T, (backwards, slice(None)) if k == 1 else (slice(None), backwards))


def matrix_power(a: Any, n: int) -> Any:
    """The product of `n` factors `a`, a square matrix; `n` is at least 1."""
    from scipy.sparse.linalg import matrix_power

    if operator.index(n) < 1:
        raise TypeError(f"a power of a sparse array must be at least 1; got {n}. Use scipy.sparse.linalg with A.tocsc()")
    return matrix_power(a, n)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Panels of rows (``axis=0``) or of columns, as NumPy cuts them."""
    return _panels(ary, np.array_split, indices_or_sections, axis)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """:func:`array_split` into panels of one size."""
    return _panels(ary, np.split, indices_or_sections, axis)


def _panels(array: Any, cut: Any, indices_or_sections: Any, axis: int) -> list[Any]:
    axis = axis_number(axis)
    parts = cut(np.arange(array.shape[axis]), indices_or_sections)
    ranges = [slice(int(part[0]), int(part[-1]) + 1) if part.size else slice(0, 0) for part in parts]
    return [indexing.getitem(array, chosen if axis == 0 else (slice(None), chosen)) for chosen in ranges]
