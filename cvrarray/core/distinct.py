"""Values in few bytes: what both devices' detection shares. How they are stored is in :mod:`.tables`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .tables import Array

#: Different values that 8-bit numbers tell apart.
MOST = 256

#: dtype -> the narrower one in which its values may be stored, where all of them are exactly that.
NARROWER: dict[Any, np.dtype] = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}

CHOICES = ("auto", "plain")


def arranged(values: np.ndarray) -> np.ndarray | None:
    """The table ``distinct`` for a matrix with these values, which differ in their bits; None where there is none.

    Its first element is what pads and holes are taken for, which are multiplied by 0. The product must be +0, as that
    with a stored 0 is: so it is +0, added where it is not among the values, or, where the table has no room, a finite
    value with no sign bit. One value is a table by itself where it may stand first.

    Parameters
    ----------
    values : (n,) array in host memory, n from 1 to MOST

    Examples
    --------
    >>> from cvrarray.core.distinct import arranged
    >>> arranged(np.array([3.0])), arranged(np.array([-3.0])), arranged(np.array([2.0, 0.0, 1.0]))
    (array([3.]), array([ 0., -3.]), array([0., 2., 1.]))
    """
    if values.size == 1 and may_stand_first(values[0]):
        return values
    is_zero = ~values.view(np.uint8).reshape(values.size, -1).any(axis=1)  # +0 alone has no bit set
    if is_zero.any():
        return np.concatenate([values[is_zero], values[~is_zero]])
    if values.size < MOST:
        return np.concatenate([np.zeros(1, values.dtype), values])
    for number, value in enumerate(values):
        if may_stand_first(value):
            return np.concatenate([values[number:], values[:number]])
    return None


def may_stand_first(value: Any) -> bool:
    """Whether 0 times `value` is +0, in both parts of a complex number.

    Examples
    --------
    >>> from cvrarray.core.distinct import may_stand_first
    >>> may_stand_first(np.float32(2)), may_stand_first(np.float64(-0.0)), may_stand_first(np.complex128(complex(1, np.inf)))
    (True, False, False)
    """
    if value.dtype.kind not in "fc":
        return True
    return all(bool(np.isfinite(part)) and not bool(np.signbit(part)) for part in (value.real, value.imag))


def is_zero_first(distinct: Array) -> bool:
    """Whether numbers of pads and holes, which are 0, stand for 0.

    Examples
    --------
    >>> from cvrarray.core.distinct import is_zero_first
    >>> is_zero_first(np.array([0.0, 2.0])), is_zero_first(np.array([2.0]))
    (True, False)
    """
    return bool(distinct.size > 1 and distinct[0] == 0)


def pads_with_zero(distinct: Array | None) -> bool:
    """Whether what fills pads and holes means 0: a stored 0, or a number of 0.

    Examples
    --------
    >>> from cvrarray.core.distinct import pads_with_zero
    >>> pads_with_zero(None), pads_with_zero(np.empty(0)), pads_with_zero(np.array([2.0]))
    (True, True, False)
    """
    return distinct is None or not distinct.size or is_zero_first(distinct)


def described(distinct: Array | None) -> str:
    """How a matrix with this table ``distinct`` stores its values, in a few words.

    Examples
    --------
    >>> from cvrarray.core.distinct import described
    >>> described(None), described(np.array([1.0])), described(np.empty(0)), described(np.arange(3.0))
    ('plain', 'one value', 'as float32', '8-bit numbers of a table of 3')
    """
    if distinct is None:
        return "plain"
    if distinct.size == 0:
        return f"as {NARROWER[np.dtype(distinct.dtype)]}"
    return "one value" if distinct.size == 1 else f"8-bit numbers of a table of {distinct.size}"
