"""Arithmetic of vectors on a device, as the methods need it: here NumPy's, a GPU's in :mod:`.gpu.vectors`.

A vector is (n,), or (n, k) for k systems at once. A scalar is an array (k,) on the vectors' device, (1,) for vectors
(n,), in double precision. Sums are in double precision and in a fixed order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import devices


class Vectors:
    """The arithmetic for one system; what is written with ``xp`` is a GPU's too."""

    def __init__(self, device: devices.Device, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.device, self.xp, self.shape, self.dtype = device, device.xp, shape, np.dtype(dtype)
        self.real = np.dtype(self.dtype.type(0).real.dtype)
        self.scalar = np.dtype(np.complex128 if self.dtype.kind == "c" else np.float64)
        self.columns = 1 if len(shape) == 1 else shape[1]

    def empty(self) -> Any:
        """An uninitialised vector."""
        return self.xp.empty(self.shape, self.dtype)

    def zeros(self) -> Any:
        """A vector of zeros."""
        return self.xp.zeros(self.shape, self.dtype)

    def constant(self, value: float) -> Any:
        """The same scalar for each column."""
        return self.xp.full(self.columns, float(value))

    def load(self, numbers: np.ndarray) -> Any:
        """Numbers (k,) in host memory as a scalar."""
        return self.xp.asarray(numbers)

    def host(self, a: Any) -> np.ndarray:
        """A scalar as numbers (k,) in host memory."""
        found: np.ndarray = devices.move(a, devices.CPU)
        return found

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """`a` or `b`."""
        return self.xp.where(condition, a, b)

    def sqrt(self, a: Any) -> Any:
        """The square root of a scalar."""
        return self.xp.sqrt(a)

    def is_finite(self, a: Any) -> Any:
        """Neither nan nor inf."""
        return self.xp.isfinite(a)

    def dot(self, x: Any, y: Any) -> Any:
        """``x^H y`` of each column."""
        left = x.conj() if self.dtype.kind == "c" else x
        return np.atleast_1d(np.multiply(left, y, dtype=self.scalar).sum(axis=0))

    def real_dot(self, x: Any, y: Any) -> Any:
        """The real part of ``x^H y``."""
        return self.dot(x, y).real

    def norm(self, x: Any) -> Any:
        """The Euclidean norm of each column."""
        return self.xp.sqrt(self.real_dot(x, x))

    def add(self, a: Any, x: Any, y: Any) -> None:
        """``y += a x``; where a is 0, y stays as it is, whatever x holds."""
        y += self._times(a, x)

    def combine(self, a: Any, x: Any, b: Any, y: Any, out: Any) -> None:
        """``out = a x + b y``; out may be x or y, and what is multiplied by 0 counts as 0."""
        np.add(self._times(a, x), self._times(b, y), out=out)

    def _times(self, a: Any, x: Any) -> Any:
        a = np.asarray(a)
        a = a.astype(self.dtype if a.dtype.kind == "c" else self.real)
        if (a == 1).all():
            return x
        product = a * x
        return product if a.all() else np.where(a != 0, product, self.dtype.type(0))
