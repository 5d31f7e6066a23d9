"""The device's memory."""

from __future__ import annotations

from functools import cache

import cupy


def installed() -> int:
    """Bytes of memory of the current device."""
    return _installed(cupy.cuda.runtime.getDevice())


def free(device: int) -> int:
    """Bytes that can be allocated on a device: those of the driver, and those that CuPy's pool holds unused."""
    with cupy.cuda.Device(device):
        return int(cupy.cuda.runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())


@cache
def _installed(device: int) -> int:
    total: int = cupy.cuda.Device(device).mem_info[1]
    return total
