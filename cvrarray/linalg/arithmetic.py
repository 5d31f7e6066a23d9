"""The arithmetic of vectors of each device: see :class:`cvrarray.linalg.vectors.Vectors`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import devices
from .vectors import Vectors


def of(device: devices.Device, shape: tuple[int, ...], dtype: np.dtype) -> Vectors:
    """The arithmetic for vectors of this shape and dtype."""
    kind: Any = Vectors
    if device.kind == "cuda":
        from .gpu.vectors import DeviceVectors as kind
    elif len(shape) == 1:
        from .cpu.vectors import ThreadedVectors as kind
    elif dtype.kind != "c" and shape[1]:
        from .cpu.vectors import ThreadedColumns as kind
    found: Vectors = kind(device, shape, dtype)
    return found
