"""What the current device has, and what it can do."""

from __future__ import annotations

from functools import cache

import cupy

from ..core.profile import Profile


@cache
def _attributes(device: int) -> dict[str, int]:
    """CuPy asks the driver for all of them each time, which takes longer than a small solve."""
    found: dict[str, int] = cupy.cuda.Device(device).attributes
    return found


def attribute(name: str) -> int:
    """Of the current device: what CuPy's ``Device.attributes`` has under this name."""
    return _attributes(cupy.cuda.runtime.getDevice())[name]


def profile() -> Profile:
    """What models know of the current device."""
    return Profile.of(_attributes(cupy.cuda.runtime.getDevice()))


def processors() -> int:
    """Multiprocessors of the current device."""
    return attribute("MultiProcessorCount")


def architecture() -> int:
    """Of the current device: 90 is sm_90."""
    return int(cupy.cuda.Device().compute_capability)


def has_copy_engine() -> bool:
    """Can it copy whole tables there by one instruction, as ``kernels/copies.cuh`` does?"""
    return architecture() >= 90
