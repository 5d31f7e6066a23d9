"""Arithmetic of one rank's part of the vectors: NumPy's, and a few fused kernels on a GPU.

Sums over all ranks are arrays ``(n_ranks,) float64`` on the device, with one partial sum from each rank. The functions
that use them add these in the order of ranks. So every rank and every run gets the same bits, with any transport.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..core import devices
from .transports import NullTransport, wait_for_device

THREADS = 1 << 18  #: of a GPU's kernels, for any length: a fixed grid adds in a fixed order; fills 128 multiprocessors
BLOCK_ELEMENTS = 1 << 16  #: elements that NumPy processes at a time, so that data read twice stay in a cache


def of(device: devices.Device, dtype: np.dtype) -> Vectors:
    """The arithmetic for vectors of a real or complex `dtype` on `device`."""
    return (Vectors if device.kind == "cpu" else DeviceVectors)(device, dtype)


class Vectors:
    """NumPy's. In what follows x, y, p, q, r are contiguous vectors of one length, and ``out`` is (1,) float64."""

    is_ahead = False  #: does the host start work before what was started is done?

    def __init__(self, device: devices.Device, dtype: np.dtype):
        self.xp, self.dtype = device.xp, np.dtype(dtype)
        self._real = self.dtype.type(0).real.dtype.type  # a float64 factor would widen float32 vectors

    def dot(self, x: Any, y: Any, out: Any) -> None:
        """``out = (conj(x) @ y).real``."""
        out[0] = np.vdot(x, y).real

    def update_solution(self, above: Any, below: Any, p: Any, q: Any, x: Any, r: Any, out: Any) -> None:
        """``a = sum(above) / sum(below); x += a p; r -= a q; out = conj(r) @ r``."""
        with np.errstate(all="ignore"):
            a = self._ratio(above, below)
            total = 0.0
            for k in range(0, x.size, BLOCK_ELEMENTS):
                part = slice(k, k + BLOCK_ELEMENTS)
                x[part] += a * p[part]
                r[part] -= a * q[part]
                total += np.vdot(r[part], r[part]).real
        out[0] = total

    def update_direction(self, above: Any, below: Any, r: Any, p: Any) -> None:
        """``p = r + sum(above) / sum(below) p``."""
        with np.errstate(all="ignore"):
            p *= self._ratio(above, below)
        p += r

    def _ratio(self, above: Any, below: Any) -> Any:
        """``sum(above) / sum(below)``; 0 where that is 0: iterations after the exact solution change nothing."""
        total = below.sum()
        return self._real(above.sum() / total if total != 0 else 0.0)

    def scale(self, squared: Any, x: Any, y: Any) -> None:
        """``y = x / sqrt(sum(squared))``."""
        np.multiply(x, self._real(1 / np.sqrt(squared.sum())), out=y)

    def read(self, *scalars: Any) -> Callable[[NullTransport], list[float]]:
        """A function that returns the sums of these arrays as they are now; call it after starting other work."""
        values = [float(array.sum()) for array in scalars]
        return lambda transport: values

    def pace(self, transport: NullTransport) -> None:
        """Call it in each iteration: it waits until what was started before the last call is done."""


