"""The device's memory."""

from __future__ import annotations

from functools import cache

import cupy


def installed() -> int:
    """Bytes of memory of the current device."""
    return _installed(cupy.cuda.runtime.getDevice())


@cache
def _installed(device: int) -> int:
    total: int = cupy.cuda.Device(device).mem_info[1]
    return total
