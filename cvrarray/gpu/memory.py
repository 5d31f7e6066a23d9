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
    """Bytes that can be allocated on a device: those of the driver, and those that CuPy's pool holds unused."""
    with cupy.cuda.Device(device):
        return int(cupy.cuda.runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())


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