class DeviceVectors(Vectors):
    """CuPy's, one kernel for each operation."""

    is_ahead = True

    def __init__(self, device: devices.Device, dtype: np.dtype):
        super().__init__(device, dtype)
        self._partial = self.xp.empty(THREADS)
        self._rows = self.xp.empty(512)
        self._event, self._before, self._now = (self.xp.cuda.Event(disable_timing=True) for _ in range(3))

    def dot(self, x: Any, y: Any, out: Any) -> None:
        """See :class:`Vectors`."""
        _kernel("dot")(x, y, x.size, self._partial, size=THREADS)
        self._sum(out)

    def update_solution(self, above: Any, below: Any, p: Any, q: Any, x: Any, r: Any, out: Any) -> None:
        """See :class:`Vectors`."""
        _kernel("update_solution")(above, below, above.size, p, q, x.size, x, r, self._partial, size=THREADS)
        self._sum(out)

    def update_direction(self, above: Any, below: Any, r: Any, p: Any) -> None:
        """See :class:`Vectors`."""
        _kernel("update_direction")(above, below, above.size, r, r.size, p, size=THREADS)

    def scale(self, squared: Any, x: Any, y: Any) -> None:
        """See :class:`Vectors`."""
        _kernel("scale")(squared, squared.size, x, x.size, y, size=THREADS)

    def read(self, *scalars: Any) -> Callable[[NullTransport], list[float]]:
        """See :class:`Vectors`: copied in stream order, so that the GPU continues while the host waits for them."""
        from cupyx import empty_pinned

        hosts = [empty_pinned(array.shape, array.dtype) for array in scalars]
        for array, host in zip(scalars, hosts, strict=True):
            array.get(out=host, blocking=False)
        self._event.record()

        def values(transport: NullTransport) -> list[float]:
            wait_for_device(self._event, transport)
            return [float(host.sum()) for host in hosts]

        return values

    def pace(self, transport: NullTransport) -> None:
        """See :class:`Vectors`. A launch that waits for room in a GPU's queue would never learn that a rank was lost."""
        self._before, self._now = self._now, self._before
        self._now.record()
        wait_for_device(self._before, transport)

    def _sum(self, out: Any) -> None:
        self._partial.reshape(512, -1).sum(axis=1, out=self._rows)
        self._rows.sum(axis=0, keepdims=True, out=out)


#: Real part of conj(x) y in double precision, a factor times a number, and a sum over ranks.
PREAMBLE = """
__device__ inline double product(double x, double y) { return x * y; }
template <class T> __device__ inline double product(const complex<T>& x, const complex<T>& y) {
    return double(x.real()) * double(y.real()) + double(x.imag()) * double(y.imag());
}
__device__ inline float scaled(double a, float x) { return float(a) * x; }
__device__ inline double scaled(double a, double x) { return a * x; }
template <class T> __device__ inline complex<T> scaled(double a, const complex<T>& x) {
    return complex<T>(T(a) * x.real(), T(a) * x.imag());
}
template <class S> __device__ inline double total(const S& parts, int count) {
    double sum = 0;
    for (int k = 0; k < count; ++k) sum += parts[k];
    return sum;
}
template <class S> __device__ inline double ratio(const S& above, const S& below, int count) {
    const double whole = total(below, count);
    return whole != 0 ? total(above, count) / whole : 0;
}
"""

#: Name -> inputs, outputs, code; thread i of _ind.size() takes every element j = i, i + _ind.size(), ...
KERNELS = {
    "dot": (
        "raw T x, raw T y, int64 length",
        "raw float64 partial",
        """
        double sum = 0;
        for (long long j = i; j < length; j += _ind.size()) sum += product(x[j], y[j]);
        partial[i] = sum;
        """,
    ),
    "update_solution": (
        "raw float64 above, raw float64 below, int32 ranks, raw T p, raw T q, int64 length",
        "raw T x, raw T r, raw float64 partial",
        """
        const double a = ratio(above, below, ranks);
        double sum = 0;
        for (long long j = i; j < length; j += _ind.size()) {
            x[j] = x[j] + scaled(a, p[j]);
            const T left = r[j] - scaled(a, q[j]);
            r[j] = left;
            sum += product(left, left);
        }
        partial[i] = sum;
        """,
    ),
    "update_direction": (
        "raw float64 above, raw float64 below, int32 ranks, raw T r, int64 length",
        "raw T p",
        """
        const double b = ratio(above, below, ranks);
        for (long long j = i; j < length; j += _ind.size()) p[j] = r[j] + scaled(b, p[j]);
        """,
    ),
    "scale": (
        "raw float64 squared, int32 ranks, raw T x, int64 length",
        "raw T y",
        """
        const double factor = 1 / sqrt(total(squared, ranks));
        for (long long j = i; j < length; j += _ind.size()) y[j] = scaled(factor, x[j]);
        """,
    ),
}


@cache
def _kernel(name: str) -> Any:
    inputs, outputs, code = KERNELS[name]
    return devices._cuda_module().ElementwiseKernel(inputs, outputs, code, f"cvrarray_{name}", preamble=PREAMBLE)
