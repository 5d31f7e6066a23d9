"""The device's memory."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import cupy
import numpy as np

ALIGNED = 256  #: bytes: where each of several arrays in one piece of memory begins


def installed() -> int:
    """Bytes of memory of the current device."""
    return _installed(cupy.cuda.runtime.getDevice())


def free(device: int) -> int:
    """Bytes that CuPy may still allocate on a device: free there or in its pool, and under the pool's limit."""
    with cupy.cuda.Device(device):
        pool = cupy.get_default_memory_pool()
        found, limit = int(cupy.cuda.runtime.memGetInfo()[0]) + int(pool.free_bytes()), int(pool.get_limit())
        return min(found, limit - int(pool.used_bytes())) if limit else found


def together(*of: tuple[int | tuple[int, ...], Any]) -> list[cupy.ndarray]:
    """Uninitialised arrays of these shapes and dtypes in one piece of memory, which lives as long as one of them.

    Asking for memory takes the host longer than making an array.
    """
    shapes = [shape if isinstance(shape, tuple) else (shape,) for shape, _ in of]
    begins, end = [], 0
    for shape, (_, dtype) in zip(shapes, of, strict=True):
        begins.append(end)
        end += -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNED) * ALIGNED
    piece = cupy.cuda.alloc(end)
    return [cupy.ndarray(shape, dtype, piece + begin) for shape, (_, dtype), begin in zip(shapes, of, begins, strict=True)]


def leading(array: cupy.ndarray, n: int) -> cupy.ndarray:
    """``array[:n]`` of a contiguous array of one dimension: a slice takes the host several times as long."""
    return cupy.ndarray((n,), array.dtype, array.data)


@cache
def _installed(device: int) -> int:
    total: int = cupy.cuda.Device(device).mem_info[1]
    return total
