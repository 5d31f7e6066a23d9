"""Values in few bytes on the GPU: how kernels take them, whichever way they are stored. See ``kernels/values.cuh``."""

from __future__ import annotations

import cupy
import numpy as np

from .compiler import Coded


def kind(table: cupy.ndarray, distinct: cupy.ndarray | None) -> np.dtype | Coded:
    """What kernels are instantiated for: the dtype of the values where every slot has its own.

    `table` and `distinct` are a matrix's value table and what it stands for: see :mod:`cvrarray.core.tables`. Values in a
    narrower dtype need no kernels of their own, as all products widen.
    """
    if not is_coded(distinct):
        return table.dtype
    return Coded("One" if is_one(distinct) else "Few", distinct.dtype)


def fields(table: cupy.ndarray, distinct: cupy.ndarray | None) -> tuple[cupy.ndarray | int, ...]:
    """The kernels' structure ``Values``."""
    if not is_coded(distinct):
        return (table,)
    return (table, distinct) if is_one(distinct) else (table, distinct, distinct.size)


def different(table: cupy.ndarray, distinct: cupy.ndarray | None) -> cupy.ndarray:
    """An array with each of the values at least once."""
    return distinct if is_coded(distinct) else table


def is_coded(distinct: cupy.ndarray | None) -> bool:
    """Does the value table hold numbers of distinct values, or nothing?"""
    return distinct is not None and distinct.size > 0


def is_one(distinct: cupy.ndarray | None) -> bool:
    """Are all values one, so that slots hold nothing?"""
    return distinct is not None and distinct.size == 1
