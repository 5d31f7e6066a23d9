"""The arithmetic of vectors for the methods: ``kernels/vectors.cu``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import cupy
import numpy as np

from cvrarray.core import devices
from cvrarray.gpu.compiler import Kernel
from cvrarray.gpu.streams import PerStream
from cvrarray.linalg.gpu.layout import VECTORS, Layout

DOT = Kernel(
    "vectors",
    "vectors_dot",
    [(dtype, "float64", root) for (dtype,) in VECTORS for root in (False, True)]
    + [(dtype, "complex128", False) for dtype in ("complex64", "complex128")],
)
COMBINE = Kernel(
    "vectors",
    "vectors_combine",
    [(dtype, "float64", "float64") for (dtype,) in VECTORS]
    + [
        (dtype, *factors)
        for dtype in ("complex64", "complex128")
        for factors in (("complex128", "float64"), ("float64", "complex128"), ("complex128", "complex128"))
    ],
)

#: Dtypes of the blocks and of the vectors.
TIMES_BLOCKS = Kernel(
    "vectors",
    "vectors_blocks",
    [
        pair
        for narrow, wide in (("float32", "float64"), ("complex64", "complex128"))
        for pair in ((narrow, narrow), (wide, wide), (narrow, wide), (wide, narrow))
    ]
    + [("float64", "complex128"), ("float32", "complex64")],
)


@lru_cache(maxsize=256)
def _layout(_device: int, n: int, k: int) -> Layout:
    return Layout.of(n, k)


def norms(x: cupy.ndarray) -> np.ndarray:
    """(k,) Euclidean norms of a contiguous vector (n,) or (n, k), in host memory; not for squares that overflow."""
    k = 1 if x.ndim == 1 else x.shape[1]
    found, layout = cupy.empty(k), _layout(cupy.cuda.runtime.getDevice(), len(x), k)
    layout.launch(DOT(x.dtype, found.dtype, True), (layout.partials(), x, x, found))
    in_host_memory: np.ndarray = found.get()
    return in_host_memory


def times_blocks(blocks: cupy.ndarray, x: cupy.ndarray, out: cupy.ndarray) -> None:
    """``out = M @ x`` for the block-diagonal M of `blocks` (n_blocks, size, size), whose last one may reach beyond x; x and
    out are contiguous, (n,) or (n, k). Takes no memory, so that CUDA graphs may hold it, unless out is x.
    """
    if not x.size:
        return
    if devices.of(x).may_share_memory(x, out):
        x = x.copy()
    layout = _layout(cupy.cuda.runtime.getDevice(), len(x), 1 if x.ndim == 1 else x.shape[1])
    layout.launch(TIMES_BLOCKS(blocks.dtype, x.dtype), (blocks, np.int32(blocks.shape[1]), x, out))


def chebyshev_turn(inverse: cupy.ndarray, like: cupy.ndarray) -> Callable[..., None]:
    """``turn(old, new, is_first, b, product, d, x)`` for vectors or matrices like this one."""
    scale = (inverse if like.ndim == 1 else inverse[:, None]).astype(like.real.dtype)
    step = cupy.ElementwiseKernel(
        "S s, T old, T new_, bool first, T b, T product, T d0, T x0",
        "T d, T x",
        "T t = s * (first ? b : b - product) * new_; if (old != T(0)) t += old * d0; d = t; x = first ? t : x0 + t;",
        "cvrarray_chebyshev_turn",
    )
    number = like.dtype.type
    return lambda old, new, is_first, b, product, d, x: step(scale, number(old), number(new), is_first, b, product, d, x, d, x)


#: Steps of :func:`lanczos`: ``new = root product - beta old``, ``new -= alpha x``, ``x = new / beta; scaled = root x``.
STEP = cupy.ElementwiseKernel(
    "S root, raw R beta, T old, T product", "T to", "to = root * product - T(beta[0]) * old", "cvrarray_lanczos_step"
)
DESCEND = cupy.ElementwiseKernel("raw R alpha, T x, T new0", "T to", "to = new0 - T(alpha[0]) * x", "cvrarray_lanczos_descend")
UNIT = cupy.ElementwiseKernel(
    "S root, raw R beta, T new0", "T x, T scaled", "x = new0 * T(1 / beta[0]); scaled = root * x", "cvrarray_lanczos_unit"
)


SCATTERED = cupy.ElementwiseKernel(
    "",
    "float64 x",
    """
    unsigned long long h = (i + 1) * 0x9E3779B97F4A7C15ull;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ h >> 27) * 0x94D049BB133111EBull;
    x = (h >> 11) * (1.0 / (1ull << 52)) - 1;
    """,
    "cvrarray_scattered",
)


def scattered(n: int) -> cupy.ndarray:
    """(n,) float64 in [-1, 1): the same numbers as :func:`cvrarray.linalg.cpu.vectors.scattered`."""
    return SCATTERED(cupy.empty(n))


def lanczos(multiply: Callable[[Any, Any], Any], root: cupy.ndarray, x: cupy.ndarray, steps: int) -> np.ndarray:
    """(steps, 2) the diagonal, and beside it, of Lanczos' tridiagonal matrix for ``root A root``, from x on, which is
    overwritten; ``multiply(x, out)`` is by A. What follows a 0 beside the diagonal means nothing. It waits once, at the end.
    """
    v, found = DeviceVectors(devices.of(x), x.shape, x.dtype), []
    old, scaled, product, new, beta = v.zeros(), v.empty(), v.empty(), x.copy(), v.norm(x)
    UNIT(root, beta, new, x, scaled)
    beta = v.constant(0)
    for _ in range(steps):
        multiply(scaled, product)
        STEP(root, beta, old, product, new)
        alpha = v.real_dot(x, new)
        DESCEND(alpha, x, new, new)
        beta = v.norm(new)
        found += [alpha, beta]
        old, x = x, old
        UNIT(root, beta, new, x, scaled)
    return v.host(cupy.concatenate(found)).reshape(-1, 2)


class DeviceVectors:
    """Arithmetic of vectors (n,), or (n, k) for k systems at once: one kernel for each sum or combination.

    A scalar is an array (k,) on the device, (1,) for vectors (n,), in double precision. Sums are in double precision and in
    a fixed order.
    """

    def __init__(self, device: devices.Device, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.real = np.dtype(self.dtype.type(0).real.dtype)
        self.scalar = np.dtype(np.complex128 if self.dtype.kind == "c" else np.float64)
        self.columns = 1 if len(shape) == 1 else shape[1]
        with device.use():
            self._layout = Layout.of(shape[0], self.columns)
        self._partials = PerStream(self._layout.partials)

    def empty(self) -> cupy.ndarray:
        """An uninitialised vector."""
        return cupy.empty(self.shape, self.dtype)

    def zeros(self) -> cupy.ndarray:
        """A vector of zeros."""
        return cupy.zeros(self.shape, self.dtype)

    def constant(self, value: float) -> cupy.ndarray:
        """The same scalar for each column."""
        return cupy.full(self.columns, float(value))

    def host(self, a: cupy.ndarray) -> np.ndarray:
        """A scalar as numbers (k,) in host memory."""
        found: np.ndarray = devices.move(a, devices.CPU)
        return found

    def _sum(self, x: cupy.ndarray, y: cupy.ndarray, result: np.dtype, root: bool = False) -> cupy.ndarray:
        found = cupy.empty(self.columns, result)
        if self.columns:
            self._layout.launch(DOT(self.dtype, result, root), (self._partials.get(), x, y, found))
        return found

    def dot(self, x: cupy.ndarray, y: cupy.ndarray) -> cupy.ndarray:
        """``x^H y`` of each column."""
        return self._sum(x, y, self.scalar)

    def real_dot(self, x: cupy.ndarray, y: cupy.ndarray) -> cupy.ndarray:
        """The real part of ``x^H y``."""
        return self._sum(x, y, np.dtype(np.float64))

    def norm(self, x: cupy.ndarray) -> cupy.ndarray:
        """The Euclidean norm of each column."""
        return self._sum(x, x, np.dtype(np.float64), root=True)

    def combine(self, a: Any, x: cupy.ndarray, b: Any, y: cupy.ndarray, out: cupy.ndarray) -> None:
        """``out = a x + b y``; out may be x or y, and what is multiplied by 0 counts as 0."""
        a, b = (self._scalar(factor) for factor in (a, b))
        if self.columns:
            self._layout.launch(COMBINE(self.dtype, a.dtype, b.dtype), (a, x, b, y, out))

    def _scalar(self, a: Any) -> cupy.ndarray:
        """A factor for each column, in double precision."""
        a = cupy.asarray(a)
        return cupy.ascontiguousarray(cupy.broadcast_to(a, self.columns), np.complex128 if a.dtype.kind == "c" else np.float64)
